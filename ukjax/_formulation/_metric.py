"""The metric in which a motion is found: that of M, or, where M is singular, of M and the rows of the constraints.

D: row scales; s: scale of M; G: metric, L L^T = G, W = L^-1.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._linalg import power_of_two, whiten_first
from .._types import BoolScalar, Matrix, Partition, Rows, RowValues, Scalar


class Metric(NamedTuple):
    """A metric that leads to the same constrained motion as M does.

    Attributes:
        L: The Cholesky factor (n, n); the identity where there is no metric.
        W: Its inverse (n, n).
        is_mass: Whether the metric is M, which is positive definite.
        regular: Whether there is one.
    """

    L: Matrix
    W: Matrix
    is_mass: BoolScalar
    regular: BoolScalar


def metric(M: Matrix, A: Rows, partition: Partition | None = None, all_are_real: bool = False) -> Metric:
    r"""M where it is positive definite, and otherwise $G = M + A^\top D^2 A / s$, if that is and M is semidefinite.

    Rows that are met exactly change nothing of a motion: M a - Q = A^T lambda if and only if G a - Q = A^T lambda' for
    another lambda'. Nothing is regularised. G is definite if [M; A] has full rank. A batch in which every M is positive
    definite is factorised once, as by `whiten`. `all_are_real`: as for `row_scales`.

    Source: Udwadia & Schutte (2010), Acta Mechanica 213, 111-129, where the added matrix is A^+ A. Here it is A^T A.
    """
    rows = row_scales(A, all_are_real)[:, None] * A
    return Metric(*whiten_first(M, M + rows.T @ rows / unit_size(M), partition))


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
