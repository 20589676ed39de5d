"""The augmented system of accelerations and Lagrange multipliers.

D: row scales; K = [M, A^T D; D A, 0], in coordinates in which M has a diagonal near one; lambda: multipliers.
"""

import jax.numpy as jnp

from .._linalg import finer, pseudoinverse
from ._base import AbstractPseudoinverseFormulation
from ._linear import SingularMass
from ._problem import with_singular_mass


class LagrangeMultiplier(AbstractPseudoinverseFormulation):
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

    def _problem(self, terms):
        return with_singular_mass(terms, loss=16.0)  # multipliers of nearly dependent rows are large, and cancel

    def _map(self, problem, solver, repeatedly):
        M, scaled = problem.mass, problem.H
        m, n = scaled.shape
        lower = jnp.concatenate([scaled, jnp.zeros((m, m), M.dtype)], axis=1)
        augmented = jnp.concatenate([jnp.concatenate([M, scaled.T], axis=1), lower])
        K, total = pseudoinverse(finer(solver, M.dtype), augmented)
        _, rank = pseudoinverse(solver, scaled)
        return SingularMass(problem, K[:n, :n], K[:n, n:], rank, total == n + rank)
