"""The augmented system of accelerations and Lagrange multipliers.

D: row scales; s: scale of M; K = [s M, A^T D; D A, 0]; lambda: multipliers.
"""

import jax.numpy as jnp
import lineax as lx

from .._linalg import SVD, pseudoinverse
from .._mechanism import Terms
from ._base import (
    AbstractFormulation,
    Linear,
    Motion,
    check_fields,
    motion,
    row_scales,
    singular_mass,
    unconstrained,
    unit_size,
    with_tolerance,
)


class LagrangeMultiplier(AbstractFormulation):
    r"""$\begin{bmatrix} M & A^\top \\ A & 0 \end{bmatrix} \begin{bmatrix} \ddot q \\ -\lambda \end{bmatrix} =
    \begin{bmatrix} Q \\ b \end{bmatrix}$, by a pseudoinverse.

    Args:
        pseudoinverse: The lineax solver for the augmented system, with the square of its rank tolerance if it is one of
            ours, and for the rank of A.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant, which makes the multipliers ambiguous but not the acceleration. That is
    unique if the rank of the augmented matrix is n plus the rank of A; where it is not, `result` is
    `acceleration_not_unique` and the acceleration the least-norm one. Here to be compared with: the usual way, by
    solving rather than by a pseudoinverse, fails on a redundant row.

    Source: de Falco et al. (2008), eq. 23; Xu & Liu (2017), eq. 10.
    """

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        check_fields(self.pseudoinverse, self.consistency_rtol)

    def solve(self, terms: Terms) -> Motion:
        return motion(terms, self._linear, self.consistency_rtol)

    def _linear(self, M, Q, A, again):
        n, m = M.shape[0], A.shape[0]
        D, s = row_scales(A), unit_size(M)
        scaled = D[:, None] * A
        finer = with_tolerance(self.pseudoinverse, lambda rtol: rtol**2, M.dtype)
        lower = jnp.concatenate([scaled, jnp.zeros((m, m), M.dtype)], axis=1)
        K, total = pseudoinverse(finer, jnp.concatenate([jnp.concatenate([s * M, scaled.T], axis=1), lower]))
        _, rank = pseudoinverse(self.pseudoinverse, scaled)

        def solve(force, b):
            acceleration = K[:n] @ jnp.concatenate([s * force, D * b])
            return acceleration, M @ acceleration - force, rank

        return Linear(
            solve=solve,
            unconstrained=unconstrained(M, Q),
            free=jnp.abs(A) @ (jnp.abs(K[:n, :n]) @ jnp.abs(s * Q)),
            scales=D,
            result=singular_mass(M, total == n + rank),
        )
