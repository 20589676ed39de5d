"""Functions as programs: with what they close over, and apart from a mesh of devices."""

from ._apart import apart as apart
from ._batch import in_batch as in_batch
from ._hoist import hoist as hoist
