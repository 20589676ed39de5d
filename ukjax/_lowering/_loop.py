"""A loop of a scalar program as machine code: members of a batch step, each until it is done.

A member has a state, which a step changes, and arrays that stay. After a step it may look at times of a table that lie
within the step, and saves a row for each. A step that is not certain leaves its member as it is, which waits: then the
step is made the sure way, by a function of JAX that is compiled when it is first needed, and the loop goes on.

Lanes of a vector hold as many members, and threads of XLA as many vectors. A lane whose member is done takes the next.
"""

import ctypes
import string
from collections.abc import Collection, Iterator, Sequence
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
from ._entry import Entry
from ._handler import Does, code
from ._kernel import ROOM, Kernel, Row, Slots, move, parts
from ._program import Program
from ._schedule import PART, fused


# (places of all arrays, place of the next member's number, count of members, first member, whether they go on from
# where they are) -> members that are done.
RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *(ctypes.c_int64,) * 3)
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
        going, waits, following: The numbers of the arrays of the state that tell whether the member goes on, whether a
            step waits for the sure way, and which time is the next to look at.
    """

    state: tuple[ShapedArray, ...]
    findings: tuple[ShapedArray, ...]
    stays: tuple[ShapedArray, ...]
    times: ShapedArray
    row: ShapedArray
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

    `arrays`: those that change, those that stay, and the times. Of a batch the first have the batch as their first
    axis, and those of the others that are `batched`.
    """
    return loop_p.bind(*arrays, kernel=kernel, loop=loop, is_batch=is_batch, batched=tuple(batched))


@loop_p.def_abstract_eval
def _shapes(*avals, loop, **_):
    return [type_here(x.shape, x.dtype) for x in avals[: len(loop.arrays.changed)]]


def _lower(
    ctx: mlir.LoweringRuleContext,
    *operands: ir.Value,
    kernel: Kernel,
    loop: Loop,
    is_batch: bool,
    batched: Sequence[bool],
) -> Sequence:
    wide, changed = is_batch, len(loop.arrays.changed)
    count = len(operands)

    def make() -> Does:
        machine, arrays = compiled(kernel), loop.arrays
        address = machine.address("run")
        mend, kept = loop.way.mending_of_loop(RUN(address), arrays.waits, len(arrays.state), arrays.changed, count)
        return Does(address, mend, count + arrays.waits, 0 if wide else -1, -kernel.width, (machine, kept))

    found = code(f"{wide} {loop.way.text} {kernel.text}", make)
    return call_of(ctx, found, operands, (wide,) * changed + tuple(batched))


mlir.register_lowering(loop_p, _lower, platform="cpu")


def loop_kernel(programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], width: int) -> Kernel:
    """Prints a loop. `batched`: which of the arrays that stay, and whether the times, belong to a single member."""
    text = _LoopText(arrays, batched, width)
    texts = [*text.step(fused(programs.step)), *text.looks(fused(programs.due), fused(programs.look))]
    template = string.Template(Path(__file__).with_name("loop.ll").read_text(encoding="utf-8"))
    filled = template.substitute(text.tables() | text.places() | text.types())
    return Kernel("\n".join([*sorted(text.declared), *texts, filled]), width, programs.step.operations)


