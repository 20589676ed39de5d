"""Factorisation of dense symmetric matrices, many at a time: S = L D L^T, by panels of a few columns.

The last axis is that of the batch. A panel is factorised column by column, and then subtracted from the remainder at
once. So the remainder is gone through once for each panel, and gets smaller each time. A barrier keeps each panel from
being computed again for every use.

S: (n, n, batch) semidefinite; L: unit lower triangular.
"""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array


T = TypeVar("T")


def fusion_barrier(function: Callable[..., T], *arrays: Array) -> T:
    """Computes `function` of arrays once, behind a barrier to fusion; the first array has entries of floating dtype.

    XLA's compiler for the CPU fuses a computation into each of its uses, and so repeats it for every one of them: of
    the panels of a factorisation, each made of the one before, it computes the first as often as there are panels. It
    does not fuse across the border of a conditional whose branch it cannot know. A GPU has no such barrier, which would
    make it wait.
    """

    def apart(*arrays):
        # This is always true, but the compiler cannot know it.
        always = ~(jnp.ravel(arrays[0])[0] < -jnp.inf)

        def empty(*xs):
            return jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *xs))

        return jax.lax.cond(always, function, empty, *arrays)

    return jax.lax.platform_dependent(*arrays, cpu=apart, default=function)


# Columns of a panel; with fewer columns it takes longer to compile.
WIDTH = 4


class Factors(NamedTuple):
    """L without its diagonal, (n, n, batch); the inverses of D, 0 for rows left out; the pivots; (n, batch) each.

    A row whose pivot is no more than a given number depends on those before it, and is left out: solutions are those of
    S with these rows and columns struck out.
    """

    L: Array
    inverses: Array
    pivots: Array

    @property
    def kept(self) -> Array:
        """Whether each row counts, (n, batch)."""
        return self.inverses > 0

    def lower(self, y: Array) -> Array:
        """The product L^-1 y, (n, k, batch)."""
        done, rest = [y[:0]], y
        for start, width in _panels(len(y)):
            L = self.L[start:, start : start + width]
            top = [rest[j] for j in range(width)]
            for j in range(width):
                for i in range(j + 1, width):
                    top[i] = top[i] - L[i, j] * top[j]
            done.append(jnp.stack(top))
            rest = rest[width:] - sum(L[width:, j, None] * top[j][None] for j in range(width))
        return jnp.concatenate(done)

    def upper(self, y: Array) -> Array:
        """The product L^-T y, (n, k, batch)."""
        done = y[:0]
        for start, width in reversed(_panels(len(y))):
            L = self.L[start:, start : start + width]
            top = [y[start + j] - jnp.sum(L[width:, j, None] * done, axis=0) for j in range(width)]
            for j in reversed(range(width)):
                for i in range(j + 1, width):
                    top[j] = top[j] - L[i, j] * top[i]
            done = jnp.concatenate([jnp.stack(top), done])
        return done

    def solve(self, y: Array) -> Array:
        """The solution S^-1 y, (n, k, batch), 0 in the rows that were left out."""
        return self.upper(self.inverses[:, None] * self.lower(y))

    def inverse_bound(self, lengths: Array) -> Array:
        r"""A bound of $\|\hat R^{-1}\|_\infty$, (batch,); $\hat R^\top \hat R$: the kept part of S, for unit rows.

        `lengths` (n, batch): lengths of the rows. The bound uses the comparison matrix of R: Higham (2002), Accuracy
        and stability of numerical algorithms, 8.3.
        """
        comparison = self._replace(L=-jnp.abs(self.L))
        sizes = comparison.upper(jnp.sqrt(self.inverses)[:, None])[:, 0]
        return jnp.max(sizes * lengths, axis=0, initial=0.0)


class Elimination(NamedTuple):
    """The factors of S, Y L^-T (k, n, batch), and the remainder of Z: Z - Y S^-1 Y^T, (k, k, batch)."""

    factors: Factors
    Y: Array
    left: Array


def eliminate(S: Array, Y: Array, Z: Array, least: Array) -> Elimination:
    """Eliminates the first block of [[S, Y^T], [Y, Z]]; a row counts if its pivot is larger than `least` (n, batch).

    S (n, n, batch), Y (k, n, batch), Z (k, k, batch).
    """
    n, columns, inverses, pivots = len(S), [], [], []
    rest = jnp.concatenate([jnp.concatenate([S, Y]), jnp.concatenate([jnp.swapaxes(Y, 0, 1), Z])], axis=1)
    for start, width in _panels(n):
        panel, own, pivot, rest = fusion_barrier(ft.partial(_panel, width), rest, least[start : start + width])
        columns.append(jnp.concatenate([jnp.zeros((start, *panel.shape[1:]), panel.dtype), panel]))
        inverses.append(own)
        pivots.append(pivot)
    if not n:
        empty = jnp.zeros((0, Z.shape[-1]), Z.dtype)
        return Elimination(Factors(S, empty, empty), Y, Z)
    whole, inverse = jnp.concatenate(columns, axis=1), jnp.concatenate(inverses)
    return Elimination(Factors(whole[:n] * inverse[None], inverse, jnp.concatenate(pivots)), whole[n:], rest)


def _panel(width: int, rest: Array, least: Array) -> tuple[Array, Array, Array, Array]:
    """Eliminates a panel: returns the columns of L D, the inverses and the pivots of D, and the remainder."""
    panel, inverses, pivots = [rest[:, j] for j in range(width)], [], []
    for j in range(width):
        pivot = panel[j][j]
        kept = pivot > least[j]
        inverses.append(jnp.where(kept, 1 / jnp.where(kept, pivot, 1), 0))
        pivots.append(pivot)
        for i in range(j + 1, width):
            panel[i] = panel[i] - panel[j] * (panel[j][i] * inverses[j])
    rest = rest[width:, width:]
    for column, inverse in zip(panel, inverses, strict=True):
        below = column[width:]
        rest = rest - below[:, None] * (below * inverse)[None]
    return jnp.stack(panel, axis=1), jnp.stack(inverses), jnp.stack(pivots), rest


def _panels(n: int) -> list[tuple[int, int]]:
    """The first column and the width of each panel."""
    return [(start, min(WIDTH, n - start)) for start in range(0, n, WIDTH)]
