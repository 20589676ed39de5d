"""Scalar programs that are interpreted: tables of their operations, and a function of LLVM that does what they say.

A long program is evaluated this way until it has been evaluated often. To write the table takes a tenth of the time
that it takes to print the program and to compile it, and to evaluate it takes about as long as code that is not
optimised. Every kind of operation is printed by the same rules, so that both ways have the same bits.

A table is a row of runs: the number of a kind, how often it is done, and each time the places of the result and of the
arguments in a room on the stack. Within a piece of a program, operations are done by their depth, and those of one kind
one after the other, so that a run is a loop.

The function knows the usual kinds, so that most programs share one, and those that its program has beside them.
"""

import functools as ft
import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.extend.core.primitives as prims
import numpy as np
from jax.extend.core import Primitive

from ._code import BOOL, Code, scalar_type, vector_type
from ._entry import Entry, Name, Node, name_of
from ._parts import ROOM, Interpreter, Parts, PrintedParts, Slots, kept_as
from ._print import print_program
from ._program import Program, call_p, routine_of
from ._schedule import PART, fma_p


# A program with as many operations is interpreted at first, but for what is short in it.
LONG, SHORT = 2000, 100
# The most bytes of a room, which is on the stack; stacks of threads are short on some platforms.
LARGEST_ROOM = 2**19


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
    the program is interpreted, unless it is short or needs too much room; it has the same slots.
    """
    computed = {node.order for node in program.steps}
    for x in program.outputs:
        if isinstance(x, Node) and x.order in computed and x.order not in kept.of:
            kept.add(x)
    if interprets and program.length >= SHORT:
        table = _Table(kept, shared)
        found = table.functions(name, program, copies)
        if table.room <= LARGEST_ROOM:
            return found
    return PrintedParts(kept, shared, part).functions(name, program, copies)


# Operations of a piece. More make longer runs, and numbers wait for longer.
PIECE = 1024
# The first numbers of a run: the end of a table; copies within the room, from kept slots, and to them; a call.
END, COPY, TAKE, GIVE, CALL = range(5)
GIVEN = "ptr %begin, ptr {code}, ptr %kept, ptr %shared, ptr %constants, ptr %room"
INTERPRETER = """define void @{name}({given}) {{
entry:
  br label %next
next:
  %run = phi ptr [%code, %entry]{ends}
  %kind = load i32, ptr %run, align 4
  %pn = getelementptr i8, ptr %run, i64 4
  %n = load i32, ptr %pn, align 4
  %first = getelementptr i8, ptr %run, i64 8
  switch i32 %kind, label %done [{labels}]
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
  %room = alloca [{room} x i64], align 64
  %code = getelementptr i8, ptr @{name}.table, i64 {start}
  call void @{interpreter}(ptr @{name}.table, ptr %code, ptr %kept, ptr %shared, ptr @{name}.constants, ptr %room)
  ret void
}}"""
F64 = np.dtype(np.float64)
# The parameters by which operations differ that are printed.
PARAMETERS = ("negated", "y", "exponent_bits", "mantissa_bits", "rounding_method")


class _Kind(NamedTuple):
    """A kind of operation; or one that repeats a number of a row for all states of a vector, where `row` names it."""

    primitive: Primitive | None
    dtype: np.dtype
    args: tuple[np.dtype, ...]
    params: tuple[tuple[str, Hashable], ...] = ()
    row: str = ""

    @classmethod
    def of(cls, node: Node) -> "_Kind":
        params = tuple([(k, node.params[k]) for k in PARAMETERS if k in node.params]) if node.params else ()
        return cls(node.primitive, node.dtype, tuple([x.dtype for x in node.args]), params)

    @classmethod
    def of_row(cls, row: str, x: Entry) -> "_Kind":
        return cls(None, kept_as(np.dtype(x.dtype)), (), row=row)


def _usual() -> list[_Kind]:
    """The kinds that most programs have."""
    two = (prims.add_p, prims.sub_p, prims.mul_p, prims.div_p, prims.max_p, prims.min_p)
    one = (prims.neg_p, prims.abs_p, prims.sqrt_p, prims.sin_p, prims.cos_p)
    compared = (prims.lt_p, prims.le_p, prims.gt_p, prims.ge_p, prims.eq_p)
    signs: tuple[tuple[bool, bool], ...] = ((False, False), (True, False), (False, True))
    return [
        *(_Kind(None, x, (), row=row) for row in ("shared", "constants") for x in (F64, np.dtype(np.uint8))),
        *(_Kind(x, F64, (F64,) * 2) for x in two),
        *(_Kind(x, F64, (F64,)) for x in one),
        *(_Kind(fma_p, F64, (F64,) * 3, (("negated", x),)) for x in signs),
        *(_Kind(x, BOOL, (F64,) * 2) for x in compared),
        *(_Kind(x, BOOL, (BOOL,) * 2) for x in (prims.and_p, prims.or_p)),
        _Kind(prims.not_p, BOOL, (BOOL,)),
        *(_Kind(prims.select_n_p, x, (BOOL, x, x)) for x in (F64, BOOL)),
    ]


@ft.cache
def _interpreter(kinds: tuple[_Kind, ...], width: int) -> Interpreter:
    """The function that does operations of these kinds, for so many states at a time."""
    code, name = Code(width), "ukjax.interpreter"
    cases = list(_cases(name, code, kinds))
    labels = [label for label, _, _ in cases]
    text = INTERPRETER.format(
        name=name,
        given=GIVEN.format(code="%code"),
        ends="".join(f", [%p1.{x}, %{x}]" for x in labels),
        labels=" ".join(f"i32 {COPY + k}, label %{x}" for k, x in enumerate(labels)),
        cases="\n".join(CASE.format(label=x, body="\n".join(lines), bytes=size) for x, lines, size in cases),
    )
    text = "\n".join([*sorted(code.declared), text])
    own = f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return Interpreter(own, text.replace(f"@{name}(", f"@{own}("))


def _cases(name: str, code: Code, kinds: Sequence[_Kind]) -> Iterator[tuple[str, list[str], int]]:
    """Prints each kind: a label, the lines of LLVM's language, and the bytes that an operation takes in a table."""
    whole = code.type_of(np.dtype(np.int64))
    for label, to, source in (("copy", "room", "room"), ("take", "room", "kept"), ("give", "kept", "room")):
        lines = [
            *_places(label, [to, source]),
            f"  %x.{label} = load {whole}, ptr %a1.{label}, align 8",
            f"  store {whole} %x.{label}, ptr %a0.{label}, align 8",
        ]
        yield label, lines, 8
    call = f"  call void @{name}({GIVEN.format(code='%a0.call')})"
    yield "call", [*_places("call", ["begin"]), call], 4
    for k, kind in enumerate(kinds):
        label, count = f"k{k}", len(kind.args) + 1
        if kind.row:
            yield label, [*_places(label, ["room", kind.row]), *_repeated(code, label, kind.dtype)], 8
        else:
            yield label, _operation(code, label, kind), 4 * count


