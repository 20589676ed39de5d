"""The pseudoinverse by two QR factorisations.

B = U [G; 0] with independent rows in G; G^T = V^T [T; 0] with T invertible; B^+ = V^T [T^-T 0; 0 0] U^T.
"""

import equinox as eqx
from jaxtyping import Array

from .._base import AbstractPseudoinverse, rank_tolerance, tolerance, unit_scale
from .._batch import at_tolerance
from ._qr import householder, minimum_norm_solution


class Varga(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse by two Householder QR factorisations, the complete orthogonal decomposition.

    $B = U [G; 0]$ with column pivoting, so that the rows of G are independent; $G^\top = V^\top [T; 0]$;
    $B^+ = V^\top\,\mathrm{diag}(T^{-\top}, 0)\,U^\top$.

    Args:
        rtol: Rank test: the first factorisation stops when what is left of every column is at most `rtol` times the
            longest column. None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Varga (2001); de Falco et al. (2008), eq. 20 and 21. The paper does not say how G gets independent rows;
    that takes pivoting.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_solve, rank_tolerance(self.rtol, B.dtype))(B, Y)


def _solve(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
    scale = unit_scale(B)
    qr = householder(B * scale, Y * scale, rtol)
    return minimum_norm_solution(qr), qr.rank
