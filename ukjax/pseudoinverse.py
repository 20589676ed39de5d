"""Pseudoinverses beside `ukjax.SVD`, the default; all of them are solvers for lineax too."""

from ._linalg import GramSchmidtLS as GramSchmidtLS
from ._linalg import Greville as Greville
from ._linalg import HouseholderLS as HouseholderLS
from ._linalg import Jacobi as Jacobi
from ._linalg import RowGramSchmidt as RowGramSchmidt
from ._linalg import Varga as Varga
