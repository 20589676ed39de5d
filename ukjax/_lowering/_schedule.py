"""A program put in order for LLVM: products fused into sums, and a long program cut into parts.

Each part is a function of its own, for LLVM compiles long functions slowly. What is fused is decided for the program as
a whole, so that no cut changes its numbers.
"""

import copy
from collections.abc import Callable, Iterator, Sequence

import jax.extend.core.primitives as prims
import numpy as np
from jax.extend.core import Primitive

from ._entry import Entry, Node
from ._program import Program, Routine, call_p, routine_of


# Operations of a part.
PART = 600
# x y + z, rounded once. The signs of the product and of z are among its parameters.
fma_p = Primitive("fma")


def fused(program: Program) -> Program:
    """The program with every product that one sum alone uses made part of that sum; one for each sum.

    Operations that stay as they are keep arguments of the program before: the same numbers, by their order.
    """
    products = _fused_products(program)
    routines = {id(x): Routine(fused(x.program), x.arguments) for x in program.routines}
    steps = {}
    for node in program.steps:
        if node.primitive is call_p:
            steps[node.order] = call = copy.copy(node)
            call.params = {"routine": routines[id(routine_of(node))]}
        elif node.order not in products:
            steps[node.order] = _with_product(node, products) or node
    outputs = [steps.get(x.order, x) if isinstance(x, Node) else x for x in program.outputs]
    return Program(program.inputs, outputs, _depth_first(steps, outputs))


def _depth_first(steps: dict[int, Node], outputs: Sequence[Entry]) -> list[Node]:
    """The steps, each soon before the first that needs it, so that few numbers wait in memory from part to part.

    The results of a call are read right after it.
    """
    results: dict[int, list[Node]] = {}
    for node in steps.values():
        if node.place is not None:
            results.setdefault(node.args[0].order, []).append(node)
    ordered: dict[int, Node] = {}
    todo: list[tuple[Node, bool]] = [
        (steps[x.order], False) for x in outputs if isinstance(x, Node) and x.order in steps
    ]
    while todo:
        node, is_ready = todo.pop()
        if is_ready:
            ordered[node.order] = node
            for x in results.get(node.order, ()):
                ordered[x.order] = x
        elif node.order not in ordered:
            todo.append((node, True))
            todo += [(steps[x.order], False) for x in node.nodes if x.order in steps and x.order not in ordered]
    return list(ordered.values())


def _with_product(node: Node, products: set[int]) -> Node | None:
    """The node x y + z that stands for a sum or difference with a product in it that is fused; else None."""
    if not _is_sum(node):
        return None
    minus, (x, y) = node.primitive is prims.sub_p, node.args
    if isinstance(y, Node) and y.order in products:
        args, signs = (*y.args, x), (minus, False)
    elif isinstance(x, Node) and x.order in products:
        args, signs = (*x.args, y), (False, minus)
    else:
        return None
    found = Node(node.function, args, node.dtype, node.order)
    found.primitive, found.params = fma_p, {"negated": signs}
    return found


def _is_sum(node: Node) -> bool:
    return node.primitive in (prims.add_p, prims.sub_p) and np.dtype(node.dtype).kind == "f"


def _fused_products(program: Program) -> set[int]:
    """The products, by order, that become part of the sum that alone uses them; one for each sum."""
    uses: dict[int, int] = {}
    for node in program.steps:
        for x in node.nodes:
            uses[x.order] = uses.get(x.order, 0) + 1
    for x in program.outputs:
        if isinstance(x, Node):
            uses[x.order] = uses.get(x.order, 0) + 1
    given, found = {node.order for node in program.inputs}, set()
    for node in program.steps:
        if not _is_sum(node):
            continue
        for x in node.args[::-1]:
            if isinstance(x, Node) and x.primitive is prims.mul_p and uses[x.order] == 1 and x.order not in given:
                found.add(x.order)
                break
    return found


def parts_of(program: Program, part: int) -> Iterator[Program]:
    """Parts of about equal length, to be run in order."""
    count = len(program.steps)

    def end_of(place: dict[int, int], last: Sequence[int], begin: int) -> int:
        left = count - begin
        end = begin + -(-left // -(-left // part))
        while end < count and program.steps[end].place is not None:
            end += 1  # the results of a call are read where it is made
        return end

    return cut(program.steps, program.outputs, end_of)


def cut(
    steps: Sequence[Node], outputs: Sequence[Entry], end_of: Callable[[dict[int, int], Sequence[int], int], int]
) -> Iterator[Program]:
    """Cuts steps into programs, each of which gives the numbers that later ones, or the outputs, need.

    `end_of`: (place of each step by its order, last use of each step, begin of a part) -> its end.
    """
    place = {node.order: i for i, node in enumerate(steps)}
    last = [0] * len(steps)
    for i, node in enumerate(steps):
        for x in node.nodes:
            if x.order in place:
                last[place[x.order]] = i
    for x in outputs:
        if isinstance(x, Node) and x.order in place:
            last[place[x.order]] = len(steps)
    begin = 0
    while begin < len(steps):
        end = end_of(place, last, begin)
        read = {x.order: x for node in steps[begin:end] for x in node.nodes if place.get(x.order, -1) < begin}
        given = [node for node, i in zip(steps[begin:end], last[begin:end], strict=True) if i >= end]
        yield Program([read[i] for i in sorted(read)], given, steps[begin:end])
        begin = end
