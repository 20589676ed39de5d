"""The rules of operations that move entries of arrays, or combine them, on arrays of entries."""

import cmath
import functools as ft
import math
from collections.abc import Callable, Sequence

import jax.extend.core.primitives as prims
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Jaxpr, Primitive

from .._lowering._entry import Entry, Node, constant, entries, is_constant
from .._program import Parameters
from . import _choice
from ._graph import Graph


# (graph, parameters, arguments, types of the results) -> the results as arrays of entries, or None if the rule does not
# know them.
Rule = Callable[[Graph, Parameters, list[np.ndarray], Sequence[ShapedArray]], list[np.ndarray] | None]


def _known(array: np.ndarray) -> np.ndarray | None:
    """The numbers in an array if all of them are constants, else None."""
    flat = array.ravel()
    if any(isinstance(x, Node) for x in flat):
        return None
    return np.array([x.item() for x in flat]).reshape(array.shape)


def _one(rule: Callable[..., np.ndarray | None]) -> Rule:
    """Makes a rule from a function of the parameters and arguments to one output."""

    def whole(graph, params, args, avals):
        found = rule(params, *args)
        return None if found is None else [found]

    return whole


def _broadcast_in_dim(params, x, *_):
    shape = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], x.shape):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _slice(params, x):
    strides = params["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]


def _pad(graph, params, args, avals):
    (x, value), (aval,), config = args, avals, params["padding_config"]
    found = np.empty(aval.shape, object)
    found[...] = value.item()
    for i in np.ndindex(x.shape):
        place = tuple(low + k * (inner + 1) for k, (low, _, inner) in zip(i, config))
        if all(0 <= p < n for p, n in zip(place, aval.shape)):
            found[place] = x[i]
    return [found]


def _split(graph, params, args, avals):
    ends = np.cumsum(params["sizes"])[:-1]
    return list(np.split(args[0], ends, axis=params["axis"]))


def _iota(graph, params, args, avals):
    (aval,) = avals
    shape = [1] * len(aval.shape)
    shape[params["dimension"]] = -1
    values = np.arange(aval.shape[params["dimension"]]).reshape(shape)
    return [entries(np.broadcast_to(values, aval.shape), aval.dtype)]


def _reduce(combine: Primitive, start: Callable[[np.dtype], float | bool]) -> Rule:
    """The rule of a reduction by `combine`; `start(dtype)` is the result where there are no entries."""

    def rule(graph, params, args, avals):
        (x,), (aval,), axes = args, avals, params["axes"]
        rest = [i for i in range(x.ndim) if i not in axes]
        lines = x.transpose([*rest, *axes]).reshape(*aval.shape, math.prod(x.shape[i] for i in axes))
        found = np.empty(aval.shape, object)
        for i in np.ndindex(aval.shape):
            values = list(lines[i])
            total = values.pop(0) if values else constant(start(aval.dtype), aval.dtype)
            for value in values:
                total = graph.apply(combine, {}, (total, value), aval.dtype)
            found[i] = total
        return [found]

    return rule


def _least(dtype: np.dtype) -> float | bool:
    if np.issubdtype(dtype, np.inexact):
        return -np.inf
    return False if np.dtype(dtype).kind == "b" else np.iinfo(dtype).min


def _greatest(dtype: np.dtype) -> float | bool:
    if np.issubdtype(dtype, np.inexact):
        return np.inf
    return True if np.dtype(dtype).kind == "b" else np.iinfo(dtype).max


def _cumulative(combine: Primitive) -> Rule:
    def rule(graph, params, args, avals):
        x = np.moveaxis(args[0], params["axis"], 0).copy()
        order = range(len(x) - 1, -1, -1) if params["reverse"] else range(len(x))
        before = None
        for i in order:
            if before is not None:
                for j in np.ndindex(x.shape[1:]):
                    x[(i, *j)] = graph.apply(combine, {}, (x[(before, *j)], x[(i, *j)]), avals[0].dtype)
            before = i
        return [np.moveaxis(x, 0, params["axis"])]

    return rule


def _dot_general(graph, params, args, avals):
    (x, y), (aval,) = args, avals
    if any(z.dtype != aval.dtype for z in (*x.flat, *y.flat)):  # a `preferred_element_type`
        return None
    (left, right), (batch_left, batch_right) = params["dimension_numbers"]
    free_left = [i for i in range(x.ndim) if i not in (*left, *batch_left)]
    free_right = [i for i in range(y.ndim) if i not in (*right, *batch_right)]
    batch = [x.shape[i] for i in batch_left]
    rows, columns = [x.shape[i] for i in free_left], [y.shape[i] for i in free_right]
    depth = math.prod(x.shape[i] for i in left)
    x = x.transpose([*batch_left, *free_left, *left]).reshape(math.prod(batch), math.prod(rows), depth)
    y = y.transpose([*batch_right, *free_right, *right]).reshape(math.prod(batch), math.prod(columns), depth)
    # A zero times an infinite constant, or NaN, is no zero.
    keep_zeros = any(not isinstance(entry, Node) and not cmath.isfinite(entry) for z in (x, y) for entry in z.flat)
    left, right = _by_place(x, keep_zeros), _by_place(y, keep_zeros)
    found = np.empty((x.shape[0], x.shape[1], y.shape[1]), object)
    for b, i, j in np.ndindex(found.shape):
        column = right[b][j]
        products = [graph.mul(p, column[k]) for k, p in left[b][i].items() if k in column]
        found[b, i, j] = graph.sum(products, aval.dtype)
    return [found.reshape(aval.shape)]


def _by_place(x: np.ndarray, keep_zeros: bool) -> list[list[dict[int, Entry]]]:
    """The entries of each row by their places, without those that are zero unless `keep_zeros`."""
    return [
        [{k: y for k, y in enumerate(row) if keep_zeros or isinstance(y, Node) or y != 0} for row in matrix]
        for matrix in x
    ]


def _gather(graph, params, args, avals):
    (x, at), (aval,) = args, avals
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    known = _known(at)
    if known is None:
        searched = [x.shape[axis] - sizes[axis] + 1 for axis in numbers.start_index_map]
        if _choice.is_long(math.prod(searched), math.prod(aval.shape)) or not x.size:
            return None
    fills = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    inner = [i for i in range(x.ndim) if i not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)]
    value = params.get("fill_value")
    if value is None:
        value = np.nan if np.issubdtype(aval.dtype, np.inexact) else _lowest(aval.dtype)
    value, limits = constant(value, aval.dtype), [n - s for n, s in zip(x.shape, sizes)]
    batching = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    window = dict(zip(inner, numbers.offset_dims, strict=True))
    starts, offsets = _places(
        at if known is None else known, aval.shape, numbers.start_index_map, batching, window, x.ndim
    )
    if known is not None and x.size and x.ndim:
        found = x[tuple(np.clip(start, 0, most) + offset for start, most, offset in zip(starts, limits, offsets))]
        if fills:
            found[_are_outside(starts, limits)] = value
        return [found]
    found = np.empty(aval.shape, object)
    for out in np.ndindex(aval.shape):
        start = [line[out] for line in starts]
        misses = [_choice.is_outside(graph, s, most) for s, most in zip(start, limits)] if fills else []
        outside = ft.reduce(graph.either, misses, constant(False, bool))
        if is_constant(outside, True):
            found[out] = value
            continue
        entry = _choice.at_place(graph, x, start, limits, [int(line[out]) for line in offsets])
        found[out] = graph.where(outside, value, entry)
    return [found]


