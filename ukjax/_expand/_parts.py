"""Long scalar programs as several parts, each short enough for a loop over a batch."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax.extend.core.primitives as prims

from ._entry import Node
from ._program import Program, arguments_of, constants_of, turns
from ._trigonometry import OPERATIONS


# The greatest length of a loop, see `Program.length`. XLA makes a longer one into functions that compute shared values
# again for each use, some 3 000 operations and more. Just below that, LLVM takes long to compile.
LONGEST = 2700
# The most numbers that a loop reads, or gives. It has as many results as operands, and so twice as many arrays. LLVM
# distinguishes some 250 (`alias-set-saturation-threshold`), and makes no vector instructions of a loop over more.
MOST_OPERANDS = 120
# The length of the parts of longer programs: shorter parts run slower, and much longer ones compile slower.
PART = 1200
# Operations for which XLA calls a library, one number at a time. They get parts of their own, or others would get no
# vector instructions.
CALLS = {prims.pow_p, prims.exp_p, prims.log_p, prims.log1p_p, prims.expm1_p, prims.tan_p, prims.tanh_p, prims.atan2_p}
# A part may be cut sooner, from this fraction of PART on, where fewer numbers have to be handed on.
LEAST = 0.6


def fits(program: Program) -> bool:
    """Whether a program can be one loop."""
    few = max(len(program.inputs), len(program.outputs)) <= MOST_OPERANDS
    return (few and program.length <= LONGEST) or program.operations <= 1


def parts_of(program: Program) -> Iterator[Program]:
    """Cuts a program into parts to be run in order, each of which gives the numbers that later ones or outputs need.

    Cuts are made one after the other: among the places near the length of a part, where the part reads and gives the
    least numbers for each operation. Inputs and constants that are merely returned are in no part.
    """
    is_one = fits(program)
    steps = _Order(program).steps
    place = {node.order: i for i, node in enumerate(steps)}
    last = [0] * len(steps)
    for i, node in enumerate(steps):
        for x in arguments_of(node):
            if x.order in place:
                last[place[x.order]] = i
    for x in program.outputs:
        if isinstance(x, Node) and x.order in place:
            last[place[x.order]] = len(steps)
    begin = 0
    while begin < len(steps):
        end = len(steps) if is_one else _end_of_part(steps, place, last, begin)
        read = {x.order: x for node in steps[begin:end] for x in arguments_of(node) if place.get(x.order, -1) < begin}
        given = [node for node, i in zip(steps[begin:end], last[begin:end], strict=True) if i >= end]
        yield Program([read[i] for i in sorted(read)], given)
        begin = end


class _Cut(NamedTuple):
    """The larger of the numbers a part reads and gives, for each operation, and the step where the part ends."""

    traffic: float
    end: int


def _end_of_part(steps: Sequence[Node], place: dict[int, int], last: Sequence[int], begin: int) -> int:
    constants, read, angles, given = set(), set(), set(), 0
    ends = [0] * (len(steps) + 1)
    best: _Cut | None = None
    for i in range(begin, len(steps)):
        node = steps[i]
        if i > begin and (node.primitive in CALLS) != (steps[begin].primitive in CALLS):
            return i
        constants.update(constants_of(node))
        read.update(x.order for x in arguments_of(node) if place.get(x.order, -1) < begin)
        if turns(node):
            angles.add(node.args[0].order)
        if last[i] > i:
            ends[last[i]] += 1
            given += 1
        given -= ends[i]
        count = i + 1 - begin
        length = count + len(constants) + OPERATIONS * len(angles) + 2 * len(read) + 2 * given
        if i + 1 < len(steps) and turns(node) and steps[i + 1].args[0] is node.args[0] and turns(steps[i + 1]):
            continue  # both by the same arithmetic
        if (length > PART or max(len(read), given) > MOST_OPERANDS) and best is not None:
            break
        found = _Cut(max(len(read), given) / count, i + 1)
        if best is None or length < LEAST * PART or found.traffic <= best.traffic or i + 1 == len(steps):
            best = found
    assert best is not None
    return best.end


class _Order:
    """The steps of a program in an order in which few numbers have to be kept at a time.

    It is the order in which they were written; but a step that is ready, and is the last use of a number, comes at
    once, and the sine and the cosine of an angle come together, where one of them is used first.
    """

    def __init__(self, program: Program):
        self.steps: list[Node] = []
        self.inside = {node.order: node for node in program.steps}
        self.done: set[int] = set()
        self.users: dict[int, list[Node]] = {}
        self.args: dict[int, list[int]] = {}
        self.both: dict[int, list[Node]] = {}
        for node in program.steps:
            self.args[node.order] = args = list({x.order for x in arguments_of(node) if x.order in self.inside})
            for i in args:
                self.users.setdefault(i, []).append(node)
            if turns(node):
                self.both.setdefault(node.args[0].order, []).append(node)
        self.open = {i: len(users) for i, users in self.users.items()}
        kept = {x.order for x in program.outputs if isinstance(x, Node)}
        for i in kept:
            self.open[i] = self.open.get(i, 0) + 1
        late = {node.order for nodes in self.both.values() for node in nodes}
        for node in program.steps:
            if node.order not in late:
                self.compute(node)
        for node in program.steps:
            self.compute(node)

    def compute(self, node: Node) -> None:
        """Adds a step, the steps that it needs, and then those that are the last use of a number."""
        todo = [node]
        while todo:
            node = todo.pop()
            if node.order in self.done:
                continue
            missing = [i for i in self.args[node.order] if i not in self.done]
            if missing:
                todo += [node, *(self.inside[i] for i in missing)]
                continue
            self.done.add(node.order)
            self.steps.append(node)
            for i in self.args[node.order]:
                self.open[i] -= 1
                todo += [x for x in self.users[i] if self.is_last(x)] if self.open[i] == 1 else []
            todo += [x for x in self.users.get(node.order, ()) if self.is_last(x)]
            todo += self.both[node.args[0].order] if turns(node) else []

    def is_last(self, node: Node) -> bool:
        """Whether all arguments of a step are known, and it is the last use of one of them."""
        args = self.args[node.order]
        return (
            node.order not in self.done and all(i in self.done for i in args) and any(self.open[i] == 1 for i in args)
        )
