"""The formulation of Udwadia and Phohomsiri, for mass matrices that may be singular.

D: row scales; s: scale of M; E = I - (D A)^+ D A; K = [s E M; D A].
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


class UdwadiaPhohomsiri(AbstractFormulation):
    r"""$\ddot q = \begin{bmatrix} E M \\ A \end{bmatrix}^{+} \begin{bmatrix} E Q \\ b \end{bmatrix}$ with
    $E = I - A^+ A$.

    Args:
        pseudoinverse: The lineax solver for both pseudoinverses; for that of the stacked matrix with the square of its
            rank tolerance, if it is one of ours.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant. The acceleration is unique if the stacked matrix has rank n; where it is
    not, `result` is `acceleration_not_unique` and the acceleration the least-norm one.

    The paper writes Q for E Q, which gives the same; only with E is the system consistent, so that any generalised
    inverse serves. M is brought to size one, beside A.

    Source: Udwadia & Phohomsiri (2006); de Falco et al. (2008), eq. 42 and 43.
    """

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        check_fields(self.pseudoinverse, self.consistency_rtol)

    def solve(self, terms: Terms) -> Motion:
        return motion(terms, self._linear, self.consistency_rtol)

    def _linear(self, M, Q, A, again):
        n = M.shape[0]
        D, s = row_scales(A), unit_size(M)
        scaled = D[:, None] * A
        finer = with_tolerance(self.pseudoinverse, lambda rtol: rtol**2, M.dtype)
        P, rank = pseudoinverse(self.pseudoinverse, scaled)
        E = jnp.eye(n, dtype=M.dtype) - P @ scaled
        K, total = pseudoinverse(finer, jnp.concatenate([s * (E @ M), scaled]))

        def solve(force, b):
            acceleration = K @ jnp.concatenate([s * (E @ force), D * b])
            return acceleration, M @ acceleration - force, rank

        return Linear(
            solve=solve,
            unconstrained=unconstrained(M, Q),
            free=jnp.abs(A) @ (jnp.abs(K[:, :n]) @ jnp.abs(s * (E @ Q))),
            scales=D,
            result=singular_mass(M, total == n),
        )
