"""Scalar programs that are complete, as operations on numbers or on batches of numbers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from .._linalg import in_tiles
from ._entry import Block, Entry, Node, name_of


# Of a loop with some 3 000 operations and more, constants and what is read and written among them, XLA makes functions
# that compute what they share again, for each of its uses: one of 3 800 took a thousand times as long as it should, and
# of some more it did not end. Just below, LLVM needs minutes.
LONGEST = 2700
# XLA's older emitters end the process where a function has 1 000 results: a loop's are its inputs and two for each
# output.
MOST_OPERANDS = 900
# Of 1 000 numbers that are handed on a tile is half a megabyte: an arm of 12 joints takes 2.6 µs a state in tiles of
# 64, 3.5 in tiles of 256, and 6.8 in one.
TILE = 64


class Program:
    """What it takes to get from some inputs to some outputs, in order."""

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Entry]):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        known = {node.order for node in inputs}
        self.steps = [node for node in _needed(outputs, known) if node.order not in known]

    @property
    def operations(self) -> int:
        return len(self.steps)

    @property
    def length(self) -> int:
        """About how many operations a loop over a batch consists of."""
        constants = {name_of(x) for node in self.steps for x in node.args if not isinstance(x, (Node, np.ndarray))}
        return self.operations + len(constants) + 2 * len(self.inputs) + 4 * len(self.outputs)

    @property
    def widest(self) -> int:
        """How many operands that of its loops has that has most."""
        if self.length > LONGEST and self.operations > 1:
            return max(_used(half)[0].widest for half in self.halves())
        return self.operands

    @property
    def operands(self) -> int:
        """How many a loop has at the most, that has not to be cut."""
        return len(self.inputs) + len(self.outputs)

    @property
    def has_arrays(self) -> bool:
        """Whether something in it is kept as an operation on arrays."""
        return any(isinstance(node, Block) for node in self.steps)

    def __call__(self, *values: Array) -> list[Array]:
        """The outputs for inputs that are numbers, or in places batches (size,) of them."""
        sizes = {x.shape for x in values if x.shape}
        assert len(sizes) <= 1, sizes
        shape = sizes.pop() if sizes else ()
        done: dict[int, Any] = {node.order: x for node, x in zip(self.inputs, values, strict=True)}
        for node in self.steps:
            if isinstance(node, Block):
                done[node.order] = _block(node, done, shape)
            elif isinstance(node.args[0], Block):
                done[node.order] = node.function(done[node.args[0].order])
            else:
                args = [_value(x, done) for x in node.args]
                wide = any(x.shape for x in args)
                done[node.order] = node.function(
                    *(lax.broadcast(x, shape) if wide and not x.shape else x for x in args)
                )
        found = [_value(x, done) for x in self.outputs]
        return [lax.broadcast(y, shape) if y.shape != shape else y for y in found]

    def split(self, batched: Sequence[bool]) -> "Split":
        """The program in two: what does not depend on the inputs that are `batched`, and the rest."""
        varies = {node.order for node, b in zip(self.inputs, batched, strict=True) if b}
        border: dict[int, Node] = {}
        for node in self.steps:
            if any(x.order in varies for x in _arguments(node)):
                varies.add(node.order)
        for node in self.steps:
            if node.order in varies:
                border |= {x.order: x for x in _arguments(node) if x.order not in varies}
        border |= {x.order: x for x in self.outputs if isinstance(x, Node) and x.order not in varies}
        shared = [border[i] for i in sorted(border)]
        own = [node for node, b in zip(self.inputs, batched, strict=True) if not b]
        inside = [node for node, b in zip(self.inputs, batched, strict=True) if b]
        return Split(Program(own, shared), Program([*inside, *shared], self.outputs))

    def halves(self) -> "Halves":
        """The program in two of about the same length, between which as few numbers are handed on as may be."""
        place = {node.order: i for i, node in enumerate(self.steps)}
        last = dict.fromkeys(place, 0)
        for i, node in enumerate(self.steps):
            last |= {x.order: i for x in _arguments(node) if x.order in place}
        last |= {x.order: len(self.steps) for x in self.outputs if isinstance(x, Node) and x.order in place}
        alive = np.zeros(len(self.steps) + 1, int)
        for order, i in place.items():
            alive[i + 1 : last[order] + 1] += 1
        low, high = max(1, 2 * len(self.steps) // 5), 3 * len(self.steps) // 5 + 1
        cut = low + int(np.argmin(alive[low:high]))
        border = [node for node in self.steps[:cut] if last[node.order] >= cut]
        return Halves(Program(self.inputs, border), Program([*self.inputs, *border], self.outputs))


class Halves(NamedTuple):
    """`first`: inputs -> what of it the rest needs; `second`: the inputs, and that, -> outputs."""

    first: Program
    second: Program


class Split(NamedTuple):
    """`before`: what a batch shares -> what of it the rest needs; `each`: a member's inputs, and that, -> outputs."""

    before: Program
    each: Program


def in_loops(program: Program, size: int, values: Sequence[Array]) -> list[Array]:
    """The outputs for inputs that are numbers, or batches (size,): in one loop over the batch, or in several.

    What these hand on from one to the next is much, and comes from the cache where they take a tile after the other.
    """
    if program.length <= LONGEST or size <= TILE:
        return in_one_loop(program, size, values)
    start = [jnp.zeros(size, x.dtype) for x in program.outputs]
    axes = [0 if x.shape else None for x in values]
    return in_tiles(lambda *values: in_one_loop(program, TILE, values), TILE, start, axes, values)


