"""Pseudoinverse strategies: lineax solvers that report the rank they found. One per file."""

from ._base import AbstractDecomposition as AbstractDecomposition
from ._base import AbstractPseudoinverse as AbstractPseudoinverse
from ._base import new_rows as new_rows
from ._base import power_of_two as power_of_two
from ._base import rank_tolerance as rank_tolerance
from ._base import rank_tolerance_of as rank_tolerance_of
from ._batch import at_tolerance as at_tolerance
from ._batch import in_tiles as in_tiles
from ._batch import one_at_a_time as one_at_a_time
from ._jacobi import Jacobi as Jacobi
from ._reference import GramSchmidtLS as GramSchmidtLS
from ._reference import Greville as Greville
from ._reference import HouseholderLS as HouseholderLS
from ._reference import Varga as Varga
from ._row_gram_schmidt import RowGramSchmidt as RowGramSchmidt
from ._rule import with_derivative as with_derivative
from ._seldom import Seldom as Seldom
from ._seldom import finer as finer
from ._seldom import only_where as only_where
from ._solve import pseudoinverse as pseudoinverse
from ._solve import pseudoinverse_at as pseudoinverse_at
from ._solve import pseudosolve as pseudosolve
from ._solve import pseudosolve_at as pseudosolve_at
from ._svd import SVD as SVD
from ._whiten import whiten as whiten
from ._whiten import whiten_first as whiten_first
