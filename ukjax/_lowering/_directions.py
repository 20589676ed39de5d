"""Kernels of functions of a state and a direction, which are evaluated for all directions of each state.

A Jacobian takes a derivative along every vector of a basis. What depends on the state alone is computed once, and the
rest once for each direction. The states, not the directions, lie side by side in a vector.
"""

from collections.abc import Sequence

from ._kernel import Kernel, Row, Slots, move, parts, run_of
from ._program import Program
from ._schedule import PART, fused


VECTOR = """@steps = internal constant [{arrays} x i64] [{steps}]
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


def directions_kernel(program: Program, takes: Sequence[Row], gives: Sequence[Row], width: int) -> Kernel:
    """Prints a program whose inputs are the entries of `takes`, and whose outputs are those of `gives`, in order.

    A row has entries for each direction if it has several `directions`, as all of `gives` have. Of the others some have
    a batch.
    """
    program = fused(program)
    (count,) = {row.directions for row in gives}
    entries = [row for row in takes for _ in range(row.size)]
    before, rest = program.split([row.batched or row.directions > 1 for row in entries])
    turns = {x.order for x, row in zip(program.inputs, entries, strict=True) if row.directions > 1}
    state, each = rest.split([x.order in turns for x in rest.inputs])

    shared, kept = Slots("shared", 1), Slots("kept", width)
    inputs, begins = iter(program.inputs), list[int]()
    for row in takes:
        slots = kept if row.batched else shared
        begins.append(slots.count)
        for _ in range(row.size):
            slots.add(next(inputs))
    for row in gives:
        begins.append(kept.count)
        kept.count += row.size
    results = [
        i for row, begin in zip(gives, begins[len(takes) :], strict=True) for i in range(begin, begin + row.size)
    ]

    printed = [
        parts("before", before, shared, shared, PART, shared.copies),
        parts("state", state, kept, shared, PART, kept.copies),
        parts("each", each, kept, shared, PART, list(zip(results, each.outputs, strict=True))),
    ]
    rows = [(k, row, begin) for k, (row, begin) in enumerate(zip([*takes, *gives], begins, strict=True))]

    def into(name: str, batched: bool, along: bool) -> str:
        some = [x for x in rows[: len(takes)] if (x[1].batched, x[1].directions > 1) == (batched, along)]
        return move(name, some, width if batched else 1, into=True)

    moves = [
        into("read", True, False),
        into("read.shared", False, False),
        into("read.along", True, True),
        into("read.direction", False, True),
        move("write", rows[len(takes) :], width, into=False),
    ]
    steps = [row.bytes_along if row.directions > 1 else 0 for row in (*takes, *gives)]
    listed = ", ".join(f"i64 {x}" for x in steps)
    vector = VECTOR.format(arrays=len(steps), steps=listed, count=count)
    declared = sorted({x for one in printed for x in one.declared})
    texts = [*declared, *(text for one in printed for text in one.texts), *moves, vector]
    run = run_of(takes, gives, width, kept.count, shared.count)
    operations = before.operations + state.operations + count * each.operations
    return Kernel("\n".join([*texts, *run]), width, operations, rounds=count)