def _places(
    at: np.ndarray,
    shape: tuple[int, ...],
    index_map: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
    window: dict[int, int],
    ndim: int,
) -> tuple[list, list[np.ndarray]]:
    """The places in an operand that belong to the entries of slices: where each slice begins, and the way from there.

    `index_map`: the axes along which numbers of `at` say where; `batching`: axes that the operand and `at` share;
    `window`: axis of the operand -> axis within the slices.
    """
    within = tuple(window.values())
    groups = tuple(n for i, n in enumerate(shape) if i not in within)
    starts = [np.zeros(groups, int)] * ndim
    for axis, start in zip(index_map, np.moveaxis(at, -1, 0), strict=True):
        starts[axis] = start
    for axis, where in zip(*batching, strict=True):
        starts[axis] = np.indices(groups)[where]
    offsets = [np.zeros(shape, int)] * ndim
    for axis, i in window.items():
        offsets[axis] = np.indices(shape)[i]
    return [np.broadcast_to(np.expand_dims(start, within), shape) for start in starts], offsets


def _are_outside(starts: Sequence[np.ndarray], limits: Sequence[int]) -> np.ndarray:
    """Whether slices begin below zero or above a limit along any axis."""
    return np.any([(start < 0) | (start > most) for start, most in zip(starts, limits, strict=True)], axis=0)


