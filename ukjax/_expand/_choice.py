"""The rules of operations that choose by numbers which are not known: branches, places in arrays, and pivots.

All that may be chosen is computed, and what is chosen is selected. It is as exact as a jump, and has no jumps.
"""

import functools as ft
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import jax.extend.core.primitives as prims
import numpy as np

from .._lowering._entry import Entry, Node, constant, entries
from ._graph import Graph


# A choice among more places than this is left to JAX, which goes to one; and one that is of so many numbers in all.
MOST_PLACES, MOST_SELECTIONS = 128, 1024
# Rows of a matrix that is factorised with pivots; the selections grow as the cube.
MOST_ROWS = 8


def is_long(places: int, entries: int) -> bool:
    """Whether the choice of some entries, each among as many places, is left to JAX; one place is no choice."""
    return places > MOST_PLACES or (places > 1 and places * entries > MOST_SELECTIONS)


def candidates(start: Entry | int, limit: int) -> Sequence[int]:
    """The places where something may begin that begins between zero and a limit."""
    return range(limit + 1) if isinstance(start, Node) else [min(max(int(start), 0), limit)]


def equals(graph: Graph, x: Entry, number: int) -> Entry:
    return graph.apply(prims.eq_p, {}, (x, constant(number, x.dtype)), np.dtype(bool))


def is_at_most(graph: Graph, x: Entry, number: int) -> Entry:
    return graph.apply(prims.le_p, {}, (x, constant(number, x.dtype)), np.dtype(bool))


def is_nan(graph: Graph, x: Entry) -> Entry:
    return graph.apply(prims.ne_p, {}, (x, x), np.dtype(bool))


