"""The pseudoinverses of the papers, for comparison: by least squares, by Greville's recursion, by two factorisations.

QR factorisations have column pivoting, by Householder reflections or by modified Gram-Schmidt: B Pi = Q R for B (m, n,
batch) in p = min(m, n) steps. Rows of R and Z from the rank on are zero.

`HouseholderLS` and `GramSchmidtLS` solve the least-squares system that gives the pseudoinverse. x = B^+ y minimises |B
x - y| and, among those, |x|. Both conditions together are the equations of de Falco et al. (2008), eq. 18,

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

`Greville` takes one row at a time. a: row i of B (m, n, batch); P: pseudoinverse of the rows so far, (n, m, batch) with
zeros for the rows to come.

`Varga` has two QR factorisations: B = U [G; 0] with independent rows in G; G^T = V^T [T; 0] with T invertible; B^+ =
V^T [T^-T 0; 0 0] U^T.
"""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractPseudoinverse, rank_tolerance, row_sizes, tolerance, unit_scale
from ._batch import at_tolerance


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


class Greville(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse by Greville's recursion over the rows.

    With $d = a P$ and $c = a - d B$, where B holds the rows so far, the next row a leads to

    $$P \leftarrow [\,P - p\,d \mid p\,], \qquad
      p = \begin{cases} c^\top / (c c^\top) & c \neq 0 \\ P d^\top / (1 + d d^\top) & c = 0 \end{cases}$$

    Args:
        rtol: Rank test: c counts as zero if it is at most `rtol` times as long as the row a, as for `RowGramSchmidt`.
            None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    The recursion is the paper's, with two additions. The rows come in the order in which Gram-Schmidt with pivoting
    would take them: close to a singular configuration the given order leads to decisions that rest on directions which
    are not known well. And c is made perpendicular to the rows before it twice, because the first time leaves a part
    that grows with the condition number.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Greville (1960); de Falco et al. (2008), below eq. 22, whose step is misprinted.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_greville, rank_tolerance(self.rtol, B.dtype))(B, Y)


def _greville(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
    m, n, size = B.shape
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    order = _pivoted_order(B, rtol)
    B, Y = (jnp.take_along_axis(x, order[:, None], axis=0) for x in (B, Y))
    sizes = row_sizes(B, rtol)

    def step(i, carry):
        P, rank = carry
        before = jnp.where(jnp.arange(m)[:, None, None] < i, B, 0)
        a = B[i]
        d, c = jnp.zeros((m, size), B.dtype), a
        for _ in range(2):
            more = jnp.sum(c[:, None] * P, axis=0)
            d, c = d + more, c - jnp.sum(more[:, None] * before, axis=0)
        left = jnp.sum(c**2, axis=0)
        counts = left > rtol**2 * sizes[i]
        of_dependent = jnp.sum(d[None] * P, axis=1) / (1 + jnp.sum(d**2, axis=0))
        p = jnp.where(counts, c / jnp.where(counts, left, 1), of_dependent)
        P = (P - p[:, None] * d[None]).at[:, i].set(p)
        return P, rank + counts.astype(rank.dtype)

    start = jnp.zeros((n, m, size), B.dtype), jnp.zeros(size, int)
    P, rank = jax.lax.fori_loop(0, m, step, start)
    return jnp.sum(P[:, :, None] * Y[None], axis=1), rank


def _pivoted_order(B: Array, rtol: float) -> Array:
    """Returns the rows in the order in which Gram-Schmidt with pivoting takes them, dependent ones last; (m, batch)."""
    m, _, size = B.shape
    none = jnp.zeros((B.shape[1], 0, size), B.dtype)
    picked = modified_gram_schmidt(jnp.swapaxes(B, 0, 1), none, rtol).picked
    steps = jnp.arange(picked.shape[0], dtype=B.dtype)
    place = jnp.where(jnp.sum(picked, axis=0) > 0, jnp.sum(steps[:, None, None] * picked, axis=0), float(m))
    return jnp.argsort(place, axis=0)


_by_householder = ft.partial(least_squares, householder)
_by_gram_schmidt = ft.partial(least_squares, modified_gram_schmidt)


class HouseholderLS(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse as a least-squares solution by Householder QR.

    The system $[\alpha I, B^\top; B, 0]\,[x; \lambda] = [0; y]$ is solved by QR with column pivoting; its x is $B^+ y$
    for any rank, and for contradictory rows.

    Args:
        rtol: Rank test: a singular value of B at or below about `rtol` times its largest entry counts as zero; the
            factorisation stops when the remainder of every column is at most `32 rtol**2` times the longest. None
            (default) is 1e-4 in float64 and 1e-3 in lower precision.

    The system is as large as rows and columns together; this strategy is for comparison.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: de Falco et al. (2008), eq. 16 to 18; alpha = 1 there.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_by_householder, rank_tolerance(self.rtol, B.dtype))(B, Y)


class GramSchmidtLS(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse as a least-squares solution by modified Gram-Schmidt QR.

    The system of `HouseholderLS` is factorised by modified Gram-Schmidt with column pivoting. The right-hand side is
    orthogonalised like a further column; otherwise the method would lose digits.

    Args:
        rtol: Rank test, that of `HouseholderLS`. None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: de Falco et al. (2008), eq. 16 to 18; Bjorck (1967) on modified Gram-Schmidt.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_by_gram_schmidt, rank_tolerance(self.rtol, B.dtype))(B, Y)


class Varga(AbstractPseudoinverse):
    r"""The Moore-Penrose inverse by two Householder QR factorisations, the complete orthogonal decomposition.

    $B = U [G; 0]$ with column pivoting, so that the rows of G are independent; $G^\top = V^\top [T; 0]$;
    $B^+ = V^\top\,\mathrm{diag}(T^{-\top}, 0)\,U^\top$.

    Args:
        rtol: Rank test: the first factorisation stops when what is left of every column is at most `rtol` times the
            longest column. None (default) is 1e-4 in float64 and 1e-3 in lower precision.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Varga (2001); de Falco et al. (2008), eq. 20 and 21. The paper does not say how G gets independent rows;
    that takes pivoting.
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve(self, B, Y):
        return at_tolerance(_varga, rank_tolerance(self.rtol, B.dtype))(B, Y)


def _varga(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
    scale = unit_scale(B)
    qr = householder(B * scale, Y * scale, rtol)
    return minimum_norm_solution(qr), qr.rank
