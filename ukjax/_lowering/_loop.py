"""A loop of a scalar program as machine code: members of a batch step, each until it is done.

A member has a state, which a step changes, and arrays that stay. After a step it may look at times of a table that lie
within the step, and saves a row for each. A step that is not certain leaves its member as it is, which waits: then the
step is made the sure way, by a function of JAX that is compiled when it is first needed, and the loop goes on.

Lanes of a vector hold as many members, and threads of XLA as many vectors. A lane whose member is done takes the next.
"""

import ctypes
import string
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxtyping import Array

from ._bind import SureWay, call_of, type_here
from ._code import scalar_type
from ._compile import compiled
from ._handler import Does, code
from ._kernel import ROOM, Kernel, Row, Slots, move, parts
from ._program import Program
from ._schedule import PART, fused


# (places of all arrays, place of a counter of members, number of members) -> members that were stepped to their ends.
RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
loop_p = Primitive("loop_of_machine_code")
loop_p.multiple_results = True


class LoopPrograms(NamedTuple):
    """The programs of a loop.

    Attributes:
        step: (state, what stays) -> (state, findings).
        due: (findings, time) -> whether the time is to be looked at.
        look: (findings, time) -> the row to save.
    """

    step: Program
    due: Program
    look: Program


class LoopArrays(NamedTuple):
    """Shapes and dtypes of the arrays of one member.

    Attributes:
        state, findings: Changed by a step.
        stays: Read by a step.
        times: The table of times (T,), in order.
        row: A row to save (n,).
        read: How many of the arrays that stay the program reads, the first ones; the sure way reads all.
        going, waits, following: The numbers of the arrays of the state that tell whether the member goes on, whether a
            step waits for the sure way, and which time is the next to look at.
    """

    state: tuple[ShapedArray, ...]
    findings: tuple[ShapedArray, ...]
    stays: tuple[ShapedArray, ...]
    times: ShapedArray
    row: ShapedArray
    read: int
    going: int
    waits: int
    following: int

    @property
    def changed(self) -> tuple[ShapedArray, ...]:
        """The arrays that are arguments and results: state, findings, and the rows that are saved."""
        rows = ShapedArray((*self.times.shape, *self.row.shape), self.row.dtype)
        return (*self.state, *self.findings, rows)


class Loop(NamedTuple):
    """A loop: its programs, its arrays, and the sure way, (state, what stays) -> (state, findings)."""

    programs: LoopPrograms
    arrays: LoopArrays
    way: SureWay


def run_loop(
    kernel: Kernel, loop: Loop, is_batch: bool, batched: Sequence[bool], arrays: Sequence[Array]
) -> list[Array]:
    """The changed arrays of all members when they are done.

    `arrays`: those that change, those that stay, and the times. Of a batch the first have the batch as their first axis,
    and those of the others that are `batched`.
    """
    return loop_p.bind(*arrays, kernel=kernel, loop=loop, is_batch=is_batch, batched=tuple(batched))


@loop_p.def_abstract_eval
def _shapes(*avals, loop, **_):
    return [type_here(x.shape, x.dtype) for x in avals[: len(loop.arrays.changed)]]


def _lower(
    ctx: mlir.LoweringRuleContext, *operands: ir.Value, kernel: Kernel, loop: Loop, is_batch: bool, batched: Sequence[bool]
) -> Sequence:
    wide, changed = is_batch, len(loop.arrays.changed)
    count = len(operands)

    def make() -> Does:
        machine, arrays = compiled(kernel), loop.arrays
        address = machine.address("run")
        mend, kept = loop.way.mending_of_loop(RUN(address), arrays.waits, len(arrays.state), arrays.changed, count)
        return Does(address, mend, count + arrays.waits, 0 if wide else -1, -kernel.width, (machine, kept))

    found = code(f"{wide} {loop.way.text} {kernel.text}", make)
    return call_of(ctx, found, operands, (wide,) * changed + tuple(batched), {k: k for k in range(changed)})


mlir.register_lowering(loop_p, _lower, platform="cpu")


def _size(avals: Sequence[ShapedArray]) -> int:
    return sum(x.size for x in avals)


