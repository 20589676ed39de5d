"""The pseudoinverse by Gram-Schmidt on the rows: a kernel for small matrices in large batches, without LAPACK.

B: matrix (m, n, *batch); q_i: orthonormal rows; L: B = L Q, lower triangular; u_j: orthonormal columns; L = U R.
"""

import functools as ft
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractPseudoinverse, rank_tolerance, row_sizes, tolerance, unit_scale
from ._batch import batched


# Up to here the loop over the rows is written out, which the compiler fuses; beyond it would only compile for longer.
UNROLLED = 6


class RowGramSchmidt(AbstractPseudoinverse):
    r"""The pseudoinverse by Gram-Schmidt on the rows, re-orthogonalised; dependent rows are skipped.

    $B = L Q$ with orthonormal rows in Q, then $L = U R$ with orthonormal columns in U; $B^+ = Q^\top R^{-1} U^\top$. If
    the rows are independent, U is the identity. A row that depends on those before it adds nothing to Q, but takes part
    in the least squares that $U^\top$ does: so this is the Moore-Penrose inverse for contradictory rows too.

    Args:
        rtol: Rank test: a row counts as dependent if what is left of it beside the rows before it is at most `rtol`
            times its own length, that is, by the sine of an angle. The scaling of rows does not matter, their order
            may where it is a near thing. None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    The fastest strategy for small matrices in large batches; see the measured tables in the documentation.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Bjorck (1996), Numerical methods for least squares problems, on Gram-Schmidt done twice.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return _kernel(rank_tolerance(self.rtol, B.dtype))(B, Y)


@ft.cache
def _kernel(rtol: float):
    return batched(ft.partial(_solve, rtol))


def _solve(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    orthogonalise = _orthogonalise_unrolled if B.shape[0] <= UNROLLED else _orthogonalise
    Q, L, independent = orthogonalise(rtol, B)
    # A tile without dependent rows, the common case, needs no second factorisation.
    W = jax.lax.cond(jnp.all(independent), _substitute, _least_squares, L, independent, Y)
    X = jnp.zeros((B.shape[1], *Y.shape[1:]), B.dtype)
    for q, w in zip(Q, W):
        X = X + q[:, None] * w[None]
    return X, jnp.sum(independent, axis=0)


def _orthogonalise_unrolled(rtol: float, B: Array) -> tuple[Array, Array, Array]:
    """B = L Q, and which rows are independent of those before them (m, batch)."""
    m, zero = B.shape[0], jnp.zeros(B.shape[2], B.dtype)
    L = [[zero] * m for _ in range(m)]
    Q, independent, sizes = [], [], row_sizes(B, rtol)
    for i in range(m):
        row = B[i]
        for _ in range(2):  # once leaves a part along the others that grows with the condition number
            if Q:
                before = jnp.stack(Q)
                along = jnp.sum(before * row[None], axis=1)
                row = row - jnp.sum(before * along[:, None], axis=0)
                for j in range(i):
                    L[i][j] = L[i][j] + along[j]
        left = jnp.sum(row**2, axis=0)
        counts = left > rtol**2 * sizes[i]
        length = jnp.sqrt(jnp.where(counts, left, 1))
        Q.append(row * jnp.where(counts, 1 / length, 0))
        L[i][i] = jnp.where(counts, length, 0)
        independent.append(counts)
    return jnp.stack(Q), jnp.stack([jnp.stack(row) for row in L]), jnp.stack(independent)


def _orthogonalise(rtol: float, B: Array) -> tuple[Array, Array, Array]:
    """The same as a loop."""
    m, size, sizes = B.shape[0], B.shape[2], row_sizes(B, rtol)

    def step(i, carry):
        Q, L, independent = carry
        row, along = B[i], jnp.zeros((m, size), B.dtype)
        for _ in range(2):
            c = jnp.sum(Q * row[None], axis=1)
            row, along = row - jnp.sum(Q * c[:, None], axis=0), along + c
        left = jnp.sum(row**2, axis=0)
        counts = left > rtol**2 * sizes[i]
        length = jnp.sqrt(jnp.where(counts, left, 1))
        Q = Q.at[i].set(row * jnp.where(counts, 1 / length, 0))
        L = L.at[i].set(along.at[i].set(jnp.where(counts, length, 0)))
        return Q, L, independent.at[i].set(counts)

    start = jnp.zeros_like(B), jnp.zeros((m, m, size), B.dtype), jnp.zeros((m, size), bool)
    return jax.lax.fori_loop(0, m, step, start)


def independent_rows(B: Array, rtol: float) -> Array:
    """Which rows of B (m, n) are independent of those before them, (m,)."""
    if 0 in B.shape:
        return jnp.zeros(B.shape[0], bool)
    with jax.numpy_rank_promotion("allow"):
        B = B[..., None]
        return _orthogonalise(rtol, B * unit_scale(B))[2][:, 0]


def _substitute(L: Array, independent: Array, Y: Array) -> Array:
    """L^-1 Y for independent rows."""

    def row(i, W):
        known = jnp.sum(L[i][:, None] * W, axis=0)  # what is not known yet is zero in W
        return W.at[i].set((Y[i] - known) / L[i, i])

    return _loop(L.shape[0], row, jnp.zeros_like(Y))


def _least_squares(L: Array, independent: Array, Y: Array) -> Array:
    """L^+ Y, where the columns of L that are not zero are independent."""
    m = L.shape[0]

    def column(step, carry):
        # From the last column to the first, so that as much as possible of U is the identity.
        Ut, Rt, image, rest = carry
        j = m - 1 - step
        c = jnp.sum(L[:, j][None] * Ut, axis=1)
        u = L[:, j] - jnp.sum(c[:, None] * Ut, axis=0)
        length = jnp.sqrt(jnp.where(independent[j], jnp.sum(u**2, axis=0), 1))
        u = u * jnp.where(independent[j], 1 / length, 0)
        value = jnp.sum(u[:, None] * rest, axis=0)
        Rt = Rt.at[j].set(c.at[j].set(length))
        return Ut.at[j].set(u), Rt, image.at[j].set(value), rest - u[:, None] * value[None]

    start = jnp.zeros_like(L), jnp.zeros_like(L), jnp.zeros_like(Y), Y
    _, Rt, image, _ = jax.lax.fori_loop(0, m, column, start)
    return _substitute(jnp.swapaxes(Rt, 0, 1), independent, image)


def _loop(count: int, body: Any, start: Any) -> Any:
    """A loop, written out if it is short."""
    if count > UNROLLED:
        return jax.lax.fori_loop(0, count, body, start)
    for i in range(count):
        start = body(i, start)
    return start
