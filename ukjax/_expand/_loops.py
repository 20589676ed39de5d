"""Scalar programs in loops over a batch, each of which is one operation to XLA.

A long program is cut into several parts, each short enough for a loop.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from ._entry import Entry, Node
from ._program import OPERATIONS, Program, arguments_of, constants_of, turns


# The greatest length of a loop, see `Program.length`. XLA makes a longer one into functions that compute shared values
# again for each use, some 3 000 operations and more. Just below that, LLVM takes long to compile.
LONGEST = 2700
# The most numbers that a loop reads, or gives. It has as many results as operands, and so twice as many arrays. LLVM
# distinguishes some 250 (`alias-set-saturation-threshold`), and makes no vector instructions of a loop over more.
MOST_OPERANDS = 120
# The length of the parts of longer programs: shorter parts run slower, and much longer ones compile slower.
PART = 1200
# Operations for which XLA calls a library, one number at a time. They get parts of their own, or others would get no
# vector instructions.
CALLS = {prims.pow_p, prims.exp_p, prims.log_p, prims.log1p_p, prims.expm1_p, prims.tan_p, prims.tanh_p, prims.atan2_p}
# A part may be cut sooner, from this fraction of PART on, where fewer numbers have to be handed on.
LEAST = 0.6


def fits(program: Program) -> bool:
    """Whether a program can be one loop."""
    few = max(len(program.inputs), len(program.outputs)) <= MOST_OPERANDS
    return (few and program.length <= LONGEST) or program.operations <= 1


def parts_of(program: Program) -> Iterator[Program]:
    """Cuts a program into parts to be run in order, each of which gives the numbers that later ones or outputs need.

    Cuts are made one after the other: among the places near the length of a part, where the part reads and gives the
    least numbers for each operation. Inputs and constants that are merely returned are in no part.
    """
    is_one, steps = fits(program), _Order(program).steps

    def end_of(place: dict[int, int], last: Sequence[int], begin: int) -> int:
        return len(steps) if is_one else _end_of_part(steps, place, last, begin)

    return cut(steps, program.outputs, end_of)


def cut(
    steps: Sequence[Node], outputs: Sequence[Entry], end_of: Callable[[dict[int, int], Sequence[int], int], int]
) -> Iterator[Program]:
    """Cuts steps into programs, each of which gives the numbers that later ones, or the outputs, need.

    `end_of`: (place of each step by its order, last use of each step, begin of a part) -> its end.
    """
    place = {node.order: i for i, node in enumerate(steps)}
    last = [0] * len(steps)
    for i, node in enumerate(steps):
        for x in arguments_of(node):
            if x.order in place:
                last[place[x.order]] = i
    for x in outputs:
        if isinstance(x, Node) and x.order in place:
            last[place[x.order]] = len(steps)
    begin = 0
    while begin < len(steps):
        end = end_of(place, last, begin)
        read = {x.order: x for node in steps[begin:end] for x in arguments_of(node) if place.get(x.order, -1) < begin}
        given = [node for node, i in zip(steps[begin:end], last[begin:end], strict=True) if i >= end]
        yield Program([read[i] for i in sorted(read)], given)
        begin = end


class _Cut(NamedTuple):
    """The larger of the numbers a part reads and gives, for each operation, and the step where the part ends."""

    traffic: float
    end: int


def _end_of_part(steps: Sequence[Node], place: dict[int, int], last: Sequence[int], begin: int) -> int:
    constants, read, angles, given = set(), set(), set(), 0
    ends = [0] * (len(steps) + 1)
    best: _Cut | None = None
    for i in range(begin, len(steps)):
        node = steps[i]
        if i > begin and (node.primitive in CALLS) != (steps[begin].primitive in CALLS):
            return i
        constants.update(constants_of(node))
        read.update(x.order for x in arguments_of(node) if place.get(x.order, -1) < begin)
        if turns(node):
            angles.add(node.args[0].order)
        if last[i] > i:
            ends[last[i]] += 1
            given += 1
        given -= ends[i]
        count = i + 1 - begin
        length = count + len(constants) + OPERATIONS * len(angles) + 2 * len(read) + 2 * given
        if i + 1 < len(steps) and turns(node) and steps[i + 1].args[0] is node.args[0] and turns(steps[i + 1]):
            continue  # both by the same arithmetic
        if (length > PART or max(len(read), given) > MOST_OPERANDS) and best is not None:
            break
        found = _Cut(max(len(read), given) / count, i + 1)
        if best is None or length < LEAST * PART or found.traffic <= best.traffic or i + 1 == len(steps):
            best = found
    assert best is not None
    return best.end


class _Order:
    """The steps of a program in an order in which few numbers have to be kept at a time.

    It is the order in which they were written; but a step that is ready, and is the last use of a number, comes at
    once, and the sine and the cosine of an angle come together, where one of them is used first.
    """

    def __init__(self, program: Program):
        self.steps: list[Node] = []
        self.inside = {node.order: node for node in program.steps}
        self.done: set[int] = set()
        self.users: dict[int, list[Node]] = {}
        self.args: dict[int, list[int]] = {}
        self.both: dict[int, list[Node]] = {}
        for node in program.steps:
            self.args[node.order] = args = list({x.order for x in arguments_of(node) if x.order in self.inside})
            for i in args:
                self.users.setdefault(i, []).append(node)
            if turns(node):
                self.both.setdefault(node.args[0].order, []).append(node)
        self.open = {i: len(users) for i, users in self.users.items()}
        kept = {x.order for x in program.outputs if isinstance(x, Node)}
        for i in kept:
            self.open[i] = self.open.get(i, 0) + 1
        late = {node.order for nodes in self.both.values() for node in nodes}
        for node in program.steps:
            if node.order not in late:
                self.compute(node)
        for node in program.steps:
            self.compute(node)

    def compute(self, node: Node) -> None:
        """Adds a step, the steps that it needs, and then those that are the last use of a number."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node.order in self.done:
                continue
            missing = [i for i in self.args[node.order] if i not in self.done]
            if missing:
                todo += [node, *(self.inside[i] for i in missing)]
                continue
            self.done.add(node.order)
            self.steps.append(node)
            for i in self.args[node.order]:
                self.open[i] -= 1
                todo += [x for x in self.users[i] if self.is_last(x)] if self.open[i] == 1 else []
            todo += [x for x in self.users.get(node.order, ()) if self.is_last(x)]
            todo += self.both[node.args[0].order] if turns(node) else []

    def is_last(self, node: Node) -> bool:
        """Whether all arguments of a step are known, and it is the last use of one of them."""
        args = self.args[node.order]
        return (
            node.order not in self.done and all(i in self.done for i in args) and any(self.open[i] == 1 for i in args)
        )


