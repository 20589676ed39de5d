"""The pseudoinverse by two QR factorisations.

B = U [G; 0] with independent rows in G; G^T = V^T [T; 0] with T invertible; B^+ = V^T [T^-T 0; 0 0] U^T.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractPseudoinverse, rank_tolerance, tolerance, unit_scale
from ._batch import at_tolerance
from ._qr import householder, householder_in_order, reflect


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
    n, steps = B.shape[1], min(B.shape[:2])
    scale = unit_scale(B)
    first = householder(B * scale, Y * scale, rtol)
    second = householder_in_order(jnp.swapaxes(first.R, 0, 1), first.rank)

    def substitute(k, W):
        # T is upper triangular, its rows are those of second.R; G = T^T V.
        pivot = second.R[k, k]
        counts = k < first.rank
        known = jnp.sum(second.R[:, k][:, None] * W, axis=0)  # what is not known yet is zero in W
        return W.at[k].set((first.Z[k] - known) * jnp.where(counts, 1 / jnp.where(counts, pivot, 1), 0))

    W = jax.lax.fori_loop(0, steps, substitute, jnp.zeros_like(first.Z))
    X = jnp.pad(W, ((0, n - steps), (0, 0), (0, 0)))
    X = jax.lax.fori_loop(0, steps, lambda i, X: reflect(second.reflectors[steps - 1 - i], X), X)
    return X, first.rank
