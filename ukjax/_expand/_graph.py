"""Scalar programs under construction, one number at a time, and the rules that simplify their arithmetic.

While a program is put together constants are folded, multiplications by zero and one vanish, and a number that exists
already is not computed again, however differently it was written.
"""

import contextlib
import functools as ft
import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Primitive
from jax.numpy import finfo
from jax.typing import DTypeLike
from jaxtyping import Array
from numpy.typing import ArrayLike

from .._lowering._entry import (
    LARGEST,
    Block,
    Constants,
    Entry,
    Name,
    Node,
    P,
    Value,
    constant,
    drawn,
    is_constant,
    name_of,
    value_of,
)
from .._lowering._program import Routine
from .._program import Parameters


def _divided(x: np.number, y: np.number) -> ArrayLike:
    """The quotient x / y; for integers it is truncated, and -1 where y = 0, as in XLA."""
    if not np.issubdtype(x.dtype, np.integer):
        return np.divide(x, y)
    if y == 0:
        return np.array(-1).astype(x.dtype)
    whole = abs(int(x)) // abs(int(y))
    return np.array(whole if (x < 0) == (y < 0) else -whole).astype(x.dtype)


# The functions of NumPy that fold constants, for the primitives of `jax.lax`.
FOLDED: dict[Primitive, Callable[..., ArrayLike]] = {
    prims.add_p: np.add,
    prims.sub_p: np.subtract,
    prims.mul_p: np.multiply,
    prims.div_p: _divided,
    prims.neg_p: np.negative,
    prims.abs_p: np.abs,
    prims.sign_p: np.sign,
    prims.square_p: np.square,
    prims.sin_p: np.sin,
    prims.cos_p: np.cos,
    prims.tan_p: np.tan,
    prims.atan2_p: np.arctan2,
    prims.exp_p: np.exp,
    prims.log_p: np.log,
    prims.sqrt_p: np.sqrt,
    prims.tanh_p: np.tanh,
    prims.max_p: np.maximum,
    prims.min_p: np.minimum,
    prims.floor_p: np.floor,
    prims.ceil_p: np.ceil,
    prims.eq_p: np.equal,
    prims.ne_p: np.not_equal,
    prims.lt_p: np.less,
    prims.le_p: np.less_equal,
    prims.gt_p: np.greater,
    prims.ge_p: np.greater_equal,
    prims.not_p: np.invert,
    prims.is_finite_p: np.isfinite,
    prims.and_p: np.bitwise_and,
    prims.or_p: np.bitwise_or,
    prims.xor_p: np.bitwise_xor,
}
COMMUTATIVE = {prims.add_p, prims.mul_p, prims.max_p, prims.min_p, prims.and_p, prims.or_p, prims.eq_p, prims.ne_p}


# (graph, arguments, parameters, dtype) -> the simpler entry that an operation of an entry each returns, or None.
Rule = Callable[["Graph", Sequence[Entry], Parameters, np.dtype], Entry | None]


def negated(x: Entry) -> Entry | None:
    """The number whose negative x is, or None if x is no negation."""
    return x.args[0] if isinstance(x, Node) and x.primitive is prims.neg_p else None


@ft.cache
def _zero(dtype: np.dtype) -> np.generic:
    return constant(0, dtype)


def _is_zero(x: Entry) -> bool:
    return not isinstance(x, Node) and not x


# Of their results a factor may be taken out.
FACTORED = {prims.neg_p, prims.mul_p}


def _factored(x: Entry) -> tuple[np.generic, Entry] | None:
    """The pair (c, y) if x is c y with a constant c, else None."""
    if isinstance(x, Node) and x.primitive is prims.mul_p and not isinstance(x.args[0], Node):
        return x.args[0], x.args[1]
    return None


def _is_moderate(c: np.generic) -> bool:
    """Whether this factor may change its place in a product without an overflow or underflow.

    Products that come within an eighth of the range of exponents to its ends are excepted.
    """
    return bool(abs(math.frexp(float(c))[1]) <= finfo(c.dtype).maxexp / 8)


