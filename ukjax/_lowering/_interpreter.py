"""Scalar programs as bytecode, and the interpreter, a function of LLVM, that evaluates it.

A long program is interpreted until it has been evaluated often. To write bytecode takes a third of the time that it
takes to print the program and to compile it. To interpret it takes about as long as to run code without optimisations.
Every operation is printed by the rules of programs that are compiled, so that both ways have the same bits.

Bytecode is a row of runs: an opcode, how often its operation is done, and each time its operands, the places of the
result and of the arguments among registers on the stack. Within a piece of a program, operations are done by their
depth, and those of one opcode one after the other, so that a run is a loop.

An interpreter knows the usual operations, so that most programs share one, and those that its program has beside them.
"""

import functools as ft
import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core.primitives as prims
import numpy as np
from jax.extend.core import Primitive

from ._code import BOOL, Code, Number, kept_as
from ._entry import Entry, Name, Node, name_of
from ._parts import ROOM, Interpreter, Parts, PrintedParts, Slots
from ._print import print_program
from ._program import Program, call_p, routine_of
from ._schedule import PART, fma_p


# A program with as many operations is interpreted at first, but for what is short in it.
LONG, SHORT = 2000, 100
# The most bytes of registers on the stack; stacks of threads are short on some platforms.
LARGEST_STACK = 2**19


def is_long(program: Program) -> bool:
    """Whether a program is better interpreted at first."""
    return program.length >= LONG


def functions(
    name: str,
    program: Program,
    kept: Slots,
    shared: Slots,
    copies: Sequence[tuple[int, Entry]] = (),
    part: int = PART,
    interprets: bool = False,
) -> Parts:
    """Prints a program between slots: it reads `kept` and `shared` ones, and writes `kept` ones, `copies` last.

    Outputs that have no slot get one. `part`: operations of a part of a program that is compiled. `interprets`: whether
    the program is interpreted, unless it is short or needs too many registers; it has the same slots.
    """
    computed = {node.order for node in program.steps}
    for x in program.outputs:
        if isinstance(x, Node) and x.order in computed and x.order not in kept.of:
            kept.add(x)
    if interprets and program.length >= SHORT:
        bytecode = _Bytecode(kept, shared)
        found = bytecode.functions(name, program, copies)
        if bytecode.stack <= LARGEST_STACK:
            return found
    return PrintedParts(kept, shared, part).functions(name, program, copies)


# Operations of a piece. More make longer runs, and numbers wait for longer.
PIECE = 1024
# The first opcodes: the end; copies between registers, from kept slots, and to them; the call of a routine.
END, COPY, LOAD, STORE, CALL = range(5)
MOVES = (("copy", "registers", "registers"), ("load", "registers", "kept"), ("store", "kept", "registers"))
GIVEN = "ptr %begin, ptr {code}, ptr %kept, ptr %shared, ptr %constants, ptr %registers"
INTERPRETER = """define void @{name}({given}) {{
entry:
  br label %next
next:
  %run = phi ptr [%code, %entry]{ends}
  %opcode = load i32, ptr %run, align 4
  %pn = getelementptr i8, ptr %run, i64 4
  %n = load i32, ptr %pn, align 4
  %first = getelementptr i8, ptr %run, i64 8
  switch i32 %opcode, label %done [{labels}]
{cases}
done:
  ret void
}}"""
CASE = """{label}:
  %p.{label} = phi ptr [%first, %next], [%p1.{label}, %{label}]
  %n.{label} = phi i32 [%n, %next], [%n1.{label}, %{label}]
{body}
  %p1.{label} = getelementptr i8, ptr %p.{label}, i64 {bytes}
  %n1.{label} = sub i32 %n.{label}, 1
  %more.{label} = icmp ne i32 %n1.{label}, 0
  br i1 %more.{label}, label %{label}, label %next"""
PROGRAM = """define internal void @{name}(ptr %kept, ptr %shared) noinline {{
  %registers = alloca [{registers} x i64], align 64
  %code = getelementptr i8, ptr @{name}.begin, i64 {start}
  call void @{does}(ptr @{name}.begin, ptr %code, ptr %kept, ptr %shared, ptr @{name}.constants, ptr %registers)
  ret void
}}"""
F64 = np.dtype(np.float64)
# The parameters by which operations differ that are printed.
PARAMETERS = ("negated", "y", "exponent_bits", "mantissa_bits", "rounding_method")


