"""Factorisation of a small symmetric matrix over the entries that are not zero, as scalar code.

S = P^T L D L^T P with a unit lower L; the order P is that of minimum degree, chosen once, from the pattern.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._entry import Entry, constant, is_constant
from ._graph import Graph


Vector = list[Entry]


class Factors:
    """L, D and the order of a semidefinite matrix (n, n) of entries, of which the lower triangle is used.

    A row whose pivot is no more than the part `least` of its diagonal entry depends on those before it. It is left out,
    so that solutions are those of S with these rows and columns struck out: see `pivots` and `kept`.
    """

    def __init__(self, graph: Graph, S: np.ndarray, dtype: Any, least: float = 0.0):
        self.graph, self.dtype = graph, np.dtype(dtype)
        self.order = minimum_degree(S)
        zero, one = constant(0, dtype), constant(1, dtype)
        n = len(S)
        rest = {
            (i, j): S[max(p, q), min(p, q)] for i, p in enumerate(self.order) for j, q in enumerate(self.order[: i + 1])
        }
        rest = {k: x for k, x in rest.items() if not is_constant(x, 0)}
        self.rows: list[dict[int, Entry]] = [{} for _ in range(n)]  # of L, by column, below the diagonal
        self.columns: list[dict[int, Entry]] = [{} for _ in range(n)]
        self.pivots: Vector = []
        self.kept: Vector = []
        self.inverses: Vector = []
        for j, p in enumerate(self.order):
            pivot = rest.get((j, j), zero)
            kept = graph.greater(pivot, graph.mul(constant(least, dtype), S[p, p]) if least else zero)
            inverse = graph.where(kept, graph.div(one, graph.where(kept, pivot, one)), zero)
            self.pivots.append(pivot)
            self.kept.append(kept)
            self.inverses.append(inverse)
            below = [(i, rest[i, j]) for i in range(j + 1, n) if (i, j) in rest]
            for i, x in below:
                self.rows[i][j] = self.columns[j][i] = graph.mul(x, inverse)
            for k, (i, _) in enumerate(below):
                for l, x in below[: k + 1]:
                    rest[i, l] = graph.sub(rest.get((i, l), zero), graph.mul(self.rows[i][j], x))

    def solve(self, y: Sequence[Entry]) -> Vector:
        """The solution S^-1 y."""
        return self.upper(self.scaled(self.lower(y)))

    def lower(self, y: Sequence[Entry]) -> Vector:
        """The product L^-1 P y."""
        graph, x = self.graph, [y[p] for p in self.order]
        for i, row in enumerate(self.rows):
            for j, value in row.items():
                x[i] = graph.sub(x[i], graph.mul(value, x[j]))
        return x

    def scaled(self, x: Sequence[Entry]) -> Vector:
        """The product D^-1 x."""
        return [self.graph.mul(value, inverse) for value, inverse in zip(x, self.inverses, strict=True)]

    def upper(self, x: Sequence[Entry]) -> Vector:
        """The product P^T L^-T x."""
        graph, x = self.graph, list(x)
        for j in reversed(range(len(x))):
            for i, value in self.columns[j].items():
                x[j] = graph.sub(x[j], graph.mul(value, x[i]))
        found: Vector = [None] * len(x)
        for p, value in zip(self.order, x, strict=True):
            found[p] = value
        return found

    def inverse_bound(self, lengths: Sequence[Entry]) -> Entry:
        r"""A bound of $\|\hat R^{-1}\|_\infty$, $\hat R^\top \hat R = \hat S$: the kept part of S, rows of unit length.

        Its inverse is a lower bound of the smallest singular value of the rows, up to the square root of their number.
        It uses the comparison matrix of R: Higham (2002), Accuracy and stability of numerical algorithms, 8.3.
        """
        graph, n = self.graph, len(self.rows)
        w: Vector = [None] * n
        largest = constant(0, self.dtype)
        for i in reversed(range(n)):
            total = graph.sqrt(graph.abs(self.inverses[i]))
            for j, value in self.columns[i].items():
                total = graph.add(total, graph.mul(graph.abs(value), w[j]))
            w[i] = total
            largest = graph.maximum(largest, graph.mul(total, lengths[self.order[i]]))
        return largest


def minimum_degree(S: np.ndarray) -> list[int]:
    """An order of the rows in which elimination fills in little; ties go to the first row."""
    n = len(S)
    is_there = lambda i, j: not (is_constant(S[i, j], 0) and is_constant(S[j, i], 0))
    near = [{j for j in range(n) if j != i and is_there(i, j)} for i in range(n)]
    order: list[int] = []
    left = set(range(n))
    while left:
        i = min(left, key=lambda i: (len(near[i]), i))
        order.append(i)
        left.remove(i)
        for j in near[i]:
            near[j] |= near[i]
            near[j] -= {i, j}
    return order


def product(graph: Graph, A: np.ndarray, x: Sequence[Entry], dtype: Any) -> Vector:
    """The product A x."""
    return [graph.sum([graph.mul(a, b) for a, b in zip(row, x, strict=True)], dtype) for row in A]


def combined(graph: Graph, f: Callable[[Entry, Entry], Entry], x: Sequence[Entry], y: Sequence[Entry]) -> Vector:
    return [f(a, b) for a, b in zip(x, y, strict=True)]
