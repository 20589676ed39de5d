"""What a formulation works on at one state: the terms, brought to units in which rows and masses can be compared.

L L^T = M, W = L^-1; x = L^T q'': acceleration in the metric of M, all of whose entries have one unit, sqrt(kg) m/s^2 or
the like; B = A W^T: the rows there; D: row scales; w = W Q: the free motion. Where M may be singular L and W are the
identity, and the metric is that of the coordinates.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._linalg import power_of_two, whiten
from .._result import RESULTS
from .._terms import Terms
from .._types import BoolScalar, Matrix, Rows, RowValues, Scalar, Vector


class Problem(eqx.Module):
    """M q'' = Q with A q'' = b at one state.

    Attributes:
        M: (n, n); Q: (n,); A: (m, n); b: (m,): as the mechanism gives them.
        L: (n, n); W: (n, n); B: (m, n): see above.
        D: Scales of the rows of B, (m,).
        unconstrained: a = M^-1 Q (n,), or NaN.
        result: `RESULTS` of the mass matrix.
        strict: Which rows are to be met, (m,); None for all.
        loss: How many times the usual rounding errors a formulation makes.
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
    loss: float = eqx.field(static=True, default=1.0)
    rounding: tuple[Rows, RowValues] | None = None

    @property
    def H(self) -> Rows:
        """The rows in the metric, of about unit length."""
        return self.D[:, None] * self.B

    def where(self, needed: BoolScalar) -> "Problem":
        """The same problem, or one of nothing but zeros, for which `Seldom` has nothing to do."""
        masked = lambda x: jnp.where(needed, x, jnp.zeros_like(x))
        return eqx.tree_at(lambda p: (p.M, p.A, p.B), self, (masked(self.M), masked(self.A), masked(self.B)))


def with_definite_mass(terms: Terms) -> Problem:
    """The problem for M > 0, in the coordinates in which M is the identity."""
    M, Q, A = terms.M, terms.Q, terms.A
    L, W, definite = whiten(M, terms.partition)
    B = A @ W.T
    D = row_scales(B, terms.rounding is not None)
    result = RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite)
    return Problem(M, Q, A, terms.b, L, W, B, D, W.T @ (W @ Q), result, rounding=terms.rounding)


def with_singular_mass(terms: Terms, loss: float = 1.0) -> Problem:
    """The problem for an M that may be singular; it must have no negative direction."""
    M, Q, A = terms.M, terms.Q, terms.A
    identity = jnp.eye(M.shape[0], dtype=M.dtype)
    _, W, definite = whiten(M)
    unconstrained = jnp.where(definite, W.T @ (W @ Q), jnp.nan)
    D = row_scales(A, terms.rounding is not None)
    result, more = _semidefinite(M), {"loss": loss, "rounding": terms.rounding}
    return Problem(M, Q, A, terms.b, identity, identity, A, D, unconstrained, result, **more)


def row_scales(B: Rows, all_are_real: bool = False) -> RowValues:
    """Powers of two that bring the rows of B (m, n) to about the same length; (m,).

    The rank test then measures angles between rows, whatever their units; and not a digit is lost. Unless
    `all_are_real`, a row that is as short as the rounding errors of the longest stays as short as it is.

    Where the rows are consistent the solution does not depend on the scales, and otherwise they are constant almost
    everywhere: no gradient.
    """
    lengths = row_lengths(B)
    if all_are_real:
        return 1 / power_of_two(lengths)
    return 1 / power_of_two(jnp.where(is_rounding(lengths), jnp.max(lengths, initial=0.0), lengths))


def row_lengths(B: Rows) -> RowValues:
    """Lengths of the rows of B (m, n), (m,); of a row of zeros that of the longest, and one if there is none."""
    B = stop_gradient(B)
    # Squares of very small or very large numbers must neither vanish nor overflow.
    sizes = jnp.max(jnp.abs(B), axis=1, initial=0.0)
    units = power_of_two(jnp.where(sizes > 0, sizes, 1.0))
    lengths = units * jnp.linalg.norm(B / units[:, None], axis=1)
    longest = jnp.max(lengths, initial=0.0)
    return jnp.where(lengths > 0, lengths, jnp.where(longest > 0, longest, 1.0))


def is_rounding(lengths: RowValues) -> Array:
    """Which rows are as short, beside the longest, as the rounding errors of its entries; (m,)."""
    return lengths < 8 * jnp.finfo(lengths.dtype).eps * jnp.max(lengths, initial=0.0)


def unit_size(M: Matrix) -> Scalar:
    """A power of two that brings the largest entry of M near one."""
    size = stop_gradient(jnp.max(jnp.abs(M), initial=0.0))
    return 1 / power_of_two(jnp.where(size > 0, size, 1.0))


def _semidefinite(M: Matrix) -> Any:
    size = jnp.max(jnp.abs(M), initial=0.0)
    shift = jnp.sqrt(jnp.finfo(M.dtype).eps) * size
    _, _, semidefinite = whiten(stop_gradient(M + shift * jnp.eye(M.shape[0], dtype=M.dtype)))
    return RESULTS.where(semidefinite | (size == 0), RESULTS.successful, RESULTS.mass_not_positive_definite)
