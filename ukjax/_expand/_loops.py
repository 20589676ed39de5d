"""Scalar programs in loops over a batch, each of which is one operation to XLA."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from ._entry import Node
from ._parts import MOST_OPERANDS, parts_of
from ._program import Program


# The largest batch that runs in windows; more is worth another thread, and too much to copy into order first.
FEW = 512


def in_loops(program: Program, size: int, values: Sequence[Array], apart: bool = False) -> list[Array]:
    """Evaluates a program for inputs that are numbers, or batches (size,), in one loop over the batch or in several.

    `apart`: the inputs are arrays of their own already, and truth values are numbers, in the outputs too.

    XLA compiles the outputs of elementwise operations one by one, and so repeats the operations that they share. A
    reduction of several arrays at once has one body, of scalars: here that is the program, or a part of it.
    """
    parts = list(parts_of(program))
    dtype_of = _reduced_as([x.dtype for part in parts for x in (*values, *part.inputs, *part.outputs)])
    values = [x.astype(dtype_of(y.dtype)) for x, y in zip(values, program.inputs, strict=True)]
    values = side_by_side(values) if size <= FEW and not apart else values
    known = {x.order: y for x, y in zip(program.inputs, values, strict=True)}
    loop = _in_windows if size <= FEW else _in_pairs
    for part in parts:
        found = loop(part, size, [known[x.order] for x in part.inputs], dtype_of)
        known |= {x.order: y for x, y in zip(part.outputs, found, strict=True)}
    outputs = [known[x.order] if isinstance(x, Node) else jnp.asarray(x) for x in program.outputs]
    if not apart:
        outputs = [x.astype(y.dtype) for x, y in zip(outputs, program.outputs, strict=True)]
    return [x if x.shape else lax.broadcast(x, (size,)) for x in outputs]


def _in_pairs(program: Program, size: int, values: Sequence[Array], dtype_of: Callable[[Any], Any]) -> list[Array]:
    """Evaluates a program as a reduction over an axis of length two, along which nothing changes.

    The body does not use what went before. So the compiler moves all of it out of the loop along that axis, is left
    with a loop over the batch, and makes vector instructions of that.
    """
    slots, (into, out) = _shared([x.dtype for x in values], [dtype_of(x.dtype) for x in program.outputs])
    operands = [jnp.zeros((2, size), dtype) for dtype in slots]
    for i, x in zip(into, values, strict=True):
        operands[i] = lax.broadcast_in_dim(x, (2, size), (1,) if x.shape else ())

    def body(before, here):
        return _lane_step(before, out, program.inside([here[i] for i in into]))

    start = tuple(jnp.zeros((), dtype) for dtype in slots)
    found = _all_used(lax.reduce(tuple(operands), start, body, (0,)))
    return [found[i] for i in out]


def _in_windows(program: Program, size: int, values: Sequence[Array], dtype_of: Callable[[Any], Any]) -> list[Array]:
    """Evaluates a program as a reduction of windows of one number, with inputs that a batch shares as start values.

    That is faster for few states. XLA takes windows of one number for no work, so it gives no half of it to other
    threads, for which that would be over before they woke. Nor does it fuse into the loop the operations that compute
    the inputs, with which it might find no vector instructions: each input is an array of its own. (XLA would
    recognise windows without a stride as the array itself.)
    """
    wide = [x for x in values if x.shape]
    groups = wide, [x for x in values if not x.shape], program.outputs
    slots, (lie, stand, out) = _shared(*([dtype_of(x.dtype) for x in group] for group in groups))
    operands, start = [jnp.zeros((1, size), dtype) for dtype in slots], [jnp.zeros((), dtype) for dtype in slots]
    for i, x in zip(lie, wide, strict=True):
        operands[i] = x[None]
    for i, x in zip(stand, groups[1], strict=True):
        start[i] = x

    def body(before, here):
        lying, standing = (here[i] for i in lie), (before[i] for i in stand)
        return _lane_step(before, out, program.inside([next(lying if x.shape else standing) for x in values]))

    found = _all_used(lax.reduce_window(tuple(operands), tuple(start), body, (1, 1), (2, 1), "VALID"))
    return [found[i][0] for i in out]


def side_by_side(values: Sequence[Array]) -> list[Array]:
    """Copies each value that is a batch into an array of its own, by one loop or by few; the other values stay."""
    wide, found = [i for i, x in enumerate(values) if x.shape], list(values)
    for some in (wide[i : i + MOST_OPERANDS] for i in range(0, len(wide), MOST_OPERANDS)):
        twice = [lax.broadcast_in_dim(values[i], (2, *values[i].shape), (1,)) for i in some]
        start = tuple(jnp.zeros((), x.dtype) for x in twice)
        for i, x in zip(some, lax.reduce(tuple(twice), start, lambda _, here: here, (0,)), strict=True):
            found[i] = x
    return found


def _all_used(arrays: Any) -> Any:
    """Makes all results used, as far as XLA can see, whose search for unused ones takes exponential time."""
    return lax.optimization_barrier(tuple(arrays))


def _lane_step(before: Sequence[Array], places: Sequence[int], values: Sequence[Array]) -> tuple[Array, ...]:
    """A copy of `before` with `values` in some places."""
    after = list(before)
    for i, y in zip(places, values, strict=True):
        after[i] = y.astype(before[i].dtype)
    return tuple(after)


def _shared(*groups: Sequence[Any]) -> tuple[list[Any], list[list[int]]]:
    """Slots, each of a dtype, that groups of numbers of some dtypes share; and the slots of each group's numbers."""
    kinds = dict.fromkeys(x for group in groups for x in group)
    slots = [kind for kind in kinds for _ in range(max(list(group).count(kind) for group in groups))]

    def places(group: Sequence[Any]) -> list[int]:
        free = {kind: iter([i for i, x in enumerate(slots) if x == kind]) for kind in kinds}
        return [next(free[x]) for x in group]

    return slots, [places(group) for group in groups]


def _reduced_as(dtypes: Sequence[Any]) -> Callable[[Any], Any]:
    """The dtypes for a common reduction: XLA takes no truth values beside others, and floats of one kind only."""
    is_float = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
    widest = max(filter(is_float, dtypes), key=lambda x: x.itemsize, default=None)

    def dtype_of(dtype: Any) -> Any:
        if is_float(dtype):
            return widest
        return jnp.result_type(int) if jnp.issubdtype(dtype, bool) else dtype

    return dtype_of
