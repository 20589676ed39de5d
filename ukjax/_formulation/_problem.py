"""The input of a formulation at one state: the terms in units in which rows and masses can be compared.

L L^T = M, W = L^-1, or those of the metric that takes the place of M where it is singular (`_metric`); x = L^T q'':
acceleration in that metric, all of whose entries have one unit, sqrt(kg) m/s^2 or the like; B = A W^T: the rows there;
D: row scales; w = W Q: the free motion. For formulations that take M unchanged, which may be singular, L and W are
diagonal: they give each coordinate a unit in which its own mass is about one.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._linalg import whiten
from .._result import RESULTS
from .._terms import Terms
from .._types import BoolScalar, Matrix, Rows, RowValues, Vector
from ._metric import coordinate_scales, metric, row_scales, shifted


class WhitenedTerms(eqx.Module):
    """The equations M q'' = Q and A q'' = b at one state.

    Attributes:
        M: (n, n); Q: (n,); A: (m, n); b: (m,): as the mechanism gives them.
        L: (n, n); W: (n, n); B: (m, n): see above.
        D: Scales of the rows of B, (m,).
        unconstrained: a = M^-1 Q (n,), or NaN.
        result: `RESULTS` of the mass matrix.
        strict: Whether each row must be met, (m,); None for all.
        is_mass: Whether the metric is that of M; None if it always is.
        rounding: Sizes of the rounding errors of A (m, n) and of b (m,), if they are known.
    """

    M: Matrix
    Q: Vector
    A: Rows
    b: RowValues
    L: Matrix
    W: Matrix
    B: Rows
    D: RowValues
    unconstrained: Vector
    result: Any
    strict: Array | None = None
    is_mass: BoolScalar | None = None
    rounding: tuple[Rows, RowValues] | None = None

    @property
    def mass(self) -> Matrix:
        """W M W^T, the mass matrix in the metric."""
        return self.W @ self.M @ self.W.T

    @property
    def H(self) -> Rows:
        """The rows in the metric, of about unit length."""
        return self.D[:, None] * self.B

    def where(self, needed: BoolScalar) -> "WhitenedTerms":
        """Returns this problem where `needed`, zeros elsewhere, which `SkipIfZero` skips."""
        masked = lambda x: jnp.where(needed, x, jnp.zeros_like(x))
        return eqx.tree_at(lambda p: (p.M, p.A, p.B), self, (masked(self.M), masked(self.A), masked(self.B)))


def with_definite_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem for M > 0, in the coordinates in which M is the identity."""
    M, Q, A = terms.M, terms.Q, terms.A
    L, W, definite = whiten(M, terms.partition)
    B = A @ W.T
    D = row_scales(B, terms.rounding is not None)
    result = RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, W.T @ (W @ Q), result, rounding=terms.rounding)


def with_completed_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem in the metric of M, completed by the rows where M is singular; all rows must be met."""
    M, Q, A = terms.M, terms.Q, terms.A
    all_are_real = terms.rounding is not None
    L, W, definite, regular = metric(M, A, terms.partition, all_are_real)
    B = A @ W.T
    D = row_scales(B, all_are_real)
    result = RESULTS.where(regular, RESULTS.successful, RESULTS.mass_not_positive_definite)
    unconstrained = jnp.where(definite | ~regular, W.T @ (W @ Q), jnp.nan)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, unconstrained, result, is_mass=definite, rounding=terms.rounding)


def with_singular_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem for an M that may be singular; M must have no negative direction."""
    M, Q, A = terms.M, terms.Q, terms.A
    _, V, definite = whiten(M)
    unconstrained = jnp.where(definite, V.T @ (V @ Q), jnp.nan)
    C = coordinate_scales(M, A)
    B = A * C[None]
    D = row_scales(B, terms.rounding is not None)
    _, _, semidefinite = whiten(stop_gradient(shifted(M, C)))
    result = RESULTS.where(semidefinite, RESULTS.successful, RESULTS.mass_not_positive_definite)
    L, W = jnp.diag(1 / C), jnp.diag(C)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, unconstrained, result, rounding=terms.rounding)
