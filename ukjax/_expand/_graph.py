"""Scalar programs under construction, one number at a time, and the rules that simplify their arithmetic.

While a program is put together constants are folded, multiplications by zero and one vanish, and a number that exists
already is not computed again, however differently it was written.
"""

import contextlib
import functools as ft
import math
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Primitive
from jax.numpy import finfo
from jax.typing import DTypeLike
from jaxtyping import Array

from .._lowering._entry import (
    COMMUTATIVE,
    FOLDED,
    LARGEST,
    VALUES,
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
    if dtype.kind in "iu" and x.dtype.kind not in "iub":
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


# Constants that are recognised by their elements: multiples of a quarter up to so many.
QUARTERS = {k * pow(4, -1, P) % P: k / 4 for k in range(-4096, 4097)}


class TooLong(Exception):
    """A scalar program has more operations than its limit."""


Known = TypeVar("Known", bound=Entry)

# A result of an operation that is cut off.
cut_p = Primitive("cut")


class Operation:
    """An elementwise primitive of `jax.lax` with its parameters, and its results in a graph.

    It holds no reference to the graph, so that both are gone as soon as nothing needs them.

    Attributes:
        known: The results by the names of the arguments.
        function: The operation on arrays.
    """

    __slots__ = ("commutes", "dtype", "function", "known", "params", "primitive", "simplify", "value")

    def __init__(self, primitive: Primitive, params: Parameters, dtype: np.dtype):
        self.primitive, self.params, self.dtype = primitive, params, dtype
        self.simplify, self.commutes = RULES.get(primitive), primitive in COMMUTATIVE
        self.value = VALUES.get(primitive) if dtype.kind == "f" else None
        self.known: dict[tuple[Name, ...], Entry] = {}
        # A product has a parameter, which its function fills in.
        self.function = ft.partial(lax.mul if primitive is prims.mul_p else primitive.bind, **params)

    def __call__(self, graph: "Graph", *args: Entry) -> Entry:
        """The entry that the operation makes of its arguments, simplified."""
        simple = None if self.simplify is None else self.simplify(graph, args, self.params, self.dtype)
        if simple is None and Node not in map(type, args):
            simple = self._folded(graph, args)
        if simple is not None:
            return simple
        args, names = self._in_order(args)
        known = self.known.get(names)
        if known is not None:
            return known
        value = None if self.value is None else value_of(self.value, args, graph.constants)
        same = None if value is None else graph.same(value, self.dtype)
        if same is not None:
            return graph.remembered(self.known, names, same)
        node = self._made(graph, args, names)
        graph.set_value(node, value)
        return node

    def as_it_is(self, graph: "Graph", *args: Entry) -> Entry:
        """The operation of the arguments, not simplified."""
        args, names = self._in_order(args)
        known = self.known.get(names)
        return self._made(graph, args, names) if known is None else known

    def _in_order(self, args: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], tuple[Name, ...]]:
        """The arguments, constants first if their order does not matter; and their names."""
        if self.commutes:
            x, y = args
            if not isinstance(y, Node) or (isinstance(x, Node) and y.order < x.order):
                args = y, x
        return args, tuple([x.order if isinstance(x, Node) else name_of(x) for x in args])

    def _made(self, graph: "Graph", args: tuple[Entry, ...], names: tuple[Name, ...]) -> Node:
        node = Node(self.function, args, self.dtype, graph.next_order())
        node.primitive, node.params = self.primitive, self.params
        return graph.remembered(self.known, names, node)

    def _folded(self, graph: "Graph", numbers: Sequence[Any]) -> Entry | None:
        """The constant that the operation makes of constants."""
        fold = FOLDED.get(self.primitive)
        if fold is None:
            return None
        found = constant(fold(*numbers), self.dtype)
        graph.constants.computed(self.primitive, numbers, found)
        return found


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
        made: What has become known, in turn: the table and the key.
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
        self.operations: dict[tuple[Primitive, Hashable, np.dtype], Operation] = {}
        self.taken: dict[tuple[int, int, tuple[int, ...]], Node] = {}  # by block, result and index
        self.by_value: dict[np.dtype, dict[int, Node]] = {}  # of an element or its negative, the lesser
        self.made: list[tuple[dict, Hashable]] = []
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
        node = Node(_given, (), dtype, self.next_order())
        self.set_value(node)
        return node

    def remembered(self, known: dict[Any, Any], key: Hashable, x: Known) -> Known:
        """Returns x, after it has become known by a key."""
        known[key] = x
        self.made.append((known, key))
        return x

    def set_value(self, node: Node, value: Value | None = None) -> None:
        """Sets the value of a node to `value`, or to that of a number of which nothing is known."""
        if node.dtype.kind == "f":
            node.value = value or Value(drawn("number", node.order))
            known, even = self.by_value.setdefault(node.dtype, {}), node.value.even
            if even not in known:
                self.remembered(known, even, node)

    def cut_off(self, x: Entry) -> Entry:
        """A number that is equal to a result x of an operation, and that nothing else is taken for."""
        if not isinstance(x, Node) or x.dtype.kind != "f":
            return x
        node = Node(_same, (x,), x.dtype, self.next_order())
        node.primitive = cut_p
        self.set_value(node)
        return node

    def doubt(self) -> Entry:
        """Whether any of the doubts is set; they are part of the program then."""
        doubts, self.doubts = self.doubts, []
        return ft.reduce(self.either, doubts, constant(False, bool))

    def next_order(self) -> int:
        """The number of the next operation; raises `TooLong` beyond the limit."""
        self.count += 1
        if self.count > self.limit:
            raise TooLong(f"more than {self.limit} operations")
        return self.count

    def keep(
        self, apply: Callable[..., Sequence[Array]], arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]
    ) -> Block:
        """The results of `apply` to whole arrays, as one block; `take` gets their entries out."""
        self.blocks += 1
        return Block(apply, tuple(arrays), tuple(dtypes), self.next_order())

    def take(self, block: Block, output: int, index: tuple[int, ...]) -> Node:
        key = block.order, output, index
        if key in self.taken:
            return self.taken[key]
        node = Node(lambda arrays: arrays[output][index], (block,), block.dtypes[output], self.next_order())
        node.place = output, index
        self.set_value(node)
        return self.remembered(self.taken, key, node)

    def call(self, routine: Routine, arguments: Sequence[Entry]) -> list[Entry]:
        """The results of a routine."""
        block = routine.called(arguments, self.next_order())
        return [self.take(block, k, ()) for k in range(len(routine.program.outputs))]

    @contextlib.contextmanager
    def apart(self):
        """A context for the program of a routine, which has doubts of its own and calls no other."""
        calls, doubts, self.calls, self.doubts = self.calls, self.doubts, False, []
        yield
        self.calls, self.doubts = calls, doubts

    def forget(self, inputs: Sequence[Node], since: int) -> None:
        """Forgets the numbers that depend on the inputs of a routine, though their values may not.

        Outside of it no number may be taken for one of them. `since`: the length of `made` before it, inputs included.
        """
        depends = {x.order for x in inputs}
        for known, key in self.made[since:]:
            x = known.get(key)
            if isinstance(x, Node) and (x.order in depends or any(map(ft.partial(_reads, depends), x.nodes))):
                depends.add(x.order)
                del known[key]

    def operation(self, primitive: Primitive, params: Parameters, dtype: np.dtype) -> Operation:
        """An elementwise primitive of `jax.lax` whose results are of this type."""
        key = primitive, key_of(params) if params else (), dtype
        found = self.operations.get(key)
        if found is None:
            found = self.operations[key] = Operation(primitive, params, dtype)
        return found

    def apply(self, primitive: Primitive, params: Parameters, args: Sequence[Entry], dtype: np.dtype) -> Entry:
        """The entry that an elementwise primitive makes of its arguments, simplified."""
        return self.operation(primitive, params, dtype)(self, *args)

    def same(self, value: Value, dtype: np.dtype) -> Entry | None:
        """The entry that is the same number for all inputs, or the negation of its negative; None if there is none."""
        quarter = QUARTERS.get(value.element)
        if quarter is not None:
            return constant(quarter, dtype)
        known = self.by_value.get(dtype)
        node = None if known is None else known.get(value.even)
        if node is None:
            return None
        assert node.value is not None
        return node if node.value.element == value.element else self.minus(node)

    def minus(self, x: Node) -> Entry:
        minus = negated(x)
        if minus is not None:
            return minus
        node = self._of(prims.neg_p, x.dtype).as_it_is(self, x)
        if isinstance(node, Node) and x.value is not None:
            node.value = x.value.minus
        return node

    def _of(self, primitive: Primitive, dtype: np.dtype) -> Operation:
        """An operation without parameters."""
        found = self.operations.get((primitive, (), dtype))
        return self.operation(primitive, {}, dtype) if found is None else found

    # The arithmetic in which factorisations are written.

    def add(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.add_p, x.dtype)(self, x, y)

    def sub(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.sub_p, x.dtype)(self, x, y)

    def mul(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.mul_p, x.dtype)(self, x, y)

    def neg(self, x: Entry) -> Entry:
        return self._of(prims.neg_p, x.dtype)(self, x)

    def div(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.div_p, x.dtype)(self, x, y)

    def sqrt(self, x: Entry) -> Entry:
        return self.apply(prims.sqrt_p, {"accuracy": None}, (x,), x.dtype)

    def power_of_two(self, x: Entry) -> Entry:
        """The power of two that is nearest to a positive number."""
        kept = {"exponent_bits": finfo(x.dtype).nexp, "mantissa_bits": 0}
        return self.apply(prims.reduce_precision_p, kept, (x,), x.dtype)

    def abs(self, x: Entry) -> Entry:
        return self._of(prims.abs_p, x.dtype)(self, x)

    def maximum(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.max_p, x.dtype)(self, x, y)

    def where(self, condition: Entry, x: Entry, y: Entry) -> Entry:
        return self._of(prims.select_n_p, x.dtype)(self, condition, y, x)

    def greater(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.gt_p, np.dtype(bool))(self, x, y)

    def both(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.and_p, np.dtype(bool))(self, x, y)

    def either(self, x: Entry, y: Entry) -> Entry:
        return self._of(prims.or_p, np.dtype(bool))(self, x, y)

    def negation(self, x: Entry) -> Entry:
        return self._of(prims.not_p, np.dtype(bool))(self, x)

    def sum(self, terms: Sequence[Entry], dtype: DTypeLike) -> Entry:
        return ft.reduce(self.add, terms) if terms else constant(0, dtype)


def _reads(these: Collection[int], x: Node) -> bool:
    """Whether a number, or an operation on arrays, is one of these, by their order, or such an operation reads one."""
    return x.order in these or (isinstance(x, Block) and any(y.order in these for y in x.nodes))


def key_of(params: Parameters) -> Hashable:
    """The form that parameters of an operation take so that alike ones compare equal."""
    return tuple(sorted((k, str(v)) for k, v in params.items())) if params else ()


def _same(x: Array) -> Array:
    return x


def _given(*_: Array) -> Array:
    raise AssertionError("an input is given, not computed")
