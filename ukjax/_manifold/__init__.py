"""The constraint manifold: the nearest consistent state, to start from and to return to."""

from ._assemble import assemble as assemble
from ._assembly import Assembly as Assembly
from ._projection import Projection as Projection
