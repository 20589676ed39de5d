"""The constrained motion over the entries that are not zero, and the verdict whether it is certain.

The verdict on a motion found from arrays, by another fast path, is here too: `Rows`, `Candidate`.

Rows may be nothing but the rounding errors of their terms. A sum may vanish except for rounding errors, which are a
small part of the sizes of its terms: |a + b| <= |a| + |b|, |a b| = |a| |b|. So may a sine or a cosine next to its
zeros, where its argument is rounded. An input, a constant, the difference of two of these (which is exact where it is
small), or a product of such numbers may not: its size is its own.
"""

import functools as ft
from collections.abc import Sequence
from typing import NamedTuple

import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._lowering._entry import Entry, Node, constant, is_constant
from ._graph import Graph
from ._symmetric import Factors, combined, dot, product


# Rows that are smaller than this many eps of their terms may be rounding errors: the fallback decides.
SMALLEST = 4096.0


class Sizes:
    """Sizes of the terms of numbers within a graph."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.known: dict[int, Entry] = {}

    def of(self, x: Entry) -> Entry:
        """The size of the terms of a number; its own size, the entry `graph.abs(x)`, if the terms cannot cancel."""
        if not isinstance(x, Node):
            return constant(np.abs(x), x.dtype)
        if x.order not in self.known:
            self.known[x.order] = self._found(x)
        return self.known[x.order]

    def _found(self, x: Node) -> Entry:
        graph, own, how = self.graph, self.graph.abs(x), x.primitive
        if how in (prims.add_p, prims.sub_p):
            if all(is_constant(y) or y.primitive is None for y in x.args):
                return own
            return graph.add(*map(self.of, x.args))
        if how is prims.neg_p:
            return self.of(x.args[0])
        if how is prims.mul_p:
            parts = list(map(self.of, x.args))
            solid = all(part is self._own(y) for part, y in zip(parts, x.args, strict=True))
            return own if solid else graph.mul(*parts)
        if how is prims.div_p:
            top = self.of(x.args[0])
            return own if top is self._own(x.args[0]) else graph.div(top, graph.abs(x.args[1]))
        if how in (prims.sin_p, prims.cos_p):
            return graph.add(own, graph.abs(x.args[0]))
        return own

    def _own(self, x: Entry) -> Entry:
        return self.graph.abs(x) if isinstance(x, Node) else constant(np.abs(x), x.dtype)

    def row_is_real(self, row: Sequence[Entry], eps: float) -> Entry:
        """Whether a row is more than the rounding errors of its terms, or zero."""
        graph, dtype = self.graph, row[0].dtype
        entries = [x for x in row if not is_constant(x, 0.0)]
        sizes = [self.of(x) for x in entries]
        if any(is_constant(x) for x in entries) or all(
            size is self._own(x) for x, size in zip(entries, sizes, strict=True)
        ):
            return constant(True, bool)
        whole = graph.sum([self._own(x) for x in entries], dtype)
        least = graph.mul(constant(SMALLEST * eps, dtype), graph.sum(sizes, dtype))
        return graph.either(graph.greater(whole, least), graph.negation(graph.greater(whole, constant(0, dtype))))


# Rows that are shorter than this many eps of the longest may be rounding errors: the fallback decides.
SHORTEST = 4096.0
# Derivatives know of one row in so many that depends on others, but at least of one; of more the fallback does.
ROWS_OF_A_DEPENDENT = 6


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
        dtype: np.dtype,
        vanishing: bool = False,
    ):
        self.graph, self.M, self.A, self.b, self.dtype, self.certain = graph, M, A, b, dtype, certain
        self.vanishing = vanishing
        self.mass = Factors(graph, M, dtype)
        self.free = self.mass.solve(list(Q))
        if not len(A):
            self.multipliers, self.acceleration = [], self.free
            self.error: list[Entry] = []
            return
        whitened = [self.mass.lower(list(row)) for row in A]
        self.levers = [self.mass.scaled(row) for row in whitened]
        S = np.full((len(A), len(A)), constant(0, dtype), object)
        for i, row in enumerate(whitened):
            for j, lever in enumerate(self.levers[: i + 1]):
                S[i, j] = S[j, i] = dot(graph, row, lever, dtype)
        self.squares = [S[i, i] for i in range(len(A))]
        self.rows = Factors(graph, S, dtype, certain.dependent**2)
        self.demand = self.missing(self.free)
        self.multipliers = self.rows.solve(self.demand)
        first = combined(graph, graph.add, self.free, self.pushed(self.multipliers))
        more = self.rows.solve(self.missing(first))
        self.multipliers = combined(graph, graph.add, self.multipliers, more)
        self.acceleration = combined(graph, graph.add, first, self.pushed(more))
        self.error = self.missing(self.acceleration)

    def missing(self, acceleration: Sequence[Entry]) -> list[Entry]:
        """The error b - A q'' of the rows."""
        return combined(self.graph, self.graph.sub, list(self.b), product(self.graph, self.A, acceleration, self.dtype))

    def pushed(self, multipliers: Sequence[Entry]) -> list[Entry]:
        """The acceleration M^-1 A^T l by the multipliers l."""
        columns = zip(*self.levers, strict=True)
        return self.mass.upper([dot(self.graph, column, multipliers, self.dtype) for column in columns])

    def force(self, multipliers: Sequence[Entry]) -> list[Entry]:
        """The constraint force A^T l."""
        return product(self.graph, self.A.T, multipliers, self.dtype)

    # Derivatives are those of the pseudoinverse of rows that keep their rank, H of unit length: the change of the
    # demand counts as far as it lies in the range of H, and the multipliers are those of least norm. Where rows depend
    # on others, n^T A = 0 for a vector n of each of them. The parts along these n, in the metric of H, are left out.

    @ft.cached_property
    def _there(self) -> list[Entry]:
        """Whether each row is not zero; one that is, such as that across the plane of a loop, is the n of itself."""
        squares = self.squares if len(self.A) else []
        return [self.graph.greater(x, constant(0, self.dtype)) for x in squares]

    @property
    def _most_dependent(self) -> int:
        return max(1, len(self.A) // ROWS_OF_A_DEPENDENT)

    @ft.cached_property
    def _dependent(self) -> tuple[list[Entry], list[Entry]]:
        """Whether each row depends on others without being zero, in the order of elimination; how many before it do."""
        graph, one, zero = self.graph, constant(1, self.dtype), constant(0, self.dtype)
        count, depends, before = zero, [], []
        for p, kept in zip(self.rows.order, self.rows.kept, strict=True) if len(self.A) else ():
            depends.append(graph.both(self._there[p], graph.negation(kept)))
            before.append(count)
            count = graph.add(count, graph.where(depends[-1], one, zero))
        return depends, [*before, count]

    @ft.cached_property
    def _dependences(self) -> list[tuple[list[Entry], list[Entry], Entry]]:
        """Vectors n of the rows that may depend on others, or 0; each with n in the metric of H, and the inverse of its
        squared length there. They are orthogonal in that metric."""
        graph, one, zero = self.graph, constant(1, self.dtype), constant(0, self.dtype)
        found: list[tuple[list[Entry], list[Entry], Entry]] = []
        if not len(self.A):
            return found
        units = [graph.power_of_two(graph.sqrt(x)) for x in self.squares]
        squares = [graph.mul(unit, unit) for unit in units]
        depends, before = self._dependent
        for k in range(self._most_dependent):
            here = [
                graph.both(x, graph.both(graph.greater(count, low), graph.greater(high, count)))
                for x, count in zip(depends, before, strict=False)
                for low, high in [(constant(k - 0.5, self.dtype), constant(k + 0.5, self.dtype))]
            ]
            n = self.rows.upper([graph.where(x, one, zero) for x in here])
            for other, scaled, inverse in found:
                n = self._less(n, other, scaled, inverse)
            scaled = combined(graph, graph.mul, squares, n)
            length = dot(graph, n, scaled, self.dtype)
            there = graph.greater(length, zero)
            found.append((n, scaled, graph.where(there, graph.div(one, graph.where(there, length, one)), zero)))
        return found

    def _less(
        self, values: Sequence[Entry], direction: list[Entry], measure: list[Entry], inverse: Entry
    ) -> list[Entry]:
        """The values without their part along a direction."""
        graph = self.graph
        part = graph.mul(dot(graph, measure, values, self.dtype), inverse)
        return [graph.sub(x, graph.mul(part, d)) for x, d in zip(values, direction, strict=True)]

    def _of_rows_there(self, values: Sequence[Entry]) -> list[Entry]:
        zero = constant(0, self.dtype)
        return [self.graph.where(there, x, zero) for x, there in zip(values, self._there, strict=True)]

    def in_range(self, demanded: Sequence[Entry]) -> list[Entry]:
        """The part of a change of b - A a that can be met."""
        values = self._of_rows_there(demanded)
        for n, scaled, inverse in self._dependences:
            values = self._less(values, scaled, n, inverse)
        return values

    def least(self, multipliers: Sequence[Entry]) -> list[Entry]:
        """The multipliers of least norm with the same constraint force as these."""
        values = self._of_rows_there(multipliers)
        for n, scaled, inverse in self._dependences:
            values = self._less(values, n, scaled, inverse)
        return values

    @property
    def few_depend(self) -> Entry:
        """Whether no more rows depend on others than derivatives know of."""
        return self.graph.greater(constant(self._most_dependent + 0.5, self.dtype), self._dependent[1][-1])

    def respond(self, r1: Sequence[Entry], r2: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
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
    def kept(self) -> list[Entry]:
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
        graph, okay = self.graph, constant(True, bool)

        def number(x: float) -> Entry:
            return constant(x, self.dtype)

        def demand(larger: Entry, smaller: Entry) -> Entry:
            return graph.both(okay, graph.greater(larger, smaller))

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
        push = graph.sqrt(graph.abs(dot(graph, self.multipliers, self.demand, self.dtype)))
        push = graph.mul(number(certain.push), push)
        for e, b, d, length in zip(self.error, self.b, self.demand, lengths, strict=True):
            terms = graph.mul(number(certain.residual), graph.add(graph.abs(b), graph.abs(d)))
            tiny = number(np.finfo(self.dtype).tiny)
            okay = demand(graph.add(graph.add(terms, graph.mul(length, push)), tiny), graph.abs(e))
        return okay


class Candidate(NamedTuple):
    """q'', a and the constraint force (n,), the residual, which rows count (m,); whether all of these are certain.

    `smooth`: whether derivatives are those of the pseudoinverse too, which requires independent rows.
    """

    acceleration: Array
    unconstrained: Array
    constraint_force: Array
    residual: Array
    kept: Array
    clear: Array
    smooth: Array


class Rows(NamedTuple):
    """The rows after an elimination: the diagonal and the pivots of S = A M^-1 A^T, and which rows count.

    b; the demand beyond free motion, b - A a; and the error, b - A q''. All are of one shape.
    """

    squares: Array
    pivots: Array
    kept: Array
    b: Array
    demand: Array
    missed: Array

    def are_clear(self, certain: Certain, push: Array, real: Array | None = None) -> Array:
        """Whether every `real` row is met, and surely counts or surely does not.

        push: The push of the constraints, in the metric of M; a row's own share is at most its length times that, and
            far less for a light body beside heavy ones.
        """
        eps, tiny = (getattr(jnp.finfo(self.b.dtype), name) for name in ("eps", "tiny"))
        real = jnp.ones(self.b.shape, bool) if real is None else real
        # NaN neither counts nor does not.
        decided = jnp.where(self.kept, self.pivots > certain.rank**2 * self.squares, jnp.isfinite(self.pivots))
        # No row is as short as the rounding errors of the longest.
        least = (SHORTEST * eps) ** 2 * jnp.max(self.squares, where=real, initial=0.0)
        none_or_real = (self.squares <= 0) | (self.squares > least)
        terms = certain.residual * (jnp.abs(self.b) + jnp.abs(self.demand))
        met = jnp.abs(self.missed) <= terms + certain.push * jnp.sqrt(jnp.abs(self.squares)) * push + tiny
        return jnp.all((decided & none_or_real & met) | ~real)
