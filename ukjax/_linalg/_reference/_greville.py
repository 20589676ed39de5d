"""The pseudoinverse by Greville's recursion, one row at a time.

a: row i of B (m, n, batch); P: pseudoinverse of the rows so far, (n, m, batch) with zeros for the rows to come.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._base import AbstractPseudoinverse, rank_tolerance, row_sizes, tolerance, unit_scale
from .._batch import at_tolerance
from ._qr import modified_gram_schmidt


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
        return at_tolerance(_solve, rank_tolerance(self.rtol, B.dtype))(B, Y)


def _solve(rtol: float, B: Array, Y: Array) -> tuple[Array, Array]:
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
