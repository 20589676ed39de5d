"""Functions of LLVM that evaluate a scalar program for many states, which lie in arrays of rows.

The function `run` takes the places of all arrays, those of arguments first, and evaluates the states from `begin` to
`end`, as many at a time as fit a vector. An argument with a batch is an array of rows, a row for each state; an
argument without one is a single row that all states share, and what depends on such rows alone is computed once.

A row may have entries for each of several directions, such as those along which a Jacobian is taken. Then what depends
on the state alone is computed once, and the rest once for each direction. The states lie side by side all the same.

The program itself sees no arrays. Loops copy the rows of a vector of states to slots on the stack, each of which holds
one number of all these states, and the results back; what all states share has slots of one number each. The program
is cut into parts, functions between slots. So LLVM has no long row of stores to compare with each other, which would
take it longer than the arithmetic.

The last vector of a batch overlaps the one before. Fewer states than fit a vector are copied to where there is room for
one, and the last of them is repeated.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ._code import kept_as, scalar_type
from ._interpreter import functions, is_long
from ._parts import ROOM, Interpreter, Slots
from ._program import Program
from ._schedule import PART, fused


class Row(NamedTuple):
    """An array of a kernel: the number of entries of a state, their dtype, and whether each state has its own.

    `directions`: of each state, where it has so many entries for each of them.
    """

    size: int
    dtype: np.dtype
    batched: bool = True
    directions: int = 1

    @property
    def kept_as(self) -> np.dtype:
        """The dtype of an entry in memory."""
        return kept_as(self.dtype)

    @property
    def bytes(self) -> int:
        """The bytes of a state."""
        return self.directions * self.bytes_along

    @property
    def bytes_along(self) -> int:
        """The bytes of a direction of a state."""
        return self.size * self.kept_as.itemsize


class Kernel(NamedTuple):
    """A kernel in LLVM's language, the width of its vectors, the operations for each state, and its arrays.

    A width of 0 stands for a thread of a GPU: see `_thread`. `rounds`: how often a state repeats what is long in it.
    `optimised`: prints the text that is compiled when an interpreted program has been evaluated often. `interpreters`:
    what the text calls.
    """

    text: str
    width: int
    operations: int
    arrays: int = 0
    rounds: int = 1
    optimised: Callable[[], str] | None = None
    interpreters: tuple[Interpreter, ...] = ()

    @property
    def is_of_threads(self) -> bool:
        """Whether it is one of a GPU."""
        return self.width == 0


def interpreted_first(program: Program, prints: Callable[..., Kernel]) -> Kernel:
    """The kernel that `prints` makes of a program, interpreted until it has been evaluated often if it is long.

    `prints`: (interprets) -> the kernel, see `kernel`.
    """
    if not is_long(program):
        return prints()
    return prints(interprets=True)._replace(optimised=lambda: prints().text)


def kernel(
    program: Program,
    takes: Sequence[Row],
    gives: Sequence[Row],
    width: int,
    part: int | None = None,
    interprets: bool = False,
) -> Kernel:
    """Prints a program whose inputs are the entries of `takes`, and whose outputs are those of `gives`, in order.

    If some of `takes` have several directions, all of `gives` do. `part`: operations of a part of a long program, which
    is a function of its own. `interprets`: whether what is long is interpreted.
    """
    program = fused(program)
    entries = [row for row in takes for _ in range(row.size)]
    before, rest = program.split([row.batched or row.directions > 1 for row in entries])
    turns = {x.order for x, row in zip(program.inputs, entries, strict=True) if row.directions > 1}
    state, each = rest.split([x.order in turns or not turns for x in rest.inputs])
    shared, kept = Slots("shared", 1), Slots("kept", width)
    inputs = iter(program.inputs)
    begins: list[int] = []
    for row in takes:
        slots = kept if row.batched else shared
        begins.append(slots.count)
        for _ in range(row.size):
            slots.add(next(inputs))
    outputs, computed = iter(each.outputs), {node.order for node in each.steps}
    for row in gives:
        begins.append(kept.count)
        for _ in range(row.size):
            kept.add(next(outputs), computed)
    way = ft.partial(functions, part=part or PART, interprets=interprets)
    printed = [way("before", before, shared, shared, shared.copies)]
    printed += [way("state", state, kept, shared)] if turns else []
    printed += [way("each", each, kept, shared, kept.copies)]
    rows = list(enumerate(zip([*takes, *gives], begins, strict=True)))

    def read(name: str, batched: bool, along: bool) -> str:
        some = [(k, *x) for k, x in rows[: len(takes)] if (x[0].batched, x[0].directions > 1) == (batched, along)]
        return move(name, some, width if batched else 1, into=True)

    moves = [read("read", True, False), read("read.shared", False, False)]
    moves += [read("read.along", True, True), read("read.direction", False, True)] if turns else []
    moves.append(move("write", [(k, *x) for k, x in rows[len(takes) :]], width, into=False))
    count = gives[0].directions if turns else 1
    vector = _vector_along([*takes, *gives], count) if turns else VECTOR
    declared = sorted({x for one in printed for x in one.declared})
    texts = [*declared, *(text for one in printed for text in one.texts), *moves, vector]
    run = _run(takes, gives, width, kept.count, shared.count)
    operations = before.operations + state.operations + count * each.operations
    interpreters = tuple(x for one in printed for x in one.interpreters)
    return Kernel("\n".join([*texts, *run]), width, operations, rounds=count, interpreters=interpreters)


def move(name: str, rows: Sequence[tuple[int, Row, int]], width: int, into: bool) -> str:
    """The function that copies arrays into slots, or slots into arrays, for `width` states from `%i` on.

    `rows`: number of each array, what it is, and its first slot.
    """
    lines, previous = [], "entry"
    for number, row, slot in rows:
        k, kind = f"{number}", scalar_type(row.kept_as)
        many = kind if width == 1 else f"<{width} x {kind}>"
        lines += [
            f"  %p{k} = getelementptr ptr, ptr %arrays, i64 {number}",
            f"  %b{k} = load ptr, ptr %p{k}, align 8",
            f"  %o{k} = mul i64 %i, {row.bytes}",
            f"  %r{k} = getelementptr i8, ptr %b{k}, i64 %o{k}",
            f"  %s{k} = getelementptr i8, ptr %slots, i64 {ROOM * width * slot}",
            f"  br label %head{k}",
            f"head{k}:",
            f"  %e{k} = phi i64 [0, %{previous}], [%n{k}, %body{k}]",
            f"  %n{k} = add i64 %e{k}, 1",
            f"  %m{k} = icmp slt i64 %e{k}, {row.size}",
            f"  br i1 %m{k}, label %body{k}, label %next{k}",
            f"body{k}:",
            f"  %t{k} = getelementptr [{ROOM * width} x i8], ptr %s{k}, i64 %e{k}",
            f"  %f{k} = getelementptr {kind}, ptr %r{k}, i64 %e{k}",
            *_moved(k, row, kind, many, width, into),
            f"  br label %head{k}",
            f"next{k}:",
        ]
        previous = f"next{k}"
    body = "\n".join(lines)
    return f"define internal void @{name}(ptr %arrays, ptr %slots, i64 %i) noinline {{\nentry:\n{body}\n  ret void\n}}"


def _moved(k: str, row: Row, kind: str, many: str, width: int, into: bool) -> list[str]:
    """Copies one entry of an array, at `%f`, of `width` states to its slot, at `%t`, or back."""
    align = f"align {row.kept_as.itemsize}"
    if width == 1 or row.size == row.directions == 1:  # the states lie side by side
        source, target = (f"%f{k}", f"%t{k}") if into else (f"%t{k}", f"%f{k}")
        return [f"  %x{k} = load {many}, ptr {source}, {align}", f"  store {many} %x{k}, ptr {target}, {align}"]
    lines, whole = [], "poison"
    if not into:
        lines.append(f"  %w{k} = load {many}, ptr %t{k}, align 8")
    for lane in range(width):
        place, one = f"%a{k}.{lane}", f"%x{k}.{lane}"
        lines.append(f"  {place} = getelementptr i8, ptr %f{k}, i64 {lane * row.bytes}")
        if into:
            lines += [
                f"  {one} = load {kind}, ptr {place}, {align}",
                f"  %w{k}.{lane} = insertelement {many} {whole}, {kind} {one}, i32 {lane}",
            ]
            whole = f"%w{k}.{lane}"
        else:
            lines += [
                f"  {one} = extractelement {many} %w{k}, i32 {lane}",
                f"  store {kind} {one}, ptr {place}, {align}",
            ]
    return [*lines, f"  store {many} {whole}, ptr %t{k}, align 8"] if into else lines


VECTOR = """define internal void @vector(ptr %arrays, ptr %kept, ptr %shared, i64 %i) noinline {
entry:
  call void @read(ptr %arrays, ptr %kept, i64 %i)
  call void @each(ptr %kept, ptr %shared)
  call void @write(ptr %arrays, ptr %kept, i64 %i)
  ret void
}"""
# For each direction in turn, by arrays that begin where that direction does.
VECTOR_ALONG = """@steps = internal constant [{arrays} x i64] [{steps}]
define internal void @turned(ptr %arrays, ptr %along, i64 %d) noinline {{
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%next, %head]
  %from = getelementptr ptr, ptr %arrays, i64 %k
  %begin = load ptr, ptr %from
  %step.of = getelementptr i64, ptr @steps, i64 %k
  %step = load i64, ptr %step.of
  %bytes = mul i64 %step, %d
  %place = getelementptr i8, ptr %begin, i64 %bytes
  %to = getelementptr ptr, ptr %along, i64 %k
  store ptr %place, ptr %to
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, {arrays}
  br i1 %more, label %head, label %done
done:
  ret void
}}
define internal void @vector(ptr %arrays, ptr %kept, ptr %shared, i64 %i) noinline {{
entry:
  %along = alloca [{arrays} x ptr], align 8
  call void @read(ptr %arrays, ptr %kept, i64 %i)
  call void @state(ptr %kept, ptr %shared)
  br label %head
head:
  %d = phi i64 [0, %entry], [%next, %head]
  call void @turned(ptr %arrays, ptr %along, i64 %d)
  call void @read.along(ptr %along, ptr %kept, i64 %i)
  call void @read.direction(ptr %along, ptr %shared, i64 0)
  call void @each(ptr %kept, ptr %shared)
  call void @write(ptr %along, ptr %kept, i64 %i)
  %next = add i64 %d, 1
  %more = icmp slt i64 %next, {count}
  br i1 %more, label %head, label %done
done:
  ret void
}}"""
RUN = """define void @run(ptr noalias %arrays, i64 %begin, i64 %end) {{
entry:
  %kept = alloca [{kept} x i64], align 64
  %shared = alloca [{shared} x i64], align 64
  %count = sub i64 %end, %begin
  call void @read.shared(ptr %arrays, ptr %shared, i64 0)
  call void @before(ptr %shared, ptr %shared)
  %room = icmp sge i64 %count, {width}
  br i1 %room, label %head, label %{short}
head:
  %i = phi i64 [%begin, %entry], [%next, %body]
  %next = add i64 %i, {width}
  %fits = icmp sle i64 %next, %end
  br i1 %fits, label %body, label %rest
body:
  call void @vector(ptr %arrays, ptr %kept, ptr %shared, i64 %i)
  br label %head
rest:
  %more = icmp slt i64 %i, %end
  br i1 %more, label %overlap, label %done
overlap:
  %last = sub i64 %end, {width}
  call void @vector(ptr %arrays, ptr %kept, ptr %shared, i64 %last)
  br label %done
{few}done:
  ret void
}}"""
# Fewer states than fit a vector.
FEW = """few:
  %none = icmp sle i64 %count, 0
  br i1 %none, label %done, label %copies
