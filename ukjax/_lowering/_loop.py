"""A loop of a scalar program as machine code: members of a batch step, each until it is done.

A member has a state, which a step changes, and arrays that stay. It may read a row of tables before each step, gather
rows of others, and write parts of its state to rows after it. It may look at times of a table that lie within the step,
and saves a row for each. A step that is not certain leaves its member as it is, which waits: then the step is made the
sure way, by a function of JAX that is compiled when it is first needed, and the loop goes on.

Lanes of a vector hold as many members, and threads of XLA as many vectors. A lane whose member is done takes the next.
"""

import functools as ft
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

from ._bind import SureWay, call_of, gpu_here, type_here
from ._code import scalar_type
from ._compile import Tier, compiled
from ._entry import Entry
from ._handler import Does, code
from ._interpreter import functions
from ._kernel import Kernel, Row, interpreted_first, move
from ._parts import ROOM, Slots
from ._program import Program
from ._schedule import fused


loop_p = Primitive("loop_of_machine_code")
loop_p.multiple_results = True


class SavingPrograms(NamedTuple):
    """The programs that save rows.

    Attributes:
        due: (findings, time) -> whether the time is to be looked at.
        look: (findings, time) -> the row to save.
    """

    due: Program
    look: Program


class LoopPrograms(NamedTuple):
    """The programs of a loop.

    Attributes:
        step: (state, what stays, rows of tables) -> (state, findings).
        saving: Those that save rows, if any are saved.
        gathering: The one that gathers rows of further tables before a step, if any are gathered: (state, rows of
            tables, rows of further tables) -> (whether they are due, new arrays of the state where they are).
    """

    step: Program
    saving: SavingPrograms | None
    gathering: Program | None


class SavedRows(NamedTuple):
    """Rows that are saved at times of a table.

    Attributes:
        times: The table (T,), in order.
        row: A row to save (n,).
        following: The number of the array of the state that tells which time is the next to look at.
    """

    times: ShapedArray
    row: ShapedArray
    following: int


class Mark(NamedTuple):
    """An array of the state that is written to a row of a table after a step.

    Attributes:
        array: Its number.
        flag, place: The numbers of the arrays that tell whether it is written, and to which row; nowhere if there is
            no such row.
        rows: The number of rows.
    """

    array: int
    flag: int
    place: int
    rows: int


class Tables(NamedTuple):
    """Tables of as many rows, of which a member reads one.

    Attributes:
        tables: Their shapes and dtypes.
        at: The number of the array of the state that tells which row; the nearest if there is none.
    """

    tables: tuple[ShapedArray, ...] = ()
    at: int = 0


class Gathered(NamedTuple):
    """The tables that are gathered before a step, and the numbers of the arrays of the state that become new."""

    tables: Tables
    new: tuple[int, ...]


class LoopArrays(NamedTuple):
    """Shapes and dtypes of the arrays of one member.

    Attributes:
        state, findings: Changed by a step.
        stays: Read by a step.
        read: The tables of which a step reads a row.
        gathered: What is gathered before a step.
        marks: What is written to rows of tables.
        saved: The rows that are saved, if any are.
        going, waits: The numbers of the arrays of the state that tell whether the member goes on, and whether a step
            waits for the sure way.
    """

    state: tuple[ShapedArray, ...]
    findings: tuple[ShapedArray, ...]
    stays: tuple[ShapedArray, ...]
    read: Tables
    gathered: Gathered
    marks: tuple[Mark, ...]
    saved: SavedRows | None
    going: int
    waits: int

    @property
    def of_places(self) -> np.dtype:
        """The dtype of all numbers of rows in the state."""
        places = [m.place for m in self.marks]
        places += [self.read.at] if self.read.tables else []
        places += [self.gathered.tables.at] if self.gathered.tables.tables else []
        places += [] if self.saved is None else [self.saved.following]
        (found,) = {np.dtype(self.state[k].dtype) for k in places} or {np.dtype(np.int64)}
        return found

    @property
    def changed(self) -> tuple[ShapedArray, ...]:
        """The arrays that are arguments and results: state, findings, rows that are saved, and tables of marks."""
        rows = (
            []
            if self.saved is None
            else [ShapedArray((*self.saved.times.shape, *self.saved.row.shape), self.saved.row.dtype)]
        )
        marked = (ShapedArray((m.rows, *self.state[m.array].shape), self.state[m.array].dtype) for m in self.marks)
        return (*self.state, *self.findings, *rows, *marked)

    @property
    def others(self) -> tuple[ShapedArray, ...]:
        """The arrays that are arguments only: what stays, tables, those that are gathered, and times."""
        times = [] if self.saved is None else [self.saved.times]
        return (*self.stays, *self.read.tables, *self.gathered.tables.tables, *times)


