"""Pieces that are evaluated as scalar programs, those that tell whether they are certain, and their adjoints.

In reverse mode JAX derives each operation of a traced function by a program of its own, which takes longer than all the
rest for a function of some thousand operations. Here the function is put together as a scalar program first, and every
number of it hands on its adjoint to its arguments:

    y = f(x_1, x_2, ...),  x_i' += y' df/dx_i.

An operation with a rule of its own (a function with a custom derivative, a solve, a largest entry, `stop_gradient`) is
cut off: its results are numbers that nothing else is taken for, and JAX derives that operation alone.
"""

import abc
import contextlib
import copy
import functools as ft
import math
from collections.abc import Callable, Hashable, Iterator, Sequence

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jaxtyping import Array

from .._lowering import SureWay, Traceable, can_be_deferred, mended, runs_machine_code
from .._lowering._entry import Block, Entry, Node, NotScalar, constant, is_constant
from .._lowering._program import Program
from .._program import Parameters, with_results
from ._graph import Cut, Graph, TooLong, cut_p, key_of
from ._interpret import interpret
from ._piece import (
    AbstractBatchedOp,
    AbstractChangedPiece,
    AbstractSmallOp,
    EvalForm,
    Shaped,
    traced,
    traced_cotangent,
    traced_tangent,
)
from ._scalar import ScalarProgram, grown, over_batch, size_of


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


