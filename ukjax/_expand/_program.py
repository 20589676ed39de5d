"""Complete scalar programs, as operations on numbers or on batches of numbers.

Loops that are to have vector instructions take sine and cosine by arithmetic alone: XLA calls the C library for every
sine and cosine of doubles, one number at a time, and around each call all that a loop holds in registers goes to
memory. Here x = k pi/2 + r with |r| <= pi/4, and both are the sine and cosine of r, in this or the other order and up
to signs, by Taylor's series (DLMF 4.19). pi/2 is subtracted in parts that are short enough for their products with k to
be exact (Cody and Waite, Software Manual for the Elementary Functions, 1980); k in two parts, a multiple of 2^26 and
the rest. The rounding error of r is kept beside it (Knuth's exact sum, TAOCP 4.2.2).
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from ._entry import Block, Entry, Name, Node, name_of


# From here on, neighbouring doubles are further apart than a third of a turn.
LARGEST = 2.0**53
# The parts whose sum is pi/2: three of 26 bits, and the rest.
PARTS = (
    float.fromhex("0x1.921fb50000000p+0"),
    float.fromhex("0x1.110b460000000p-26"),
    float.fromhex("0x1.1a62630000000p-54"),
    float.fromhex("0x1.8a2e03707344ap-81"),
)
COARSE = 2.0**26  # quarter turns
SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)]
COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(2, 9)]
# The approximate number of operations for sine and cosine together.
OPERATIONS = 75


def sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Computes sin x and cos x for doubles, wrong by less than an ulp; NaN where |x| is 2^53 or more."""
    r, rest, quarters = _reduced(x)
    z = r * r
    half = 0.5 * z
    sine = r + (r * z * _polynomial(SINE, z) + rest * (1.0 - half))
    near = 1.0 - half
    cosine = near + (((1.0 - near) - half) + (z * z * _polynomial(COSINE, z) - r * rest))
    pairs = jnp.floor(0.5 * quarters)
    odd, second = 0.5 * quarters != pairs, 0.5 * pairs != jnp.floor(0.5 * pairs)
    s, c = lax.select(odd, cosine, sine), lax.select(odd, sine, cosine)
    return lax.select(second, -s, s), lax.select(odd != second, -c, c)