class _LoopText:
    """The text of a loop in the making: slots for the numbers of a vector of members, and programs between them.

    A state has slots where a step reads it, and others where a step leaves it; findings have the latter only.
    """

    def __init__(self, arrays: LoopArrays, batched: Sequence[bool], width: int):
        *own, self.own_times = batched
        self.arrays, self.width, self.unit = arrays, width, ROOM * width
        self.kept, self.shared, self.declared = Slots("kept", width), Slots("shared", 1), set[str]()
        self.changed = [Row(x.size, np.dtype(x.dtype)) for x in (*arrays.state, *arrays.findings)]
        self.stays = [Row(x.size, np.dtype(x.dtype), b) for x, b in zip(arrays.stays, own, strict=True)]
        self.numbers = sum(x.size for x in arrays.state)

    def step(self, program: Program) -> list[str]:
        """Prints the step; also what it computes of arrays that all members share, once."""
        state = len(self.arrays.state)
        own = [True] * self.numbers + [row.batched for row in self.stays for _ in range(row.size)]
        before, each = program.split(own)
        inputs, outputs = iter(program.inputs), iter(each.outputs)
        computed = {node.order for node in each.steps}
        places = [self._room(self.kept, row, inputs) for row in self.changed[:state]]
        self.stay_slots = [self._room(self.kept if row.batched else self.shared, row, inputs) for row in self.stays]
        self.given = self.kept.count
        rooms = [self._room(self.kept, row, outputs, computed) for row in self.changed]
        self.slots, self.filled = [*places, *rooms[state:]], self.kept.count
        shared = [(k, *x) for k, x in self._numbered(self.stays, self.stay_slots) if not x[0].batched]
        return [
            *self._printed("step.before", before, self.shared),
            *self._printed("step", each, self.kept),
            move("read.shared", shared, 1, into=True),
        ]

    def looks(self, *programs: Program) -> list[str]:
        """Prints the programs (findings, time) -> whether the time is due, and the row to save."""
        first = len(self.arrays.state)
        findings = [
            slot + k
            for slot, row in zip(self.slots[first:], self.changed[first:], strict=True)
            for k in range(row.size)
        ]
        self.times, self.results, texts = [], [], []
        for name, program in zip(("due", "look"), programs, strict=True):
            slots = self.kept.beside({x.order: k for x, k in zip(program.inputs, findings, strict=False)})
            self.times.append(slots.count)
            slots.add(program.inputs[-1])
            self.results.append(slots.count)
            for x in program.outputs:
                slots.add(x, {node.order for node in program.steps})
            texts += self._printed(name, program, slots)
            self.kept.count = slots.count
        return texts

    def _room(self, slots: Slots, row: Row, entries: Iterator[Entry], computed: Collection[int] | None = None) -> int:
        """Makes the slots of an array; returns the first of them."""
        first = slots.count
        for _ in range(row.size):
            slots.add(next(entries), computed)
        return first

    def _printed(self, name: str, program: Program, slots: Slots) -> list[str]:
        made = parts(name, program, slots, self.shared, PART, slots.copies)
        self.declared |= made.declared
        return made.texts

    def _numbered(self, rows: Sequence[Row], slots: Sequence[int]) -> list[tuple[int, tuple[Row, int]]]:
        """The arrays that stay, with their numbers among the arguments."""
        return list(enumerate(zip(rows, slots, strict=True), len(self.arrays.changed)))

    @property
    def _first(self) -> int:
        """The number of the first result, behind all arguments."""
        return len(self.arrays.changed) + len(self.stays) + 1

    def tables(self) -> dict[str, str | int]:
        """The arrays that a lane copies: their numbers, bytes of a member and of an entry, slots, and sizes."""
        listed = [
            (k, row, slot) for k, (row, slot) in enumerate(zip(self.changed, self.slots, strict=True), self._first)
        ]
        listed += [(k, *x) for k, x in self._numbered(self.stays, self.stay_slots) if x[0].batched]
        columns = {
            "given": [k - self._first if k >= self._first else k for k, _, _ in listed],
            "of": [k for k, _, _ in listed],
            "bytes": [row.bytes for _, row, _ in listed],
            "item": [row.kept_as.itemsize for _, row, _ in listed],
            "slot": [self.unit * slot for _, _, slot in listed],
            "size": [row.size for _, row, _ in listed],
        }
        found: dict[str, str | int] = {name: ", ".join(f"i64 {x}" for x in column) for name, column in columns.items()}
        return found | {"arrays": len(listed), "kept_arrays": len(self.changed)}

    def places(self) -> dict[str, str | int]:
        """The places of what the loop itself reads and writes: in bytes of slots, or numbers of arrays."""
        arrays, unit, (due, look), (due_time, look_time) = self.arrays, self.unit, self.results, self.times
        return {
            "following": unit * self.slots[arrays.following],
            "going": unit * self.slots[arrays.going],
            "due": unit * due,
            "look": unit * look,
            "due_time": unit * due_time,
            "look_time": unit * look_time,
            "table": self._first - 1,
            "rows": len(arrays.changed) - 1,
            "saved": self._first + len(arrays.changed) - 1,
            "given_slot": self.given,
            "taken_slot": 0,
            "carried": self.numbers,
            "cleared": self.width * max(self.filled, 1),
            "kept": self.width * max(self.kept.count, 1),
            "shared": max(self.shared.count, 1),
        }

    def types(self) -> dict[str, str | int]:
        """Types and sizes of what the loop itself reads and writes."""
        arrays, table = self.arrays, self.arrays.times
        index = scalar_type(np.dtype(arrays.state[arrays.following].dtype))
        return {
            "width": self.width,
            "room": self.unit,
            "index": index,
            "widen": f"{'bitcast' if index == 'i64' else 'sext'} {index} %j to i64",
            "time": scalar_type(np.dtype(table.dtype)),
            "times": table.size,
            "last": table.size - 1,
            "table_row": table.size * table.dtype.itemsize if self.own_times else 0,
            "value": scalar_type(np.dtype(arrays.row.dtype)),
            "values": arrays.row.size,
        }
