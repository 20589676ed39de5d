"""A whole run in C or LLVM's language: a loop over exported steps, which saves states to arrays of the caller."""

import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .._lowering import c_type, scalar_type
from ._c import Title, block, described, safe_comment
from ._program import Exported
from ._quantities import Argument


ABOUT = (
    "A run of equal steps. Saves the start, and the state after every `every` steps, row after row: 1 + steps / every "
    "rows. From a step that is not certain on rows are NaN."
)
COUNTS = {"steps": "number of steps", "every": "steps from one saved state to the next, at least 1"}
HOLD = {"hold": "steps from one sample of the controller to the next"}


class Run(NamedTuple):
    """A run by a step; with `control` it samples the controller, whose control the step takes."""

    title: Title
    step: Exported
    control: Exported | None

    @property
    def first(self) -> list[Argument]:
        """The arguments before the counts: where the run starts, and the length of a step."""
        known = {x.name: x for one in (self.step, self.control) if one for x in one.quantity.takes}
        return [known[x] for x in ("q", "v", "t", "x", "h") if x in known]

    @property
    def counts(self) -> Mapping[str, str]:
        return COUNTS | (HOLD if self.control else {})

    @property
    def parameters(self) -> list[Argument]:
        return [x for x in self.step.quantity.takes if x.name == "p"]

    @property
    def kept(self) -> list[Argument]:
        """The arrays that go from one step to the next."""
        return [x for x in self.first if x.size is not None]

    @property
    def calls(self) -> list[Exported]:
        """The functions that a step calls."""
        return [x for x in (self.control, self.step) if x is not None]

    def declaration(self) -> list[str]:
        """The lines of the header."""
        further = [f"    {name}: {about}" for name, about in self.counts.items()]
        further += [described(x) for x in self.first if x.name == "x"]
        further += ["Results:", "    qs, vs: saved coordinates and speeds"]
        return ["", *safe_comment([ABOUT, *further]), f"{self._signature()};"]

    def _signature(self) -> str:
        kind = c_type(self.step.dtype)

        def shown(x: Argument) -> str:
            return f"{kind} {x.name}" if x.size is None else f"const {kind} {x.name}[{self.title.room(x)}]"

        takes = [*map(shown, self.first), *(f"int {x}" for x in self.counts), *map(shown, self.parameters)]
        return f"int {self.title.name}_run({', '.join([*takes, f'{kind} qs[]', f'{kind} vs[]'])})"

    def c_text(self) -> str:
        """The function in C."""
        prefix, kind = self.title.prefix, c_type(self.step.dtype)
        rooms = {x.name: self.title.room(x) for x in self.kept}
        lines = [f"{kind} {', '.join(f'{x}_now[{room}]' for x, room in rooms.items())};"]
        lines += [f"{kind} u[{prefix}_CONTROLS];"] if self.control else []
        bad = " || ".join(["steps < 0", *(f"{x} < 1" for x in self.counts if x != "steps")])
        lines += ["int i, k, row = 0, certain = 1;", f"if ({bad}) return {prefix}_UNCERTAIN;"]
        lines += [f"for (i = 0; i < {room}; i++) {x}_now[i] = {x}[i];" for x, room in rooms.items()]
        lines += ["for (k = 0; k <= steps; k++) {", "    if (k > 0 && certain) {"]
        lines += [f"        {kind} s = t + ({kind})(k - 1) * h;"]
        for one in self.calls:
            due = ["(k - 1) % hold == 0"] if one is self.control else ["certain"] if self.control else []
            lines += [f"        {f'if ({due[0]}) ' if due else ''}certain = {self._call(one)};"]
        lines += ["    }", "    if (k % every == 0) {"]
        for x in ("q", "v"):
            value = f"certain ? {x}_now[i] : ({kind})NAN"
            lines += [f"        for (i = 0; i < {rooms[x]}; i++) {x}s[row * {rooms[x]} + i] = {value};"]
        lines += ["        row++;", "    }", "}", f"return certain ? {prefix}_CERTAIN : {prefix}_UNCERTAIN;"]
        return block(self._signature(), lines)

    def _call(self, one: Exported) -> str:
        given = ", ".join(PLACES.get(x.name, x.name) for x in (*one.quantity.takes, *one.quantity.gives))
        return f"{self.title.name}_{one.name}({given})"

    def llvm_text(self) -> str:
        """The function in LLVM's language."""
        kind, name = scalar_type(self.step.dtype), self.title.name
        heads = [f"{kind} %{x.name}" if x.size is None else f"ptr %{x.name}" for x in self.first]
        heads += [f"i32 signext %{x}" for x in self.counts]
        heads += [*(f"ptr %{x.name}" for x in self.parameters), "ptr %qs", "ptr %vs"]
        room = [f"  %u = alloca [{self.title.sizes['CONTROLS']} x {kind}]"] if self.control else []
        room += [f"  %{x.name}_now = alloca [{x.total} x {kind}]" for x in self.kept]
        sizes = {x.name: x.total * self.step.dtype.itemsize for x in self.kept}
        begun = [_copied(f"%{x}_now", f"%{x}", size) for x, size in sizes.items()]
        saved = [
            line
            for x in ("q", "v")
            for line in (
                f"  %{x}.bytes = mul i64 %row, {sizes[x]}",
                f"  %{x}.to = getelementptr i8, ptr %{x}s, i64 %{x}.bytes",
                _copied(f"%{x}.to", f"%{x}_now", sizes[x]),
            )
        ]
        return LLVM.substitute(
            declared="\n".join(f"declare signext i32 @{name}_{x.name}({_kinds(x)})" for x in self.calls),
            name=name,
            heads=", ".join(heads),
            room="\n".join(room),
            fewest="\n".join(self._fewest()),
            begun="\n".join(begun),
            kind=kind,
            moving="\n".join(self._moving(kind)),
            ends=", [ 0, %lost ]" if self.control else "",
            saved="\n".join(saved),
        )

    def _fewest(self) -> list[str]:
        """Lines that find out whether counts are too small."""
        lines, found = ["  %negative = icmp slt i32 %steps, 0"], "%negative"
        for x in self.counts:
            if x != "steps":
                lines += [f"  %few.{x} = icmp slt i32 %{x}, 1", f"  %bad.{x} = or i1 {found}, %few.{x}"]
                found = f"%bad.{x}"
        return [*lines, f"  br i1 {found}, label %refused, label %start"]

    def _moving(self, kind: str) -> list[str]:
        """Lines that go on by a step, from one block to another."""
        if self.control is None:
            return ["  br label %step", "step:", f"  %stepped = {self._llvm_call(self.step)}", "  br label %moved"]
        lines = ["  %phase = srem i32 %before, %hold", "  %due = icmp eq i32 %phase, 0"]
        lines += ["  br i1 %due, label %sample, label %step", "sample:"]
        lines += [f"  %sampled = {self._llvm_call(self.control)}", "  %knows = icmp ne i32 %sampled, 0"]
        lines += ["  br i1 %knows, label %step, label %lost", "lost:"]
        for x in (x for x in self.kept if x.name in ("q", "v")):
            for i in range(x.total):
                lines += [f"  %{x.name}.lost.{i} = getelementptr {kind}, ptr %{x.name}_now, i64 {i}"]
                lines += [f"  store {kind} 0x7FF8000000000000, ptr %{x.name}.lost.{i}"]
        lines += ["  br label %moved", "step:", f"  %stepped = {self._llvm_call(self.step)}"]
        return [*lines, "  br label %moved"]

    def _llvm_call(self, one: Exported) -> str:
        kind = scalar_type(one.dtype)
        each = (*one.quantity.takes, *one.quantity.gives)
        given = (f"{kind if x.size is None else 'ptr'} %{PLACES.get(x.name, x.name)}" for x in each)
        return f"call signext i32 @{self.title.name}_{one.name}({', '.join(given)})"