def loop_kernel(programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], width: int) -> Kernel:
    """Prints a loop. `batched`: which of the arrays that stay, and whether the times, belong to a single member."""
    step, due, look = (fused(program) for program in programs)
    own, own_times = batched[: arrays.read], batched[-1]
    rows = [Row(x.size, np.dtype(x.dtype)) for x in (*arrays.state, *arrays.findings)]
    stays = [Row(x.size, np.dtype(x.dtype), b) for x, b in zip(arrays.stays[: arrays.read], own, strict=True)]
    state, changed = len(arrays.state), len(arrays.changed)
    before, each = step.split([*[True] * _size(arrays.state), *(row.batched for row in stays for _ in range(row.size))])
    kept, shared = Slots("kept", width), Slots("shared", 1)
    inputs, outputs = iter(step.inputs), iter(each.outputs)
    slots, computed = [], {node.order for node in each.steps}

    def room(slots_: Slots, row: Row, entries, computed_=None) -> int:
        first = slots_.count
        for _ in range(row.size):
            slots_.add(next(entries), computed_)
        return first

    slots += [room(kept, row, inputs) for row in rows[:state]]
    stay_slots = [room(kept if row.batched else shared, row, inputs) for row in stays]
    given = kept.count
    for row in rows[:state]:
        room(kept, row, outputs, computed)
    slots += [room(kept, row, outputs, computed) for row in rows[state:]]
    findings = [first + k for first, row in zip(slots[state:], rows[state:], strict=True) for k in range(row.size)]
    made = [parts("step.before", before, shared, shared, PART, shared.copies)]
    made.append(parts("step", each, kept, shared, PART, kept.copies))
    times, results = [], []
    for name, program in (("due", due), ("look", look)):
        other = kept.beside(dict(zip((x.order for x in program.inputs), findings, strict=False)))
        times.append(other.count)
        other.add(program.inputs[-1])
        results.append(other.count)
        of_program = {node.order for node in program.steps}
        for x in program.outputs:
            other.add(x, of_program)
        made.append(parts(name, program, other, shared, PART, other.copies))
        kept.count = other.count
    first = changed + len(arrays.stays) + 1  # the first result
    listed = [(first + k, row, slot) for k, (row, slot) in enumerate(zip(rows, slots, strict=True))]
    listed += [(changed + k, row, slot) for k, (row, slot) in enumerate(zip(stays, stay_slots, strict=True)) if row.batched]
    common = [(changed + k, row, slot) for k, (row, slot) in enumerate(zip(stays, stay_slots, strict=True)) if not row.batched]
    index, time, value = (np.dtype(x.dtype) for x in (arrays.state[arrays.following], arrays.times, arrays.row))
    unit = ROOM * width
    columns = {
        "of": [number for number, _, _ in listed],
        "bytes": [row.bytes for _, row, _ in listed],
        "item": [row.kept_as.itemsize for _, row, _ in listed],
        "slot": [unit * slot for _, _, slot in listed],
        "size": [row.size for _, row, _ in listed],
    }
    known = {name: ", ".join(f"i64 {x}" for x in column) for name, column in columns.items()} | {
        "arrays": len(listed), "kept_arrays": len(rows), "room": unit, "width": width,
        "index": scalar_type(index), "widen": f"{'sext' if index.itemsize < 8 else 'bitcast'} {scalar_type(index)} %j to i64",
        "following": unit * slots[arrays.following], "going": unit * slots[arrays.going],
        "times": arrays.times.size, "last": arrays.times.size - 1, "table": first - 1,
        "table_row": arrays.times.size * time.itemsize if own_times else 0, "time": scalar_type(time),
        "due_time": unit * times[0], "look_time": unit * times[1], "due": unit * results[0], "look": unit * results[1],
        "saved": first + changed - 1, "values": arrays.row.size, "value": scalar_type(value),
        "given_slot": given, "taken_slot": 0, "carried": _size(arrays.state),
        "kept": max(kept.count, 1) * width, "shared": max(shared.count, 1),
        "cleared": width * max(findings[-1] + 1 if findings else given, 1),
    }  # fmt: skip
    template = string.Template(Path(__file__).with_name("loop.ll").read_text(encoding="utf-8"))
    declared = sorted(set().union(*(x.declared for x in made)))
    texts = [text for x in made for text in x.texts]
    text = "\n".join([*declared, *texts, move("read.shared", common, 1, into=True), template.substitute(known)])
    return Kernel(text, width, step.operations)
