"""Functions of LLVM that evaluate a scalar program for many states, which lie in arrays of rows.

The function `run` takes the places of all arrays, those of arguments first, and evaluates the states from `begin` to
`end`. As many states at a time as fit a vector go first, the rest one by one, with the same bits. An argument with a
batch is an array of rows, a row for each state; an argument without one is a single row that all states share.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .._expand import Node, Program
from ._code import BOOL, Code, Number, scalar_type
from ._print import print_program
from ._schedule import PART, parts_of


class Row(NamedTuple):
    """An array of a kernel: the number of entries of a state, their dtype, and whether each state has its own."""

    size: int
    dtype: np.dtype
    batched: bool = True


class Kernel(NamedTuple):
    """A kernel in LLVM's language, and the width of its vectors."""

    text: str
    width: int


def kernel(program: Program, takes: Sequence[Row], gives: Sequence[Row], width: int, part: int = PART) -> Kernel:
    """Prints a program whose inputs are the entries of `takes`, and whose outputs are those of `gives`, in order.

    `part`: operations of a part of a long program, which is a function of its own.
    """
    widths = (width, 1) if width > 1 else (1,)
    declared: set[str] = set()
    parts = list(parts_of(program, part))
    bodies = [_Body(program, parts, takes, gives, w) for w in widths]
    for body in bodies:
        declared |= body.declared
    functions = [text for body in bodies for text in body.functions]
    return Kernel("\n".join([*sorted(declared), *functions, _run(widths)]), width)


