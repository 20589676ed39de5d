"""Scalar programs as functions of LLVM between slots, cut into parts.

A slot holds one number of all states of a vector. A part is a function of its own between slots. So LLVM has no long
row of stores to compare with each other, which would take it longer than the arithmetic.
"""

import functools as ft
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from ._code import Code, Number
from ._entry import Entry, Node
from ._print import print_program
from ._program import Program, routine_of
from ._schedule import parts_of


# Bytes of a number in a slot.
ROOM = 8


class Slots:
    """Numbers in slots at `%name`, each for `width` states; the slot of a node, and slots that are filled by a copy."""

    def __init__(self, name: str, width: int):
        self.name, self.width, self.count = name, width, 0
        self.of: dict[int, int] = {}
        self.copies: list[tuple[int, Entry]] = []
        self.free: list[int] = []  # slots of numbers that no later part of a program reads

    def add(self, x: Entry, computed: Collection[int] | None = None) -> None:
        """Makes a slot; it is filled by a copy if it is not the first of a node, or not that of a `computed` one."""
        if isinstance(x, Node) and x.order not in self.of and (computed is None or x.order in computed):
            self.of[x.order] = self.count
        else:
            self.copies.append((self.count, x))
        self.count += 1

    def lend(self, x: Node) -> None:
        """Gives a number a slot that is free, or a new one."""
        if self.free:
            self.of[x.order] = self.free.pop()
        else:
            self.add(x)

    def beside(self, of: dict[int, int]) -> "Slots":
        """Further slots after these, for another program, some of whose nodes have slots already."""
        other = Slots(self.name, self.width)
        other.count, other.of = self.count, of
        return other

    def place(self, code: Code, slot: int) -> str:
        name = code.name()
        code.lines.append(f"  {name} = getelementptr i8, ptr %{self.name}, i64 {ROOM * self.width * slot}")
        return name

    def put(self, code: Code, slot: int, x: Number) -> None:
        code.store(self.place(code, slot), x)

    def get(self, code: Code, node: Node) -> Number:
        """The number of a node, repeated if `code` is for vectors and the slot for one number."""
        load = code.load if code.width == self.width else code.load_shared
        return load(self.place(code, self.of[node.order]), np.dtype(node.dtype))


class Interpreter(NamedTuple):
    """A function of LLVM that evaluates bytecode, by its name; see `_interpreter`."""

    name: str
    text: str


class Parts(NamedTuple):
    """The functions of a program, the last of which is called by its name, and what they call."""

    texts: list[str]
    declared: set[str]
    interpreters: tuple[Interpreter, ...] = ()


def _function(name: str, lines: Sequence[str], has_room: bool = True) -> str:
    body, room = "\n".join(lines), ", ptr %room" if has_room else ""
    return f"define internal void @{name}(ptr %kept, ptr %shared{room}) noinline {{\n{body}\n  ret void\n}}"


class PrintedParts:
    """Functions for the parts of a program, and of its routines; numbers wait from part to part in a room."""

    def __init__(self, kept: Slots, shared: Slots, part: int):
        self.kept, self.shared, self.part, self.room = kept, shared, part, Slots("room", kept.width)
        self.texts, self.declared = list[str](), set[str]()
        self.names: dict[int, str] = {}  # of the functions of routines

    def functions(self, name: str, program: Program, copies: Sequence[tuple[int, Entry]]) -> Parts:
        """The functions of a program."""
        for k, routine in enumerate(program.routines):
            for x in (*routine.program.inputs, *routine.program.outputs):
                if isinstance(x, Node) and not (self._has(x) or x.order in self.shared.of):
                    self.room.add(x)
            self.names[id(routine)] = f"{name}.routine{k}"
            calls = self._parts(f"{name}.routine{k}", routine.program, ())
            self.texts.append(_function(f"{name}.routine{k}", calls.lines))
        code = self._parts(name, program, copies)
        alloca = f"  %room = alloca [{max(self.room.count, 1) * self.kept.width} x i64], align 64"
        return Parts([*self.texts, _function(name, [alloca, *code.lines], has_room=False)], self.declared)

    def _has(self, x: Node) -> bool:
        return x.order in self.kept.of or x.order in self.room.of

    def _get(self, code: Code, x: Node) -> Number:
        return next(s for s in (self.kept, self.room, self.shared) if x.order in s.of).get(code, x)

    def _put(self, code: Code, node: Node, x: Number) -> None:
        slots = self.kept if node.order in self.kept.of else self.room
        slots.put(code, slots.of[node.order], x)

    def _parts(self, name: str, program: Program, copies: Sequence[tuple[int, Entry]]) -> Code:
        """Prints the parts of a program, each of which is a function; returns what calls them."""
        pieces = list(parts_of(program, self.part))
        lasting = {x.order for x in (*program.outputs, *(x for _, x in copies)) if isinstance(x, Node)}
        last = {x.order: k for k, one in enumerate(pieces) for x in one.inputs}
        passing = set[int]()
        for k, one in enumerate(pieces):
            for x in one.outputs:
                if isinstance(x, Node) and not self._has(x):
                    self.room.lend(x)
                    passing |= {x.order} - lasting
            code = Code(self.kept.width)
            call = ft.partial(self._call, code, {node.order for node in one.steps})
            found = print_program(code, one, [self._get(code, x) for x in one.inputs], call)
            for node, x in zip(one.outputs, found, strict=True):
                assert isinstance(node, Node)
                self._put(code, node, x)
            self.texts.append(_function(f"{name}.part{k}", code.lines))
            self.declared |= code.declared
            for x in one.inputs:
                if x.order in passing and last[x.order] == k:
                    self.room.free.append(self.room.of.pop(x.order))
        self.room.free.clear()
        code = Code(self.kept.width)
        code.lines += [f"  call void @{name}.part{k}(ptr %kept, ptr %shared, ptr %room)" for k in range(len(pieces))]
        for slot, x in copies:
            self.kept.put(code, slot, self._get(code, x) if isinstance(x, Node) else code.constant(x, x.dtype))
        return code

    def _call(self, code: Code, here: set[int], node: Node, number: Callable[[Entry], Number]) -> list[Number]:
        """Puts arguments, and what is computed `here`, where a routine reads it; calls it, and reads the results."""
        routine = routine_of(node)
        for i, (x, given) in enumerate(zip(routine.program.inputs, node.args, strict=True)):
            if i < routine.arguments or x.order in here:
                self._put(code, x, number(given.item()))
        code.lines.append(f"  call void @{self.names[id(routine)]}(ptr %kept, ptr %shared, ptr %room)")
        return [self._get(code, x) for x in routine.program.outputs if isinstance(x, Node)]
