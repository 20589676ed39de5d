"""Pieces that are evaluated as scalar programs, and those that tell whether they are certain."""

import abc
import copy
import functools as ft
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.dtypes import extended
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._lowering import runs_machine_code
from .._lowering._entry import LARGEST, Block, Entry, Node, NotScalar
from .._lowering._program import Program
from .._lowering._stages import NativeProgram
from .._program import with_results
from ._graph import Graph, TooLong
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


# A graph under construction may have this many times the operations of the final program, but only so many more, or
# twice as many, if these are more.
WASTE, MOST_WASTE = 8, 64_000


T = TypeVar("T")
# (graph, arguments) -> results, all of them arrays of entries.
Builds = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]


class ScalarProgram:
    """A scalar program between arrays, of at most `limit` operations; raises TooLong or NotScalar.

    `takes` and `gives`: shape and dtype of the arrays; `build` makes the entries of the results; `inlines`: as of
    `Graph`, by default where there is machine code.
    """

    @np.errstate(all="ignore")
    def __init__(
        self,
        takes: Sequence[ShapedArray],
        gives: Sequence[ShapedArray],
        build: Builds,
        limit: int,
        inlines: bool | None = None,
    ):
        self.takes = takes
        inlines = runs_machine_code() if inlines is None else inlines
        self.graph = graph = Graph(min(WASTE * limit, limit + max(limit, MOST_WASTE)), inlines)
        arguments, inputs = [], []
        for aval in takes:
            if aval.size > LARGEST or jnp.issubdtype(aval.dtype, extended):
                raise NotScalar("a large array, or a random key")
            array = np.empty(aval.shape, object)
            for i in np.ndindex(aval.shape):
                array[i] = graph.input(aval.dtype)
                inputs.append(array[i])
            arguments.append(array)
        self.inputs = inputs
        self._is_to_give(gives, build(graph, arguments))
        if graph.doubts:
            raise NotScalar("a piece that is not always certain")
        if self.program.length > limit:
            raise TooLong(f"{self.program.length} operations, more than {limit}")

    def _is_to_give(self, gives: Sequence[ShapedArray], results: Sequence[np.ndarray]) -> None:
        self.gives, self.results = gives, results
        outputs: list[Entry] = [x for array in results for x in array.ravel()]
        self.program = Program(self.inputs, outputs)

    def part(self, gives: Sequence[ShapedArray], results: Sequence[np.ndarray]) -> "ScalarProgram":
        """The program that gives other entries of the same graph."""
        other = copy.copy(self)
        other.__dict__.pop("native", None)
        other._is_to_give(gives, results)
        return other

    def copied(self, graph: Graph, arguments: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results as entries of another graph, of its operations one by one; None if some are on arrays."""
        program = self.program
        given = [x for array in arguments for x in array.ravel()]
        done: dict[int, Entry] = {x.order: y for x, y in zip(self.inputs, given, strict=True)}
        steps = [node for node in program.steps if node.order not in done]
        if any(node.primitive is None or isinstance(node, Block) for node in steps):
            return None

        def entry(x: Entry) -> Entry:
            return done[x.order] if isinstance(x, Node) else x

        for node in steps:
            assert node.primitive is not None
            done[node.order] = graph.apply(node.primitive, node.params, [entry(x) for x in node.args], node.dtype)
        results = iter(program.outputs)
        found = [np.empty(aval.shape, object) for aval in self.gives]
        for array in found:
            for i in np.ndindex(array.shape):
                array[i] = entry(next(results))
        return found

    def some(self, which: Sequence[int]) -> "ScalarProgram":
        """The program that gives some of the results."""
        return self.part([self.gives[i] for i in which], [self.results[i] for i in which])

    def evaluate(self, form: EvalForm, *arrays: Array) -> list[Array]:
        """The results; if any argument is batched, the batch is its first axis, and that of all results."""
        if form.native and self.native.is_possible:
            wide, given = form.wide(arrays)
            found = self.native(wide.batched, given, gpu=form.gpu)
            if found is not None:
                return found
        return self._by_operations(form, arrays)

    def entries(self, form: EvalForm, *arrays: Array) -> Array:
        """The entries of all results, with the batch as the last axis."""
        found = [x.reshape(x.shape[0], -1) for x in self.evaluate(form, *arrays)]
        return jnp.concatenate(found, axis=1).T

    @ft.cached_property
    def native(self) -> NativeProgram:
        return NativeProgram.of(self.program, self.takes, self.gives)

    def _by_operations(self, form: EvalForm, arrays: Sequence[Array]) -> list[Array]:
        """Evaluates the program by operations of JAX on numbers, or on batches of numbers."""
        batch, alone = size_of(form.batched, arrays), not any(form.batched)
        flags = [b or alone for b in form.batched]
        before, each = self.program.split([b for x, b in zip(self.takes, flags, strict=True) for _ in range(x.size)])
        # Numbers that depend on shared inputs only are computed once. A state without a batch is a batch of one.
        shared = before(*(y for x, b in zip(arrays, flags, strict=True) if not b for y in _rows(x, False)))
        own = [y for x, b in zip(arrays, flags, strict=True) if b for y in _rows(x, not alone)]
        return self._joined(batch, [_like(x, batch) for x in each(*own, *shared)])

    def _joined(self, batch: tuple[int, ...], entries: Sequence[Array]) -> list[Array]:
        found, rest = [], iter(entries)
        for aval in self.gives:
            part = list(itertools.islice(rest, aval.size))
            joined = jnp.stack(part, axis=-1) if part else jnp.zeros((*batch, 0), aval.dtype)
            found.append(joined.reshape(*batch, *aval.shape))
        return found


def _like(x: Array, batch: tuple[int, ...]) -> Array:
    return x.reshape(batch) if x.size == math.prod(batch) else lax.broadcast(x, batch)


def _rows(array: Array, batched: bool) -> list[Array]:
    """The entries of an array, each with the batch as its only axis."""
    flat = array.reshape(array.shape[0], math.prod(array.shape[1:])).T if batched else array.ravel()
    return [flat[i] for i in range(flat.shape[0])]


class Limits(NamedTuple):
    """The most operations of a function of a mechanism as scalar code, and of a derivative of such a function."""

    function: int
    derivative: int


# Machine code compiles in time linear in its length; XLA does not.
OF_MACHINE_CODE, OF_XLA = Limits(128_000, 256_000), Limits(8000, 16_000)
# How many times as many operations a derivative may have as its function.
GROWTH = 8


def limits() -> Limits:
    """The limits of scalar code for what computes by default."""
    return OF_MACHINE_CODE if runs_machine_code() else OF_XLA


def grown(limit: int) -> int:
    """The most operations of a derivative of a function that may have `limit`."""
    return max(limit, min(GROWTH * limit, limits().derivative))


class ProgramOp(AbstractBatchedOp):
    """A scalar program as an operation."""

    def __init__(self, program: ScalarProgram):
        super().__init__(program.takes, program.gives)
        self.program = program

    def make_some(self, outputs):
        return ProgramOp(self.program.some(outputs))

    def evaluate(self, form, *arrays):
        return self.program.evaluate(form, *arrays)


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

    def __init__(self, closed: ClosedJaxpr):
        super().__init__(closed.in_avals, closed.out_avals)
        self.closed = closed

    def inline(self, graph, batched, arguments):
        return inlined(graph, self.closed, batched, arguments)

    def make_some(self, outputs):
        return self.through(lambda closed: with_results(closed, outputs))


class ScalarPiece(AbstractTracedPiece):
    """A traced function as a scalar program of at most `limit` operations; evaluated on arrays if it has more."""

    def __init__(self, closed: ClosedJaxpr, limit: int, program: ScalarProgram | None = None):
        super().__init__(closed)
        self.limit, self.ready = limit, program

    @ft.cached_property
    def program(self) -> ScalarProgram:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            return interpret(graph, self.closed, arguments)

        return self.ready or ScalarProgram(self.takes, self.gives, build, self.limit)

    def through(self, change):
        return ScalarPiece(change(self.closed), grown(self.limit))

    def inline(self, graph, batched, arguments):
        program = self.__dict__.get("program", self.ready)
        copied = None if program is None or any(batched) else program.copied(graph, arguments)
        return super().inline(graph, batched, arguments) if copied is None else copied

    def make_some(self, outputs):
        program = self.__dict__.get("program", self.ready)
        return ScalarPiece(with_results(self.closed, outputs), self.limit, program and program.some(outputs))

    def evaluate(self, form, *arrays):
        if form.on_arrays:
            return over_batch(jaxpr_as_fun(self.closed), form.batched)(*arrays)
        try:
            program = self.program
        except (TooLong, NotScalar):
            return over_batch(jaxpr_as_fun(self.closed), form.batched)(*arrays)
        return program.evaluate(form, *arrays)


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
    def judged_tangent(self, moving: tuple[int, ...]) -> "AbstractJudgedSlope":
        """The function (x, tangents of those `moving`) -> tangents of the inexact values, and whether certain."""

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

    def judged_tangent(self, moving):
        return _JudgedScalars(self, traced_tangent(self.closed, moving, self.inexact))

    def make_judged_cotangent(self, moving, given):
        return _JudgedScalars(self, traced_cotangent(self.closed, moving, given))


class _JudgedScalars(AbstractJudgedSlope):
    """A derivative of certain scalars."""

    def __init__(self, base: CertainScalars, slope: ClosedJaxpr):
        super().__init__(slope.in_avals, [*slope.out_avals, ShapedArray((), np.dtype(bool))])
        self.base, self.slope, self.limit = base, slope, grown(base.limit)

    def every(self, graph, batched, arguments):
        count = len(self.base.takes)
        found = inlined(graph, self.slope, batched, arguments)
        smooth = self.base.piece.some((len(self.base.gives) - 1,))
        assert smooth is not None
        (flag,) = smooth.inline(graph, batched[:count], arguments[:count])
        if any(batched) and not any(batched[:count]):
            flag = np.repeat(flag[None], len(found[0]))
        return [*found, flag]


def over_batch(function: Callable[..., T], batched: tuple[bool, ...]) -> Callable[..., T]:
    """Maps `function` over the batch of those arguments that have one."""
    if not any(batched):
        return function
    return jax.vmap(function, in_axes=tuple(0 if x else None for x in batched))


def size_of(batched: Sequence[bool], arrays: Sequence[Array]) -> tuple[int, ...]:
    """The shape of the batch: (size,), or () if there is none."""
    return next(((x.shape[0],) for x, b in zip(arrays, batched, strict=True) if b), ())
