"""Pieces that are evaluated as scalar programs."""

import functools as ft
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.dtypes import extended
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._entry import LARGEST, Entry, NotScalar
from ._graph import Graph, TooLong
from ._interpret import interpret
from ._piece import AbstractTracedPiece
from ._program import Program, in_one_loop


# How many times as many numbers are looked at as are needed in the end.
WASTE = 8


class ScalarProgram:
    """A scalar program between arrays, of at most `limit` operations; raises TooLong or NotScalar."""

    def __init__(self, takes: Sequence[Any], build: Callable[[Graph, list[np.ndarray]], list[np.ndarray]], limit: int):
        graph = Graph(WASTE * limit)
        arguments, inputs = [], []
        for aval in takes:
            if aval.size > LARGEST or jnp.issubdtype(aval.dtype, extended):
                raise NotScalar("a large array, or a random key")
            array = np.empty(aval.shape, object)
            for i in np.ndindex(aval.shape):
                array[i] = graph.input(aval.dtype)
                inputs.append(array[i])
            arguments.append(array)
        results = build(graph, arguments)
        self.shapes = [x.shape for x in results]
        outputs: list[Entry] = [x for array in results for x in array.ravel()]
        self.program = Program(inputs, outputs)
        if self.program.operations > limit:
            raise TooLong(f"{self.program.operations} operations, more than {limit}")

    def evaluate(self, batched: tuple[bool, ...], *arrays: Array) -> list[Array]:
        """The results; with the batch as their first axis if any argument is batched, of which it is the first axis."""
        rows = [_rows(x, b) for x, b in zip(arrays, batched, strict=True)]
        flags = [b for part, b in zip(rows, batched, strict=True) for _ in part]
        values = [x for part in rows for x in part]
        size = next((x.shape[0] for x in values if x.shape), 1)
        # Of what a batch shares everything is computed once. What stands alone is a batch of one.
        alone = not any(batched)
        before, each = self.program.split([True] * len(flags) if alone else flags)
        shared = before(*(x for x, b in zip(values, flags) if not (b or alone)))
        values = [*(x for x, b in zip(values, flags) if b or alone), *shared]
        if each.has_arrays or not each.steps or not reduces_one_by_one():
            found = each(*values)
        else:
            loop = lambda *values: in_one_loop(each, size, values)
            found = lax.platform_dependent(*values, cpu=loop, default=lambda *values: _wide(each(*values), size))
            found = [x[0] for x in found] if alone else found
        return self._joined(found if alone else _wide(found, size))

    def _joined(self, out: Sequence[Array]) -> list[Array]:
        found, at = [], 0
        for shape in self.shapes:
            part, at = out[at : at + math.prod(shape)], at + math.prod(shape)
            joined = jnp.stack(part, axis=-1) if part else jnp.zeros(0)
            found.append(joined.reshape(*joined.shape[:-1], *shape))
        return found


def _rows(array: Array, batched: bool) -> list[Array]:
    """Its entries, each with the batch as its only axis."""
    flat = array.reshape(array.shape[0], -1).T if batched else array.reshape(-1)
    return [flat[i] for i in range(flat.shape[0])]


def _wide(found: Sequence[Array], size: int) -> list[Array]:
    return [x if x.shape else lax.broadcast(x, (size,)) for x in found]


@ft.cache
def reduces_one_by_one() -> bool:
    """Whether a reduction on the CPU takes one element after the other, as `in_one_loop` needs it."""
    graph = Graph(9)
    inputs = [graph.input(np.dtype(np.float32)) for _ in range(2)]
    program = Program(inputs, inputs)
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.ensure_compile_time_eval():
        for size in (1, 2, 5):
            values = [np.arange(1, size + 1, dtype=np.float32), np.float32(7)]
            arrays = [jax.device_put(x, cpu) for x in values]
            found = jax.jit(lambda *xs, size=size: in_one_loop(program, size, xs))(*arrays)
            if not all(np.array_equal(x, np.broadcast_to(y, size)) for x, y in zip(found, values, strict=True)):
                return False
    return True


# What a derivative may have more operations than what it is taken of.
GROWTH = 8


class ScalarPiece(AbstractTracedPiece):
    """A traced function as a scalar program of at most `limit` operations; as it is if it had more."""

    def __init__(self, closed: ClosedJaxpr, limit: int):
        super().__init__(closed)
        self.limit = limit

    @ft.cached_property
    def program(self) -> ScalarProgram:
        build = lambda graph, arguments: interpret(graph, self.closed, arguments)
        return ScalarProgram(self.takes, build, self.limit)

    def through(self, change):
        return ScalarPiece(change(self.closed), GROWTH * self.limit)

    def evaluate(self, batched, *arrays):
        try:
            program = self.program
        except (TooLong, NotScalar):
            return over_batch(jaxpr_as_fun(self.closed), batched)(*arrays)
        return program.evaluate(batched, *arrays)


class PlainPiece(AbstractTracedPiece):
    """A traced function as it is."""

    def through(self, change):
        return PlainPiece(change(self.closed))

    def evaluate(self, batched, *arrays):
        return over_batch(jaxpr_as_fun(self.closed), batched)(*arrays)


def over_batch(function: Callable[..., Any], batched: tuple[bool, ...]) -> Callable[..., Any]:
    """`function` for arguments that are batched in places."""
    if not any(batched):
        return function
    return jax.vmap(function, in_axes=tuple(0 if x else None for x in batched))
