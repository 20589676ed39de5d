"""Derivatives in reverse mode, number by number: the adjoint of a scalar program.

JAX derives each operation of a traced function by a program of its own, which takes longer than all the rest for a
function of some thousand operations. Here the function is put together as a scalar program first, and every number of
it hands on its adjoint to its arguments:

    y = f(x_1, x_2, ...),  x_i' += y' df/dx_i.

An operation with a rule of its own (a function with a custom derivative, a solve, a largest entry, `stop_gradient`) is
cut off: its results are numbers that nothing else is taken for, and JAX derives that operation alone.
"""

import math
from collections.abc import Hashable, Iterator, Sequence

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive

from .._lowering._entry import Block, Entry, Node, NotScalar, constant, is_constant
from .._lowering._program import Program
from .._program import Parameters
from ._graph import Cut, Graph, cut_p, key_of
from ._interpret import interpret
from ._piece import traced, traced_cotangent
from ._scalar import ScalarProgram


def adjoint_program(closed: ClosedJaxpr, moving: Sequence[int], given: Sequence[int], limit: int) -> ScalarProgram:
    """The program (arguments, cotangents of the `given` results) -> all results, and cotangents of `moving` arguments.

    Raises NotScalar or TooLong, if there is none of at most `limit` operations.
    """
    count = len(closed.in_avals)
    takes = [*closed.in_avals, *(closed.out_avals[i] for i in given)]
    gives = [*closed.out_avals, *(closed.in_avals[i] for i in moving)]

    def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
        graph.cuts = []
        results = interpret(graph, closed, arguments[:count])
        cuts, graph.cuts = graph.cuts, None
        inputs = [x for i in moving for x in arguments[i].ravel()]
        pairs = zip((results[i] for i in given), arguments[count:], strict=True)
        weights = [pair for result, ct in pairs for pair in zip(result.ravel(), ct.ravel(), strict=True)]
        found = iter(_Adjoints(graph, cuts).of(inputs, weights))
        if graph.blocks:
            raise NotScalar("what stays an operation on arrays")
        return [*results, *(_filled(arguments[i].shape, found) for i in moving)]

    return ScalarProgram(takes, gives, build, limit, inlines=True)


def _filled(shape: tuple[int, ...], entries: Iterator[Entry]) -> np.ndarray:
    return np.fromiter(entries, object, math.prod(shape)).reshape(shape)