def _lowest(dtype: np.dtype) -> int | bool:
    if np.dtype(dtype).kind == "b":
        return True
    return np.iinfo(dtype).max if np.issubdtype(dtype, np.unsignedinteger) else np.iinfo(dtype).min


def _scatter(combine: Primitive | None) -> Rule:
    def rule(graph, params, args, avals):
        (x, at, updates), (aval,) = args, avals
        if combine is None and not _takes_the_update(params["update_jaxpr"]):
            return None
        numbers = params["dimension_numbers"]
        known = _known(at)
        if known is None:
            searched = [x.shape[axis] for axis in numbers.scatter_dims_to_operand_dims]
            if _choice.is_long(math.prod(searched), updates.size):
                return None
        clips = params["mode"] == lax.GatherScatterMode.CLIP
        inner = [i for i in range(x.ndim) if i not in (*numbers.inserted_window_dims, *numbers.operand_batching_dims)]
        window = dict(zip(inner, numbers.update_window_dims, strict=True))
        limits = [n - (updates.shape[window[i]] if i in window else 1) for i, n in enumerate(x.shape)]
        batching = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        index_map = numbers.scatter_dims_to_operand_dims
        starts, offsets = _places(at if known is None else known, updates.shape, index_map, batching, window, x.ndim)
        found = x.copy()
        if known is not None and x.ndim:
            outside = np.zeros(updates.shape, bool) if clips else _are_outside(starts, limits)
            to = np.stack([np.clip(start, 0, most) + way for start, most, way in zip(starts, limits, offsets)], axis=-1)
            for place, new in zip(map(tuple, to[~outside]), updates[~outside], strict=True):
                found[place] = new if combine is None else graph.apply(combine, {}, (found[place], new), aval.dtype)
            return [found]
        for place in np.ndindex(updates.shape):
            for begin, chosen in _choice.places(graph, [line[place] for line in starts], limits, clips):
                to = tuple(k + int(way[place]) for k, way in zip(begin, offsets, strict=True))
                new = updates[place]
                new = new if combine is None else graph.apply(combine, {}, (found[to], new), aval.dtype)
                found[to] = graph.where(chosen, new, found[to])
        return [found]

    return rule


def _takes_the_update(jaxpr: Jaxpr | None) -> bool:
    """Whether scattered values replace the old ones; `x.at[i].apply(f)` scatters f(x)."""
    return jaxpr is None or (not jaxpr.eqns and jaxpr.outvars[0] is jaxpr.invars[1])


def row(x: np.ndarray, i: int) -> np.ndarray:
    """The row x[i], an array even if it is a single entry."""
    return x[i : i + 1].reshape(x.shape[1:])


def _same(graph, params, args, avals):
    return list(args)


def _stack(params, *xs):
    return np.stack(xs, params["axis"])


