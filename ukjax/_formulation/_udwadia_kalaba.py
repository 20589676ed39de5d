"""The Udwadia-Kalaba equation.

M = L L^T; W = L^-1; w = W Q; a = M^-1 Q = W^T w; B = A W^T; c: non-ideal force.
"""

import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient

from .._linalg import SVD, pseudosolve, whiten
from .._mechanism import Terms
from ._base import AbstractFormulation, Motion, consistency, verdict


class UdwadiaKalaba(AbstractFormulation):
    r"""$\ddot q = a + L^{-\top} B^+ (b - A a) + L^{-\top}(I - B^+ B)\,L^{-1} c$.

    The literature writes $M^{1/2}$ for L. Any root of M gives the same acceleration, because two roots differ by a
    rotation and the pseudoinverse commutes with it; and the Cholesky factor, unlike $M^{1/2}$ by eigenvalues, has a
    finite gradient where eigenvalues coincide.

    Args:
        pseudoinverse: The lineax solver that applies B^+; its rank test decides which rows are redundant.
        consistency_rtol: Constraints contradict each other when a row of A q'' = b is missed by more than this part
            of the size of its terms.

    Needs M > 0; rows may be redundant.

    Source: Udwadia & Kalaba (1992); Zhao et al. (2018), eq. 36; non-ideal force: Liu et al. (2015), eq. 12 and 13.
    """

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def solve(self, terms: Terms) -> Motion:
        M, Q, A, b = terms.M, terms.Q, terms.A, terms.b
        finite = stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in (M, Q, A, b)])))
        # Unusable terms are replaced before they are used, and the answer is made NaN at the end: a NaN inside a
        # factorisation would also reach the gradients of states that are all right.
        M, Q, A, b = (jnp.where(finite, x, jnp.zeros_like(x)) for x in (M, Q, A, b))
        L, W, definite = whiten(M)
        usable = finite & definite

        w, B = W @ Q, A @ W.T  # A a = B w
        x, rank = self._apply(B, b - B @ w)
        a, acceleration = W.T @ w, W.T @ (w + x)
        ideal_force = L @ x

        nonideal_force = jnp.zeros_like(Q)
        if terms.nonideal is not None:
            c = terms.nonideal(ideal_force)
            finite = finite & stop_gradient(jnp.all(jnp.isfinite(c)))
            z = W @ jnp.where(finite, c, jnp.zeros_like(c))
            y = z - self._apply(B, B @ z)[0]
            nonideal_force = L @ y
            acceleration = acceleration + W.T @ y
            usable = usable & finite

        residual, consistent = consistency(A, b, acceleration, jnp.abs(B) @ jnp.abs(w), self.consistency_rtol)
        mask = lambda value: jnp.where(usable, value, jnp.nan)
        return Motion(
            acceleration=mask(acceleration),
            unconstrained_acceleration=mask(a),
            constraint_force=mask(ideal_force),
            nonideal_force=mask(nonideal_force),
            rank=rank,
            residual=mask(residual),
            result=verdict(finite, definite, consistent),
        )

    def _apply(self, B, y):
        """B^+ y and the rank of B."""
        if B.shape[0] == 0:
            return jnp.zeros(B.shape[1], B.dtype), jnp.zeros((), int)
        return pseudosolve(self.pseudoinverse, B, y)
