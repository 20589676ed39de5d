"""The range-space formulation: the pseudoinverse of the small matrix A M^-1 A^T.

W^T W = M^-1; a = M^-1 Q; B = A W^T; D: row scales; G = D A M^-1 A^T D; H = M^-1 A^T D G^+ D.
"""

import jax.numpy as jnp
import lineax as lx

from .._linalg import SVD, whiten
from .._mechanism import Terms
from .._result import RESULTS
from ._base import AbstractFormulation, Linear, Motion, applied, check_fields, motion, row_scales, with_tolerance


class RangeSpace(AbstractFormulation):
    r"""$\ddot q = (I - H A)\,M^{-1} Q + H b$ with $H = M^{-1} A^\top (A M^{-1} A^\top)^{+}$.

    Args:
        pseudoinverse: The lineax solver that applies $(A M^{-1} A^\top)^+$. The singular values of that matrix are the
            squares of those that `UdwadiaKalaba` sees, so one of ours does its rank test with the square of its
            tolerance (not below rounding).
        consistency_rtol: As for `UdwadiaKalaba`.

    Needs M > 0; rows may be redundant. The matrix is small if there are few constraints; squaring costs digits: with
    rows nearly dependent, an angle e between them, about eps / e^2 is lost rather than eps / e.

    Source: de Falco et al. (2008), eq. 35 and 36.
    """

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        check_fields(self.pseudoinverse, self.consistency_rtol)

    def solve(self, terms: Terms) -> Motion:
        return motion(terms, self._linear, self.consistency_rtol)

    def _linear(self, M, Q, A, again):
        L, W, definite = whiten(M)
        w, B = W @ Q, A @ W.T
        D = row_scales(B)
        B = D[:, None] * B
        squared = with_tolerance(self.pseudoinverse, lambda rtol: rtol**2, B.dtype)
        multiplier = applied(squared, B @ B.T, again)

        def solve(force, b):
            w = W @ force
            x, rank = multiplier(D * b - B @ w)
            x = B.T @ x
            return W.T @ (w + x), L @ x, rank

        return Linear(
            solve=solve,
            unconstrained=W.T @ w,
            free=jnp.abs(A @ W.T) @ jnp.abs(w),
            scales=D,
            result=RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite),
        )
