"""A long program cut into parts, each of which is a function of its own: LLVM compiles long functions slowly."""

from collections.abc import Iterator

from .._expand import Node, Program, arguments_of


# Operations of a part.
PART = 1500


def parts_of(program: Program, part: int = PART) -> Iterator[Program]:
    """Parts to be run in order, each of which gives the numbers that later ones, or the outputs, need."""
    steps = program.steps
    place = {node.order: i for i, node in enumerate(steps)}
    last = [0] * len(steps)
    for i, node in enumerate(steps):
        for x in arguments_of(node):
            if x.order in place:
                last[place[x.order]] = i
    for x in program.outputs:
        if isinstance(x, Node) and x.order in place:
            last[place[x.order]] = len(steps)
    count = -(-len(steps) // part)
    ends = [len(steps) * (k + 1) // count for k in range(count)]
    for begin, end in zip([0, *ends], ends, strict=False):
        read = {x.order: x for node in steps[begin:end] for x in arguments_of(node) if place.get(x.order, -1) < begin}
        given = [node for node, i in zip(steps[begin:end], last[begin:end], strict=True) if i >= end]
        yield Program([read[i] for i in sorted(read)], given)
