"""The pseudoinverse by Gram-Schmidt on the rows: a kernel for small matrices in large batches, without LAPACK.

B: matrix (m, n, *batch); q: orthonormal rows, B = L Q; u: orthonormal columns, L = U R.
"""

import functools as ft
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractPseudoinverse, rank_tolerance, row_sizes, tolerance, unit_scale
from ._batch import at_tolerance


Carry = TypeVar("Carry")

# Longest loop over the rows that is unrolled, so that the compiler can fuse it; beyond, compile time only grows.
UNROLLED = 6


class RowGramSchmidt(AbstractPseudoinverse):
    r"""The pseudoinverse by Gram-Schmidt on the rows, re-orthogonalised; dependent rows are skipped.

    $B = L Q$ with orthonormal rows in Q. Where rows may be dependent, the row with the largest remainder is taken next.
    A second Gram-Schmidt, on the columns, then gives $L = U R$ and $B^+ = Q^\top R^{-1} U^\top$. This is the
    Moore-Penrose inverse for dependent and for contradictory rows too. Where all rows are independent L is triangular,
    and neither is needed.

    Args:
        rtol: Rank test: rows count as dependent if the remainder of each, beside those taken before, is at most `rtol`
            times its own length. The test is one of the sine of an angle; the scaling of rows does not matter. None
            (default) is 1e-4 in float64 and 1e-3 in lower precision.

    This strategy is for small matrices in large batches, with mostly independent rows; see the measured tables in the
    documentation.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Bjorck (1996), Numerical methods for least squares problems, on Gram-Schmidt done twice.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_solve, rank_tolerance(self.rtol, B.dtype))(B, Y)


def _solve(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    sizes = row_sizes(B, rtol)
    sizes = jnp.where(sizes > 0, sizes, 1)
    if B.shape[0] > B.shape[1]:
        return _general(rtol, B, Y, sizes)
    # Rows that are clearly independent in the whole tile are the common case; any order of them then serves.
    X, sines2 = _in_order(B, Y, sizes)
    clear = jnp.all(sines2 > (2 * rtol) ** 2)

    def whole(*_: Array) -> tuple[Array, Array]:
        return X, jnp.full(B.shape[2], B.shape[0], int)

    return jax.lax.cond(clear, whole, ft.partial(_general, rtol), B, Y, sizes)


def _in_order(B: Array, Y: Array, sizes: Array) -> tuple[Array, Array]:
    """Returns B^+ Y for independent rows, and the squared sine of each row with those before it (m, batch)."""
    m = B.shape[0]

    def step(i, carry):
        Q, W, sines2 = carry
        known = i if isinstance(i, int) else m  # unknown entries are zero
        row, w, before = B[i], Y[i], Q[:known]
        for _ in range(2):  # once leaves a part along the others that grows with the condition number
            along = jnp.sum(before * row[None], axis=1)
            row = row - jnp.sum(before * along[:, None], axis=0)
            w = w - jnp.sum(W[:known] * along[:, None], axis=0)
        left = jnp.sum(row**2, axis=0)
        inverse = jnp.where(left > 0, jax.lax.rsqrt(jnp.where(left > 0, left, 1)), 0)
        return Q.at[i].set(row * inverse), W.at[i].set(w * inverse), sines2.at[i].set(left / sizes[i])

    start = jnp.zeros_like(B), jnp.zeros_like(Y), jnp.zeros((m, B.shape[2]), B.dtype)
    Q, W, sines2 = _loop(m, step, start)
    return _combine(Q, W), sines2


def _combine(Q: Array, W: Array) -> Array:
    """Returns Q^T W."""
    zeros = jnp.zeros((Q.shape[1], *W.shape[1:]), Q.dtype)
    return _loop(Q.shape[0], lambda i, X: X + Q[i][:, None] * W[i][None], zeros)


def _general(rtol: float, B: Array, Y: Array, sizes: Array) -> tuple[Array, Array]:
    """Returns B^+ Y and the rank, for rows that may be dependent."""
    (m, n, size), steps = B.shape, min(B.shape[:2])

    def zeros(*shape: int) -> Array:
        return jnp.zeros((*shape, size), B.dtype)

    def step(k, carry):
        # The row with the largest remainder relative to its length is next. A direction that is known badly, because
        # rows nearly depend on each other, then comes last, and spoils no decision about the others.
        rest, free, Q, L, independent = carry
        left = free * jnp.sum(rest**2, axis=1) / sizes
        picked = (jnp.arange(m)[:, None] == jnp.argmax(left, axis=0)).astype(B.dtype)
        counts = jnp.max(left, axis=0) > rtol**2
        q = jnp.sum(rest * picked[:, None], axis=0)
        q = q - jnp.sum(jnp.sum(Q * q[None], axis=1)[:, None] * Q, axis=0)  # rounding errors along the others
        square = jnp.sum(q**2, axis=0)
        q = q * jnp.where(counts, jax.lax.rsqrt(jnp.where(counts, square, 1)), 0)
        on_q = free * jnp.sum(rest * q[None], axis=1)
        rest = rest - on_q[:, None] * q[None]
        return rest, free * (1 - picked), Q.at[k].set(q), L.at[:, k].set(on_q), independent.at[k].set(counts)

    start = B, zeros(m) + 1, zeros(steps, n), zeros(m, steps), zeros(steps) != 0
    _, _, Q, L, independent = jax.lax.fori_loop(0, steps, step, start)
    return _combine(Q, _least_squares(L, independent, Y)), jnp.sum(independent, axis=0)


def _least_squares(L: Array, independent: Array, Y: Array) -> Array:
    """Returns L^+ Y, for L (m, steps, batch) whose first columns are independent and the others zero."""
    m, steps, size = L.shape

    def column(step, carry):
        # From the last column to the first, so that as much as possible of U is the identity.
        Ut, Rt, image, rest = carry
        j = steps - 1 - step
        c = jnp.sum(L[:, j][None] * Ut, axis=1)
        u = L[:, j] - jnp.sum(c[:, None] * Ut, axis=0)
        length = jnp.sqrt(jnp.where(independent[j], jnp.sum(u**2, axis=0), 1))
        u = u * jnp.where(independent[j], 1 / length, 0)
        value = jnp.sum(u[:, None] * rest, axis=0)
        Rt = Rt.at[j].set(c.at[j].set(length))
        return Ut.at[j].set(u), Rt, image.at[j].set(value), rest - u[:, None] * value[None]

    def zeros(*shape: int) -> Array:
        return jnp.zeros((*shape, size), L.dtype)

    start = zeros(steps, m), zeros(steps, steps), zeros(steps, Y.shape[1]), Y
    _, Rt, image, _ = jax.lax.fori_loop(0, steps, column, start)

    def substitute(k, W):
        known = jnp.sum(Rt[:, k][:, None] * W, axis=0)  # R[k] is Rt[:, k]
        return W.at[k].set((image[k] - known) / Rt[k, k])

    return jax.lax.fori_loop(0, steps, substitute, jnp.zeros_like(image))


def _loop(count: int, body: Callable[..., Carry], start: Carry) -> Carry:
    """Runs a loop, unrolled if it is short."""
    if count > UNROLLED:
        return jax.lax.fori_loop(0, count, body, start)
    for i in range(count):
        start = body(i, start)
    return start