def _add(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    x, y = args
    if _is_zero(x):
        return y
    if _is_zero(y):
        return x
    if isinstance(y, Node) and y.primitive is prims.neg_p:
        return graph.sub(x, y.args[0])
    if isinstance(x, Node) and x.primitive is prims.neg_p:
        return graph.sub(y, x.args[0])
    return None


def _sub(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    x, y = args
    if _is_zero(y):
        return x
    if _is_zero(x):
        return graph.neg(y)
    if x is y:
        return constant(0, dtype)
    minus = negated(y)
    if minus is not None:
        return graph.add(x, minus)
    minus = negated(x)
    return None if minus is None else graph.neg(graph.add(minus, y))


def _mul(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    x, y = args
    if isinstance(x, Node) and isinstance(y, Node):
        if x.primitive not in FACTORED and y.primitive not in FACTORED:  # as most
            return None
    elif not isinstance(x, Node) and not isinstance(y, Node):
        return None  # zero times an infinite constant is NaN
    elif _is_zero(x) or _is_zero(y):
        return _zero(dtype)
    for x, y in (args, args[::-1]):
        if is_constant(x, 1):
            return y
        if dtype.kind != "f":
            continue
        if is_constant(x, -1):
            return graph.neg(y)
        minus = negated(x)
        if minus is not None:
            return graph.neg(graph.mul(minus, y))
        factored = _factored(y)
        if factored is not None and _is_moderate(factored[0]):
            c, rest = factored
            if isinstance(x, Node):
                return graph.mul(c, graph.mul(x, rest))  # constants outside, where they meet each other
            if _is_moderate(x):
                return graph.mul(constant(np.multiply(x, c), dtype), rest)
    return None


def _div(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    x, y = args
    if is_constant(y, 1):
        return x
    if is_constant(x, 0) and isinstance(y, Node) and np.issubdtype(dtype, np.inexact):
        return constant(0, dtype)
    minus = negated(x) if dtype.kind == "f" else None
    return None if minus is None else graph.neg(graph.div(minus, y))


def _neg(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    (x,) = args
    return graph.minus(x) if isinstance(x, Node) else None


def _integer_pow(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    (x,), power = args, params["y"]
    if power == 0:
        return constant(1, dtype)
    if power < 0:
        return graph.div(constant(1, dtype), graph.apply(prims.integer_pow_p, {"y": -power}, args, dtype))
    return None if power > 8 and isinstance(x, Node) else _power(graph, x, power)


def _power(graph: "Graph", x: Entry, power: int) -> Entry:
    if power < 2:
        return x
    half = _power(graph, x, power // 2)
    whole = graph.mul(half, half)
    return graph.mul(whole, x) if power % 2 else whole


def _square(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    return graph.mul(args[0], args[0])


def _select_n(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    which, *cases = args
    if not isinstance(which, Node):
        return cases[int(which)]
    same = all(name_of(x) == name_of(cases[0]) for x in cases)
    return cases[0] if same else None


def _and(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    if np.dtype(dtype).kind != "b":
        return None
    for x, y in (args, args[::-1]):
        if is_constant(x):
            return y if x else constant(False, dtype)
    return None


def _or(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    if np.dtype(dtype).kind != "b":
        return None
    for x, y in (args, args[::-1]):
        if is_constant(x):
            return constant(True, dtype) if x else y
    return None


def _bounded_by(bound: float) -> Rule:
    """The rule that max(x, -inf) and min(x, inf) are x; NaN passes through."""

    def rule(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
        for x, y in (args, args[::-1]):
            if dtype.kind == "f" and is_constant(x, bound):
                return y
        return None

    return rule


def _never(place: int, bound: float) -> Rule:
    """The rule that x < -inf and x > inf are False."""

    def rule(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
        return constant(False, dtype) if is_constant(args[place], bound) else None

    return rule


def _convert(graph: "Graph", args: Sequence[Entry], params: Parameters, dtype: np.dtype) -> Entry | None:
    (x,) = args
    if x.dtype == dtype:
        return x
    if isinstance(x, Node):
        return None
    if np.issubdtype(dtype, np.integer) and np.issubdtype(x.dtype, np.inexact):
        # JAX has a rule of its own for infinities, NaN and what is too large.
        return _by_jax(lambda x: lax.convert_element_type(x, dtype), x, dtype)
    with np.errstate(all="ignore"):
        return constant(x.real if np.iscomplexobj(x) and np.dtype(dtype).kind not in "bc" else x, dtype)


def _by_jax(function: Callable[[Array], Array], x: np.generic, dtype: np.dtype) -> np.generic:
    """Evaluates a function of a constant by JAX, where NumPy has other rules."""
    with jax.ensure_compile_time_eval():
        return constant(function(jnp.asarray(x, x.dtype)), dtype)


RULES: dict[Primitive, Rule] = {
    prims.add_p: _add,
    prims.sub_p: _sub,
    prims.mul_p: _mul,
    prims.div_p: _div,
    prims.neg_p: _neg,
    prims.integer_pow_p: _integer_pow,
    prims.square_p: _square,
    prims.select_n_p: _select_n,
    prims.and_p: _and,
    prims.or_p: _or,
    prims.max_p: _bounded_by(-np.inf),
    prims.min_p: _bounded_by(np.inf),
    prims.lt_p: _never(1, -np.inf),
    prims.gt_p: _never(1, np.inf),
    prims.convert_element_type_p: _convert,
}


# Multiples of a quarter up to this many are recognised as constants.
QUARTERS = 4096


class TooLong(Exception):
    """A scalar program has more operations than its limit."""


# A result of an operation that is cut off.
cut_p = Primitive("cut")


class Cut(NamedTuple):
    """An operation on arrays whose derivatives are not those of the numbers in it.

    Attributes:
        closed: The operation alone; None if it has no derivative.
        args, results: Its arguments, and what the program takes its results for.
    """

    closed: ClosedJaxpr | None
    args: list[np.ndarray]
    results: list[np.ndarray]


class Graph:
    """A scalar program under construction, of at most `limit` operations and inputs.

    Attributes:
        inlines: Whether pieces become part of it, and loops are unrolled, however long.
        calls: Whether a long function that is called several times becomes a routine.
        largest: The most entries of an array.
        doubts: Truth values, none of which may be set for the results to hold.
        cuts: The operations that are cut off so far, if any are to be.
        blocks: The number of operations on arrays that were kept.
        called: Functions with their arguments, which keep their identity meanwhile, and their results.
        turns: How often what is interpreted is repeated.
        most_along: The most operations of a motion, times the directions along which it is derived, for derivatives
            that are written out for each of them.
    """

    def __init__(self, limit: int, inlines: bool = False):
        self.count, self.limit, self.inlines, self.largest = 0, limit, inlines, LARGEST
        self.calls, self.blocks, self.turns = False, 0, 1
        self.called: dict[tuple[int, ...], tuple[object, Sequence[np.ndarray], list[np.ndarray]]] = {}
        self.most_along = math.inf
        self.doubts: list[Entry] = []
        self.cuts: list[Cut] | None = None
        self.known: dict[tuple[Hashable, tuple[Name, ...]], Entry] = {}
        self.by_value: dict[tuple[int, np.dtype], Node] = {}
        self.constants = Constants()

    @contextlib.contextmanager
    def members(self, size: int):
        """A context in which arrays are those of a batch, and may be larger."""
        self.largest *= size
        yield
        self.largest //= size

    @contextlib.contextmanager
    def turning(self, turns: int):
        """A context of what is repeated as often."""
        before, self.turns = self.turns, self.turns * max(turns, 1)
        try:
            yield
        finally:
            self.turns = before

    def input(self, dtype: np.dtype) -> Node:
        node = Node(_given, (), dtype, self._next())
        self._set_value(node)
        return node

    def _set_value(self, node: Node, value: Value | None = None) -> None:
        """Sets the value of a node to `value`, or to that of a number of which nothing is known."""
        if node.dtype.kind == "f":
            node.value = value or Value(drawn("number", node.order))
            self.by_value.setdefault((node.value.element, node.dtype), node)

    def cut_off(self, x: Entry) -> Entry:
        """A number that is equal to a result x of an operation, and that nothing else is taken for."""
        if not isinstance(x, Node) or x.dtype.kind != "f":
            return x
        node = Node(_same, (x,), x.dtype, self._next())
        node.primitive = cut_p
        self._set_value(node)
        return node

    def doubt(self) -> Entry:
        """Whether any of the doubts is set; they are part of the program then."""
        doubts, self.doubts = self.doubts, []
        return ft.reduce(self.either, doubts, constant(False, bool))

    def _next(self) -> int:
        self.count += 1
        if self.count > self.limit:
            raise TooLong(f"more than {self.limit} operations")
        return self.count

    def keep(
        self, apply: Callable[..., Sequence[Array]], arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]
    ) -> Block:
        """The results of `apply` to whole arrays, as one block; `take` gets their entries out."""
        self.blocks += 1
        return Block(apply, tuple(arrays), tuple(dtypes), self._next())

    def take(self, block: Block, output: int, index: tuple[int, ...]) -> Node:
        key = "take", output, index
        node = self._once(key, lambda arrays: arrays[output][index], (block,), block.dtypes[output])
        if node.place is None:
            node.place = output, index
            self._set_value(node)
        return node

    def call(self, routine: Routine, arguments: Sequence[Entry]) -> list[Entry]:
        """The results of a routine."""
        block = routine.called(arguments, self._next())
        return [self.take(block, k, ()) for k in range(len(routine.program.outputs))]

    @contextlib.contextmanager
    def apart(self):
        """A context for the program of a routine, which has doubts of its own and calls no other."""
        calls, doubts, self.calls, self.doubts = self.calls, self.doubts, False, []
        yield
        self.calls, self.doubts = calls, doubts

    @property
    def extent(self) -> tuple[int, int]:
        """The numbers of entries that are known so far, and of known values."""
        return len(self.known), len(self.by_value)

    def forget(self, inputs: Sequence[Node], since: tuple[int, int]) -> None:
        """Forgets the numbers that depend on the inputs of a routine, though their values may not.

        Outside of it no number may be taken for one of them. `since`: the extent before it, inputs included.
        """
        known = list(itertools.islice(self.known.items(), since[0], None))
        by_value = list(itertools.islice(self.by_value.items(), since[1], None))
        nodes = {x.order: x for x in (*dict(known).values(), *dict(by_value).values()) if isinstance(x, Node)}
        nodes |= {x.order: x for node in list(nodes.values()) for x in node.nodes}
        depends = {x.order for x in inputs}
        for order in sorted(nodes):
            if any(x.order in depends for x in nodes[order].nodes):
                depends.add(order)
        for key, x in known:
            if isinstance(x, Node) and x.order in depends:
                del self.known[key]
        for element, x in by_value:
            if x.order in depends:
                del self.by_value[element]

    def _once(self, key: Hashable, apply: Callable[..., Array], args: tuple[Entry, ...], dtype: np.dtype) -> Node:
        names = tuple(map(name_of, args))
        found = self.known.get((key, names))
        if not isinstance(found, Node):
            found = self.known[key, names] = Node(apply, args, dtype, self._next())
        return found

    def apply(self, primitive: Primitive, params: Parameters, args: Sequence[Entry], dtype: np.dtype) -> Entry:
        """The entry that an elementwise primitive of `jax.lax` makes of its arguments, simplified."""
        rule = RULES.get(primitive)
        simple = None if rule is None else rule(self, args, params, dtype)
        if simple is None and Node not in map(type, args):
            simple = self._folded(primitive, args, dtype)
        if simple is not None:
            return simple
        args, key = _in_order(primitive, params, args)
        known = self.known.get(key)
        if known is not None:
            return known
        value = value_of(primitive, args, dtype, self.constants)
        same = None if value is None else self._same(value, dtype)
        if same is not None:
            self.known[key] = same
            return same
        # A product has a parameter, which its function fills in.
        bind = lax.mul if primitive is prims.mul_p else primitive.bind
        node = self.known[key] = Node(lambda *xs: bind(*xs, **params), tuple(args), dtype, self._next())
        node.primitive, node.params = primitive, params
        self._set_value(node, value)
        return node

    def repeated(self, node: Node, args: Sequence[Entry]) -> Entry:
        """The operation of a node of another graph for other arguments, not simplified."""
        assert node.primitive is not None
        args, key = _in_order(node.primitive, node.params, args)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = Node(node.function, tuple(args), node.dtype, self._next())
            known.primitive, known.params = node.primitive, node.params
        return known

    def _same(self, value: Value, dtype: np.dtype) -> Entry | None:
        """The entry that is the same number for all inputs, or the negation of its negative; None if there is none."""
        quarters = 4 * value.element % P
        if quarters <= QUARTERS or quarters >= P - QUARTERS:
            return constant((quarters if quarters <= QUARTERS else quarters - P) / 4, dtype)
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

    def _folded(self, primitive: Primitive, numbers: Sequence[Any], dtype: np.dtype) -> Entry | None:
        """The constant that an operation makes of constants."""
        fold = FOLDED.get(primitive)
        if fold is None:
            return None
        found = constant(fold(*numbers), dtype)
        self.constants.computed(primitive, numbers, found)
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

    def sum(self, terms: Sequence[Entry], dtype: DTypeLike) -> Entry:
        return ft.reduce(self.add, terms) if terms else constant(0, dtype)


def _in_order(
    primitive: Primitive, params: Parameters, args: Sequence[Entry]
) -> tuple[Sequence[Entry], tuple[Hashable, tuple[Name, ...]]]:
    """The arguments of an operation, in an order of their own if it does not matter; and its key."""
    names = tuple(map(name_of, args))
    if primitive in COMMUTATIVE and names[1] < names[0]:
        args, names = (args[1], args[0]), (names[1], names[0])
    return args, ((primitive, key_of(params)), names)


def key_of(params: Parameters) -> Hashable:
    """The form that parameters of an operation take so that alike ones compare equal."""
    return tuple(sorted((k, str(v)) for k, v in params.items())) if params else ()


def _same(x: Array) -> Array:
    return x


def _given(*_: Array) -> Array:
    raise AssertionError("an input is given, not computed")
