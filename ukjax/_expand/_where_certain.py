"""The motion in a fast way where that is certain, and in another way where it is not."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._entry import NotScalar
from ._expand import with_constants_as_arguments
from ._graph import TooLong
from ._motion import Certain, MotionPiece
from ._piece import traced
from ._scalar import ScalarPiece
from ._seldom import SeldomPiece


def motion_or(
    otherwise: Callable[[Array, Array, Array, Array], Any],
    found: Callable[[Array, Array, Array, Array, Array], Any],
    certain: Certain,
    limit: int,
    terms: ClosedJaxpr,
    state: list[Array],
) -> Any | None:
    """A tree of arrays from M, Q, A, b at a state: what `found` makes of a scalar program, or else `otherwise`.

    Args:
        otherwise: (M, Q, A, b) -> the tree.
        found: (q'', a, constraint force, residual, rows that count) -> the tree, where the program is certain of them.
        certain: When it is.
        limit: Most operations of the program.
        terms: state -> M, Q, A, b, traced.
        state: Arrays.

    Returns:
        The tree; None if there is no such program.
    """
    closed, further = with_constants_as_arguments(terms)
    arrays = [*state, *further]
    try:
        piece = MotionPiece(closed, certain, limit)
    except (TooLong, NotScalar):
        return None
    *motion, clear, smooth = piece(*arrays)
    slow = lambda *arrays: otherwise(*piece.terms(*arrays))
    return _unless(slow, arrays, found(*motion), clear, smooth)


def where_certain(
    otherwise: Callable[[Array, Array, Array, Array], Any],
    found: Any,
    clear: Array,
    smooth: Array,
    terms: ClosedJaxpr,
    state: list[Array],
    limit: int | None = None,
) -> Any:
    """A tree of arrays: `found` where it is `clear`, and its derivatives where it is `smooth`, or else `otherwise`.

    `otherwise`, `terms`, `state`: as for `motion_or`. `otherwise` is asked only where it is needed. `limit`: where
    `terms` are scalar code, most of its operations.
    """
    closed, further = with_constants_as_arguments(terms)
    of = jaxpr_as_fun(closed) if limit is None else ScalarPiece(closed, limit)
    slow = lambda *arrays: otherwise(*of(*arrays))
    return _unless(slow, [*state, *further], found, clear, smooth)


def scalar_or(
    otherwise: Callable[..., Any], found: Callable[..., tuple[Any, Array, Array]], limit: int, state: Sequence[Array]
) -> Any | None:
    """A tree of arrays at a state: what `found` makes of it as scalar code, where that is certain, or else `otherwise`.

    Args:
        otherwise: (*state) -> the tree.
        found: (*state) -> the tree, whether it is certain, and whether its derivatives are; raises NotScalar where it
            can't be had.
        limit: Most operations of the program.
        state: Arrays.

    Returns:
        The tree; None if there is no such program.
    """
    structures: list[Any] = []

    def leaves(*state):
        tree, clear, smooth = found(*state)
        flat, structure = jax.tree_util.tree_flatten(tree)
        structures.append(structure)
        return [*map(jnp.asarray, flat), clear, smooth]

    try:
        closed, further = with_constants_as_arguments(jax.make_jaxpr(leaves)(*state))
        piece = ScalarPiece(closed, limit)
        _ = piece.program
    except (TooLong, NotScalar):
        return None
    *flat, clear, smooth = piece(*state, *further)
    kept, unknown = with_constants_as_arguments(
        jax.make_jaxpr(lambda *state: jax.tree_util.tree_leaves(otherwise(*state)))(*state)
    )
    slow = jaxpr_as_fun(kept)
    return _unless(slow, [*state, *unknown], jax.tree_util.tree_unflatten(structures[0], flat), clear, smooth)


def _unless(slow: Callable[..., Any], arrays: list[Array], found: Any, clear: Array, smooth: Array) -> Any:
    """`found`, or where it is not clear, or not smooth, what `slow` makes of the arrays."""
    fast, structure = jax.tree_util.tree_flatten(found)
    fast = [jnp.asarray(x) for x in fast]
    count = len(arrays)

    def whole(needed, *args):
        others = jax.tree_util.tree_leaves(slow(*args[:count]))
        return [jnp.where(needed, x, y) for x, y in zip(others, args[count:], strict=True)]

    avals = [jax.ShapeDtypeStruct((), bool)] * 2, map(jax.typeof, arrays), map(jax.typeof, fast)
    avals = [list(group) for group in avals]
    passed = traced(lambda _, __, *args: list(args[count:]), *avals)
    values, slopes = (traced(lambda *args, i=i: whole(args[i], *args[2:]), *avals) for i in (0, 1))
    seldom = SeldomPiece(values, slopes, passed, 2 + count)
    return jax.tree_util.tree_unflatten(structure, seldom(~clear, ~smooth, *arrays, *fast))