class _Opcode(NamedTuple):
    """A kind of operation; or the copy of a number of a `row` to all states of a vector."""

    primitive: Primitive | None
    dtype: np.dtype
    args: tuple[np.dtype, ...]
    params: tuple[tuple[str, Hashable], ...] = ()
    row: str = ""

    @classmethod
    def of(cls, node: Node) -> "_Opcode":
        params = tuple([(k, node.params[k]) for k in PARAMETERS if k in node.params]) if node.params else ()
        return cls(node.primitive, node.dtype, tuple([x.dtype for x in node.args]), params)

    @classmethod
    def of_row(cls, row: str, x: Entry) -> "_Opcode":
        return cls(None, kept_as(np.dtype(x.dtype)), (), row=row)


def _usual() -> list[_Opcode]:
    """The operations that most programs have."""
    two = (prims.add_p, prims.sub_p, prims.mul_p, prims.div_p, prims.max_p, prims.min_p)
    one = (prims.neg_p, prims.abs_p, prims.sqrt_p, prims.sin_p, prims.cos_p)
    compared = (prims.lt_p, prims.le_p, prims.gt_p, prims.ge_p, prims.eq_p)
    signs: tuple[tuple[bool, bool], ...] = ((False, False), (True, False), (False, True))
    return [
        *(_Opcode(None, x, (), row=row) for row in ("shared", "constants") for x in (F64, np.dtype(np.uint8))),
        *(_Opcode(x, F64, (F64,) * 2) for x in two),
        *(_Opcode(x, F64, (F64,)) for x in one),
        *(_Opcode(fma_p, F64, (F64,) * 3, (("negated", x),)) for x in signs),
        *(_Opcode(x, BOOL, (F64,) * 2) for x in compared),
        *(_Opcode(x, BOOL, (BOOL,) * 2) for x in (prims.and_p, prims.or_p)),
        _Opcode(prims.not_p, BOOL, (BOOL,)),
        *(_Opcode(prims.select_n_p, x, (BOOL, x, x)) for x in (F64, BOOL)),
    ]


@ft.cache
def _interpreter(opcodes: tuple[_Opcode, ...], width: int) -> Interpreter:
    """The interpreter of these opcodes, for so many states at a time."""
    code, name = Code(width), "ukjax.interpreter"
    cases = list(_cases(name, code, opcodes))
    labels = [label for label, _, _ in cases]
    text = INTERPRETER.format(
        name=name,
        given=GIVEN.format(code="%code"),
        ends="".join(f", [%p1.{x}, %{x}]" for x in labels),
        labels=" ".join(f"i32 {COPY + k}, label %{x}" for k, x in enumerate(labels)),
        cases="\n".join(CASE.format(label=x, body="\n".join(lines), bytes=4 * n) for x, n, lines in cases),
    )
    text = "\n".join([*sorted(code.declared), text])
    own = f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return Interpreter(own, text.replace(f"@{name}(", f"@{own}("))


def _cases(name: str, code: Code, opcodes: Sequence[_Opcode]) -> Iterator[tuple[str, int, list[str]]]:
    """Prints each opcode: a label, the number of operands, and the lines of LLVM's language."""
    word = np.dtype(np.int64)
    for label, bases in (
        ("copy", ["registers"] * 2),
        ("load", ["registers", "kept"]),
        ("store", ["kept", "registers"]),
    ):
        yield label, 2, _moved(code, label, bases, code.load, word)
    call = f"  call void @{name}({GIVEN.format(code='%a0.call')})"
    yield "call", 1, [*_operands("call", ["begin"]), call]
    for k, opcode in enumerate(opcodes):
        if opcode.row:
            yield f"k{k}", 2, _moved(code, f"k{k}", ["registers", opcode.row], code.load_shared, opcode.dtype)
        else:
            yield f"k{k}", 1 + len(opcode.args), _operation(code, f"k{k}", opcode)


def _operands(label: str, bases: Sequence[str]) -> list[str]:
    """Reads the operands of an operation; `bases`: where each of them lies."""
    lines = []
    for k, base in enumerate(bases):
        lines += [
            f"  %q{k}.{label} = getelementptr i8, ptr %p.{label}, i64 {4 * k}",
            f"  %i{k}.{label} = load i32, ptr %q{k}.{label}, align 4",
            f"  %j{k}.{label} = zext i32 %i{k}.{label} to i64",
            f"  %a{k}.{label} = getelementptr i8, ptr %{base}, i64 %j{k}.{label}",
        ]
    return lines


def _moved(
    code: Code, label: str, bases: Sequence[str], load: Callable[[str, np.dtype], Number], dtype: np.dtype
) -> list[str]:
    """Moves a number from where the second operand says to where the first does."""
    code.lines = _operands(label, bases)
    code.store(f"%a0.{label}", load(f"%a1.{label}", dtype))
    return code.lines