def _places(label: str, bases: Sequence[str]) -> list[str]:
    """Reads the places of an operation; `bases`: where each of them lies."""
    lines = []
    for k, base in enumerate(bases):
        lines += [
            f"  %q{k}.{label} = getelementptr i8, ptr %p.{label}, i64 {4 * k}",
            f"  %i{k}.{label} = load i32, ptr %q{k}.{label}, align 4",
            f"  %j{k}.{label} = zext i32 %i{k}.{label} to i64",
            f"  %a{k}.{label} = getelementptr i8, ptr %{base}, i64 %j{k}.{label}",
        ]
    return lines


def _repeated(code: Code, label: str, dtype: np.dtype) -> list[str]:
    """Repeats a number for all states of a vector."""
    one, many = scalar_type(dtype), vector_type(code.width, dtype)
    lines = [f"  %x.{label} = load {one}, ptr %a1.{label}, align 8"]
    if code.width == 1:
        return [*lines, f"  store {one} %x.{label}, ptr %a0.{label}, align 8"]
    return [
        *lines,
        f"  %y.{label} = insertelement {many} poison, {one} %x.{label}, i32 0",
        f"  %z.{label} = shufflevector {many} %y.{label}, {many} poison, <{code.width} x i32> zeroinitializer",
        f"  store {many} %z.{label}, ptr %a0.{label}, align 8",
    ]


