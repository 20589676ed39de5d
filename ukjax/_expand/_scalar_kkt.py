"""The constrained motion over the entries that are not zero, and whether it is certain."""

import functools as ft
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ._eliminate import Factors, Vector, combined, product
from ._entry import Entry, constant
from ._graph import Graph
from ._vanishing import Sizes


# Rows that are shorter than this many eps of the longest may be rounding errors: the fallback decides.
SHORTEST = 4096.0


class Certain(NamedTuple):
    """The thresholds for trusting a factorisation.

    Attributes:
        rank: Rows count as independent, without a closer look, if the smallest singular value of the rows, brought to
            unit length, is certainly larger than this (block by block: than this part of the largest).
        dependent: A row depends on others if the part of it that they leave is no larger than this part of its length.
        pivot: The least part of a diagonal entry of M that its pivot may be.
        residual: The largest error of a row, as a part of its terms.
        push: The largest error of a row, as a part of its length times the push of the constraints: rounding errors.
    """

    rank: float
    dependent: float
    pivot: float
    residual: float
    push: float


class ScalarKKT:
    """M, Q, A, b with everything that follows from them, as entries of a graph.

    `vanishing`: whether rows may be nothing but the rounding errors of their terms.
    """

    def __init__(
        self,
        graph: Graph,
        M: np.ndarray,
        Q: np.ndarray,
        A: np.ndarray,
        b: np.ndarray,
        certain: Certain,
        dtype: Any,
        vanishing: bool = False,
    ):
        self.graph, self.M, self.A, self.b, self.dtype, self.certain = graph, M, A, b, dtype, certain
        self.vanishing = vanishing
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
        self.rows = Factors(graph, S, dtype, certain.dependent**2)
        self.demand = self.missing(self.free)
        self.multipliers = self.rows.solve(self.demand)
        first = combined(graph, graph.add, self.free, self.pushed(self.multipliers))
        more = self.rows.solve(self.missing(first))
        self.multipliers = combined(graph, graph.add, self.multipliers, more)
        self.acceleration = combined(graph, graph.add, first, self.pushed(more))
        self.error = self.missing(self.acceleration)

    def missing(self, acceleration: Sequence[Entry]) -> Vector:
        """The error b - A q'' of the rows."""
        return combined(self.graph, self.graph.sub, list(self.b), product(self.graph, self.A, acceleration, self.dtype))

    def pushed(self, multipliers: Sequence[Entry]) -> Vector:
        """The acceleration M^-1 A^T l by the multipliers l."""
        graph, n = self.graph, len(self.M)
        columns = [[graph.mul(l, lever[k]) for l, lever in zip(multipliers, self.levers)] for k in range(n)]
        return self.mass.upper([graph.sum(terms, self.dtype) for terms in columns])

    def force(self, multipliers: Sequence[Entry]) -> Vector:
        """The constraint force A^T l."""
        return product(self.graph, self.A.T, multipliers, self.dtype)

    # Derivatives are those of the pseudoinverse of rows that keep their rank, H of unit length: the change of the
    # demand counts as far as it lies in the range of H, and the multipliers are those of least norm. Here, where one
    # row depends on others, n^T A = 0: the part along n, in the metric of H, is left out. Parts along the n of further
    # dependent rows would not be.

    @ft.cached_property
    def _dependence(self) -> tuple[Vector, Vector, Entry]:
        """The vector n of one dependent row, or 0; n in the metric of H; and the inverse of its squared length."""
        graph, one, zero = self.graph, constant(1, self.dtype), constant(0, self.dtype)
        n = self.rows.upper([graph.where(kept, zero, one) for kept in self.rows.kept])
        units = [graph.power_of_two(graph.sqrt(x)) for x in self.squares]
        scaled = [graph.mul(graph.mul(unit, unit), x) for unit, x in zip(units, n, strict=True)]
        length = graph.sum(combined(graph, graph.mul, n, scaled), self.dtype)
        there = graph.greater(length, zero)
        return n, scaled, graph.where(there, graph.div(one, graph.where(there, length, one)), zero)

    def _without(self, direction: Vector, measure: Vector, values: Sequence[Entry]) -> Vector:
        graph, (*_, inverse) = self.graph, self._dependence
        part = graph.mul(graph.sum(combined(graph, graph.mul, measure, values), self.dtype), inverse)
        return [graph.sub(x, graph.mul(part, d)) for x, d in zip(values, direction, strict=True)]

    def in_range(self, demanded: Sequence[Entry]) -> Vector:
        """The part of a change of b - A a that can be met."""
        if not len(self.A):
            return []
        n, scaled, _ = self._dependence
        return self._without(scaled, n, demanded)

    def least(self, multipliers: Sequence[Entry]) -> Vector:
        """The multipliers of least norm with the same constraint force as these."""
        if not len(self.A):
            return []
        n, scaled, _ = self._dependence
        return self._without(n, scaled, multipliers)

    @property
    def at_most_one_depends(self) -> Entry:
        graph, (one, zero) = self.graph, (constant(x, self.dtype) for x in (1, 0))
        count = graph.sum([graph.where(kept, zero, one) for kept in self.kept], self.dtype)
        return graph.greater(constant(1.5, self.dtype), count)

    def respond(self, r1: Sequence[Entry], r2: Sequence[Entry]) -> tuple[Vector, Vector]:
        """The changes dq'' and dl by the changes r1 and r2 of the right-hand sides."""
        graph, change = self.graph, self.mass.solve(r1)
        if not len(self.A):
            return change, []
        wanted = combined(graph, graph.sub, list(r2), product(graph, self.A, change, self.dtype))
        multipliers = self.rows.solve(self.in_range(wanted))
        return combined(graph, graph.add, change, self.pushed(multipliers)), multipliers

    def residual(self) -> Entry:
        return self.graph.sqrt(self.graph.sum([self.graph.mul(e, e) for e in self.error], self.dtype))

    @property
    def kept(self) -> Vector:
        """Whether each row does not depend on others."""
        kept = dict(zip(self.rows.order, self.rows.kept, strict=True)) if len(self.A) else {}
        return [kept[i] for i in range(len(self.A))]

    def _rows_are_none_or_real(self) -> Entry:
        """Whether every row is either zero, or longer than the rounding errors of the longest row."""
        graph, zero, okay = self.graph, constant(0, self.dtype), constant(True, bool)
        if self.vanishing:
            sizes, eps = Sizes(graph), float(np.finfo(self.dtype).eps)
            for row in self.A:
                okay = graph.both(okay, sizes.row_is_real(list(row), eps))
        if len(self.squares) < 2:
            return okay
        longest = ft.reduce(graph.maximum, self.squares)
        least = graph.mul(constant((SHORTEST * np.finfo(self.dtype).eps) ** 2, self.dtype), longest)
        for square in self.squares:
            okay = graph.both(
                okay, graph.either(graph.greater(square, least), graph.negation(graph.greater(square, zero)))
            )
        return okay

    def clear(self) -> Entry:
        """Whether M is surely definite, and every row is met, and surely independent of others or surely dependent."""
        certain = self.certain
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
        # A force that is NaN need not be in any row. The sum of finite numbers is finite, and no sum with NaN is.
        okay = demand(number(np.finfo(self.dtype).max), graph.abs(graph.sum(self.acceleration, self.dtype)))
        if not m:
            return okay
        for p, pivot, kept in zip(self.rows.order, self.rows.pivots, self.rows.kept, strict=True):
            independent = graph.greater(pivot, graph.mul(number(certain.rank**2), self.squares[p]))
            # NaN is neither.
            dependent = graph.both(graph.greater(number(np.inf), graph.abs(pivot)), graph.negation(kept))
            okay = graph.both(okay, graph.either(independent, dependent))
        okay = graph.both(okay, self._rows_are_none_or_real())
        lengths = [graph.sqrt(graph.abs(x)) for x in self.squares]
        okay = demand(number(1 / (certain.rank * m**0.5)), self.rows.inverse_bound(lengths))
        # The push of the constraints, in the metric of M: a row's share is at most its length times that, and far less
        # for a light body beside heavy ones.
        push = graph.sqrt(graph.abs(graph.sum(combined(graph, graph.mul, self.multipliers, self.demand), self.dtype)))
        push = graph.mul(number(certain.push), push)
        for e, b, d, length in zip(self.error, self.b, self.demand, lengths, strict=True):
            terms = graph.mul(number(certain.residual), graph.add(graph.abs(b), graph.abs(d)))
            tiny = number(np.finfo(self.dtype).tiny)
            okay = demand(graph.add(graph.add(terms, graph.mul(length, push)), tiny), graph.abs(e))
        return okay