def in_one_loop(program: Program, size: int, values: Sequence[Array]) -> list[Array]:
    """The outputs for inputs that are numbers, or batches (size,): all of them in one loop over the batch.

    A program that is too long is one of several loops, one after the other.

    XLA compiles the outputs of elementwise operations one by one, and so evaluates many times what they share. A
    reduction of several arrays at once has one body, of scalars: here that is the program. What is reduced is an axis
    of length two, along which nothing changes, and of what went before the body makes no use. So the compiler moves all
    of it out of the loop along that axis, is left with a loop over the batch, and makes vector instructions of that.
    """
    if program.length > LONGEST and program.operations > 1:
        first, second = program.halves()
        return _of_used(second, size, [*values, *_of_used(first, size, values)])
    if program.operands > MOST_OPERANDS and len(program.outputs) > 1:
        middle = len(program.outputs) // 2
        parts = program.outputs[:middle], program.outputs[middle:]
        return [y for part in parts for y in _of_used(Program(program.inputs, part), size, values)]
    given = [x.dtype for x in values]
    dtype_of = _reduced_as([*given, *(x.dtype for x in program.outputs)])
    taken = [dtype_of(x) for x in given]
    places, added = _places(taken, [dtype_of(x.dtype) for x in program.outputs])
    twice = lambda x, dtype: lax.broadcast_in_dim(x.astype(dtype), (2, size), (1,) if x.shape else ())
    operands = [*map(twice, values, taken), *(jnp.zeros((2, size), dtype) for dtype in added)]

    def body(before, here):
        found = program(*(x.astype(dtype) for x, dtype in zip(here, given, strict=False)))
        after = list(before)
        for place, y in zip(places, found, strict=True):
            after[place] = y.astype(operands[place].dtype)
        return tuple(after)

    start = tuple(jnp.zeros((), x.dtype) for x in operands)
    # All results are used, as far as XLA can see: it looks for what the others need in a time that is exponential.
    out = lax.optimization_barrier(tuple(lax.reduce(tuple(operands), start, body, (0,))))
    return [out[place].astype(x.dtype) for x, place in zip(program.outputs, places, strict=True)]


def _places(taken: Sequence[Any], wanted: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Where each result is put, in the place of an input of its dtype or in a new one; and the dtypes of the new ones."""
    free = {dtype: [i for i, x in enumerate(taken) if x == dtype][::-1] for dtype in {*taken, *wanted}}
    places: list[int] = []
    added: list[Any] = []
    for dtype in wanted:
        if free[dtype]:
            places.append(free[dtype].pop())
        else:
            places.append(len(taken) + len(added))
            added.append(dtype)
    return places, added


def _reduced_as(dtypes: Sequence[Any]) -> Callable[[Any], Any]:
    """As what numbers are reduced together: XLA takes no truth values beside others, and floats of one kind only."""
    is_float = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
    widest = max(filter(is_float, dtypes), key=lambda x: x.itemsize, default=None)

    def dtype_of(dtype: Any) -> Any:
        if is_float(dtype):
            return widest
        return jnp.dtype(int) if jnp.issubdtype(dtype, bool) else dtype

    return dtype_of


def _of_used(program: Program, size: int, values: Sequence[Array]) -> list[Array]:
    """`in_one_loop` without the inputs that are not used, which would be read all the same."""
    shorter, there = _used(program)
    return in_one_loop(shorter, size, [y for y, x in zip(values, there, strict=True) if x])


def _used(program: Program) -> tuple[Program, list[bool]]:
    """The program without the inputs that are not used, and which are."""
    used = {x.order for node in program.steps for x in _arguments(node)}
    used |= {x.order for x in program.outputs if isinstance(x, Node)}
    there = [node.order in used for node in program.inputs]
    return Program([node for node, x in zip(program.inputs, there, strict=True) if x], program.outputs), there


def _value(x: Entry, done: dict[int, Any]) -> Any:
    return done[x.order] if isinstance(x, Node) else jnp.asarray(x)


def _block(node: Block, done: dict[int, Any], shape: tuple[int, ...]) -> Any:
    """What is kept as an array operation, on arrays put together from scalars."""
    arrays, axes = [], []
    for entries in node.args:
        values = [_value(x, done) for x in entries.ravel()]
        is_batched = any(x.shape for x in values)
        values = [lax.broadcast(x, shape) if is_batched and not x.shape else x for x in values]
        stacked = jnp.stack(values, axis=-1) if values else jnp.zeros(0)
        arrays.append(stacked.reshape(*stacked.shape[:-1], *entries.shape))
        axes.append(0 if is_batched else None)
    if any(x == 0 for x in axes):
        return [jnp.moveaxis(x, 0, -1) for x in jax.vmap(node.function, in_axes=tuple(axes))(*arrays)]
    return node.function(*arrays)


def _arguments(node: Node) -> Iterator[Node]:
    for x in node.args:
        for part in x.ravel() if isinstance(x, np.ndarray) else [x]:
            if isinstance(part, Node):
                yield part


def _needed(outputs: Sequence[Entry], known: set[int]) -> list[Node]:
    """The nodes that the outputs depend on, in an order in which they can be computed, down to what is known."""
    seen: dict[int, Node] = {}
    todo = [x for x in outputs if isinstance(x, Node)]
    while todo:
        node = todo.pop()
        if node.order not in seen:
            seen[node.order] = node
            if node.order not in known:
                todo += _arguments(node)
    return [seen[i] for i in sorted(seen)]
