"""Loops for a GPU in LLVM's language: a thread steps one member of a batch after the other to its end.

See `_loop` for what a loop does, and `_thread` for what a thread is given. The arrays that change are read and written
where the results are.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ._code import Number, scalar_type
from ._kernel import Kernel, Row
from ._loop import LoopArrays, LoopPrograms
from ._schedule import fused
from ._thread import KernelText


# The most numbers in memory that threads of a block share, which has 48 KB.
MOST_SHARED = 5000
I32, I64 = np.dtype(np.int32), np.dtype(np.int64)


def thread_loop(programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], is_batch: bool) -> Kernel:
    """Prints a loop. `batched`: which of the `others` belong to a single member.

    The arrays of a batch are followed by the numbers of its members, in the order in which threads take them.
    """
    return _LoopText(programs, arrays, batched, is_batch).printed()


class _LoopText(KernelText):
    """The text of a loop: the numbers of its member are variables, from which LLVM makes values."""

    def __init__(self, programs: LoopPrograms, arrays: LoopArrays, batched: Sequence[bool], is_batch: bool):
        self.given, self.is_batch = len(arrays.changed) + len(arrays.others), is_batch
        self.first = self.given + is_batch  # of the results
        super().__init__(self.first + len(arrays.changed))
        self.loop, self.programs, self.batched = arrays, programs, batched
        self.changed = [Row(x.size, np.dtype(x.dtype)) for x in (*arrays.state, *arrays.findings)]
        self.stays = [Row(x.size, np.dtype(x.dtype), b) for x, b in zip(arrays.stays, batched, strict=False)]
        self.read_rows, self.picked = (
            [Row(x.size // max(x.shape[0], 1), np.dtype(x.dtype)) for x in some]
            for some in (arrays.read.tables, arrays.gathered.tables.tables)
        )
        own = [True] * sum(x.size for x in self.changed[: len(arrays.state)])
        own += [row.batched for row in (*self.stays, *self.read_rows) for _ in range(row.size)]
        self.before, self.each = fused(programs.step).split(own)

    def printed(self) -> Kernel:
        self._begin()
        self._saves()
        self._gathers()
        self._over()
        self._step()
        self.code.lines.append("done:")
        return self.kernel(self.programs.step.operations)

    def _block(self, name: str) -> None:
        self.code.lines.append(f"{name}:")

    def _go(self, name: str) -> None:
        self.code.lines.append(f"  br label %{name}")

    def _branch(self, which: Number | str, yes: str, no: str) -> None:
        self.code.lines.append(f"  br i1 {which if isinstance(which, str) else which.name}, label %{yes}, label %{no}")

    def _variables(self, row: Row) -> list[str]:
        """Variables for the entries of a row."""
        names = [self.code.name() for _ in range(row.size)]
        self.code.lines += [f"  {name} = alloca {scalar_type(row.kept_as)}, align 8" for name in names]
        return names

    def _values(self, variables: Sequence[Sequence[str]], rows: Sequence[Row]) -> list[Number]:
        return [self.read(x, row.dtype) for names, row in zip(variables, rows, strict=True) for x in names]

    def _set(self, variables: Sequence[Sequence[str]], values: Iterator[Number]) -> None:
        for names in variables:
            for name in names:
                self.write(name, next(values))

    def _scalar(self, k: int) -> Number:
        """An array of the state that is one number."""
        return self.read(self.variables[k][0], self.changed[k].dtype)

    def _begin(self) -> None:
        """The entry, what all members share, and the begin of a member."""
        self._block("entry")
        self.variables = [self._variables(row) for row in self.changed]
        self.own = [self._variables(row) if row.batched else [] for row in self.stays]
        self.code.lines += [
            "  %thread = call i64 @index()",
            "  %all = call i64 @threads()",
            "  %begun = icmp ne i64 %resumed, 0",
        ]
        values = self.functions.evaluate(self.code, "before", self.before, self._shared())
        self.functions.share(self.code, self.before.outputs[:MOST_SHARED], values[:MOST_SHARED])
        self.known = [None if k < MOST_SHARED else x for k, x in enumerate(values)]
        self._go("take")
        self._block("take")
        self.code.lines += [
            "  %turn = phi i64 [%thread, %entry], [%following, %next]",
            "  %some = icmp slt i64 %turn, %size",
        ]
        self._branch("%some", "begin", "done")
        self._block("begin")
        if self.is_batch:
            turn = self.read(self.entry(self.given, Row(1, I32), "%turn", 0), I32)
            self.code.lines.append(f"  %m = sext i32 {turn.name} to i64")
        else:
            self.code.lines.append("  %m = add i64 %turn, 0")
        for k, (row, names) in enumerate(zip(self.changed, self.variables, strict=True), self.first):
            self._set([names], iter(self.read_row(k, row, "%m")))
        for k, (row, names) in enumerate(zip(self.stays, self.own, strict=True), len(self.loop.changed)):
            if row.batched:
                self._set([names], iter(self.read_row(k, row, "%m")))
        self._branch("%begun", "marks.begun", "saves")
        self._block("marks.begun")
        self._marks("begun")
        self._go("saves")

    def _shared(self) -> list[Number]:
        first = len(self.loop.changed)
        return [x for k, row in enumerate(self.stays, first) if not row.batched for x in self.read_row(k, row, "0")]

    def _saves(self) -> None:
        """Saves the rows at all times within the last step."""
        self._block("saves")
        saved, programs, code = self.loop.saved, self.programs.saving, self.code
        if saved is None or programs is None:
            self._go("gathers")
            return
        size = saved.times.size
        j = self._scalar(saved.following)
        self._branch(j < size, "due", "gathers")
        self._block("due")
        at = j.astype(I64)
        begin = code.operation("mul", I64, Number(code, "%m", I64), code.constant(size, I64))
        where = begin + at if self.batched[-1] else at
        time = self.read(self.entry(self.given - 1, Row(1, np.dtype(saved.times.dtype)), where, 0), saved.times.dtype)
        count = len(self.loop.state)
        found = self._values(self.variables[count:], self.changed[count:])
        (due,) = self.functions.evaluate(code, "due", fused(programs.due), [*found, time])
        self._branch(due, "save", "gathers")
        self._block("save")
        values = self.functions.evaluate(code, "look", fused(programs.look), [*found, time])
        row = Row(saved.row.size, np.dtype(saved.row.dtype))
        self.write_row(self.first + len(self.changed), row, begin + at, values)
        self.write(self.variables[saved.following][0], j + 1)
        self._go("saves")

    def _table_rows(self, rows: Sequence[Row], at: int, sizes: Sequence[int], first: int) -> list[Number]:
        """The row of tables that a member reads, the nearest if there is none; `first`: number among the others."""
        if not rows:
            return []
        code, found = self.code, []
        at_most = code.constant(sizes[0] - 1, I64)
        j = self._scalar(at).astype(I64)
        j = code.select(j < 0, 0, j)
        j = code.select(j > at_most, at_most, j)
        for k, (row, size) in enumerate(zip(rows, sizes, strict=True), first):
            begin = code.operation("mul", I64, Number(code, "%m", I64), code.constant(size, I64))
            found += self.read_row(len(self.loop.changed) + k, row, begin + j if self.batched[k] else j)
        return found

    def _read(self) -> list[Number]:
        tables = self.loop.read
        return self._table_rows(self.read_rows, tables.at, [x.shape[0] for x in tables.tables], len(self.stays))

    def _state(self) -> list[Number]:
        count = len(self.loop.state)
        return self._values(self.variables[:count], self.changed[:count])

    def _gathers(self) -> None:
        """Gathers rows until none is due."""
        self._block("gathers")
        program, gathered = self.programs.gathering, self.loop.gathered
        if program is None:
            self._go("look")
            return
        tables = gathered.tables
        sizes, first = [x.shape[0] for x in tables.tables], len(self.stays) + len(self.read_rows)
        inputs = [*self._state(), *self._read(), *self._table_rows(self.picked, tables.at, sizes, first)]
        due, *new = self.functions.evaluate(self.code, "gather", fused(program), inputs)
        self._branch(due, "renew", "look")
        self._block("renew")
        self._set([self.variables[k] for k in gathered.new], iter(new))
        self._go("gathers")

    def _over(self) -> None:
        """Writes a member down that is done, and takes another."""
        self._block("look")
        self._branch(self._scalar(self.loop.going), "step", "over")
        self._block("over")
        for k, (row, names) in enumerate(zip(self.changed, self.variables, strict=True), self.first):
            self.write_row(k, row, "%m", self._values([names], [row]))
        self.note_doubt(self._scalar(self.loop.waits), "next")
        self._block("next")
        self.code.lines += [
            "  %taken = atomicrmw add ptr %counters, i64 1 monotonic",
            "  %following = add i64 %all, %taken",
        ]
        self._go("take")

    def _step(self) -> None:
        self._block("step")
        own = self._values(
            [x for x, row in zip(self.own, self.stays, strict=True) if row.batched],
            [row for row in self.stays if row.batched],
        )
        inputs = [*self._state(), *own, *self._read(), *self.known]
        found = self.functions.evaluate(self.code, "step", self.each, inputs)
        self._set(self.variables, iter(found))
        self._marks("step")
        self._go("saves")

    def _marks(self, name: str) -> None:
        """Writes what a member has marked into rows of tables."""
        marks, first = self.loop.marks, self.first + len(self.loop.changed) - len(self.loop.marks)
        for k, mark in enumerate(marks):
            place = self._scalar(mark.place).astype(I64)
            fits = (place >= 0) & (place < mark.rows) & self._scalar(mark.flag)
            self._branch(fits, f"mark{k}.{name}", f"marked{k}.{name}")
            self._block(f"mark{k}.{name}")
            row = self.changed[mark.array]
            begin = self.code.operation("mul", I64, Number(self.code, "%m", I64), self.code.constant(mark.rows, I64))
            self.write_row(first + k, row, begin + place, self._values([self.variables[mark.array]], [row]))
            self._go(f"marked{k}.{name}")
            self._block(f"marked{k}.{name}")