# The largest batch that runs in windows; more is worth another thread, and too much to copy into order first.
FEW = 512
# The dtype in which numbers of a dtype go through a loop.
DtypeOf = Callable[[np.dtype], np.dtype]


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
        known |= {x.order: y for x, y in zip(part.outputs, found, strict=True) if isinstance(x, Node)}
    outputs = [known[x.order] if isinstance(x, Node) else jnp.asarray(x) for x in program.outputs]
    if not apart:
        outputs = [x.astype(y.dtype) for x, y in zip(outputs, program.outputs, strict=True)]
    return [x if x.shape else lax.broadcast(x, (size,)) for x in outputs]


def _in_pairs(program: Program, size: int, values: Sequence[Array], dtype_of: DtypeOf) -> list[Array]:
    """Evaluates a program as a reduction over an axis of length two, along which nothing changes.

    The body does not use what went before. So the compiler moves all of it out of the loop along that axis, is left
    with a loop over the batch, and makes vector instructions of that.
    """
    slots, (into, out) = _shared([x.dtype for x in values], [dtype_of(x.dtype) for x in program.outputs])
    operands = [jnp.zeros((2, size), dtype) for dtype in slots]
    for i, x in zip(into, values, strict=True):
        operands[i] = lax.broadcast_in_dim(x, (2, size), (1,) if x.shape else ())

    def body(before, here):
        return _with(before, out, program.inside([here[i] for i in into]))

    start = tuple(jnp.zeros((), dtype) for dtype in slots)
    found = _all_used(lax.reduce(tuple(operands), start, body, (0,)))
    return [found[i] for i in out]


def _in_windows(program: Program, size: int, values: Sequence[Array], dtype_of: DtypeOf) -> list[Array]:
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
        return _with(before, out, program.inside([next(lying if x.shape else standing) for x in values]))

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


def _all_used(arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Makes all results used, as far as XLA can see, whose search for unused ones takes exponential time."""
    return lax.optimization_barrier(tuple(arrays))


def _with(before: Sequence[Array], places: Sequence[int], values: Sequence[Array]) -> tuple[Array, ...]:
    """A copy of `before` with `values` in some places."""
    after = list(before)
    for i, y in zip(places, values, strict=True):
        after[i] = y.astype(before[i].dtype)
    return tuple(after)


def _shared(*groups: Sequence[np.dtype]) -> tuple[list[np.dtype], list[list[int]]]:
    """Slots, each of a dtype, that groups of numbers of some dtypes share; and the slots of each group's numbers."""
    kinds = dict.fromkeys(x for group in groups for x in group)
    slots = [kind for kind in kinds for _ in range(max(list(group).count(kind) for group in groups))]

    def places(group: Sequence[np.dtype]) -> list[int]:
        free = {kind: iter([i for i, x in enumerate(slots) if x == kind]) for kind in kinds}
        return [next(free[x]) for x in group]

    return slots, [places(group) for group in groups]


def _reduced_as(dtypes: Sequence[np.dtype]) -> DtypeOf:
    """The dtypes for a common reduction: XLA takes no truth values beside others, and floats of one kind only."""
    floats = [x for x in dtypes if jnp.issubdtype(x, jnp.floating)]

    def dtype_of(dtype: np.dtype) -> np.dtype:
        if jnp.issubdtype(dtype, jnp.floating):
            return max(floats, key=lambda x: x.itemsize)
        return jnp.result_type(int) if jnp.issubdtype(dtype, bool) else dtype

    return dtype_of
