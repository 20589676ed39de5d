"""The pseudoinverse as the solution of the least-squares system, by any QR factorisation.

x = B^+ y minimises |B x - y| and, among those, |x|. Both conditions together are the equations of de Falco et al.
(2008), eq. 18,

    [ alpha I  B^T ] [ x      ]   [ 0 ]
    [    B      0  ] [ lambda ] = [ y ],        to be solved in the sense of least squares.

Its x is unique, whatever the rank of B and whether y is consistent or not: alpha x = -B^T lambda puts x into the row
space, where |B x - y| has one minimum, and both residuals are as small as they can be. Where the paper changes to B^T B
x = B^T y for m > n (eq. 16), which needs independent columns, the same equations still serve. Only lambda is not
unique; here it is that of least norm, because the directions that the rank test drops depend a little on the choice.

alpha, which the paper has as 1, changes lambda only. A singular value s of B makes eigenvalues near s and, if s is
small, s^2 / alpha, so that a small alpha helps where s is small and harms where y is not consistent; 2^-5 is a
compromise. As in the paper, the system is solved for every unit vector; with B^+ at hand, one step of iterative
refinement is nearly free.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from .._base import unit_scale
from ._qr import QR, minimum_norm_solution


def least_squares(factorise: Callable[[Array, Array, float], QR], rtol: float, B: Array, Y: Array):
    """Returns B^+ Y and the rank, for a batch-last B and Y."""
    m, n, size = B.shape
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    alpha = 2.0**-5
    identity = jnp.broadcast_to(alpha * jnp.eye(n, dtype=B.dtype)[..., None], (n, n, size))
    none = jnp.zeros((m, m, size), B.dtype)
    upper = jnp.concatenate([identity, jnp.swapaxes(B, 0, 1)], axis=1)
    K = jnp.concatenate([upper, jnp.concatenate([B, none], axis=1)])
    unit = jnp.broadcast_to(jnp.eye(m, dtype=B.dtype)[..., None], (m, m, size))
    right = jnp.concatenate([jnp.zeros((n, m, size), B.dtype), unit])
    eps = float(jnp.finfo(B.dtype).eps)
    qr = factorise(K, right, max(rtol**2 / alpha, 4 * (m + n) * eps))
    P = minimum_norm_solution(qr)[:n]
    apply = lambda Y: jnp.sum(P[:, :, None] * Y[None], axis=1)
    X = apply(Y)
    # The step is repeated for the residual: the system squares the condition number, and this corrects the error.
    left = Y - jnp.sum(B[:, :, None] * X[None], axis=1)
    return X + apply(left), qr.rank - n
