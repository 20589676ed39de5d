"""Motions whose constraints change: modes, events that end them, and impacts between them."""

from ._mode import Event as Event
from ._mode import Impact as Impact
from ._mode import Mode as Mode
from ._simulate_hybrid import HybridTrajectory as HybridTrajectory
from ._simulate_hybrid import simulate_hybrid as simulate_hybrid
