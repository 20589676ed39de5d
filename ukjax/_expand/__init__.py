"""Small programs as scalar code."""

from ._candidate import Candidate as Candidate
from ._candidate import Rows as Rows
from ._expand import MOST_OPERATIONS as MOST_OPERATIONS
from ._expand import Expanded as Expanded
from ._expand import Expansion as Expansion
from ._expand import expand as expand
from ._expand import short_program as short_program
from ._expand import with_constants_as_arguments as with_constants_as_arguments
from ._piece import AbstractBatchwise as AbstractBatchwise
from ._piece import Form as Form
from ._piece import exchanged as exchanged
from ._piece import traced as traced
from ._scalar import over_batch as over_batch
from ._scalar import size_of as size_of
from ._solved import Certain as Certain
from ._where_certain import motion_or as motion_or
from ._where_certain import where_certain as where_certain