class Loop(NamedTuple):
    """A loop: its programs, its arrays, and the sure way, (state, what stays, tables) -> (state, findings)."""

    programs: LoopPrograms
    arrays: LoopArrays
    way: SureWay


def run_loop(
    kernel: Kernel, loop: Loop, is_batch: bool, batched: Sequence[bool], arrays: Sequence[Array]
) -> list[Array]:
    """The changed arrays of all members when they are done.

    `arrays`: those that change, and the others. Of a batch the first have the batch as their first axis, and those of
    the others that are `batched`. For a GPU the last array of a batch is the order in which members are taken.
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

    gpu, arrays = gpu_here(ctx) if kernel.is_of_threads else None, loop.arrays
    stays = len(arrays.stays) + len(arrays.read.tables)
    takes = [*range(count, count + len(arrays.state)), *range(changed, changed + stays)]
    gives = range(count, count + len(loop.way.slow.out_avals))

    def make() -> Does:
        mend, kept = loop.way.mending(count + arrays.waits, takes, gives, gpu)
        first, flags = 0 if wide else -1, count + arrays.waits
        if gpu is not None:
            place, threads, blocks, loaded = gpu.load(kernel, True)
            return Does(place, mend, -1, first, -threads, blocks, (loaded, kept))
        machine = compiled(kernel, quick=True)
        tier = Tier(machine, kernel, True)
        return Does(machine.address("run"), mend, flags, first, -kernel.width, 0, kept, tier, kernel.optimised)

    found = code(f"{wide} {loop.way.text} {kernel.text}", make)
    # A GPU changes the arrays where they are.
    aliases = None if gpu is None else {k: k for k in range(changed)}
    return call_of(ctx, found, operands, (wide,) * changed + tuple(batched), aliases, gpu)


for platform in ("cpu", "cuda"):
    mlir.register_lowering(loop_p, _lower, platform=platform)


def first_loop_kernel(programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], width: int) -> Kernel:
    """Prints a loop as `loop_kernel` does; a long step is interpreted until many have been made."""
    return interpreted_first(programs.step, ft.partial(loop_kernel, programs, arrays, batched, width))


def loop_kernel(
    programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], width: int, interprets: bool = False
) -> Kernel:
    """Prints a loop. `batched`: which of the `others` belong to a single member; `interprets`: see `functions`."""
    text = _LoopText(arrays, batched, width, interprets)
    texts = text.step(fused(programs.step))
    texts += text.gather(None if programs.gathering is None else fused(programs.gathering))
    texts += text.looks(programs.saving)
    filled = _template("loop.ll").substitute(text.tables() | text.places())
    whole = "\n".join([*sorted(text.declared), *texts, filled])
    return Kernel(whole, width, programs.step.operations, interpreters=text.interpreters)


def _template(name: str) -> string.Template:
    return string.Template(Path(__file__).with_name(name).read_text(encoding="utf-8"))


# Where there is nothing to save, or to gather.
_EACH, _ALL = "ptr %arrays, ptr %kept, i64 %member, i64 %lane", "ptr %arrays, ptr %kept, ptr %shared, ptr %members"
NO_SAVES = f"define internal void @aim({_EACH}) {{ ret void }}\ndefine internal void @saves({_ALL}) {{ ret void }}"
NO_GATHERS = f"define internal void @gathers({_ALL}) {{ ret void }}"


def _listed(columns: dict[str, list[int]]) -> dict[str, str | int]:
    return {name: ", ".join(f"i64 {x}" for x in column) for name, column in columns.items()}


class _LoopText:
    """The text of a loop in the making: slots for the numbers of a vector of members, and programs between them.

    A state has slots where a step reads it, and others where a step leaves it; findings have the latter only.
    """

    def __init__(self, arrays: LoopArrays, batched: Sequence[bool], width: int, interprets: bool):
        self.interprets, self.interpreters = interprets, ()
        self.arrays, self.width, self.unit, self.batched = arrays, width, ROOM * width, batched
        self.kept, self.shared, self.declared = Slots("kept", width), Slots("shared", 1), set[str]()
        self.changed = [Row(x.size, np.dtype(x.dtype)) for x in (*arrays.state, *arrays.findings)]
        self.stays = [Row(x.size, np.dtype(x.dtype), b) for x, b in zip(arrays.stays, batched, strict=False)]
        # Each member reads a row of its own, even of a table that all share.
        self.reads, self.picks = (
            [Row(x.size // max(x.shape[0], 1), np.dtype(x.dtype)) for x in some]
            for some in (arrays.read.tables, arrays.gathered.tables.tables)
        )
        self.numbers = sum(x.size for x in arrays.state)

    def step(self, program: Program) -> list[str]:
        """Prints the step; also what it computes of arrays that all members share, once."""
        state = len(self.arrays.state)
        own = [True] * self.numbers + [row.batched for row in (*self.stays, *self.reads) for _ in range(row.size)]
        before, each = program.split(own)
        inputs, outputs = iter(program.inputs), iter(each.outputs)
        computed = {node.order for node in each.steps}
        places = [self._room(self.kept, row, inputs) for row in self.changed[:state]]
        self.stay_slots = [self._room(self.kept if row.batched else self.shared, row, inputs) for row in self.stays]
        self.read_slots = [self._room(self.kept, row, inputs) for row in self.reads]
        self.pick_slots = [self._empty(row) for row in self.picks]
        self.given = self.kept.count
        rooms = [self._room(self.kept, row, outputs, computed) for row in self.changed]
        self.slots, self.filled = [*places, *rooms[state:]], self.kept.count
        shared = [(k, *x) for k, x in self._numbered(self.stays, self.stay_slots) if not x[0].batched]
        return [
            *self._printed("step.before", before, self.shared),
            *self._printed("step", each, self.kept),
            move("read.shared", shared, 1, into=True),
        ]

    def gather(self, program: Program | None) -> list[str]:
        """Prints what reads rows of tables, and the program that gathers them: see `LoopPrograms`."""
        first, end = len(self.stays), len(self.stays) + len(self.reads)
        gathered = self.arrays.gathered
        read = self._reading("read", self.arrays.read, self.reads, self.read_slots, first)
        texts = [read, self._reading("pick", gathered.tables, self.picks, self.pick_slots, end)]
        if program is None:
            return [*texts, NO_GATHERS]
        known = [(self.changed[k], self.slots[k]) for k in range(len(self.arrays.state))]
        known += [*zip(self.reads, self.read_slots, strict=True), *zip(self.picks, self.pick_slots, strict=True)]
        places = [slot + k for row, slot in known for k in range(row.size)]
        slots = self.kept.beside({x.order: k for x, k in zip(program.inputs, places, strict=True)})
        due, rows = slots.count, [self.changed[k] for k in gathered.new]
        outputs, computed = iter(program.outputs), {node.order for node in program.steps}
        slots.add(next(outputs), computed)
        new = [self._room(slots, row, outputs, computed) for row in rows]
        texts += self._printed("gather", program, slots)
        self.kept.count = slots.count
        columns = {
            "new_from": [self.unit * slot for slot in new],
            "new_to": [self.unit * self.slots[k] for k in gathered.new],
            "new_size": [row.size for row in rows],
            "new_item": [row.kept_as.itemsize for row in rows],
        }
        counts = {"news": len(rows), "due": self.unit * due}
        return [*texts, _template("gathers.ll").substitute(_listed(columns) | counts | self.places())]

    def looks(self, programs: SavingPrograms | None) -> list[str]:
        """Prints the programs that save rows, see `SavingPrograms`, and what calls them."""
        if programs is None:
            return [NO_SAVES]
        first = len(self.arrays.state)
        findings = [
            slot + k
            for slot, row in zip(self.slots[first:], self.changed[first:], strict=True)
            for k in range(row.size)
        ]
        self.times, self.results, texts = [], [], []
        for name, program in zip(("due", "look"), map(fused, programs), strict=True):
            slots = self.kept.beside({x.order: k for x, k in zip(program.inputs, findings, strict=False)})
            self.times.append(slots.count)
            slots.add(program.inputs[-1])
            self.results.append(slots.count)
            for x in program.outputs:
                slots.add(x, {node.order for node in program.steps})
            texts += self._printed(name, program, slots)
            self.kept.count = slots.count
        return [*texts, _template("saves.ll").substitute(self.times_and_rows() | self.places())]

    def _empty(self, row: Row) -> int:
        """Makes slots that the step does not read; returns the first of them."""
        self.kept.count += row.size
        return self.kept.count - row.size

    def _room(self, slots: Slots, row: Row, entries: Iterator[Entry], computed: Collection[int] | None = None) -> int:
        """Makes the slots of an array; returns the first of them."""
        first = slots.count
        for _ in range(row.size):
            slots.add(next(entries), computed)
        return first

    def _printed(self, name: str, program: Program, slots: Slots) -> list[str]:
        made = functions(name, program, slots, self.shared, slots.copies, interprets=self.interprets)
        self.declared |= made.declared
        self.interpreters += made.interpreters
        return made.texts

    def _numbered(self, rows: Sequence[Row], slots: Sequence[int]) -> list[tuple[int, tuple[Row, int]]]:
        """The arrays that stay, with their numbers among the arguments."""
        return list(enumerate(zip(rows, slots, strict=True), len(self.arrays.changed)))

    @property
    def _first(self) -> int:
        """The number of the first result, behind all arguments."""
        return len(self.arrays.changed) + len(self.arrays.others)

    def tables(self) -> dict[str, str | int]:
        """The tables of what a lane copies, reads and marks: numbers of arrays, bytes, slots, and sizes."""
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
        columns |= self._marks() | self._givens()
        counts = {"arrays": len(listed), "kept_arrays": len(self.changed)}
        return _listed(columns) | counts | {"marks": len(self.arrays.marks), "givens": len(columns["given_from"])}

    def _reading(self, name: str, tables: Tables, rows: Sequence[Row], slots: Sequence[int], first: int) -> str:
        """Prints the function that reads rows; `first`: the number of the first table among the `others`."""
        own = self.batched[first : first + len(rows)]
        columns = {
            "of": [len(self.arrays.changed) + first + k for k in range(len(rows))],
            # Of all rows of a member; none if all members share them.
            "bytes": [x.shape[0] * row.bytes * b for x, row, b in zip(tables.tables, rows, own, strict=True)],
            "row": [row.bytes for row in rows],
            "item": [row.kept_as.itemsize for row in rows],
            "slot": [self.unit * slot for slot in slots],
            "size": [row.size for row in rows],
        }
        last = tables.tables[0].shape[0] - 1 if tables.tables else 0
        counts = {"name": name, "count": len(rows), "at": self.unit * self.slots[tables.at], "last": last}
        return _template("tables.ll").substitute(_listed(columns) | counts | self.places())

    def _marks(self) -> dict[str, list[int]]:
        """The arrays of the state that are written to rows of tables, which are the last results."""
        marks = self.arrays.marks
        first = self._first + len(self.arrays.changed) - len(marks)
        return {
            "mark_of": [first + k for k in range(len(marks))],
            "mark_rows": [m.rows for m in marks],
            "mark_flag": [self.unit * self.slots[m.flag] for m in marks],
            "mark_place": [self.unit * self.slots[m.place] for m in marks],
            "mark_item": [self.changed[m.array].kept_as.itemsize for m in marks],
            "mark_slot": [self.unit * self.slots[m.array] for m in marks],
            "mark_size": [self.changed[m.array].size for m in marks],
        }

    def _givens(self) -> dict[str, list[int]]:
        """The arrays of which a member writes rows only, which are results as they are given else."""
        whole = self.arrays.changed[len(self.changed) :]
        numbers = range(len(self.changed), len(self.arrays.changed))
        return {
            "given_from": list(numbers),
            "given_to": [self._first + k for k in numbers],
            "given_bytes": [Row(x.size, np.dtype(x.dtype)).bytes for x in whole],
        }

    def places(self) -> dict[str, str | int]:
        """The places of what the loop itself reads and writes, in bytes of slots, and sizes."""
        arrays, unit = self.arrays, self.unit
        index = scalar_type(arrays.of_places)
        return {
            "going": unit * self.slots[arrays.going],
            "given_slot": self.given,
            "taken_slot": 0,
            "carried": self.numbers,
            "cleared": self.width * max(self.filled, 1),
            "kept": self.width * max(self.kept.count, 1),
            "shared": max(self.shared.count, 1),
            "width": self.width,
            "room": unit,
            "index": index,
            "behind": self._first + len(arrays.changed),
            "runs": int(arrays.saved is not None),
            "widen": f"{'bitcast' if index == 'i64' else 'sext'} {index} %j to i64",
        }

    def times_and_rows(self) -> dict[str, str | int]:
        """The places and types of times and of rows that are saved."""
        saved, unit, (due, look), (due_time, look_time) = self.arrays.saved, self.unit, self.results, self.times
        assert saved is not None
        times, first = saved.times, len(self.changed)
        return {
            "following": unit * self.slots[saved.following],
            "due": unit * due,
            "look": unit * look,
            "due_time": unit * due_time,
            "look_time": unit * look_time,
            "table": self._first - 1,
            "saved": self._first + first,
            "time": scalar_type(np.dtype(times.dtype)),
            "times": times.size,
            "last": times.size - 1,
            "table_row": times.size * times.dtype.itemsize if self.batched[-1] else 0,
            "value": scalar_type(np.dtype(saved.row.dtype)),
            "values": saved.row.size,
        }
