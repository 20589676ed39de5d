"""The Udwadia-Kalaba equation.

M = L L^T; a = M^-1 Q; B = A L^-T; c: non-ideal force.
"""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.lax import stop_gradient
from jax.scipy.linalg import solve_triangular

from .._linalg import SVD
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
        n = Q.shape[0]
        finite = stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in (M, Q, A, b)])))
        # Unusable terms are replaced before they are used, and the answer is made NaN at the end: a NaN inside a
        # factorisation would also reach the gradients of states that are all right.
        M, Q, A, b = (jnp.where(finite, x, jnp.zeros_like(x)) for x in (M, Q, A, b))
        L, definite = _cholesky(M)
        lower = lambda x: solve_triangular(L, x, lower=True)
        upper = lambda x: solve_triangular(L, x, lower=True, trans=1)
        usable = finite & definite

        a = upper(lower(Q))
        if b.shape[0] == 0:
            x, rank, apply = jnp.zeros_like(Q), jnp.zeros((), int), None
        else:
            B = lx.MatrixLinearOperator(lower(A.T).T)
            factors = self.pseudoinverse.init(B, {})
            apply = lambda y: lx.linear_solve(B, y, self.pseudoinverse, state=stop_gradient(factors), throw=False)
            solution = apply(b - A @ a)
            x, rank = solution.value, solution.stats["rank"]

        ideal_force = L @ x
        acceleration = a + upper(x)
        nonideal_force = jnp.zeros_like(Q)
        if terms.nonideal is not None:
            c = terms.nonideal(ideal_force)
            finite = finite & stop_gradient(jnp.all(jnp.isfinite(c)))
            z = lower(jnp.where(finite, c, jnp.zeros(n, c.dtype)))
            y = z if apply is None else z - apply(B.mv(z)).value
            nonideal_force = L @ y
            acceleration = acceleration + upper(y)
            usable = usable & finite

        residual, consistent = consistency(A, b, acceleration, a, self.consistency_rtol)
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


@jax.custom_jvp
def _cholesky(M):
    """L with L L^T = M, and whether M is symmetric positive definite; L is the identity where it is not.

    Has a derivative of its own so that a mass matrix met in a trial step that was rejected anyway leaves no NaN in the
    gradient, without factorising twice.
    """
    size = jnp.max(jnp.abs(M), initial=0.0)
    symmetric = jnp.max(jnp.abs(M - M.T), initial=0.0) <= jnp.sqrt(jnp.finfo(M.dtype).eps) * size
    L = jnp.linalg.cholesky(M)
    definite = symmetric & jnp.all(jnp.isfinite(L))
    return jnp.where(definite, L, jnp.eye(M.shape[0], dtype=M.dtype)), definite


@_cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # L' = L low(L^-1 M' L^-T): low keeps the lower triangle and half the diagonal.  Murray (2016).
    (M,), (dM,) = primals, tangents
    L, definite = _cholesky(M)
    left = solve_triangular(L, (dM + dM.T) / 2, lower=True)
    middle = solve_triangular(L, left.T, lower=True)
    low = jnp.tril(middle) - jnp.diag(jnp.diag(middle)) / 2
    return (L, definite), (L @ low, np.zeros((), jax.dtypes.float0))
