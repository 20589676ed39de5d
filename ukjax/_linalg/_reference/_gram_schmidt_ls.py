"""The pseudoinverse as a least-squares solution by Gram-Schmidt QR."""

import functools as ft

import equinox as eqx

from .._base import AbstractPseudoinverse, rank_tolerance, tolerance
from .._batch import at_tolerance
from ._qr import least_squares, modified_gram_schmidt


_kernel = ft.partial(least_squares, modified_gram_schmidt)


class GramSchmidtLS(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse as a least-squares solution by modified Gram-Schmidt QR.

    The system of `HouseholderLS` is factorised by modified Gram-Schmidt with column pivoting. The right-hand side is
    orthogonalised like a further column; otherwise the method would lose digits.

    Args:
        rtol: Rank test, that of `HouseholderLS`. None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: de Falco et al. (2008), eq. 16 to 18; Bjorck (1967) on modified Gram-Schmidt.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_kernel, rank_tolerance(self.rtol, B.dtype))(B, Y)
