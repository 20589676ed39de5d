"""Rows that may be nothing but the rounding errors of their terms, found by how scalar code makes them.

A sum may vanish except for rounding errors, which are a small part of the sizes of its terms: |a + b| <= |a| + |b|,
|a b| = |a| |b|. So may a sine or a cosine next to its zeros, where its argument is rounded. An input, a constant, the
difference of two of these (which is exact where it is small), or a product of such numbers may not: its size is its
own.
"""

from collections.abc import Sequence

import jax.extend.core.primitives as prims

from ._entry import Entry, Node, constant, is_constant
from ._graph import Graph


# Rows that are smaller than this many eps of their terms may be rounding errors: the fallback decides.
SMALLEST = 4096.0


class Sizes:
    """Sizes of the terms of numbers within a graph."""

    def __init__(self, graph: Graph):
        self.graph, self.known = graph, {}

    def of(self, x: Entry) -> Entry:
        """The size of the terms of a number; its own size, the entry `graph.abs(x)`, if the terms cannot cancel."""
        if is_constant(x):
            return constant(abs(x), x.dtype)
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
        return constant(abs(x), x.dtype) if is_constant(x) else self.graph.abs(x)

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
