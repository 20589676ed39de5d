"""Large mechanisms block by block: modules and constraints as the nodes of a graph, eliminated many at a time."""

from ._motion import Places as Places
from ._motion import block_motion as block_motion
from ._motion import places_of as places_of