def _operation(code: Code, label: str, opcode: _Opcode) -> list[str]:
    """Prints an operation by the rules of a program that is compiled."""
    inputs = [Node(_given, (), x, -1 - k) for k, x in enumerate(opcode.args)]
    one = Node(_given, tuple(inputs), opcode.dtype, 1)
    one.primitive, one.params = opcode.primitive, dict(opcode.params)
    code.lines = _operands(label, ["registers"] * (len(inputs) + 1))
    numbers = [code.load(f"%a{k + 1}.{label}", x) for k, x in enumerate(opcode.args)]
    (found,) = print_program(code, Program(inputs, [one], [one]), numbers)
    code.store(f"%a0.{label}", found)
    return code.lines


def _given(*_: Any) -> Any:
    raise AssertionError("an operation without arguments")


def _is_operation(node: Node) -> bool:
    """Whether a step is an operation on numbers, neither a call nor a result of one."""
    return node.primitive is not call_p and node.place is None


def _read(node: Node) -> Sequence[Entry]:
    """The numbers that an operation reads; of a call, its arguments."""
    if node.place is not None:
        return ()
    return [x.item() for x in node.args] if node.primitive is call_p else node.args


def _bytes(name: str, data: bytes) -> str:
    data = data or b"\0"
    shown = data.hex("\\")
    return f'@{name} = internal constant [{len(data)} x i8] c"\\{shown}", align 8'


