"""The augmented system of accelerations and Lagrange multipliers.

D: row scales; K = [M, A^T D; D A, 0], in coordinates in which M has a diagonal near one; lambda: multipliers.
"""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._linalg import SkipIfZero, finer, pseudoinverse
from .._types import Matrix, Rows
from ._base import AbstractPseudoinverseFormulation, SingularMass
from ._problem import inverse_powers, with_singular_mass


class LagrangeMultiplier(AbstractPseudoinverseFormulation):
    r"""$\begin{bmatrix} M & A^\top \\ A & 0 \end{bmatrix} \begin{bmatrix} \ddot q \\ -\lambda \end{bmatrix} =
    \begin{bmatrix} Q \\ b \end{bmatrix}$, by a pseudoinverse.

    Args:
        pseudoinverse: The lineax solver for the augmented system, with the square of its rank tolerance if it is a
            strategy of this library, and for the rank of A.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant, which makes the multipliers ambiguous but not the acceleration. The
    acceleration is unique if the rank of the augmented matrix is n plus the rank of A; where it is not, `result` is
    `acceleration_not_unique` and the acceleration the least-norm one. This formulation is for comparison: the usual
    method, which solves the system without a pseudoinverse, fails on a redundant row.

    Source: de Falco et al. (2008), eq. 23; Xu & Liu (2017), eq. 10.
    """

    def _problem(self, terms):
        return with_singular_mass(terms)

    def _map(self, problem, solver, repeatedly):
        M, H = problem.mass, problem.H
        m, n = H.shape
        # Rows may be independent only by a light mass; where they seem to contradict, that mass is not to matter.
        E = _by_rows(M, H) if isinstance(solver, SkipIfZero) else jnp.ones(n + m, M.dtype)
        lower = jnp.concatenate([H, jnp.zeros((m, m), M.dtype)], axis=1)
        augmented = E[:, None] * jnp.concatenate([jnp.concatenate([M, H.T], axis=1), lower]) * E[None]
        K, total = pseudoinverse(finer(solver, M.dtype), augmented)
        K = E[:, None] * K * E[None]
        _, rank = pseudoinverse(solver, augmented[n:, :n])
        return SingularMass(problem, K[:n, :n], K[:n, n:], rank, total == n + rank)


def _by_rows(M: Matrix, H: Rows) -> Array:
    """Returns scales E (n + m,) that bring M and the rows and columns of H in E K E to about one.

    E holds powers of two. The largest entry of M, and of each row and column of H, then is about one.
    """
    M, H = stop_gradient((jnp.abs(M), jnp.abs(H)))
    of_columns = inverse_powers(jnp.max(H, axis=0, initial=0.0))
    of_rows = inverse_powers(jnp.max(H * of_columns[None], axis=1, initial=0.0))
    s = inverse_powers(jnp.sqrt(jnp.max(of_columns[:, None] * M * of_columns[None], initial=0.0)))
    return jnp.concatenate([s * of_columns, of_rows / s])
