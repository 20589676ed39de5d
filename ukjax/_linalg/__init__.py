"""Pseudoinverse strategies: lineax solvers that report the rank they found. One per file."""

from ._solve import pseudoinverse as pseudoinverse
from ._solve import pseudosolve as pseudosolve
from ._svd import SVD as SVD
from ._whiten import whiten as whiten
