"""QR factorisations with column pivoting, by Householder reflections and by modified Gram-Schmidt.

B Pi = Q R for B (m, n, batch) in p = min(m, n) steps. Rows of R and Z from the rank on are zero.

They solve the least-squares system that gives the pseudoinverse. x = B^+ y minimises |B x - y| and, among those, |x|.
Both conditions together are the equations of de Falco et al. (2008), eq. 18,

    [ alpha I  B^T ] [ x      ]   [ 0 ]
    [    B      0  ] [ lambda ] = [ y ],        to be solved in the sense of least squares.

Its x is unique, whatever the rank of B and whether y is consistent or not: alpha x = -B^T lambda puts x into the row
space, where |B x - y| has one minimum, and both residuals are as small as they can be. Where the paper changes to B^T B
x = B^T y for m > n (eq. 16), which needs independent columns, the same equations still serve. Only lambda is not
unique; here it is that of least norm, because the directions that the rank test drops depend a little on the choice.

alpha, which the paper has as 1, changes lambda only. A singular value s of B makes eigenvalues near s and, if s is
small, s^2 / alpha, so that a small alpha helps where s is small and harms where y is not consistent; 2^-5 is a
compromise. As in the paper, the system is solved for every unit vector; with B^+ at hand, one step of iterative
refinement is nearly free.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base import unit_scale


class QR(NamedTuple):
    """A QR factorisation with column pivoting.

    R (p, n, batch), its columns in the order of B; Z = Q^T Y (p, k, batch); `picked` (p, n, batch) is one where the
    column of a step is; `rank` (batch,); `reflectors` (p, m, batch), with Q = H_0 H_1 ..., if there are any.
    """

    R: Array
    Z: Array
    picked: Array
    rank: Array
    reflectors: Array


def householder(B: Array, Y: Array, rtol: float) -> QR:
    """Factorises B by reflections; a column counts if its remainder exceeds `rtol` times the longest length."""
    rows = jnp.arange(B.shape[0])[:, None]

    def step(k, carry):
        B, Y, longest, out = carry
        below = jnp.where(rows[:, :, None] >= k, B, 0)
        lengths = _lengths(below, out)
        longest = jnp.where(k == 0, jnp.max(lengths, axis=0), longest)
        onehot = _first_largest(lengths)
        counts = (out.rank == k) & (jnp.max(lengths, axis=0) > rtol * longest)
        v = _reflector(jnp.sum(below * onehot[None], axis=1), k, counts)
        B, Y = reflect(v, B), reflect(v, Y)
        return B, Y, longest, _record(out, k, onehot, counts, B[k], Y[k], v)

    start = _start(B, Y, B.shape[0])
    *_, out = jax.lax.fori_loop(0, min(B.shape[:2]), step, (B, Y, jnp.zeros(B.shape[2], B.dtype), start))
    return out


def householder_in_order(B: Array, rank: Array) -> QR:
    """Factorises B by reflections without pivoting; its first `rank` columns are independent and the others zero."""
    Y = jnp.zeros((B.shape[0], 0, B.shape[2]), B.dtype)
    rows, columns = (jnp.arange(size)[:, None] for size in B.shape[:2])

    def step(k, carry):
        B, out = carry
        counts = k < rank
        v = _reflector(jnp.where(rows >= k, B[:, k], 0), k, counts)
        B = reflect(v, B)
        onehot = jnp.broadcast_to(columns == k, B.shape[1:]).astype(B.dtype)
        return B, _record(out, k, onehot, counts, B[k], Y[k], v)

    _, out = jax.lax.fori_loop(0, min(B.shape[:2]), step, (B, _start(B, Y, B.shape[0])))
    return out


def modified_gram_schmidt(B: Array, Y: Array, rtol: float) -> QR:
    """Factorises B by modified Gram-Schmidt, with the right-hand sides as further columns for stability."""

    def step(k, carry):
        B, Y, longest, out = carry
        lengths = _lengths(B, out)
        longest = jnp.where(k == 0, jnp.max(lengths, axis=0), longest)
        onehot = _first_largest(lengths)
        counts = (out.rank == k) & (jnp.max(lengths, axis=0) > rtol * longest)
        x = jnp.sum(B * onehot[None], axis=1)
        q = x * jnp.where(counts, 1 / jnp.where(counts, jnp.sqrt(jnp.sum(x**2, axis=0)), 1), 0)
        along, image = jnp.sum(q[:, None] * B, axis=0), jnp.sum(q[:, None] * Y, axis=0)
        out = _record(out, k, onehot, counts, along, image, jnp.zeros((0, B.shape[2]), B.dtype))
        return B - q[:, None] * along[None], Y - q[:, None] * image[None], longest, out

    start = _start(B, Y, 0)
    *_, out = jax.lax.fori_loop(0, min(B.shape[:2]), step, (B, Y, jnp.zeros(B.shape[2], B.dtype), start))
    return out


def minimum_norm_solution(qr: QR) -> Array:
    """Returns the X of least norm with R X = Z; (n, k, batch).

    It is found by a second factorisation, R^T = V^T [T; 0]. A basic solution, which is zero where no column was picked,
    would depend on the order of picking. That order depends on rounding errors where two columns are equally long.
    """
    steps, n = qr.R.shape[:2]
    second = householder_in_order(jnp.swapaxes(qr.R, 0, 1), qr.rank)

    def substitute(k, W):
        # T is upper triangular, its rows are those of second.R; R = T^T V.
        pivot = second.R[k, k]
        counts = k < qr.rank
        known = jnp.sum(second.R[:, k][:, None] * W, axis=0)  # unknown entries of W are zero
        return W.at[k].set((qr.Z[k] - known) * jnp.where(counts, 1 / jnp.where(counts, pivot, 1), 0))

    W = jax.lax.fori_loop(0, steps, substitute, jnp.zeros_like(qr.Z))
    X = jnp.pad(W, ((0, n - steps), (0, 0), (0, 0)))
    return jax.lax.fori_loop(0, steps, lambda i, X: reflect(second.reflectors[steps - 1 - i], X), X)


def reflect(v: Array, B: Array) -> Array:
    """Returns (I - v v^T) B, with |v|^2 = 2, or B for v = 0."""
    return B - v[:, None] * jnp.sum(v[:, None] * B, axis=0)[None]


def _reflector(x: Array, k: Array, counts: Array) -> Array:
    """Returns v such that reflecting x, zero above entry k, leaves entry k only; v is zero where nothing `counts`."""
    at_k = jnp.arange(x.shape[0])[:, None] == k
    length = jnp.sqrt(jnp.sum(x**2, axis=0))
    head = jnp.sum(jnp.where(at_k, x, 0), axis=0)
    v = x + jnp.where(at_k, jnp.where(head >= 0, length, -length), 0)
    square = jnp.where(counts, jnp.sum(v**2, axis=0), 1)
    return jnp.where(counts, v * jnp.sqrt(2 / square), 0)


def _lengths(B: Array, out: QR) -> Array:
    """Returns the lengths of the columns of B (n, batch), zero for columns picked already."""
    return jnp.sqrt(jnp.sum(B**2, axis=0)) * (1 - jnp.sum(out.picked, axis=0))


def _first_largest(lengths: Array) -> Array:
    best = jnp.argmax(lengths, axis=0)
    return (jnp.arange(lengths.shape[0])[:, None] == best).astype(lengths.dtype)


def _start(B: Array, Y: Array, reflector: int) -> QR:
    _, n, size = B.shape
    steps = min(B.shape[:2])
    R, Z, picked, reflectors = (jnp.zeros((steps, k, size), B.dtype) for k in (n, Y.shape[1], n, reflector))
    return QR(R, Z, picked, jnp.zeros(size, int), reflectors)


def _record(out: QR, k: Array, onehot: Array, counts: Array, row: Array, image: Array, v: Array) -> QR:
    return QR(
        out.R.at[k].set(jnp.where(counts, row, 0)),
        out.Z.at[k].set(jnp.where(counts, image, 0)),
        out.picked.at[k].set(jnp.where(counts, onehot, 0)),
        out.rank + counts.astype(out.rank.dtype),
        out.reflectors.at[k].set(v),
    )


def least_squares(factorise: Callable[[Array, Array, float], QR], rtol: float, B: Array, Y: Array):
    """Returns B^+ Y and the rank, for a batch-last B and Y."""
    m, n, size = B.shape
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    alpha = 2.0**-5
    identity = jnp.broadcast_to(alpha * jnp.eye(n, dtype=B.dtype)[..., None], (n, n, size))
    none = jnp.zeros((m, m, size), B.dtype)
    upper = jnp.concatenate([identity, jnp.swapaxes(B, 0, 1)], axis=1)
    K = jnp.concatenate([upper, jnp.concatenate([B, none], axis=1)])
    unit = jnp.broadcast_to(jnp.eye(m, dtype=B.dtype)[..., None], (m, m, size))
    right = jnp.concatenate([jnp.zeros((n, m, size), B.dtype), unit])
    eps = float(jnp.finfo(B.dtype).eps)
    qr = factorise(K, right, max(rtol**2 / alpha, 4 * (m + n) * eps))
    P = minimum_norm_solution(qr)[:n]
    X = _times(P, Y)
    # The step is repeated for the residual: the system squares the condition number, and this corrects the error.
    left = Y - jnp.sum(B[:, :, None] * X[None], axis=1)
    return X + _times(P, left), qr.rank - n


def _times(P: Array, Y: Array) -> Array:
    """Returns P Y for matrices with the batch last."""
    return jnp.sum(P[:, :, None] * Y[None], axis=1)
