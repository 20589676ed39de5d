"""Pseudoinverse strategies: lineax solvers that report the rank they found. One per file."""

from ._svd import SVD as SVD
