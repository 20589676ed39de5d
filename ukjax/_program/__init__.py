"""Functions as programs: traced with what they close over, compiled fast, and kept outside of a mesh of devices."""

from ._apart import apart as apart
from ._apart import as_one as as_one
from ._batch import in_batch as in_batch
from ._hoist import Traced as Traced
from ._hoist import hoist as hoist
from ._hoist import traced as traced
from ._light import is_plain as is_plain
from ._light import light_jit as light_jit
from ._light import lightly_compiled as lightly_compiled
from ._one_by_one import CALLS as CALLS
from ._one_by_one import PLAIN_CALLS as PLAIN_CALLS
from ._one_by_one import sizes_of_scan as sizes_of_scan
from ._packed import Packed as Packed
from ._packed import packed as packed
from ._shapes import shapes_of as shapes_of
from ._substitute import substituted as substituted
from ._uses import uses as uses
from ._wide import wide_options as wide_options
from ._wide import widely_compiled as widely_compiled