copies:
  %others = alloca [{arrays} x ptr], align 8
  %room.of = alloca [{room} x i8], align 64
  call void @copied(ptr %arrays, ptr %others, ptr %room.of, i64 %begin, i64 %count)
  call void @vector(ptr %others, ptr %kept, ptr %shared, i64 0)
  call void @returned(ptr %arrays, ptr %others, i64 %begin, i64 %count)
  br label %done
"""
# Bytes of each array for a state, 0 for those that all share, and where there is room for its copies.
TABLES = """@bytes = internal constant [{arrays} x i64] [{bytes}]
@rooms = internal constant [{arrays} x i64] [{rooms}]
define internal void @copy(ptr %to, ptr %from, i64 %bytes) noinline "no-builtins" {{
entry:
  br label %head
head:
  %k = phi i64 [0, %entry], [%next, %body]
  %more = icmp slt i64 %k, %bytes
  br i1 %more, label %body, label %done
body:
  %source = getelementptr i8, ptr %from, i64 %k
  %target = getelementptr i8, ptr %to, i64 %k
  %x = load i8, ptr %source
  store i8 %x, ptr %target
  %next = add i64 %k, 1
  br label %head
done:
  ret void
}}
define internal void @copied(ptr %arrays, ptr %others, ptr %room, i64 %begin, i64 %count) noinline {{
entry:
  %end = sub i64 %count, 1
  br label %array
array:
  %k = phi i64 [0, %entry], [%k1, %after]
  %pa = getelementptr ptr, ptr %arrays, i64 %k
  %a = load ptr, ptr %pa
  %po = getelementptr ptr, ptr %others, i64 %k
  %pb = getelementptr i64, ptr @bytes, i64 %k
  %b = load i64, ptr %pb
  %pr = getelementptr i64, ptr @rooms, i64 %k
  %r = load i64, ptr %pr
  %copy = getelementptr i8, ptr %room, i64 %r
  %shared = icmp eq i64 %b, 0
  %o = select i1 %shared, ptr %a, ptr %copy
  store ptr %o, ptr %po
  %given = icmp slt i64 %k, {takes}
  br i1 %given, label %lane, label %after
lane:
  %j = phi i64 [0, %array], [%j1, %lane]
  %over = icmp sgt i64 %j, %end
  %j0 = select i1 %over, i64 %end, i64 %j
  %state = add i64 %begin, %j0
  %from0 = mul i64 %state, %b
  %from = getelementptr i8, ptr %a, i64 %from0
  %to0 = mul i64 %j, %b
  %to = getelementptr i8, ptr %o, i64 %to0
  call void @copy(ptr %to, ptr %from, i64 %b)
  %j1 = add i64 %j, 1
  %lanes = icmp slt i64 %j1, {width}
  br i1 %lanes, label %lane, label %after
after:
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, {arrays}
  br i1 %more, label %array, label %done
done:
  ret void
}}
define internal void @returned(ptr %arrays, ptr %others, i64 %begin, i64 %count) noinline {{
entry:
  br label %head
head:
  %k = phi i64 [{takes}, %entry], [%k1, %array]
  %more = icmp slt i64 %k, {arrays}
  br i1 %more, label %array, label %done
array:
  %pa = getelementptr ptr, ptr %arrays, i64 %k
  %a = load ptr, ptr %pa
  %po = getelementptr ptr, ptr %others, i64 %k
  %o = load ptr, ptr %po
  %pb = getelementptr i64, ptr @bytes, i64 %k
  %b = load i64, ptr %pb
  %to0 = mul i64 %begin, %b
  %to = getelementptr i8, ptr %a, i64 %to0
  %size = mul i64 %count, %b
  call void @copy(ptr %to, ptr %o, i64 %size)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}}"""


def _vector_along(rows: Sequence[Row], count: int) -> str:
    """The function `vector` for `count` directions; `rows`: all arrays."""
    steps = _listed([row.bytes_along if row.directions > 1 else 0 for row in rows])
    return VECTOR_ALONG.format(arrays=len(rows), steps=steps, count=count)


def _run(takes: Sequence[Row], gives: Sequence[Row], width: int, kept: int, shared: int) -> list[str]:
    """The function `run`: loops over states by `vector`; `kept`, `shared`: the number of slots."""
    counts = {"kept": max(kept, 1) * width, "shared": max(shared, 1), "width": width}
    if width == 1:
        return [RUN.format(short="done", few="", **counts)]
    sizes = [row.bytes if row.batched else 0 for row in (*takes, *gives)]
    rooms, end = [], 0
    for size in sizes:
        rooms.append(end)
        end += -(-width * size // 64) * 64
    listed = {"bytes": _listed(sizes), "rooms": _listed(rooms)}
    tables = TABLES.format(arrays=len(sizes), takes=len(takes), width=width, **listed)
    few = FEW.format(room=max(end, 1), arrays=len(sizes))
    return [tables, RUN.format(short="few", few=few, **counts)]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(f"i64 {x}" for x in numbers)
