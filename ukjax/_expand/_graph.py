"""Scalar programs under construction, one number at a time.

While a program is put together constants are folded, multiplications by zero and one vanish, and a number that exists
already is not computed again, however differently it was written.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core.primitives as prims
import numpy as np
from jax import lax
from jax.numpy import finfo

from ._entry import Block, Entry, Node, constant, name_of
from ._rules import COMMUTATIVE, FOLDED, RULES, negated
from ._value import Constants, P, Value, drawn, value_of


# Multiples of a quarter up to this many are recognised as constants.
QUARTERS = 4096


class TooLong(Exception):
    """A scalar program has more operations than its limit."""


class Graph:
    """A scalar program under construction, of at most `limit` operations and inputs.

    Attributes:
        pieces: (graph, piece, arguments) -> results, which inlines pieces; loops are unrolled then, however long. None
            if pieces are not inlined, and are scalar code by themselves.
        doubts: Truth values, none of which may be set for the results to hold.
    """

    def __init__(self, limit: int, pieces: Callable[["Graph", Any, list[np.ndarray]], list[np.ndarray]] | None = None):
        self.count, self.limit, self.pieces = 0, limit, pieces
        self.doubts: list[Entry] = []
        self.known: dict[Any, Node] = {}
        self.by_value: dict[Any, Node] = {}
        self.constants = Constants()

    def input(self, dtype: Any) -> Node:
        node = self._add(Node, _given, (), dtype)
        self._set_value(node)
        return node

    def _set_value(self, node: Node, value: Value | None = None) -> None:
        """Sets the value of a node to `value`, or to that of a number of which nothing is known."""
        if np.issubdtype(node.dtype, np.floating):
            node.value = value or Value.of(drawn("number", node.order))
            self.by_value.setdefault((node.value.element, node.dtype), node)

    def _add(self, kind: type[Node], apply: Any, args: tuple[Any, ...], dtype: Any) -> Any:
        self.count += 1
        if self.count > self.limit:
            raise TooLong(f"more than {self.limit} operations")
        return kind(apply, args, dtype, self.count)

    def keep(self, apply: Callable[..., Any], arrays: Sequence[np.ndarray], dtypes: Sequence[Any]) -> Block:
        """The results of `apply` to whole arrays, as one block; `take` gets their entries out."""
        return self._add(Block, apply, tuple(arrays), tuple(dtypes))

    def take(self, block: Block, output: int, index: tuple[int, ...]) -> Node:
        node = self._once(("take", output, index), operator.itemgetter(output), (block,), block.dtype[output], index)
        if node.place is None:
            node.place = output, index
            self._set_value(node)
        return node

    def _once(self, key: Any, apply: Any, args: tuple[Any, ...], dtype: Any, index: Any = None) -> Node:
        names = tuple(name_of(x) for x in args)
        found = self.known.get((key, names))
        if found is None:
            if index is not None:
                pick = apply
                apply = lambda block: pick(block)[index]
            found = self.known[(key, names)] = self._add(Node, apply, args, dtype)
        return found

    def apply(self, primitive: Any, params: dict[str, Any], args: Sequence[Entry], dtype: Any) -> Entry:
        """The entry that an elementwise primitive of `jax.lax` makes of its arguments, simplified."""
        simple = self._simplified(primitive, params, args, dtype)
        if simple is not None:
            return simple
        if primitive in COMMUTATIVE:
            args = sorted(args, key=name_of)
        key = primitive, tuple(sorted((k, str(v)) for k, v in params.items()))
        names = tuple(name_of(x) for x in args)
        if (key, names) in self.known:
            return self.known[key, names]
        value = value_of(primitive, args, dtype, self.constants)
        same = None if value is None else self._same(value, dtype)
        if same is not None:
            self.known[key, names] = same
            return same
        # A product has a parameter, which its function fills in.
        bind = lax.mul if primitive is prims.mul_p else primitive.bind
        node = self._once(key, lambda *xs: bind(*xs, **params), tuple(args), dtype)
        node.primitive = primitive
        self._set_value(node, value)
        return node

    def _same(self, value: Value, dtype: Any) -> Entry | None:
        """The entry that is the same number for all inputs, or the negation of its negative; None if there is none."""
        quarters = 4 * value.element % P
        quarters -= P if quarters > P // 2 else 0
        if abs(quarters) <= QUARTERS:
            return constant(quarters / 4, dtype)
        node = self.by_value.get((value.element, dtype))
        if node is not None:
            return node
        node = self.by_value.get((P - value.element, dtype))
        return None if node is None else self.minus(node)

    def minus(self, x: Node) -> Entry:
        minus = negated(x)
        if minus is not None:
            return minus
        node = self._once((prims.neg_p, ()), prims.neg_p.bind, (x,), x.dtype)
        node.primitive = prims.neg_p
        if x.value is not None:
            node.value = x.value.minus
        return node

    def _simplified(self, primitive: Any, params: dict[str, Any], args: Sequence[Entry], dtype: Any) -> Entry | None:
        rule = RULES.get(primitive)
        if rule is not None:
            found = rule(self, args, params, dtype)
            if found is not None:
                return found
        fold = FOLDED.get(primitive)
        if fold is None or any(isinstance(x, Node) for x in args):
            return None
        with np.errstate(all="ignore"):
            found = constant(fold(*args), dtype)
        self.constants.computed(primitive, args, found)
        return found

    # The arithmetic in which factorisations are written.

    def add(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.add_p, {}, (x, y), x.dtype)

    def sub(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.sub_p, {}, (x, y), x.dtype)

    def mul(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.mul_p, {}, (x, y), x.dtype)

    def neg(self, x: Entry) -> Entry:
        return self.apply(prims.neg_p, {}, (x,), x.dtype)

    def div(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.div_p, {}, (x, y), x.dtype)

    def sqrt(self, x: Entry) -> Entry:
        return self.apply(prims.sqrt_p, {"accuracy": None}, (x,), x.dtype)

    def power_of_two(self, x: Entry) -> Entry:
        """The power of two that is nearest to a positive number."""
        kept = {"exponent_bits": finfo(x.dtype).nexp, "mantissa_bits": 0}
        return self.apply(prims.reduce_precision_p, kept, (x,), x.dtype)

    def abs(self, x: Entry) -> Entry:
        return self.apply(prims.abs_p, {}, (x,), x.dtype)

    def maximum(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.max_p, {}, (x, y), x.dtype)

    def where(self, condition: Entry, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.select_n_p, {}, (condition, y, x), x.dtype)

    def greater(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.gt_p, {}, (x, y), np.dtype(bool))

    def both(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.and_p, {}, (x, y), np.dtype(bool))

    def either(self, x: Entry, y: Entry) -> Entry:
        return self.apply(prims.or_p, {}, (x, y), np.dtype(bool))

    def negation(self, x: Entry) -> Entry:
        return self.apply(prims.not_p, {}, (x,), np.dtype(bool))

    def sum(self, terms: Sequence[Entry], dtype: Any) -> Entry:
        total = constant(0, dtype)
        for term in terms:
            total = self.add(total, term)
        return total


def _given(*_: Any) -> Any:
    raise AssertionError("an input is given, not computed")