def _reduced(x: Array) -> tuple[Array, Array, Array]:
    """The remainder r, its rounding error, and the number of quarter turns left out, less a multiple of four."""
    a, b, c, d = PARTS
    turns = lax.round(x * (2.0 / math.pi / COARSE), lax.RoundingMethod.TO_NEAREST_EVEN)
    turns = COARSE * lax.select(jnp.abs(x) < LARGEST, turns, jnp.full_like(x, jnp.nan))
    left, third = (x - turns * a) - turns * b, turns * c
    quarters = lax.round((left - third) * (2.0 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    left = ((left - quarters * a) - quarters * b) - third
    r, rest = _sum(left, -(quarters * c))
    r, rest = _sum(r, rest - (turns * d + quarters * d))
    return r, rest, quarters


def _sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The sum x + y, and its rounding error."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def _polynomial(coefficients: list[float], z: Array) -> Array:
    total = jnp.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total


class Program:
    """The operations that lead from some inputs to some outputs, in order."""

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Entry]):
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        known = {node.order for node in inputs}
        self.steps = [node for node in _needed(outputs, known) if node.order not in known]

    @property
    def operations(self) -> int:
        return len(self.steps)

    @property
    def length(self) -> int:
        """The approximate number of operations of a loop over a batch."""
        constants = {x for node in self.steps for x in constants_of(node)}
        angles = {node.args[0].order for node in self.steps if turns(node)}
        inside = self.operations + len(constants) + OPERATIONS * len(angles)
        return inside + 2 * len(self.inputs) + 2 * len(self.outputs)

    @property
    def has_arrays(self) -> bool:
        """Whether the program has operations on arrays."""
        return any(isinstance(node, Block) for node in self.steps)

    def __call__(self, *values: Array, by_arithmetic: bool = False) -> list[Array]:
        """The outputs for inputs each of which is a number or a batch (size,) of numbers.

        `by_arithmetic`: sines and cosines of doubles are computed by arithmetic; otherwise they are calls.
        """
        sizes = {x.shape for x in values if x.shape}
        assert len(sizes) <= 1, sizes
        shape = sizes.pop() if sizes else ()
        done: dict[int, PyTree[Array]] = {node.order: x for node, x in zip(self.inputs, values, strict=True)}
        pairs: dict[int, tuple[Array, Array]] = {}
        for node in self.steps:
            if isinstance(node, Block):
                done[node.order] = _block(node, done, shape)
            elif not isinstance(node.args[0], Block):
                args = [_value(x, done) for x in node.args]
                wide = any(x.shape for x in args)
                args = [lax.broadcast(x, shape) if wide and not x.shape else x for x in args]
                if by_arithmetic and turns(node):
                    angle = node.args[0].order
                    if angle not in pairs:
                        pairs[angle] = sine_and_cosine(*args)
                    done[node.order] = pairs[angle][node.primitive is prims.cos_p]
                else:
                    done[node.order] = node.function(*args)
        found = [_value(x, done) for x in self.outputs]
        return [lax.broadcast(y, shape) if y.shape != shape else y for y in found]

    def inside(self, values: Sequence[Array]) -> list[Array]:
        """The outputs for numbers that may be of other dtypes than the inputs, as part of a loop."""
        return self(*(x.astype(y.dtype) for x, y in zip(values, self.inputs, strict=True)), by_arithmetic=True)

    def split(self, batched: Sequence[bool]) -> "Split":
        """Splits the program into the part that does not depend on the `batched` inputs, and the rest."""
        varies = {node.order for node, b in zip(self.inputs, batched, strict=True) if b}
        border: dict[int, Node] = {}
        for node in self.steps:
            if any(x.order in varies for x in arguments_of(node)):
                varies.add(node.order)
        for node in self.steps:
            if node.order in varies:
                border |= {x.order: x for x in arguments_of(node) if x.order not in varies}
        border |= {x.order: x for x in self.outputs if isinstance(x, Node) and x.order not in varies}
        shared = [border[i] for i in sorted(border)]
        own = [node for node, b in zip(self.inputs, batched, strict=True) if not b]
        inside = [node for node, b in zip(self.inputs, batched, strict=True) if b]
        return Split(Program(own, shared), Program([*inside, *shared], self.outputs))


class Split(NamedTuple):
    """Two programs: `before`, shared inputs -> numbers for the rest; `each`, a member's inputs and these -> outputs."""

    before: Program
    each: Program


def turns(node: Node) -> bool:
    """Whether a node is the sine or cosine of a double."""
    return node.primitive in (prims.sin_p, prims.cos_p) and node.dtype == np.float64


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


def constants_of(node: Node) -> Iterator[Name]:
    """The names of the constants among the arguments."""
    return (name_of(x) for x in node.args if not isinstance(x, (Node, np.ndarray)))


def arguments_of(node: Node) -> Iterator[Node]:
    """The nodes among the arguments, and among the entries of those that are arrays."""
    for x in node.args:
        for part in x.ravel() if isinstance(x, np.ndarray) else [x]:
            if isinstance(part, Node):
                yield part


def _needed(outputs: Sequence[Entry], known: set[int]) -> list[Node]:
    """The nodes that the outputs depend on, down to `known` ones, in an order in which they can be computed."""
    seen: dict[int, Node] = {}
    todo = [x for x in outputs if isinstance(x, Node)]
    while todo:
        node = todo.pop()
        if node.order not in seen:
            seen[node.order] = node
            if node.order not in known:
                todo += arguments_of(node)
    return [seen[i] for i in sorted(seen)]
