"""Kernels for a GPU in LLVM's language: a thread evaluates a program for one state.

The numbers of a thread are values, not slots: the assembler of the GPU keeps them in registers. Routines, and the parts
of a long program, are functions from numbers to numbers.

A kernel takes the places of all arrays, those of arguments first, then two counters, the number of states, and whether
members of a loop go on from where they are. The first counter counts the members that threads take when they are done
with one; the second is set where a state needs the sure way. A kernel calls `@index` and `@threads`, which tell the
number of its thread and how many there are, and `@meet`, where the threads of a block wait for each other: with other
definitions of these the same text runs on a CPU.
"""

from collections.abc import Callable, Sequence

import numpy as np

from ._arithmetic import F64
from ._code import BOOL, Code, Number, scalar_type
from ._entry import Entry, Node
from ._kernel import Kernel, Row
from ._print import print_program
from ._program import Program, Routine, routine_of
from ._schedule import fused, parts_of


# Operations of a function: longer ones take the assembler of the GPU long.
THREAD_PART = 4000
# What the text calls and does not define.
OF_THREADS = ("declare i64 @index()", "declare i64 @threads()", "declare void @meet()")


# The remainder x - n y, n whole, that has the sign of x: exact, as all multiples of y by powers of two are.
REMAINDER = """define internal double @remainder(double %x, double %y) noinline {
entry:
  %a = call double @llvm.fabs.f64(double %x)
  %b = call double @llvm.fabs.f64(double %y)
  %finite = fcmp olt double %a, 0x7FF0000000000000
  %divides = fcmp ogt double %b, 0.0
  %some = and i1 %finite, %divides
  br i1 %some, label %up, label %none
none:
  ret double 0x7FF8000000000000
up:
  %t = phi double [%b, %entry], [%twice, %more]
  %twice = fmul double %t, 2.0
  %fits = fcmp ole double %twice, %a
  br i1 %fits, label %more, label %down
more:
  br label %up
down:
  %r = phi double [%a, %up], [%r1, %half]
  %s = phi double [%t, %up], [%s1, %half]
  %taken = fcmp oge double %r, %s
  %less = fsub double %r, %s
  %r1 = select i1 %taken, double %less, double %r
  %last = fcmp ole double %s, %b
  br i1 %last, label %done, label %half
half:
  %s1 = fmul double %s, 0.5
  br label %down
done:
  %z = call double @llvm.copysign.f64(double %r1, double %x)
  ret double %z
}"""


class ThreadCode(Code):
    """The body of a function of a thread: of one number each, and with a remainder that LLVM does not have there."""

    def operation(self, name, dtype, *args):
        if name != "frem":
            return super().operation(name, dtype, *args)
        self.declared |= {f"declare double @llvm.{x}" for x in ("fabs.f64(double)", "copysign.f64(double, double)")}
        self.declared.add(REMAINDER)
        x, y = (a.astype(F64) for a in args)
        found = self.instruction(f"call double @remainder(double {x.name}, double {y.name})", F64)
        return found.astype(dtype)


def row_kernel(program: Program, takes: Sequence[Row], gives: Sequence[Row], judges: bool) -> Kernel:
    """Prints a program whose inputs are the entries of `takes`, and whose outputs are those of `gives`, in order.

    `judges`: whether the last result tells which states need the sure way.
    """
    program, text = fused(program), KernelText(len(takes) + len(gives))
    code = text.code
    text.begin_state()
    inputs = [x for k, row in enumerate(takes) for x in text.read_row(k, row, "%m" if row.batched else "0")]
    outputs = text.functions.evaluate(code, "program", program, inputs)
    rest = iter(outputs)
    for k, row in enumerate(gives, len(takes)):
        text.write_row(k, row, "%m", [next(rest) for _ in range(row.size)])
    if judges:
        text.note_doubt(outputs[-1], "done")
    else:
        code.lines.append("  br label %done")
    code.lines.append("done:")
    return text.kernel(program.operations)


