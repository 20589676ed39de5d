"""Motions that `ukjax.plan` finds."""

from ._plan import Curve as Curve
