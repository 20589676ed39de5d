"""The Udwadia-Kalaba equation.

M = L L^T; W = L^-1; w = W Q; a = M^-1 Q = W^T w; B = A W^T; D: row scales.
"""

import jax.numpy as jnp
import lineax as lx

from .._linalg import SVD, whiten
from .._mechanism import Terms
from .._result import RESULTS
from ._base import AbstractFormulation, Linear, Motion, applied, check_fields, motion, row_scales


class UdwadiaKalaba(AbstractFormulation):
    r"""$\ddot q = a + L^{-\top} B^+ (b - A a) + L^{-\top}(I - B^+ B)\,L^{-1} c$.

    The literature writes $M^{1/2}$ for L. Any root of M gives the same acceleration, because two roots differ by a
    rotation and the pseudoinverse commutes with it; and the Cholesky factor, unlike $M^{1/2}$ by eigenvalues, has a
    finite gradient where eigenvalues coincide.

    Args:
        pseudoinverse: The lineax solver that applies B^+; its rank test decides which rows are redundant. The rows of
            B are brought to about the same length first, so that neither their units nor the coordinates matter.
        consistency_rtol: Constraints contradict each other when a row of A q'' = b is missed by more than this part
            of the size of its terms, and no moderate acceleration would mend it.

    Needs M > 0; rows may be redundant.

    Source: Udwadia & Kalaba (1992); Zhao et al. (2018), eq. 36; de Falco et al. (2008), eq. 31; non-ideal force: Liu et
    al. (2015), eq. 12 and 13.
    """

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        check_fields(self.pseudoinverse, self.consistency_rtol)

    def solve(self, terms: Terms) -> Motion:
        return motion(terms, self._linear, self.consistency_rtol)

    def _linear(self, M, Q, A, again):
        L, W, definite = whiten(M)
        w, B = W @ Q, A @ W.T  # A a = B w
        D = row_scales(B)
        correction = applied(self.pseudoinverse, D[:, None] * B, again)

        def solve(force, b):
            w = W @ force
            x, rank = correction(D * (b - B @ w))
            return W.T @ (w + x), L @ x, rank

        return Linear(
            solve=solve,
            unconstrained=W.T @ w,
            free=jnp.abs(B) @ jnp.abs(w),
            scales=D,
            result=RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite),
        )
