"""The constrained motion over the entries that are not zero, and whether it is certain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._eliminate import Factors, Vector, combined, product
from ._entry import Entry, constant
from ._graph import Graph


class Certain(NamedTuple):
    """When a factorisation is trusted.

    Attributes:
        rank: Rows count as independent, without a closer look, if the smallest singular value of the rows, brought to
            unit length, is certainly larger than this.
        pivot: The least part of a diagonal entry of M that its pivot may be.
        residual: The largest part of a row's terms that it may be missed by.
    """

    rank: float
    pivot: float
    residual: float


class Solved:
    """M, Q, A, b with everything that follows from them, as entries of a graph."""

    def __init__(self, graph: Graph, M: np.ndarray, Q: np.ndarray, A: np.ndarray, b: np.ndarray, dtype: Any):
        self.graph, self.M, self.A, self.b, self.dtype = graph, M, A, b, dtype
        self.mass = Factors(graph, M, dtype)
        self.free = self.mass.solve(list(Q))
        if not len(A):
            self.multipliers, self.acceleration = [], self.free
            self.error: Vector = []
            return
        whitened = [self.mass.lower(list(row)) for row in A]
        self.levers = [self.mass.scaled(row) for row in whitened]
        S = np.full((len(A), len(A)), constant(0, dtype), object)
        for i, row in enumerate(whitened):
            for j, lever in enumerate(self.levers[: i + 1]):
                S[i, j] = S[j, i] = graph.sum(combined(graph, graph.mul, row, lever), dtype)
        self.squares = [S[i, i] for i in range(len(A))]
        self.rows = Factors(graph, S, dtype)
        self.demand = self.missing(self.free)
        self.multipliers = self.rows.solve(self.demand)
        first = combined(graph, graph.add, self.free, self.pushed(self.multipliers))
        more = self.rows.solve(self.missing(first))
        self.multipliers = combined(graph, graph.add, self.multipliers, more)
        self.acceleration = combined(graph, graph.add, first, self.pushed(more))
        self.error = self.missing(self.acceleration)

    def missing(self, acceleration: Sequence[Entry]) -> Vector:
        """b - A q''"""
        return combined(self.graph, self.graph.sub, list(self.b), product(self.graph, self.A, acceleration, self.dtype))

    def pushed(self, multipliers: Sequence[Entry]) -> Vector:
        """M^-1 A^T l"""
        graph, n = self.graph, len(self.M)
        columns = [[graph.mul(l, lever[k]) for l, lever in zip(multipliers, self.levers)] for k in range(n)]
        return self.mass.upper([graph.sum(terms, self.dtype) for terms in columns])

    def force(self, multipliers: Sequence[Entry]) -> Vector:
        """A^T l"""
        return product(self.graph, self.A.T, multipliers, self.dtype)

    def respond(self, r1: Sequence[Entry], r2: Sequence[Entry]) -> tuple[Vector, Vector]:
        """dq'' and dl."""
        graph, change = self.graph, self.mass.solve(r1)
        if not len(self.A):
            return change, []
        wanted = combined(graph, graph.sub, list(r2), product(graph, self.A, change, self.dtype))
        multipliers = self.rows.solve(wanted)
        return combined(graph, graph.add, change, self.pushed(multipliers)), multipliers

    def residual(self) -> Entry:
        return self.graph.sqrt(self.graph.sum([self.graph.mul(e, e) for e in self.error], self.dtype))

    def clear(self, certain: Certain) -> Entry:
        """Whether M is definite, the rows are independent, and met, without any doubt."""
        graph, number = self.graph, lambda x: constant(x, self.dtype)
        okay = constant(True, bool)
        demand = lambda larger, smaller: graph.both(okay, graph.greater(larger, smaller))
        n, m = len(self.M), len(self.A)
        eps = float(np.finfo(self.dtype).eps)
        for i in range(n):
            for j in range(i):
                if self.M[i, j] is not self.M[j, i]:
                    off = graph.sub(self.M[i, j], self.M[j, i])
                    size = graph.mul(self.M[i, i], self.M[j, j])
                    okay = demand(
                        graph.add(graph.mul(number(eps), size), number(np.finfo(self.dtype).tiny)), graph.mul(off, off)
                    )
        for p, pivot in zip(self.mass.order, self.mass.pivots, strict=True):
            okay = demand(pivot, graph.mul(number(certain.pivot), self.M[p, p]))
        # A force that is no number need not be in any row. The sum of numbers is one, and of others is not.
        okay = demand(number(np.finfo(self.dtype).max), graph.abs(graph.sum(self.acceleration, self.dtype)))
        if not m:
            return okay
        for p, pivot in zip(self.rows.order, self.rows.pivots, strict=True):
            okay = demand(pivot, graph.mul(number(certain.rank**2), self.squares[p]))
        lengths = [graph.sqrt(graph.abs(x)) for x in self.squares]
        okay = demand(number(1 / (certain.rank * m**0.5)), self.rows.inverse_bound(lengths))
        # How far the constraints push, in the metric of M; a row's own share of it is at most its length times that.
        push = graph.sqrt(graph.abs(graph.sum(combined(graph, graph.mul, self.multipliers, self.demand), self.dtype)))
        for e, b, d, length in zip(self.error, self.b, self.demand, lengths, strict=True):
            terms = graph.add(graph.add(graph.abs(b), graph.abs(d)), graph.mul(length, push))
            tiny = number(np.finfo(self.dtype).tiny)
            okay = demand(graph.add(graph.mul(number(certain.residual), terms), tiny), graph.abs(e))
        return okay