# Where arguments of a step lie within a run.
PLACES = {"q": "q_now", "v": "v_now", "x": "x_now", "t": "s", "q_next": "q_now", "v_next": "v_now", "x_next": "x_now"}


def run_of(title: Title, functions: Sequence[Exported]) -> Run:
    """The run by functions of which one is a step."""
    made = {x.name: x for x in functions}
    for name in ("rattle_step", "step"):
        if name in made:
            return Run(title, made[name], None)
    return Run(title, made["plant_step"], made["control"])


def _kinds(one: Exported) -> str:
    kind = scalar_type(one.dtype)
    return ", ".join(kind if x.size is None else "ptr" for x in (*one.quantity.takes, *one.quantity.gives))


def _copied(to: str, of: str, size: int) -> str:
    return f"  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {of}, i64 {size}, i1 false)"


LLVM = string.Template("""\
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
$declared
define signext i32 @${name}_run($heads) {
entry:
$room
$fewest
start:
$begun
  br label %loop
loop:
  %k = phi i32 [ 0, %start ], [ %k.next, %next ]
  %row = phi i64 [ 0, %start ], [ %row.next, %next ]
  %sure = phi i32 [ 1, %start ], [ %sure.now, %next ]
  %ahead = icmp sgt i32 %k, 0
  %fine = icmp ne i32 %sure, 0
  %moves = and i1 %ahead, %fine
  br i1 %moves, label %move, label %moved
move:
  %before = sub i32 %k, 1
  %count = sitofp i32 %before to $kind
  %passed = fmul $kind %count, %h
  %s = fadd $kind %t, %passed
$moving
moved:
  %sure.now = phi i32 [ %sure, %loop ], [ %stepped, %step ]$ends
  %part = srem i32 %k, %every
  %shown = icmp eq i32 %part, 0
  br i1 %shown, label %save, label %next
save:
$saved
  %row.saved = add i64 %row, 1
  br label %next
next:
  %row.next = phi i64 [ %row, %moved ], [ %row.saved, %save ]
  %k.next = add i32 %k, 1
  %over = icmp sgt i32 %k.next, %steps
  br i1 %over, label %done, label %loop
done:
  ret i32 %sure.now
refused:
  ret i32 0
}
""")
