"""The pseudoinverses of the papers, for comparison; one per file."""

from ._gram_schmidt_ls import GramSchmidtLS as GramSchmidtLS
from ._greville import Greville as Greville
from ._householder_ls import HouseholderLS as HouseholderLS
from ._varga import Varga as Varga
