"""Functions of a mechanism for other programs: C, objects, CasADi, WebAssembly, and live pages."""

from ._export import TO as TO
from ._export import export as export
from ._live import Live as Live
from ._live import live_module as live_module
from ._quantities import QUANTITIES as QUANTITIES
