"""Parameter studies on disk, on one machine or on many."""

from ._design import DESIGNS as DESIGNS
from ._design import design_of as design_of
from ._design import parse as parse
from ._store import dataset as dataset
from ._store import opened as opened
from ._store import sweep_export as sweep_export
from ._sweep import Status as Status
from ._sweep import sweep as sweep
from ._sweep import sweep_status as sweep_status
