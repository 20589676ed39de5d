"""Functions of a mechanism for other programs: C, objects, WebAssembly, CasADi, FMUs, and live pages."""

from ._export import RUN as RUN
from ._export import TO as TO
from ._export import export as export
from ._further import QUANTITIES as QUANTITIES
from ._live import Live as Live
from ._live import live_module as live_module
