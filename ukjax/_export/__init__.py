"""Functions of a mechanism for other programs: C, objects, CasADi."""

from ._export import TO as TO
from ._export import export as export
from ._quantities import QUANTITIES as QUANTITIES