def flag_kernel() -> Kernel:
    """Prints a kernel that looks whether any entry of its only array, of truth values, is set."""
    text = KernelText(1)
    text.begin_state()
    (flag,) = text.read_row(0, Row(1, BOOL), "%m")
    text.note_doubt(flag, "done")
    text.code.lines.append("done:")
    return text.kernel(1)


class Functions:
    """Functions from numbers to numbers, and the intrinsic functions that they call.

    Numbers that are the same for all members of a batch lie in memory that the threads of a block share, `@shared`:
    functions read them there.
    """

    def __init__(self):
        # The places in `@shared` of numbers that all threads share.
        self.shared: dict[int, int] = {}
        self.texts: list[str] = []
        self.declared: set[str] = set()
        self._made: dict[int, tuple[str, Routine]] = {}  # routines, by what they are

    def share(self, code: Code, numbers: Sequence[Entry], values: Sequence[Number]) -> None:
        """Puts numbers where all threads of the block read them; every thread puts the same ones."""
        for node, x in zip(numbers, values, strict=True):
            assert isinstance(node, Node)
            place = self.shared[node.order] = len(self.shared)
            stored = x.astype(Row(1, x.dtype).kept_as)
            code.lines.append(f"  store {code.typed(stored)}, ptr addrspace(3) {_shared(code, place)}, align 8")
        code.lines.append("  call void @meet()")

    def read(self, code: Code, node: Node) -> Number:
        """A number that all threads share."""
        kept = Row(1, np.dtype(node.dtype)).kept_as
        place = _shared(code, self.shared[node.order])
        text = f"load {scalar_type(kept)}, ptr addrspace(3) {place}, align 8"
        return code.instruction(text, kept).astype(np.dtype(node.dtype))

    def evaluate(self, code: Code, name: str, program: Program, inputs: Sequence[Number | None]) -> list[Number]:
        """Adds a program to a body, or the calls of its parts; returns its outputs.

        An input is None if all threads share it.
        """
        pieces = list(parts_of(program, THREAD_PART))
        if len(pieces) <= 1:
            return self._printed(code, name, program, inputs)
        known = {node.order: x for node, x in zip(program.inputs, inputs, strict=True) if x is not None}
        for k, piece in enumerate(pieces):
            self._define(f"{name}.part{k}", piece)
            found = self._call(code, f"{name}.part{k}", piece, [known.get(x.order) for x in piece.inputs])
            known |= {x.order: y for x, y in zip(piece.outputs, found, strict=True) if isinstance(x, Node)}
        return [self._number(code, x, known) for x in program.outputs]

    def _number(self, code: Code, x: Entry, known: dict[int, Number]) -> Number:
        if not isinstance(x, Node):
            return code.constant(x, x.dtype)
        return known[x.order] if x.order in known else self.read(code, x)

    def _printed(self, code: Code, name: str, program: Program, inputs: Sequence[Number | None]) -> list[Number]:
        def call(node: Node, number: Callable[[Entry], Number]) -> list[Number]:
            routine = routine_of(node)
            if id(routine) not in self._made:
                self._made[id(routine)] = f"{name}.routine{len(self._made)}", routine
                self._define(self._made[id(routine)][0], routine.program)
            pairs = zip(routine.program.inputs, node.args, strict=True)
            given = [None if x.order in self.shared else number(y.item()) for x, y in pairs]
            return self._call(code, self._made[id(routine)][0], routine.program, given)

        return print_program(code, program, inputs, call, lambda node: self.read(code, node))

    def _define(self, name: str, program: Program) -> None:
        code = ThreadCode()
        inputs = [
            None if x.order in self.shared else Number(code, f"%a{k}", np.dtype(x.dtype))
            for k, x in enumerate(program.inputs)
        ]
        found = self.evaluate(code, name, program, inputs)
        kind, whole = _kind(program), "poison"
        given = ", ".join(code.typed(x) for x in inputs if x is not None)
        for k, x in enumerate(found):
            last, whole = whole, f"%w{k}"
            code.lines.append(f"  {whole} = insertvalue {kind} {last}, {code.typed(x)}, {k}")
        body = "\n".join([*code.lines, f"  ret {kind} {whole}"])
        self.texts.append(f"define internal {kind} @{name}({given}) noinline {{\n{body}\n}}")
        self.declared |= code.declared

    def _call(self, code: Code, name: str, program: Program, inputs: Sequence[Number | None]) -> list[Number]:
        kind, whole = _kind(program), code.name()
        given = ", ".join(code.typed(x) for x in inputs if x is not None)
        code.lines.append(f"  {whole} = call {kind} @{name}({given})")
        return [
            code.instruction(f"extractvalue {kind} {whole}, {k}", np.dtype(x.dtype))
            for k, x in enumerate(program.outputs)
        ]


