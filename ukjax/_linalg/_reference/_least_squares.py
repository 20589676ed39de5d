"""The pseudoinverse as a least-squares solution by QR factorisations."""

import functools as ft

import equinox as eqx

from .._base import AbstractPseudoinverse, rank_tolerance, tolerance
from .._batch import at_tolerance
from ._qr import householder, least_squares, modified_gram_schmidt


_by_householder = ft.partial(least_squares, householder)
_by_gram_schmidt = ft.partial(least_squares, modified_gram_schmidt)


class HouseholderLS(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse as a least-squares solution by Householder QR.

    The system $[\alpha I, B^\top; B, 0]\,[x; \lambda] = [0; y]$ is solved by QR with column pivoting; its x is $B^+ y$
    for any rank, and for contradictory rows.

    Args:
        rtol: Rank test: a singular value of B at or below about `rtol` times its largest entry counts as zero; the
            factorisation stops when the remainder of every column is at most `32 rtol**2` times the longest. None
            (default) is 1e-4 in float64 and 1e-3 in lower precision.

    The system is as large as rows and columns together; this strategy is for comparison.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: de Falco et al. (2008), eq. 16 to 18; alpha = 1 there.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_by_householder, rank_tolerance(self.rtol, B.dtype))(B, Y)


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
        return at_tolerance(_by_gram_schmidt, rank_tolerance(self.rtol, B.dtype))(B, Y)
