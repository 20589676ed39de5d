"""Pieces that are evaluated as scalar programs."""

import copy
import functools as ft
import itertools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.dtypes import extended
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._linalg import in_tiles
from ._entry import LARGEST, Entry, NotScalar
from ._graph import Graph, Inlines, TooLong
from ._interpret import interpret
from ._loops import FEW, fits, in_loops
from ._piece import AbstractTracedPiece, EvalForm
from ._program import Program


# States of a tile: the numbers that loops hand on, some 100 for each state, are to stay in the cache.
TILE = 128
# A graph under construction may have this many times the operations of the final program.
WASTE = 8


T = TypeVar("T")
# (graph, arguments) -> results, all of them arrays of entries.
Builds = Callable[[Graph, list[np.ndarray]], list[np.ndarray]]
# (shape of the batch, entries) -> arrays.
Joins = Callable[[tuple[int, ...], Sequence[Array]], list[Array]]


class ScalarProgram:
    """A scalar program between arrays, of at most `limit` operations; raises TooLong or NotScalar.

    `takes` and `gives`: shape and dtype of the arrays; `build` makes the entries of the results; `pieces`: as of
    `Graph`.
    """

    def __init__(
        self,
        takes: Sequence[ShapedArray],
        gives: Sequence[ShapedArray],
        build: Builds,
        limit: int,
        pieces: Inlines | None = None,
    ):
        self.takes = takes
        graph = Graph(WASTE * limit, pieces)
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
        if self.program.operations > limit:
            raise TooLong(f"{self.program.operations} operations, more than {limit}")

    def _is_to_give(self, gives: Sequence[ShapedArray], results: Sequence[np.ndarray]) -> None:
        self.gives = gives
        outputs: list[Entry] = [x for array in results for x in array.ravel()]
        self.program = Program(self.inputs, outputs)

    def part(self, gives: Sequence[ShapedArray], results: Sequence[np.ndarray]) -> "ScalarProgram":
        """The program that gives other entries of the same graph."""
        other = copy.copy(self)
        other._is_to_give(gives, results)
        return other

    def evaluate(self, form: EvalForm, *arrays: Array) -> list[Array]:
        """The results; if any argument is batched, the batch is its first axis, and that of all results."""
        return self._of(form, arrays, self._joined)

    def entries(self, form: EvalForm, *arrays: Array) -> list[Array]:
        """The entries of the results, each with the batch as its only axis, or none if no argument is batched."""
        return self._of(form, arrays, lambda batch, entries: list(entries))

    def of_entries(self, own: Sequence[Array], shared: Sequence[Array]) -> list[Array]:
        """The entries of the results, from `own` entries with a batch as their only axis, and `shared` ones without.

        It is for a CPU. Truth values are numbers.
        """
        before, each = self.program.split([*(True for _ in own), *(False for _ in shared)])
        values = [*own, *before(*shared)]
        if not reduces_one_by_one():
            values = [x.astype(y.dtype) for x, y in zip(values, each.inputs, strict=True)]
            found = each(*values)
        else:
            found = in_loops(each, own[0].size, values, apart=True)
        size = own[0].shape
        return [_like(x, size).astype(as_number(y.dtype)) for x, y in zip(found, each.outputs, strict=True)]

    def _of(self, form: EvalForm, arrays: Sequence[Array], join: Joins) -> list[Array]:
        """Evaluates the program; `join` makes arrays of the shape of a batch, or of a tile, and the entries of results.

        Several loops hand on many numbers from one to the next, which stay in the cache where the loops run for a tile
        of the batch after the other.
        """
        batch, alone = size_of(form.batched, arrays), not any(form.batched)
        flags = [b or alone for b in form.batched]
        before, each = self.program.split([b for x, b in zip(self.takes, flags, strict=True) for _ in range(x.size)])
        # Numbers that depend on shared inputs only are computed once. A state without a batch is a batch of one.
        shared = before(*(y for x, b in zip(arrays, flags, strict=True) if not b for y in _rows(x, False)))
        loops = form.on_cpu and 0 not in batch and each.steps and not each.has_arrays and reduces_one_by_one()

        def of(*own: Array) -> list[Array]:
            batch = () if alone else own[0].shape[:1]
            values = [*(y for x in own for y in _rows(x, not alone)), *shared]
            found = in_loops(each, math.prod(batch), values) if loops else each(*values)
            return join(batch, [_like(x, batch) for x in found])

        own = [x for x, b in zip(arrays, flags, strict=True) if b]
        count = -(-math.prod(batch) // TILE)
        if not loops or fits(each) or count == 1:
            return of(*own)
        start = join(batch, [jnp.zeros(batch, x.dtype) for x in each.outputs])
        return in_tiles(of, -(-batch[0] // count), start, [0] * len(own), own)

    def _joined(self, batch: tuple[int, ...], entries: Sequence[Array]) -> list[Array]:
        found, rest = [], iter(entries)
        for aval in self.gives:
            part = list(itertools.islice(rest, aval.size))
            joined = jnp.stack(part, axis=-1) if part else jnp.zeros((*batch, 0), aval.dtype)
            found.append(joined.reshape(*batch, *aval.shape))
        return found


def as_number(dtype: np.dtype) -> np.dtype:
    """The dtype in which entries are kept between steps: an integer for truth values."""
    return jnp.result_type(int) if jnp.issubdtype(dtype, bool) else dtype


def _like(x: Array, batch: tuple[int, ...]) -> Array:
    return x.reshape(batch) if x.size == math.prod(batch) else lax.broadcast(x, batch)


def _rows(array: Array, batched: bool) -> list[Array]:
    """The entries of an array, each with the batch as its only axis."""
    flat = array.reshape(array.shape[0], math.prod(array.shape[1:])).T if batched else array.ravel()
    return [flat[i] for i in range(flat.shape[0])]


@ft.cache
def reduces_one_by_one() -> bool:
    """Whether a reduction on the CPU takes one element after the other, as `in_loops` needs it."""
    graph = Graph(9)
    inputs = [graph.input(np.dtype(np.float32)) for _ in range(2)]
    program = Program(inputs, [graph.add(*inputs), graph.neg(inputs[1])])
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.ensure_compile_time_eval():
        for size in (1, 5, FEW + 1):
            x, y = np.arange(1, size + 1, dtype=np.float32), np.float32(7)
            arrays = [jax.device_put(value, cpu) for value in (x, y)]
            found = jax.jit(lambda *xs, size=size: in_loops(program, size, xs))(*arrays)
            if not all(
                np.array_equal(got, np.broadcast_to(want, size)) for got, want in zip(found, (x + y, -y), strict=True)
            ):
                return False
    return True


# How many times as many operations a derivative may have as its function, and how many at most: longer ones take too
# long to compile. The derivatives of the models' accelerations have fewer.
GROWTH = 8
MOST_OF_DERIVATIVE = 16_000


def grown(limit: int) -> int:
    """The most operations of a derivative of a function that may have `limit`."""
    return max(limit, min(GROWTH * limit, MOST_OF_DERIVATIVE))


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

    def evaluate(self, form, *arrays):
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


def over_batch(function: Callable[..., T], batched: tuple[bool, ...]) -> Callable[..., T]:
    """Maps `function` over the batch of those arguments that have one."""
    if not any(batched):
        return function
    return jax.vmap(function, in_axes=tuple(0 if x else None for x in batched))


def size_of(batched: Sequence[bool], arrays: Sequence[Array]) -> tuple[int, ...]:
    """The shape of the batch: (size,), or () if there is none."""
    return next(((x.shape[0],) for x, b in zip(arrays, batched, strict=True) if b), ())