def _kind(program: Program) -> str:
    """The type of the results of a function."""
    return "{ " + ", ".join(scalar_type(np.dtype(x.dtype)) for x in program.outputs) + " }"


def _shared(code: Code, place: int) -> str:
    """The place of a number that all threads share."""
    name = code.name()
    code.lines.append(f"  {name} = getelementptr i64, ptr addrspace(3) @shared, i64 {place}")
    return name


class KernelText:
    """The text of a kernel in the making, whose arrays are `%p0`, `%p1`, ..."""

    def __init__(self, arrays: int):
        self.arrays, self.code, self.functions = arrays, ThreadCode(), Functions()

    def begin_state(self) -> None:
        """Begins the state `%m` of a thread, if there is one for it."""
        self.code.lines += [
            "entry:",
            "  %m = call i64 @index()",
            "  %some = icmp slt i64 %m, %size",
            "  br i1 %some, label %state, label %done",
            "state:",
        ]

    def kernel(self, operations: int) -> Kernel:
        """The kernel, with so many operations for each state."""
        given = ", ".join(f"ptr noalias %p{k}" for k in range(self.arrays))
        given = ", ".join(x for x in (given, "ptr noalias %counters", "i64 %size", "i64 %resumed") if x)
        body = "\n".join([*self.code.lines, "  ret void"])
        run = f"define ptx_kernel void @run({given}) {{\n{body}\n}}"
        declared = sorted(self.functions.declared | self.code.declared | set(OF_THREADS))
        shared = len(self.functions.shared)
        room = [f"@shared = internal addrspace(3) global [{shared} x i64] undef"] if shared else []
        return Kernel("\n".join([*declared, *room, *self.functions.texts, run]), 0, operations, self.arrays)

    def entry(self, k: int, row: Row, at: Number | str, i: int) -> str:
        """The place of an entry of a row, `at` this place in the array."""
        code = self.code
        name, begin = code.name(), at if isinstance(at, str) else at.name
        kind = scalar_type(row.kept_as)
        code.lines.append(f"  {name} = getelementptr [{row.size} x {kind}], ptr %p{k}, i64 {begin}, i64 {i}")
        return name

    def read_row(self, k: int, row: Row, at: Number | str) -> list[Number]:
        return [self.read(self.entry(k, row, at, i), row.dtype) for i in range(row.size)]

    def write_row(self, k: int, row: Row, at: Number | str, values: Sequence[Number]) -> None:
        for i, x in enumerate(values):
            self.write(self.entry(k, row, at, i), x)

    def read(self, place: str, dtype: np.dtype) -> Number:
        kept = Row(1, dtype).kept_as
        return self.code.instruction(f"load {scalar_type(kept)}, ptr {place}, align {kept.itemsize}", kept).astype(
            dtype
        )

    def write(self, place: str, x: Number) -> None:
        stored = x.astype(Row(1, x.dtype).kept_as)
        self.code.lines.append(f"  store {self.code.typed(stored)}, ptr {place}, align {stored.dtype.itemsize}")

    def note_doubt(self, doubt: Number, after: str) -> None:
        """Sets the second counter if a number is set, and goes on `after` that."""
        self.code.lines += [
            f"  br i1 {doubt.name}, label %doubt.{after}, label %{after}",
            f"doubt.{after}:",
            f"  %doubts.{after} = getelementptr i64, ptr %counters, i64 1",
            f"  store atomic i64 1, ptr %doubts.{after} monotonic, align 8",
            f"  br label %{after}",
        ]