class _Body:
    """The functions that evaluate a program for `width` states at `%i`."""

    def __init__(
        self, program: Program, parts: Sequence[Program], takes: Sequence[Row], gives: Sequence[Row], width: int
    ):
        self.width, self.takes, self.gives = width, takes, gives
        self.declared: set[str] = set()
        self.functions: list[str] = []
        if len(parts) <= 1:
            self._add("at", "ptr %arrays, i64 %i", lambda code: self._whole(code, program))
            return
        # Numbers that go from one part to another lie on the stack, each as a row of `width` numbers.
        kept = [*program.inputs, *(x for part in parts for x in part.outputs if isinstance(x, Node))]
        self.slots = {x.order: k for k, x in enumerate(kept)}
        for k, part in enumerate(parts):
            self._add(f"part{k}", "ptr %kept", lambda code, part=part: self._part(code, part))
        self._add("at", "ptr %arrays, i64 %i", lambda code: self._parts(code, program, len(parts)))

    def _add(self, name: str, parameters: str, build: Callable[[Code], None]) -> None:
        code = Code(self.width)
        build(code)
        self.declared |= code.declared
        lines = "\n".join(code.lines)
        linkage = "noinline" if name != "at" else "alwaysinline"
        head = f"define internal void @{name}_{self.width}({parameters}) {linkage} {{"
        self.functions.append(f"{head}\n{lines}\n  ret void\n}}")

    def _whole(self, code: Code, program: Program) -> None:
        found = print_program(code, program, self._loaded(code))
        self._store(code, found)

    def _parts(self, code: Code, program: Program, count: int) -> None:
        code.lines.append(f"  %kept = alloca [{len(self.slots)} x [{self.width} x i64]], align 64")
        for node, x in zip(program.inputs, self._loaded(code), strict=True):
            self._keep(code, node, x)
        code.lines += [f"  call void @part{k}_{self.width}(ptr %kept)" for k in range(count)]
        self._store(
            code, [self._kept(code, x) if isinstance(x, Node) else code.constant(x, x.dtype) for x in program.outputs]
        )

    def _part(self, code: Code, part: Program) -> None:
        found = print_program(code, part, [self._kept(code, x) for x in part.inputs])
        for node, x in zip(part.outputs, found, strict=True):
            if isinstance(node, Node):
                self._keep(code, node, x)

    def _slot(self, code: Code, node: Node) -> str:
        name = code.name()
        code.lines.append(f"  {name} = getelementptr i8, ptr %kept, i64 {8 * self.width * self.slots[node.order]}")
        return name

    def _keep(self, code: Code, node: Node, x: Number) -> None:
        stored = x.astype(np.dtype(np.uint8)) if x.dtype == BOOL else x
        code.lines.append(f"  store {stored.typed}, ptr {self._slot(code, node)}, align 8")

    def _kept(self, code: Code, node: Node) -> Number:
        dtype = np.dtype(node.dtype)
        kind = np.dtype(np.uint8) if dtype == BOOL else dtype
        return code.instruction(f"load {code.type_of(kind)}, ptr {self._slot(code, node)}, align 8", kind).astype(dtype)

    def _base(self, code: Code, number: int) -> str:
        """The place of an array."""
        place, base = code.name(), code.name()
        code.lines += [
            f"  {place} = getelementptr ptr, ptr %arrays, i64 {number}",
            f"  {base} = load ptr, ptr {place}, align 8",
        ]
        return base

    def _entry(self, code: Code, base: str, row: Row, lane: int, entry: int) -> str:
        """The place of an entry of a state."""
        name, kind = code.name(), "i8" if row.dtype == BOOL else scalar_type(row.dtype)
        if not row.batched:
            code.lines.append(f"  {name} = getelementptr {kind}, ptr {base}, i64 {entry}")
            return name
        first, place = code.name(), code.name()
        code.lines += [
            f"  {first} = mul i64 %i, {row.size}",
            f"  {place} = add i64 {first}, {lane * row.size + entry}",
            f"  {name} = getelementptr {kind}, ptr {base}, i64 {place}",
        ]
        return name

    def _loaded(self, code: Code) -> list[Number]:
        found = []
        for number, row in enumerate(self.takes):
            base = self._base(code, number) if row.size else ""
            kind = np.dtype(np.uint8) if row.dtype == BOOL else row.dtype
            found += [self._load(code, base, row, kind, entry).astype(row.dtype) for entry in range(row.size)]
        return found

    def _load(self, code: Code, base: str, row: Row, kind: np.dtype, entry: int) -> Number:
        align = f"align {kind.itemsize}"
        if self.width == 1 or (row.batched and row.size == 1):
            place = self._entry(code, base, row, 0, entry)
            return code.instruction(f"load {code.type_of(kind)}, ptr {place}, {align}", kind)
        whole = "poison"
        lanes = range(self.width) if row.batched else range(1)
        for lane in lanes:
            place, one, name = self._entry(code, base, row, lane, entry), code.name(), code.name()
            code.lines += [
                f"  {one} = load {scalar_type(kind)}, ptr {place}, {align}",
                f"  {name} = insertelement {code.type_of(kind)} {whole}, {scalar_type(kind)} {one}, i32 {lane}",
            ]
            whole = name
        if not row.batched:
            zeros = f"<{self.width} x i32> zeroinitializer"
            whole = code.instruction(
                f"shufflevector {code.type_of(kind)} {whole}, {code.type_of(kind)} poison, {zeros}", kind
            ).name
        return Number(code, whole, kind)

    def _store(self, code: Code, values: Sequence[Number]) -> None:
        rest = iter(values)
        for number, row in enumerate(self.gives, len(self.takes)):
            base = self._base(code, number) if row.size else ""
            kind = np.dtype(np.uint8) if row.dtype == BOOL else row.dtype
            for entry in range(row.size):
                x = next(rest).astype(kind)
                if self.width == 1 or row.size == 1:
                    place = self._entry(code, base, row, 0, entry)
                    code.lines.append(f"  store {x.typed}, ptr {place}, align {kind.itemsize}")
                    continue
                for lane in range(self.width):
                    place, one = self._entry(code, base, row, lane, entry), code.name()
                    code.lines += [
                        f"  {one} = extractelement {x.typed}, i32 {lane}",
                        f"  store {scalar_type(kind)} {one}, ptr {place}, align {kind.itemsize}",
                    ]


def _run(widths: Sequence[int]) -> str:
    """The function `run`: loops over states, by vectors first."""
    lines, begin = ["entry:", f"  br label %head{widths[0]}"], "%begin"
    previous = "entry"
    for width, following in zip(widths, [*(f"head{w}" for w in widths[1:]), "done"], strict=True):
        lines += [
            f"head{width}:",
            f"  %i{width} = phi i64 [{begin}, %{previous}], [%next{width}, %body{width}]",
            f"  %next{width} = add i64 %i{width}, {width}",
            f"  %more{width} = icmp sle i64 %next{width}, %end",
            f"  br i1 %more{width}, label %body{width}, label %{following}",
            f"body{width}:",
            f"  call void @at_{width}(ptr %arrays, i64 %i{width})",
            f"  br label %head{width}",
        ]
        begin, previous = f"%i{width}", f"head{width}"
    body = "\n".join([*lines, "done:", "  ret void"])
    return f"define void @run(ptr noalias %arrays, i64 %begin, i64 %end) {{\n{body}\n}}"
