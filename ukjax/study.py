"""Parameter studies on disk: scenarios, the values that they vary, and results that survive interruption."""

from ._coordinate import Coordinate as Coordinate
from ._scenario import Drawing as Drawing
from ._scenario import Scenario as Scenario
from ._sweep import sweep as sweep
from ._sweep import sweep_export as sweep_export
from ._sweep import sweep_status as sweep_status
