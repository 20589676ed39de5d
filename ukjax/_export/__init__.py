"""Functions of a mechanism for other programs: C, objects, CasADi, FMUs."""

from ._export import RUN as RUN
from ._export import TO as TO
from ._export import export as export
from ._further import QUANTITIES as QUANTITIES