class _Adjoints:
    """The adjoints of the numbers of a graph, in which some operations are cut off."""

    def __init__(self, graph: Graph, cuts: Sequence[Cut]):
        self.graph, self.known, self.slopes = graph, dict[int, Entry](), dict[Hashable, ClosedJaxpr]()
        # The numbers on which the results of operations that are cut off depend.
        self.taken = {id(cut): _nodes(cut) for cut in cuts}
        self.cut_of = {x.order: cut for cut in cuts for array in cut.results for x in array.flat if _is_cut(x)}

    def of(self, inputs: Sequence[Node], weights: Sequence[tuple[Entry, Entry]]) -> list[Entry]:
        """The adjoints of inputs, for results each of which has a weight."""
        for x, weight in weights:
            self._add(x, weight)
        # What an operation that is cut off takes may be no part of how its results are found, such as a negation.
        steps = Program(inputs, [*(x for x, _ in weights), *(x for taken in self.taken.values() for x in taken)]).steps
        if any(x.dtype.kind not in "fbiu" for x in steps):
            raise NotScalar("numbers of a kind without adjoints")
        self.moves = {x.order for x in inputs}
        first: dict[int, int] = {}  # of the results of an operation that is cut off
        for node in steps:
            cut = self.cut_of.get(node.order)
            if cut is not None:
                first.setdefault(id(cut), node.order)
            moves = node.nodes if cut is None else self.taken[id(cut)]
            if any(x.order in self.moves for x in moves):
                self.moves.add(node.order)
        for node in reversed(steps):
            cut = self.cut_of.get(node.order)
            if cut is None:
                weight = self.known.pop(node.order, None)
                if weight is not None and node.order in self.moves:
                    self._hand_on(node, weight)
            elif first[id(cut)] == node.order:
                self._through(cut)
        zero = [constant(0, x.dtype) for x in inputs]
        return [self.known.get(x.order, none) for x, none in zip(inputs, zero, strict=True)]

    def _add(self, x: Entry, weight: Entry) -> None:
        if isinstance(x, Node) and not is_constant(weight, 0):
            known = self.known.get(x.order)
            self.known[x.order] = weight if known is None else self.graph.add(known, weight)

    def _hand_on(self, node: Node, weight: Entry) -> None:
        """Adds to the adjoints of a number's arguments."""
        graph, how = self.graph, node.primitive
        if how is None or isinstance(node, Block):
            raise NotScalar("a number of an operation on arrays")
        if how is prims.select_n_p:
            which, *cases = node.args
            for k, x in enumerate(cases):
                others: list[Entry] = [constant(0, x.dtype)] * len(cases)
                others[k] = weight
                self._add(x, graph.apply(how, node.params, (which, *others), x.dtype))
            return
        for i, x in enumerate(node.args):
            if isinstance(x, Node) and x.order in self.moves and x.dtype.kind == "f":
                self._add(x, self._share(node, how, i, weight))

    def _share(self, node: Node, how: Primitive, i: int, weight: Entry) -> Entry:
        """The weight of a number, times its derivative by an argument."""
        graph, args = self.graph, node.args
        if how is prims.add_p or (how is prims.sub_p and i == 0):
            return weight
        if how is prims.neg_p or how is prims.sub_p:
            return graph.neg(weight)
        if how is prims.mul_p:
            return graph.mul(weight, args[1 - i])
        if how is prims.div_p:
            part = graph.div(weight, args[1])
            return part if i == 0 else graph.neg(graph.mul(part, node))
        kinds = tuple(x.dtype for x in args)
        key = how, key_of(node.params), kinds, i
        if key not in self.slopes:
            self.slopes[key] = _slope(how, node.params, kinds, i)
        (slope,) = interpret(graph, self.slopes[key], [_alone(x) for x in args])
        found, to = graph.mul(weight, slope.item()), {"new_dtype": kinds[i], "weak_type": False, "sharding": None}
        return found if found.dtype == kinds[i] else graph.apply(prims.convert_element_type_p, to, (found,), kinds[i])

    def _through(self, cut: Cut) -> None:
        """Adds to the adjoints of the arguments of an operation that is cut off."""
        if cut.closed is None:
            return
        given, weights = [], []
        for k, array in enumerate(cut.results):
            own = [self.known.pop(x.order, None) if _is_cut(x) else None for x in array.flat]
            if any(x is not None for x in own):
                given.append(k)
                zero = constant(0, cut.closed.out_avals[k].dtype)
                weights.append(_filled(array.shape, (zero if x is None else x for x in own)))
        if not given:
            return
        moving = [
            k
            for k, array in enumerate(cut.args)
            if any(isinstance(x, Node) and x.order in self.moves and x.dtype.kind == "f" for x in array.flat)
        ]
        found = interpret(self.graph, traced_cotangent(cut.closed, moving, given), [*cut.args, *weights])
        for k, array in zip(moving, found, strict=True):
            for x, weight in zip(cut.args[k].flat, array.flat, strict=True):
                self._add(x, weight)


def _nodes(cut: Cut) -> list[Node]:
    """The numbers on which the results of an operation that is cut off depend, as far as it has derivatives."""
    return [] if cut.closed is None else [x for array in cut.args for x in array.flat if isinstance(x, Node)]


def _is_cut(x: Entry) -> bool:
    """Whether a number is a result of an operation that is cut off."""
    return isinstance(x, Node) and x.primitive is cut_p


def _alone(x: Entry) -> np.ndarray:
    return _filled((), iter([x]))


def _slope(how: Primitive, params: Parameters, kinds: Sequence[np.dtype], i: int) -> ClosedJaxpr:
    """The derivative of an operation on numbers by its argument number i, by JAX's rule."""

    def slope(*args):
        def of(x):
            return how.bind(*args[:i], x, *args[i + 1 :], **params)

        return [jax.jvp(of, (args[i],), (jnp.ones_like(args[i]),))[1]]

    return traced(slope, [ShapedArray((), kind) for kind in kinds])