def selected(graph: Graph, which: Entry, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The array of number `which`, of arrays of one shape; the first or the last one where there is none.

    If the number is known, `arrays` is that array alone: see `candidates`.
    """

    def among(begin: int, end: int) -> np.ndarray:
        # By halves: no selection waits for more than a few others.
        if end - begin == 1:
            return arrays[begin]
        middle = (begin + end) // 2
        first, second = among(begin, middle), among(middle, end)
        is_first = is_at_most(graph, which, middle - 1)
        pairs = [graph.where(is_first, x, y) for x, y in zip(first.flat, second.flat, strict=True)]
        return np.fromiter(pairs, object, first.size).reshape(first.shape)

    return among(0, len(arrays))


def dynamic_slice(graph, params, args, avals):
    x, *starts = args
    sizes = params["slice_sizes"]
    counts = [n - size + 1 for n, size in zip(x.shape, sizes, strict=True)]
    unknown = [count for count, start in zip(counts, starts, strict=True) if isinstance(start.item(), Node)]
    if is_long(math.prod(unknown), math.prod(sizes)):
        return None
    for axis, (count, start, size) in enumerate(zip(counts, starts, sizes, strict=True)):
        before = (slice(None),) * axis
        ways = [x[(*before, slice(k, k + size))] for k in candidates(start.item(), count - 1)]
        x = selected(graph, start.item(), ways)
    return [x]


def dynamic_update_slice(graph, params, args, avals):
    x, update, *starts = args
    counts = [n - size + 1 for n, size in zip(x.shape, update.shape, strict=True)]
    unknown = [count for count, start in zip(counts, starts, strict=True) if isinstance(start.item(), Node)]
    if is_long(math.prod(unknown), x.size):
        return None
    if not x.size or not update.size:
        return [x]

    def put(axis: int, place: tuple[slice, ...]) -> np.ndarray:
        if axis == x.ndim:
            found = x.copy()
            found[place] = update
            return found
        size, start = update.shape[axis], starts[axis].item()
        ways = [put(axis + 1, (*place, slice(k, k + size))) for k in candidates(start, counts[axis] - 1)]
        return selected(graph, start, ways)

    return [put(0, ())]


def at_place(
    graph: Graph, x: np.ndarray, start: Sequence[Entry], limits: Sequence[int], offset: Sequence[int]
) -> Entry:
    """The entry of x at a place, start + offset, where each start is kept between zero and its limit."""
    known = [candidates(*one)[0] for one in zip(start, limits, strict=True) if not isinstance(one[0], Node)]
    if len(known) == x.ndim:
        return x[tuple(begin + further for begin, further in zip(known, offset, strict=True))]
    found = x
    for axis in reversed(range(x.ndim)):
        lines = [found[..., k + offset[axis]] for k in candidates(start[axis], limits[axis])]
        found = selected(graph, start[axis], lines)
    return found.item()


def is_outside(graph: Graph, start: Entry, limit: int) -> Entry:
    """Whether a place is not between zero and its limit."""
    if not isinstance(start, Node):
        return constant(not 0 <= int(start) <= limit, bool)
    below = is_at_most(graph, start, -1) if np.issubdtype(start.dtype, np.signedinteger) else constant(False, bool)
    return graph.either(below, graph.negation(is_at_most(graph, start, limit)))


def places(
    graph: Graph, start: Sequence[Entry], limits: Sequence[int], clips: bool
) -> Iterator[tuple[tuple[int, ...], Entry]]:
    """Yields the places where something may begin, and whether it does; with `clips` between zero and the limits."""

    def along(begin: Entry, limit: int) -> list[tuple[int, Entry]]:
        if not isinstance(begin, Node):
            k = int(np.clip(begin, 0, limit)) if clips else int(begin)
            return [(k, constant(True, bool))] if 0 <= k <= limit else []
        if not clips:
            return [(k, equals(graph, begin, k)) for k in range(limit + 1)]
        up_to = [*(is_at_most(graph, begin, k) for k in range(limit)), constant(True, bool)]
        before = [constant(False, bool), *up_to[:-1]]
        return [(k, graph.both(x, graph.negation(y))) for k, (x, y) in enumerate(zip(up_to, before, strict=True))]

    for pairs in itertools.product(*map(along, start, limits)):
        yield tuple(k for k, _ in pairs), ft.reduce(graph.both, (x for _, x in pairs), constant(True, bool))


def extreme_place(comparison) -> Callable:
    """The rule of the place of the first largest (`gt_p`) or least (`lt_p`) entry along an axis; NaN is either."""

    def rule(graph, params, args, avals):
        (x,), (aval,), (axis,) = args, avals, params["axes"]
        lines = np.moveaxis(x, axis, -1)
        found = np.empty(aval.shape, object)
        for i in np.ndindex(aval.shape):
            best, *others = lines[i]
            place = constant(0, aval.dtype)
            for k, value in enumerate(others, 1):
                better = _beats(graph, comparison, value, best)
                best, place = graph.where(better, value, best), graph.where(better, constant(k, aval.dtype), place)
            found[i] = place
        return [found]

    return rule


def _beats(graph: Graph, comparison, x: Entry, y: Entry) -> Entry:
    dtype = np.dtype(x.dtype)
    if dtype.kind == "b":
        return graph.both(x, graph.negation(y)) if comparison is prims.gt_p else graph.both(graph.negation(x), y)
    better = graph.apply(comparison, {}, (x, y), np.dtype(bool))
    if dtype.kind != "f":
        return better
    return graph.both(graph.either(better, is_nan(graph, x)), graph.negation(is_nan(graph, y)))


def less_in_total_order(graph, params, args, avals):
    """x < y, where -0 is less than 0, and NaN greater than all others; a NaN has no sign here."""
    (xs, ys), (aval,) = args, avals
    if any(np.dtype(x.dtype).kind not in "fiu" for x in (*xs.flat, *ys.flat)):
        return None

    def less(x: Entry, y: Entry) -> Entry:
        lower = graph.apply(prims.lt_p, {}, (x, y), aval.dtype)
        if np.dtype(x.dtype).kind != "f":
            return lower
        one, zero = constant(1, x.dtype), constant(0, x.dtype)
        zeros = graph.both(*(graph.apply(prims.eq_p, {}, (z, zero), aval.dtype) for z in (x, y)))
        signs = graph.apply(prims.lt_p, {}, (graph.div(one, x), graph.div(one, y)), aval.dtype)
        last = graph.both(graph.negation(is_nan(graph, x)), is_nan(graph, y))
        return graph.either(lower, graph.either(last, graph.both(zeros, signs)))

    pairs = zip(xs.flat, ys.flat, strict=True)
    return [np.fromiter((less(x, y) for x, y in pairs), object, xs.size).reshape(aval.shape)]


def at_most_in_total_order(graph, params, args, avals):
    greater = less_in_total_order(graph, params, args[::-1], avals)
    if greater is None:
        return None
    return [np.fromiter(map(graph.negation, greater[0].flat), object, greater[0].size).reshape(greater[0].shape)]


def matrices(rule: Callable) -> Callable:
    """The rule of an operation on matrices of real numbers, from a function (graph, parameters, matrices) of one."""

    def whole(graph, params, args, avals):
        *batch, rows, _ = args[0].shape
        if any(np.dtype(x.dtype).kind != "f" for x in avals[:1]) or rows > MOST_ROWS:
            return None
        found = [np.empty(x.shape, object) for x in avals]
        for i in np.ndindex(*batch):
            results = rule(graph, params, *(x[i] for x in args))
            for array, result in zip(found, results, strict=True):
                array[i] = result
        return found

    return whole


@matrices
def cholesky(graph, params, S):
    n, dtype = len(S), S.flat[0].dtype if S.size else np.dtype(float)
    L = entries(np.zeros(S.shape), dtype)
    definite = constant(True, bool)
    for j in range(n):
        pivot = graph.sub(S[j, j], graph.sum([graph.mul(x, x) for x in L[j, :j]], dtype))
        definite = graph.both(definite, graph.greater(pivot, constant(0, dtype)))
        L[j, j] = graph.sqrt(pivot)
        for i in range(j + 1, n):
            before = graph.sum([graph.mul(x, y) for x, y in zip(L[i, :j], L[j, :j], strict=True)], dtype)
            L[i, j] = graph.div(graph.sub(S[i, j], before), L[j, j])
    for i in range(n):
        for j in range(i + 1):
            L[i, j] = graph.where(definite, L[i, j], constant(np.nan, dtype))
    return [L]


@matrices
def lu(graph, params, A):
    """The factors with the largest pivots of each column, as LAPACK chooses them, the pivots, and the order of rows."""
    A, (m, n) = A.copy(), A.shape
    kind = np.dtype(np.int32)
    order = entries(np.arange(m), kind)
    pivots = np.empty(min(m, n), object)
    for k in range(min(m, n)):
        best, pivot = graph.abs(A[k, k]), constant(k, kind)
        for i in range(k + 1, m):
            size = graph.abs(A[i, k])
            better = graph.greater(size, best)
            best, pivot = graph.where(better, size, best), graph.where(better, constant(i, kind), pivot)
        pivots[k] = pivot
        for table in (A, order[:, None]):
            top = table[k].copy()
            table[k] = selected(graph, pivot, [table[max(i, k)] for i in range(m)])
            for i in range(k + 1, m):
                moved = equals(graph, pivot, i)
                table[i] = [graph.where(moved, x, y) for x, y in zip(top, table[i], strict=True)]
        regular = graph.apply(prims.ne_p, {}, (A[k, k], constant(0, A[k, k].dtype)), np.dtype(bool))
        for i in range(k + 1, m):
            A[i, k] = graph.where(regular, graph.div(A[i, k], A[k, k]), A[i, k])
            for j in range(k + 1, n):
                A[i, j] = graph.sub(A[i, j], graph.mul(A[i, k], A[k, j]))
    return [A, pivots, order]


@matrices
def triangular_solve(graph, params, A, B):
    """The solution X of op(A) X = B, or of X op(A) = B."""
    left, lower = params["left_side"], params["lower"]
    if not left:
        A, B = A.T, B.T
    if params["transpose_a"]:
        A = A.T
    # Transposed once, a lower factor is an upper one.
    lower = lower ^ params["transpose_a"] ^ (not left)
    X = B.copy()
    for i in range(len(A)) if lower else reversed(range(len(A))):
        known = range(i) if lower else range(i + 1, len(A))
        for column in range(X.shape[1]):
            value = X[i, column]
            for j in known:
                value = graph.sub(value, graph.mul(A[i, j], X[j, column]))
            X[i, column] = value if params["unit_diagonal"] else graph.div(value, A[i, i])
    return [X if left else X.T]
