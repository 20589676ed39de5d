"""The constraint manifold: the nearest consistent state, at the start and after a step."""

from ._assemble import Assembly as Assembly
from ._assemble import Rounding as Rounding
from ._assemble import assemble as assemble
from ._assemble import exact as exact
from ._assemble import indices_of as indices_of
from ._assemble import kept_of as kept_of
from ._assemble import root as root
from ._projection import ConstraintSizes as ConstraintSizes
from ._projection import Linearisation as Linearisation
from ._projection import Projection as Projection