def _operation(code: Code, label: str, kind: _Kind) -> list[str]:
    """Prints an operation by the rules of a program that is compiled."""
    inputs = [Node(_given, (), x, -1 - k) for k, x in enumerate(kind.args)]
    one = Node(_given, tuple(inputs), kind.dtype, 1)
    one.primitive, one.params = kind.primitive, dict(kind.params)
    code.lines, numbers = _places(label, ["room"] * (len(inputs) + 1)), []
    for k, x in enumerate(inputs):
        stored = kept_as(x.dtype)
        number = code.instruction(f"load {code.type_of(stored)}, ptr %a{k + 1}.{label}, align 8", stored)
        numbers.append(number.astype(x.dtype))
    (found,) = print_program(code, Program(inputs, [one], [one]), numbers)
    code.lines.append(f"  store {code.typed(found.astype(kept_as(found.dtype)))}, ptr %a0.{label}, align 8")
    return code.lines


def _given(*_: Any) -> Any:
    raise AssertionError("an operation of which only the kind is known")


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


class _Table:
    """The table of a program, after those of its routines, and the places of its numbers in the room."""

    def __init__(self, kept: Slots, shared: Slots):
        self.kept, self.shared, self.unit = kept, shared, ROOM * kept.width
        self.numbers: list[int] = []
        self.kind, self.length = END, 0  # of the last run, and where its length stands
        self.kinds: dict[_Kind, int] = {}
        self.of: dict[int, int] = {}  # the numbers of the kinds of nodes
        self.places: dict[int, int] = {}  # of nodes, by their order
        self.constants: list[bytes] = []
        self.known: dict[Name, int] = {}  # places of constants
        self.count, self.free = 0, list[int]()
        self.calls: dict[int, int] = {}  # where the table of a routine begins

    @property
    def room(self) -> int:
        """The bytes of the room."""
        return max(self.count, 1) * self.unit

    def functions(self, name: str, program: Program, copies: Sequence[tuple[int, Entry]]) -> Parts:
        """The function of a program, with its table and its constants."""
        start = self._whole(program, copies)
        does = _interpreter(tuple(self.kinds), self.kept.width)
        text = PROGRAM.format(name=name, room=self.room // ROOM, start=start, interpreter=does.name)
        numbers = np.array(self.numbers, np.int32).tobytes()
        data = [_bytes(f"{name}.table", numbers), _bytes(f"{name}.constants", b"".join(self.constants))]
        declared = f"declare void @{does.name}(ptr, ptr, ptr, ptr, ptr, ptr)"
        return Parts([*data, text], {declared}, (does,))

    def _whole(self, program: Program, copies: Sequence[tuple[int, Entry]]) -> int:
        """Writes the table of a program between kept and shared slots; returns the byte at which it begins."""
        steps = [*program.steps, *(node for x in program.routines for node in x.program.steps)]
        wanted = [*program.outputs, *(x for _, x in copies)]
        read = (*wanted, *(x for node in steps for x in _read(node)))
        constants = {name_of(x): x for x in read if not isinstance(x, Node)}
        self.known = {name: self._new() for name in constants}
        self._know(steps, [*constants.values(), *program.inputs])
        for routine in program.routines:
            inner = routine.program
            for x in (*inner.inputs, *inner.outputs):
                if isinstance(x, Node) and x.order not in self.places:
                    self.places[x.order] = self._new()
            self.calls[id(routine)] = self._begin()
            self._steps(inner, (x.order for x in inner.outputs if isinstance(x, Node)))
            self._end()
        start, computed = self._begin(), {node.order for node in program.steps}
        self._spread(constants)
        given = {x.order: x for node in program.steps for x in _read(node) if isinstance(x, Node)}
        given |= {x.order: x for x in wanted if isinstance(x, Node)}
        self._take([x for order, x in given.items() if order not in computed])
        self._steps(program, (x.order for x in wanted if isinstance(x, Node)))
        for x in program.outputs:
            if isinstance(x, Node) and x.order in computed:
                self._add(GIVE, self.unit * self.kept.of[x.order], self.places[x.order])
        for slot, x in copies:
            self._add(GIVE, self.unit * slot, self._place(x))
        self._end()
        return start

    def _know(self, steps: Sequence[Node], numbers: Sequence[Entry]) -> None:
        """Numbers the kinds of operations: first the usual ones, then others in an order of their own."""
        usual, of = _usual(), {node.order: _Kind.of(node) for node in steps if _is_operation(node)}
        others = {*of.values(), *(_Kind.of_row(row, x) for row in ("constants", "shared") for x in numbers)}
        kinds = [*usual, *sorted(others.difference(usual), key=repr)]
        self.kinds = {kind: CALL + 1 + k for k, kind in enumerate(kinds)}
        self.of = {order: self.kinds[kind] for order, kind in of.items()}

    def _begin(self) -> int:
        return 4 * len(self.numbers)

    def _end(self) -> None:
        self.numbers += (END, 0)
        self.kind = END

    def _add(self, kind: int, *places: int) -> None:
        """Adds an operation to the last run, or to a new one."""
        if kind != self.kind:
            self.kind, self.length = kind, len(self.numbers) + 1
            self.numbers += (kind, 0)
        self.numbers[self.length] += 1
        self.numbers += places

    def _new(self) -> int:
        """A place that is free."""
        if self.free:
            return self.free.pop()
        self.count += 1
        return self.unit * (self.count - 1)

    def _place(self, x: Entry) -> int:
        return self.places[x.order] if isinstance(x, Node) else self.known[name_of(x)]

    def _spread(self, constants: Mapping[Name, np.generic]) -> None:
        """Brings constants into the room."""
        for name, x in constants.items():
            kind = self.kinds[_Kind.of_row("constants", x)]
            self._add(kind, self.known[name], ROOM * len(self.constants))
            self.constants.append(np.asarray(x, kept_as(np.dtype(x.dtype))).tobytes().ljust(ROOM, b"\0"))

    def _take(self, given: Sequence[Node]) -> None:
        """Brings numbers that are given into the room."""
        for x in given:
            if x.order not in self.places:
                self.places[x.order] = self._new()
            if x.order in self.kept.of:
                self._add(TAKE, self.places[x.order], self.unit * self.kept.of[x.order])
            else:
                kind = self.kinds[_Kind.of_row("shared", x)]
                self._add(kind, self.places[x.order], ROOM * self.shared.of[x.order])

    def _steps(self, program: Program, lasting: Iterator[int]) -> None:
        """Writes the operations of a program."""
        ordered = list(self._ordered(program))
        last: dict[int, int] = {}
        for i, node in enumerate(ordered):
            for x in node.nodes:
                last[x.order] = i
        for order in (*lasting, *self.places):
            last.pop(order, None)
        before, self.free, places = self.free, [], self.places
        for i, node in enumerate(ordered):
            if node.primitive is call_p:
                self._call(node)
            elif node.place is not None:
                (call,), (k, _) = node.args, node.place
                if node.order not in places:
                    places[node.order] = self._new()
                self._add(COPY, places[node.order], self._place(routine_of(call).program.outputs[k]))
            else:
                args = [places[x.order] if isinstance(x, Node) else self.known[name_of(x)] for x in node.args]
                for x in node.nodes:
                    if last.get(x.order) == i:
                        del last[x.order]
                        self.free.append(places[x.order])
                if node.order not in places:
                    places[node.order] = self._new()
                self._add(self.of[node.order], places[node.order], *args)
        self.free = before

    def _call(self, node: Node) -> None:
        routine = routine_of(node)
        for x, given in zip(routine.program.inputs[: routine.arguments], node.args, strict=False):
            self._add(COPY, self.places[x.order], self._place(given.item()))
        self._add(CALL, self.calls[id(routine)])

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
