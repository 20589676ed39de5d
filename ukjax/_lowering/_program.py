"""Complete scalar programs, as operations on numbers or on batches of numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jaxtyping import Array, PyTree

from ._entry import Block, Entry, Node


# A call of a routine, which is among its parameters.
call_p = Primitive("call_of_routine")


class Program:
    """The operations that lead from some inputs to some outputs, in order.

    `steps`: these operations, if they are known.
    """

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Entry], steps: Sequence[Node] | None = None):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.steps = _between(inputs, outputs) if steps is None else steps

    @property
    def operations(self) -> int:
        """The operations that are done, those of a routine once for each call."""
        return len(self.steps) + sum(routine_of(node).program.operations for node in self.calls)

    @property
    def length(self) -> int:
        """The operations that are written down, those of a routine once."""
        return len(self.steps) + sum(routine.program.length for routine in self.routines)

    @property
    def calls(self) -> list[Node]:
        """The calls of routines."""
        return [node for node in self.steps if node.primitive is call_p]

    @property
    def routines(self) -> "list[Routine]":
        """The routines that the program calls."""
        return list({id(routine_of(node)): routine_of(node) for node in self.calls}.values())

    @property
    def has_arrays(self) -> bool:
        """Whether the program has operations on arrays."""
        return any(isinstance(node, Block) and node.primitive is not call_p for node in self.steps)

    def __call__(self, *values: Array) -> list[Array]:
        """The outputs for inputs each of which is a number or a batch (size,) of numbers."""
        sizes = {x.shape for x in values if x.shape}
        assert len(sizes) <= 1, sizes
        shape = sizes.pop() if sizes else ()
        done: dict[int, PyTree[Array]] = {node.order: x for node, x in zip(self.inputs, values, strict=True)}
        for node in self.steps:
            if isinstance(node, Block):
                done[node.order] = _block(node, done, shape)
            elif not isinstance(node.args[0], Block):
                args = [_value(x, done) for x in node.args]
                wide = any(x.shape for x in args)
                args = [lax.broadcast(x, shape) if wide and not x.shape else x for x in args]
                done[node.order] = node.function(*args)
        found = [_value(x, done) for x in self.outputs]
        return [lax.broadcast(y, shape) if y.shape != shape else y for y in found]

    def split(self, batched: Sequence[bool]) -> "Split":
        """Splits the program into the part that does not depend on the `batched` inputs, and the rest."""
        if all(batched) and all(node.nodes for node in self.steps):
            return Split(Program((), ()), self)
        varies = {node.order for node, b in zip(self.inputs, batched, strict=True) if b}
        border: dict[int, Node] = {}
        for node in self.steps:
            if any(x.order in varies for x in node.nodes):
                varies.add(node.order)
        for node in self.steps:
            if node.order in varies:
                border |= {x.order: x for x in node.nodes if x.order not in varies}
        border |= {x.order: x for x in self.outputs if isinstance(x, Node) and x.order not in varies}
        shared = [border[i] for i in sorted(border)]
        own, inside = (
            [x for x, b in zip(self.inputs, batched, strict=True) if b == wanted] for wanted in (False, True)
        )
        before, each = ([x for x in self.steps if (x.order in varies) == wanted] for wanted in (False, True))
        return Split(Program(own, shared, before), Program([*inside, *shared], self.outputs, each))


class Routine(NamedTuple):
    """A program that another calls several times; its first inputs are the arguments of a call.

    The other inputs are numbers of the calling program, the same in all calls.
    """

    program: Program
    arguments: int

    def called(self, arguments: Sequence[Entry], order: int) -> Block:
        """The call as an operation of a program, whose results are the outputs of the routine."""
        entries = [np.array(x, object) for x in (*arguments, *self.program.inputs[self.arguments :])]
        dtypes = tuple(np.dtype(x.dtype) for x in self.program.outputs)
        block = Block(self.program, tuple(entries), dtypes, order)
        block.primitive, block.params = call_p, {"routine": self}
        return block


def routine_of(node: Node) -> Routine:
    """The routine that a node calls."""
    routine = node.params["routine"]
    assert isinstance(routine, Routine)
    return routine


class Split(NamedTuple):
    """Two programs: `before`, shared inputs -> numbers for the rest; `each`, a member's inputs and these -> outputs."""

    before: Program
    each: Program


def _value(x: Entry, done: dict[int, PyTree[Array]]) -> Array:
    if not isinstance(x, Node):
        return jnp.asarray(x)
    if x.order not in done:  # an entry of a block, of which not all are needed
        done[x.order] = x.function(done[x.args[0].order])
    return done[x.order]


def _block(node: Block, done: dict[int, PyTree[Array]], shape: tuple[int, ...]) -> list[Array]:
    """Evaluates an operation on arrays, which are put together from scalars."""
    arrays, axes = [], []
    for entries in node.args:
        whole = _whole(entries, done)
        if whole is not None:
            is_batched = whole.ndim > entries.ndim
            arrays.append(jnp.moveaxis(whole, -1, 0) if is_batched else whole)
            axes.append(0 if is_batched else None)
            continue
        values = [_value(x, done) for x in entries.ravel()]
        is_batched = any(x.shape for x in values)
        values = [lax.broadcast(x, shape) if is_batched and not x.shape else x for x in values]
        stacked = jnp.stack(values, axis=-1) if values else jnp.zeros(0)
        arrays.append(stacked.reshape(*stacked.shape[:-1], *entries.shape))
        axes.append(0 if is_batched else None)
    if any(x == 0 for x in axes):
        return [jnp.moveaxis(x, 0, -1) for x in jax.vmap(node.function, in_axes=tuple(axes))(*arrays)]
    return node.function(*arrays)


def _whole(entries: np.ndarray, done: dict[int, PyTree[Array]]) -> Array | None:
    """The array of entries that are constant, or are a whole result of a block, with any batch as last axis; else None.

    Large tables that are put together from their entries take long to compile.
    """
    flat = [*entries.ravel()]
    if not flat:
        return None
    if not any(isinstance(x, Node) for x in flat):
        return jnp.asarray(np.array(flat).reshape(entries.shape))
    if not isinstance(flat[0], Node) or flat[0].place is None:
        return None
    (block,), (output, _) = flat[0].args, flat[0].place
    if block.order not in done:
        return None
    array = done[block.order][output]
    if array.shape[: entries.ndim] != entries.shape:
        return None
    for x, i in zip(flat, np.ndindex(entries.shape), strict=True):
        if not (isinstance(x, Node) and x.args == (block,) and x.place == (output, i)):
            return None
    return array


def _between(inputs: Sequence[Node], outputs: Sequence[Entry]) -> list[Node]:
    """The nodes on which the outputs depend, beside the inputs, in an order in which they can be computed."""
    seen: dict[int, Node] = {}
    known = {node.order for node in inputs}
    todo = [x for x in outputs if isinstance(x, Node)]
    while todo:
        node = todo.pop()
        if node.order not in seen and node.order not in known:
            seen[node.order] = node
            todo += node.nodes
    return [seen[i] for i in sorted(seen)]
