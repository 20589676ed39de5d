"""The pseudoinverses of the papers, for comparison."""

from ._greville import Greville as Greville
from ._least_squares import GramSchmidtLS as GramSchmidtLS
from ._least_squares import HouseholderLS as HouseholderLS
from ._varga import Varga as Varga
