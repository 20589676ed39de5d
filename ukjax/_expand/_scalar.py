"""Scalar programs between arrays, and how long they may be."""

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
from jaxtyping import Array

from .._lowering import SureWay, runs_machine_code, vector_width
from .._lowering._entry import LARGEST, Block, Entry, Node, NotScalar
from .._lowering._program import Program
from .._lowering._stages import NativeProgram
from ._graph import Graph, TooLong, cut_p
from ._piece import AbstractBatchedOp, EvalForm, flattened


# A graph under construction may have this many times the operations of the final program, but only so many more, or
# twice as many, if these are more.
WASTE, MOST_WASTE = 8, 64_000


T = TypeVar("T")
# (graph, arguments) -> results, all of them arrays of entries.
Builds = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]


class ScalarProgram:
    """A scalar program between arrays, of at most `limit` operations; raises TooLong or NotScalar.

    `takes` and `gives`: shape and dtype of the arrays; `build` makes the entries of the results; `inlines`: as of
    `Graph`, by default where there is machine code; `may_doubt`: whether pieces in it may be uncertain at some states.

    Attributes:
        doubt: The truth value that tells whether such a piece is not certain; None if there is no such piece.
    """

    doubt: Entry | None = None

    @np.errstate(all="ignore")
    def __init__(
        self,
        takes: Sequence[ShapedArray],
        gives: Sequence[ShapedArray],
        build: Builds,
        limit: int,
        inlines: bool | None = None,
        may_doubt: bool = False,
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
        results = build(graph, arguments)
        if graph.doubts and not may_doubt:
            raise NotScalar("a piece that is not always certain")
        if graph.doubts:
            self.doubt = graph.doubt()
        self._is_to_give(gives, results)
        if self.program.length > limit:
            raise TooLong(f"{self.program.length} operations, more than {limit}")

    def _is_to_give(self, gives: Sequence[ShapedArray], results: Sequence[np.ndarray]) -> None:
        self.gives, self.results = gives, results
        outputs: list[Entry] = [x for array in results for x in array.ravel()]
        self.program = Program(self.inputs, outputs if self.doubt is None else [*outputs, self.doubt])

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

        # Where nothing is known of any argument, no operation becomes simpler.
        as_it_is = len({x.order for x in given if isinstance(x, Node)}) == len(given)
        for node in steps:
            assert node.primitive is not None
            args = [entry(x) for x in node.args]
            if node.primitive is cut_p:
                (done[node.order],) = args
                continue
            operation = graph.operation(node.primitive, node.params, node.dtype)
            done[node.order] = (operation.as_it_is if as_it_is else operation)(graph, *args)
        results = iter(program.outputs)
        found = [np.empty(aval.shape, object) for aval in self.gives]
        for array in found:
            for i in np.ndindex(array.shape):
                array[i] = entry(next(results))
        graph.doubts.extend(map(entry, results))
        return found

    def some(self, which: Sequence[int]) -> "ScalarProgram":
        """The program that gives some of the results."""
        return self.part([self.gives[i] for i in which], [self.results[i] for i in which])

    def evaluate(self, form: EvalForm, *arrays: Array) -> list[Array]:
        """The results; if any argument is batched, the batch is its first axis, and that of all results."""
        found = self.evaluate_native(form, arrays)
        return self._by_operations(form, arrays) if found is None else found

    def evaluate_native(
        self, form: EvalForm, arrays: Sequence[Array], way: Callable[[tuple[bool, ...]], SureWay] | None = None
    ) -> list[Array] | None:
        """The results by machine code, or None if that is not possible.

        `way`: which arguments have a batch -> the sure way, for states in doubt.
        """
        if not form.native or not self.native.is_possible:
            return None
        wide, given = form.wide(arrays)
        found = self.native(wide.batched, given, None if way is None else way(wide.batched), form.gpu)
        return found if found is None or self.doubt is None else found[:-1]

    def along(self, form: EvalForm, directions: tuple[bool, ...], count: int, arrays: Sequence[Array]) -> list[Array]:
        """The results for `count` directions of each state, at the axis after the batch.

        `directions`: which arrays have one for each direction, at that axis, or at the first if they have no batch.
        """
        if not any(form.batched):
            return self.evaluate(form._replace(batched=directions), *arrays)
        (size,) = size_of(form.batched, arrays)
        of_states = any(b and not turns for b, turns in zip(form.batched, directions, strict=True))
        # The lanes of a vector are states. A few would leave most of them empty.
        if form.native and form.gpu is None and of_states and size >= vector_width() and count > 1:
            wide, given = form.wide(arrays)
            found = self.native.along(directions, count, wide.batched, given)
            if found is not None:
                return found
        flat, flags = flattened(arrays, form.batched, directions, size, count)
        found = self.evaluate(form._replace(batched=flags), *flat)
        return [x.reshape(size, count, *x.shape[1:]) for x in found]

    def entries(self, form: EvalForm, *arrays: Array) -> Array:
        """The entries of all results, with the batch as the last axis."""
        found = [x.reshape(x.shape[0], -1) for x in self.evaluate(form, *arrays)]
        return jnp.concatenate(found, axis=1).T

    @ft.cached_property
    def native(self) -> NativeProgram:
        flag = [] if self.doubt is None else [ShapedArray((), np.dtype(bool))]
        return NativeProgram.of(self.program, self.takes, [*self.gives, *flag])

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


def over_batch(function: Callable[..., T], batched: tuple[bool, ...]) -> Callable[..., T]:
    """Maps `function` over the batch of those arguments that have one."""
    if not any(batched):
        return function
    return jax.vmap(function, in_axes=tuple(0 if x else None for x in batched))


def size_of(batched: Sequence[bool], arrays: Sequence[Array]) -> tuple[int, ...]:
    """The shape of the batch: (size,), or () if there is none."""
    return next(((x.shape[0],) for x, b in zip(arrays, batched, strict=True) if b), ())
