"""Mechanisms of some dozens of coordinates: a dense M, factorised for many states at a time."""

from ._motion import panel_motion as panel_motion
from ._motion import panel_solve as panel_solve