class _Bytecode:
    """The bytecode of a program, after that of its routines; registers are named by the bytes before them."""

    def __init__(self, kept: Slots, shared: Slots):
        self.kept, self.shared, self.unit = kept, shared, ROOM * kept.width
        self.words: list[int] = []
        self.opcode, self.length = END, 0  # of the last run, and where its length stands
        self.opcodes: dict[_Opcode, int] = {}
        self.of: dict[int, int] = {}  # opcodes of nodes, by their order
        self.registers: dict[int, int] = {}  # of nodes, by their order
        self.constants: list[bytes] = []
        self.of_constants: dict[Name, int] = {}  # registers of constants
        self.count, self.free = 0, list[int]()
        self.calls: dict[int, int] = {}  # where the bytecode of a routine begins

    @property
    def stack(self) -> int:
        """The bytes of all registers."""
        return max(self.count, 1) * self.unit

    def functions(self, name: str, program: Program, copies: Sequence[tuple[int, Entry]]) -> Parts:
        """The function of a program, with its bytecode and its constants."""
        start = self._write(program, copies)
        does = _interpreter(tuple(self.opcodes), self.kept.width)
        text = PROGRAM.format(name=name, registers=self.stack // ROOM, start=start, does=does.name)
        words = np.array(self.words, np.int32).tobytes()
        data = [_bytes(f"{name}.begin", words), _bytes(f"{name}.constants", b"".join(self.constants))]
        declared = f"declare void @{does.name}(ptr, ptr, ptr, ptr, ptr, ptr)"
        return Parts([*data, text], {declared}, (does,))

    def _write(self, program: Program, copies: Sequence[tuple[int, Entry]]) -> int:
        """Writes the bytecode of a program between kept and shared slots; returns the byte at which it begins."""
        steps = [*program.steps, *(node for x in program.routines for node in x.program.steps)]
        wanted = [*program.outputs, *(x for _, x in copies)]
        read = (*wanted, *(x for node in steps for x in _read(node)))
        constants = {name_of(x): x for x in read if not isinstance(x, Node)}
        self.of_constants = {name: self._register() for name in constants}
        self._number_opcodes(steps, [*constants.values(), *program.inputs])
        for routine in program.routines:
            inner = routine.program
            for x in (*inner.inputs, *inner.outputs):
                if isinstance(x, Node) and x.order not in self.registers:
                    self.registers[x.order] = self._register()
            self.calls[id(routine)] = self._begin()
            self._steps(inner, (x.order for x in inner.outputs if isinstance(x, Node)))
            self._end()
        start, computed = self._begin(), {node.order for node in program.steps}
        self._load_constants(constants)
        given = {x.order: x for node in program.steps for x in _read(node) if isinstance(x, Node)}
        given |= {x.order: x for x in wanted if isinstance(x, Node)}
        self._load([x for order, x in given.items() if order not in computed])
        self._steps(program, (x.order for x in wanted if isinstance(x, Node)))
        for x in program.outputs:
            if isinstance(x, Node) and x.order in computed:
                self._emit(STORE, self.unit * self.kept.of[x.order], self.registers[x.order])
        for slot, x in copies:
            self._emit(STORE, self.unit * slot, self._register_of(x))
        self._end()
        return start

    def _number_opcodes(self, steps: Sequence[Node], numbers: Sequence[Entry]) -> None:
        """Numbers the opcodes: first the usual ones, then others in an order of their own."""
        usual, of = _usual(), {node.order: _Opcode.of(node) for node in steps if _is_operation(node)}
        others = {*of.values(), *(_Opcode.of_row(row, x) for row in ("constants", "shared") for x in numbers)}
        every = [*usual, *sorted(others.difference(usual), key=repr)]
        self.opcodes = {opcode: CALL + 1 + k for k, opcode in enumerate(every)}
        self.of = {order: self.opcodes[opcode] for order, opcode in of.items()}

    def _begin(self) -> int:
        return 4 * len(self.words)

    def _end(self) -> None:
        self.words += (END, 0)
        self.opcode = END

    def _emit(self, opcode: int, *operands: int) -> None:
        """Adds an operation to the last run, or to a new one."""
        if opcode != self.opcode:
            self.opcode, self.length = opcode, len(self.words) + 1
            self.words += (opcode, 0)
        self.words[self.length] += 1
        self.words += operands

    def _register(self) -> int:
        """A register that is free."""
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.unit * (self.count - 1)

    def _register_of(self, x: Entry) -> int:
        return self.registers[x.order] if isinstance(x, Node) else self.of_constants[name_of(x)]

    def _load_constants(self, constants: Mapping[Name, np.generic]) -> None:
        """Loads constants into registers."""
        for name, x in constants.items():
            opcode = self.opcodes[_Opcode.of_row("constants", x)]
            self._emit(opcode, self.of_constants[name], ROOM * len(self.constants))
            self.constants.append(np.asarray(x, kept_as(np.dtype(x.dtype))).tobytes().ljust(ROOM, b"\0"))

    def _load(self, given: Sequence[Node]) -> None:
        """Loads numbers that are given into registers."""
        for x in given:
            if x.order not in self.registers:
                self.registers[x.order] = self._register()
            if x.order in self.kept.of:
                self._emit(LOAD, self.registers[x.order], self.unit * self.kept.of[x.order])
            else:
                opcode = self.opcodes[_Opcode.of_row("shared", x)]
                self._emit(opcode, self.registers[x.order], ROOM * self.shared.of[x.order])

    def _steps(self, program: Program, lasting: Iterator[int]) -> None:
        """Writes the operations of a program."""
        ordered = list(self._ordered(program))
        last: dict[int, int] = {}
        for i, node in enumerate(ordered):
            for x in node.nodes:
                last[x.order] = i
        for order in (*lasting, *self.registers):
            last.pop(order, None)
        before, self.free, registers = self.free, [], self.registers
        for i, node in enumerate(ordered):
            if node.primitive is call_p:
                self._call(node)
            elif node.place is not None:
                (call,), (k, _) = node.args, node.place
                if node.order not in registers:
                    registers[node.order] = self._register()
                self._emit(COPY, registers[node.order], self._register_of(routine_of(call).program.outputs[k]))
            else:
                args = [registers[x.order] if isinstance(x, Node) else self.of_constants[name_of(x)] for x in node.args]
                for x in node.nodes:
                    if last.get(x.order) == i:
                        del last[x.order]
                        self.free.append(registers[x.order])
                if node.order not in registers:
                    registers[node.order] = self._register()
                self._emit(self.of[node.order], registers[node.order], *args)
        self.free = before

    def _call(self, node: Node) -> None:
        routine = routine_of(node)
        for x, given in zip(routine.program.inputs[: routine.arguments], node.args, strict=False):
            self._emit(COPY, self.registers[x.order], self._register_of(given.item()))
        self._emit(CALL, self.calls[id(routine)])

    def _ordered(self, program: Program) -> Iterator[Node]:
        """The steps in the order in which they are done: a call and its results stay where they are."""
        piece: list[Node] = []
        for node in program.steps:
            alone = not _is_operation(node)
            if alone or len(piece) == PIECE:
                yield from self._by_depth(piece)
                piece = []
            if alone:
                yield node
            else:
                piece.append(node)
        yield from self._by_depth(piece)

    def _by_depth(self, piece: list[Node]) -> list[Node]:
        depth: dict[int, int] = {}
        keys = []
        for k, node in enumerate(piece):
            own = depth[node.order] = 1 + max([depth.get(x.order, 0) for x in node.nodes], default=0)
            keys.append((own, self.of[node.order], k))
        return [piece[k] for _, _, k in sorted(keys)]