def _unstack(graph, params, args, avals):
    moved = np.moveaxis(args[0], params["axis"], 0)
    return [row(moved, i) for i in range(len(moved))]


def _platform_index(graph, params, args, avals):
    """Chooses the implementation for any platform, where there is one; platforms differ in implementation only."""
    platforms = list(params["platforms"])
    return [entries(platforms.index(None), avals[0].dtype)] if None in platforms else None


# Operations that jax.extend does not name. The place of a value on devices does not change its entries.
def _entrywise(function: Callable[[Graph, Entry], Entry]) -> Rule:
    def rule(graph, params, args, avals):
        (x,), (aval,) = args, avals
        if aval.dtype.kind != "f":
            return None
        return [np.fromiter((function(graph, entry) for entry in x.flat), object, x.size).reshape(x.shape)]

    return rule


def _log2(graph: Graph, x: Entry) -> Entry:
    of_e = graph.apply(prims.log_p, {"accuracy": None}, (x,), x.dtype)
    return graph.mul(of_e, constant(1 / math.log(2), x.dtype))


def _one_minus_square(graph: Graph, x: Entry) -> Entry:
    one = constant(1, x.dtype)
    return graph.mul(graph.add(one, x), graph.sub(one, x))


BY_NAME: dict[str, Rule] = {
    "cholesky": _choice.cholesky,
    "log2": _entrywise(_log2),
    "one_minus_square": _entrywise(_one_minus_square),
    "platform_index": _platform_index,
    "le_to": _choice.at_most_in_total_order,
    "lt_to": _choice.less_in_total_order,
    "lu": _choice.lu,
    "split": _split,
    "stack": _one(_stack),
    "tile": _one(lambda params, x: np.tile(x, params["reps"])),
    "triangular_solve": _choice.triangular_solve,
    "unstack": _unstack,
    **dict.fromkeys(("reshard", "pvary", "pcast"), _same),
}

STRUCTURE: dict[Primitive, Rule] = {
    prims.broadcast_in_dim_p: _one(_broadcast_in_dim),
    prims.reshape_p: _one(lambda params, x, *_: None if params["dimensions"] else x.reshape(params["new_sizes"])),
    prims.squeeze_p: _one(
        lambda params, x: x.reshape([n for i, n in enumerate(x.shape) if i not in params["dimensions"]])
    ),
    prims.transpose_p: _one(lambda params, x: x.transpose(params["permutation"])),
    prims.rev_p: _one(lambda params, x: np.flip(x, params["dimensions"])),
    prims.concatenate_p: _one(lambda params, *xs: np.concatenate(xs, params["dimension"])),
    prims.slice_p: _one(_slice),
    prims.dynamic_slice_p: _choice.dynamic_slice,
    prims.dynamic_update_slice_p: _choice.dynamic_update_slice,
    prims.pad_p: _pad,
    prims.iota_p: _iota,
    prims.gather_p: _gather,
    prims.scatter_p: _scatter(None),
    prims.scatter_add_p: _scatter(prims.add_p),
    prims.scatter_mul_p: _scatter(prims.mul_p),
    prims.dot_general_p: _dot_general,
    prims.reduce_sum_p: _reduce(prims.add_p, lambda dtype: 0),
    prims.reduce_prod_p: _reduce(prims.mul_p, lambda dtype: 1),
    prims.argmax_p: _choice.extreme_place(prims.gt_p),
    prims.argmin_p: _choice.extreme_place(prims.lt_p),
    prims.reduce_max_p: _reduce(prims.max_p, _least),
    prims.reduce_min_p: _reduce(prims.min_p, _greatest),
    prims.reduce_and_p: _reduce(prims.and_p, lambda dtype: True),
    prims.reduce_or_p: _reduce(prims.or_p, lambda dtype: False),
    prims.cumsum_p: _cumulative(prims.add_p),
    prims.cumprod_p: _cumulative(prims.mul_p),
    prims.copy_p: _same,
    prims.stop_gradient_p: _same,
}
