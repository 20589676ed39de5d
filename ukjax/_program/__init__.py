"""Functions as programs: traced with what they close over, compiled fast, and kept outside of a mesh of devices."""

from ._compile import in_batch as in_batch
from ._compile import jit_fast_compile as jit_fast_compile
from ._compile import light_jit as light_jit
from ._compile import not_tracing as not_tracing
from ._outside_mesh import as_single_op as as_single_op
from ._outside_mesh import outside_mesh as outside_mesh
from ._plain import Packed as Packed
from ._plain import PlainCalls as PlainCalls
from ._plain import packed as packed
from ._substitute import Traced as Traced
from ._substitute import TreeStructure as TreeStructure
from ._substitute import called as called
from ._substitute import hoist as hoist
from ._substitute import shapes_of as shapes_of
from ._substitute import substituted as substituted
from ._substitute import traced as traced
from ._substitute import uses as uses
from ._substitute import with_constants_as_arguments as with_constants_as_arguments
from ._substitute import with_results as with_results
from ._unbatch import CALLS as CALLS
from ._unbatch import PLAIN_CALLS as PLAIN_CALLS
from ._unbatch import Parameters as Parameters
from ._unbatch import aval_of as aval_of
from ._unbatch import sizes_of_scan as sizes_of_scan
from ._unbatch import unbatch_lapack as unbatch_lapack