def inlined(
    graph: Graph, closed: ClosedJaxpr, batched: tuple[bool, ...], arguments: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of a traced function as entries of a graph, for a whole batch: what its members share comes once."""
    if not any(batched):
        return interpret(graph, closed, arguments)
    (size,) = {len(x) for x, b in zip(arguments, batched, strict=True) if b}
    with graph.members(size):
        return interpret(graph, _of_batch(closed, batched, size), arguments)


@ft.lru_cache(maxsize=1024)
def _of_batch(closed: ClosedJaxpr, batched: tuple[bool, ...], size: int) -> ClosedJaxpr:
    shapes = [(size, *x.shape) if b else x.shape for x, b in zip(closed.in_avals, batched, strict=True)]
    avals = [ShapedArray(shape, x.dtype) for shape, x in zip(shapes, closed.in_avals, strict=True)]
    return traced(over_batch(jaxpr_as_fun(closed), batched), avals)


class AbstractTracedPiece(AbstractChangedPiece):
    """A piece that is a traced function, as are its derivatives."""

    def __init__(self, function: ClosedJaxpr | Traceable):
        super().__init__(function.in_avals, function.out_avals)
        self.function = function if isinstance(function, Traceable) else Traceable.of(function)

    @property
    def closed(self) -> ClosedJaxpr:
        """The function, traced."""
        return self.function.closed

    def inline(self, graph, batched, arguments):
        return inlined(graph, self.closed, batched, arguments)

    def make_some(self, outputs):
        return self.through(lambda closed: with_results(closed, outputs))


class SureWays:
    """The sure ways of a piece, one for each choice of arguments with a batch."""

    def __init__(self):
        self.known: dict[tuple[bool, ...], SureWay] = {}

    def of(self, slow: Traceable, batched: tuple[bool, ...], plain: bool = False) -> SureWay:
        if batched not in self.known:
            self.known[batched] = SureWay(slow, batched, plain)
        return self.known[batched]

    def mended(
        self, slow: Traceable, form: EvalForm, needed: Array, arrays: Sequence[Array], fast: Sequence[Array]
    ) -> list[Array]:
        """The results of `slow` where it is needed, and `fast` elsewhere; `form` is that of `arrays`."""
        way = self.of(slow, form.batched)
        size = size_of(form.batched, arrays)
        wide = [jnp.broadcast_to(x, (*size, *y.shape)) for x, y in zip(fast, slow.out_avals, strict=True)]
        return mended(way, jnp.broadcast_to(needed, size), arrays, wide)


class ScalarPiece(AbstractTracedPiece):
    """A traced function as a scalar program of at most `limit` operations; evaluated on arrays if it has more.

    `program`: its program, if that is there already; `make`: makes the program, or gives None where it cannot.

    `joins`: whether pieces that are not always certain may be part of it. Where they are not, the whole function is
    evaluated without machine code. A long function that is called several times, such as a turn of a loop, becomes a
    routine then.
    """

    def __init__(
        self,
        function: ClosedJaxpr | Traceable,
        limit: int,
        program: ScalarProgram | None = None,
        make: Callable[[], ScalarProgram | None] | None = None,
        joins: bool = False,
    ):
        super().__init__(function)
        self.limit, self.ready, self.make, self.joins, self._ways = limit, program, make, joins, SureWays()

    @ft.cached_property
    def program(self) -> ScalarProgram:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            graph.calls = self.joins and runs_machine_code()
            return interpret(graph, self.closed, arguments)

        made = self.ready or (None if self.make is None else self.make())
        return made or ScalarProgram(self.takes, self.gives, build, self.limit, may_doubt=self.joins)

    def through(self, change):
        return ScalarPiece(change(self.closed), grown(self.limit), joins=self.joins)

    def make_cotangent(self, moving, given):
        if self.joins:
            return self._joined_cotangent(moving, given)
        takes = [*self.takes, *(self.gives[i] for i in given)]
        gives, limit = [self.takes[i] for i in moving], grown(self.limit)

        def make() -> ScalarProgram | None:
            try:
                adjoint = adjoint_program(self.closed, moving, given, limit)
                return ScalarProgram(takes, gives, lambda *to: copy_of(adjoint, *to)[len(self.gives) :], limit)
            except (TooLong, NotScalar):
                return None

        later = Traceable(lambda: traced_cotangent(self.closed, moving, given), takes, gives, False)
        return ScalarPiece(later, limit, make=make)

    def _joined_cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> AbstractSmallOp:
        """The piece of the cotangents, a part of one that gives more of them if there is one.

        JAX derives the function, so that turns of its loops are alike and become routines.
        """
        for (more, same), whole in self._cotangents.items():
            if same == given and set(moving) <= set(more):
                part = whole.make_some(tuple(more.index(i) for i in moving))
                assert isinstance(part, ScalarPiece)
                return part
        return super().make_cotangent(moving, given)

    def inline(self, graph, batched, arguments):
        program = self.__dict__.get("program", self.ready)
        if program is None and graph.turns > 1 and not any(batched):
            # To copy numbers takes less time than to interpret operations anew in every turn.
            with contextlib.suppress(TooLong, NotScalar):
                program = self.program
        copied = None if program is None or any(batched) else program.copied(graph, arguments)
        return super().inline(graph, batched, arguments) if copied is None else copied

    def make_some(self, outputs):
        gives = [self.gives[i] for i in outputs]
        later = Traceable(lambda: with_results(self.closed, outputs), self.takes, gives, False)
        if self.joins:
            return ScalarPiece(later, self.limit, make=lambda: self.program.some(outputs), joins=True)
        program = self.__dict__.get("program", self.ready)
        if program is None and self.make is not None:
            program = self.ready = self.make()
        return ScalarPiece(later, self.limit, program and program.some(outputs))

    def evaluate(self, form, *arrays):
        found = None if form.on_arrays else self._by_program(form, arrays)
        return over_batch(jaxpr_as_fun(self.closed), form.batched)(*arrays) if found is None else found

    def _by_program(self, form: EvalForm, arrays: Sequence[Array]) -> list[Array] | None:
        """The results by the program; None if there is none, or if it may be in doubt and cannot go the sure way."""
        try:
            program = self.program
        except (TooLong, NotScalar):
            return None
        if program.doubt is None:
            return program.evaluate(form, *arrays)
        if not can_be_deferred(self.function):
            return None
        return program.evaluate_native(form, arrays, lambda flags: self._ways.of(self.function, flags, plain=True))


def copy_of(program: ScalarProgram, graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a program without operations on arrays, as entries of another graph."""
    copied = program.copied(graph, arguments)
    assert copied is not None
    return copied


class PlainPiece(AbstractTracedPiece):
    """A traced function that is evaluated on arrays."""

    def through(self, change):
        return PlainPiece(change(self.closed))

    def evaluate(self, form, *arrays):
        return over_batch(jaxpr_as_fun(self.closed), form.batched)(*arrays)


class AbstractCertainPiece(AbstractSmallOp):
    """A piece whose last two results tell whether the others are certain, and whether their derivatives are."""

    def __init__(self, takes: Sequence[Shaped], gives: Sequence[Shaped]):
        super().__init__(takes, gives)
        self._judged: list[tuple[tuple[int, ...], tuple[int, ...], AbstractJudgedSlope]] = []

    @property
    @abc.abstractmethod
    def scalar(self) -> ScalarProgram:
        """The piece as a scalar program."""

    @abc.abstractmethod
    def judged_tangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> "AbstractJudgedSlope":
        """The function (x, tangents of those `moving`) -> tangents of the `given` values, and whether certain."""

    @abc.abstractmethod
    def make_judged_cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> "AbstractJudgedSlope":
        """The function (x, cotangents of the `given` values) -> those of the `moving` x, and whether certain."""

    def judged_cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> "AbstractJudgedSlope":
        """Returns that function, or a part of one that is there already."""
        for more, same, whole in self._judged:
            if same == given and set(moving) <= set(more):
                part = whole.some((*(more.index(i) for i in moving), len(more)))
                assert isinstance(part, AbstractJudgedSlope)
                return part
        made = self.make_judged_cotangent(moving, given)
        self._judged.append((moving, given, made))
        return made


class AbstractJudgedSlope(AbstractBatchedOp):
    """A derivative of a certain piece, and whether it is certain.

    Its program, or that of which it is a part, is built once, and copied into others.
    """

    limit: int
    # The derivative of which these are some of the results, and which.
    whole: "tuple[AbstractJudgedSlope, tuple[int, ...]] | None" = None

    @abc.abstractmethod
    def every(self, graph: Graph, batched: tuple[bool, ...], arguments: list[np.ndarray]) -> list[np.ndarray]:
        """The results of the whole derivative as entries of a graph: see `inline`."""

    def inline(self, graph, batched, arguments):
        program = None if any(batched) else self.program
        copied = program and program.copied(graph, arguments)
        return copied or self._entries(graph, batched, arguments)

    def _entries(self, graph: Graph, batched: tuple[bool, ...], arguments: list[np.ndarray]) -> list[np.ndarray]:
        found = self.every(graph, batched, arguments)
        return found if self.whole is None else [found[k] for k in self.whole[1]]

    @ft.cached_property
    def program(self) -> ScalarProgram | None:
        """The program; None if it is no scalar program."""
        if self.whole is not None:
            base, which = self.whole
            return base.program and base.program.some(which)
        alone = (False,) * len(self.takes)
        try:
            return ScalarProgram(
                self.takes, self.gives, lambda *args: self._entries(args[0], alone, args[1]), self.limit
            )
        except (TooLong, NotScalar):
            return None

    def along(self, axes, size):
        return JudgedDirections(self, axes, size), [0] * len(self.gives)

    def make_some(self, outputs):
        some = copy.copy(self)
        vars(some).pop("program", None)
        AbstractBatchedOp.__init__(some, self.takes, [self.gives[k] for k in outputs])
        base, which = self.whole or (self, range(len(self.gives)))
        some.whole = base, tuple(which[k] for k in outputs)
        return some

    def evaluate(self, form, *arrays):
        assert self.program is not None
        return self.program.evaluate(form, *arrays)


class JudgedDirections(AbstractBatchedOp):
    """The derivatives at one state along several directions, and a verdict on them.

    Each result has a row for each direction. `axes`: those of the arguments that have one for each direction.
    """

    def __init__(self, slope: AbstractJudgedSlope, axes: tuple[int | None, ...], count: int):
        super().__init__(along_axes(slope.takes, axes, count), along_axes(slope.gives, [0] * len(slope.gives), count))
        self.slope, self.axes, self.count = slope, axes, count

    @property
    def turns(self) -> tuple[bool, ...]:
        """Marks of the arguments that differ from direction to direction."""
        return tuple(x is not None for x in self.axes)

    def inline_one(self, graph, arguments):
        moved = [x if i is None else np.moveaxis(x, i, 0) for x, i in zip(arguments, self.axes, strict=True)]
        return self.slope.inline(graph, self.turns, moved)

    def evaluate(self, form, *arrays):
        assert self.slope.program is not None
        kinds = zip(arrays, self.axes, form.batched, strict=True)
        moved = [x if i is None else jnp.moveaxis(x, i + b, b) for x, i, b in kinds]
        return self.slope.program.along(form, self.turns, self.count, moved)


def along_axes(avals: Sequence[ShapedArray], axes: Sequence[int | None], size: int) -> list[ShapedArray]:
    """The types of arrays that get one more axis each, of this size, at these places; None for none."""
    return [
        x if i is None else ShapedArray((*x.shape[:i], size, *x.shape[i:]), x.dtype)
        for x, i in zip(avals, axes, strict=True)
    ]


class CertainScalars(AbstractCertainPiece):
    """A traced function with such results as a `ScalarProgram` of at most `limit` operations; raises as that does."""

    def __init__(self, closed: ClosedJaxpr, limit: int):
        super().__init__(closed.in_avals, closed.out_avals)
        self.piece, self.closed, self.limit = ScalarPiece(closed, limit), closed, limit
        _ = self.piece.program

    @property
    def scalar(self):
        return self.piece.program

    def inline(self, graph, batched, arguments):
        return self.piece.inline(graph, batched, arguments)

    def evaluate(self, form, *arrays):
        return self.piece.evaluate(form, *arrays)

    def make_tangent(self, moving):
        return self.piece.make_tangent(moving)

    def make_cotangent(self, moving, given):
        return self.piece.make_cotangent(moving, given)

    def judged_tangent(self, moving, given):
        return _JudgedTangent(self, moving, given)

    def make_judged_cotangent(self, moving, given):
        return _JudgedCotangent(self, moving, given)

    def smooth(self, graph: Graph, batched: tuple[bool, ...], arguments: Sequence[np.ndarray]) -> np.ndarray:
        """Whether derivatives are certain, as an entry of a graph, or one for each member of a batch."""
        count = len(self.takes)
        piece = self.piece.some((len(self.gives) - 1,))
        assert piece is not None
        (flag,) = piece.inline(graph, batched[:count], list(arguments[:count]))
        if any(batched) and not any(batched[:count]):
            (size,) = {len(x) for x, b in zip(arguments, batched, strict=True) if b}
            flag = np.repeat(flag[None], size)
        return flag


class _JudgedTangent(AbstractJudgedSlope):
    """A derivative of certain scalars in forward mode."""

    def __init__(self, base: CertainScalars, moving: tuple[int, ...], given: tuple[int, ...]):
        self.base, self.slope = base, traced_tangent(base.closed, moving, given)
        super().__init__(self.slope.in_avals, [*self.slope.out_avals, ShapedArray((), np.dtype(bool))])
        self.limit = grown(base.limit)

    def every(self, graph, batched, arguments):
        return [*inlined(graph, self.slope, batched, arguments), self.base.smooth(graph, batched, arguments)]


class _JudgedCotangent(AbstractJudgedSlope):
    """The function (x, cotangents of the `given` results) -> those of `moving` x, and whether certain, of a piece."""

    def __init__(self, base: CertainScalars, moving: tuple[int, ...], given: tuple[int, ...]):
        super().__init__(
            [*base.takes, *(base.gives[i] for i in given)],
            [*(base.takes[i] for i in moving), ShapedArray((), np.dtype(bool))],
        )
        self.base, self.moving, self.given, self.limit = base, moving, given, grown(base.limit)

    @ft.cached_property
    def adjoint(self) -> ScalarProgram | None:
        """The program of the smooth result and the cotangents, in reverse order; None if there is none."""
        try:
            program = adjoint_program(self.base.closed, self.moving, self.given, self.limit)
        except (TooLong, NotScalar):
            return None
        count = len(self.base.gives)
        return program.some((*range(count, len(program.gives)), count - 1))

    @ft.cached_property
    def slope(self) -> ClosedJaxpr:
        """The cotangents, derived by JAX."""
        return traced_cotangent(self.base.closed, self.moving, self.given)

    def every(self, graph, batched, arguments):
        copied = None if any(batched) or self.adjoint is None else self.adjoint.copied(graph, arguments)
        if copied is not None:
            return copied
        return [*inlined(graph, self.slope, batched, arguments), self.base.smooth(graph, batched, arguments)]
