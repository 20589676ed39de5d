"""The motion by a fast path where that is certain, and by a fallback elsewhere."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._entry import NotScalar
from ._expand import with_constants_as_arguments
from ._fast_or_slow import CertainScalars, FastOrSlowOp
from ._graph import TooLong
from ._guarded_op import guarded_by
from ._motion import Certain, MotionPiece
from ._piece import traced
from ._scalar import ScalarPiece


def guarded_motion(
    otherwise: Callable[..., Any],
    found: Callable[[Array, Array, Array, Array, Array], Any],
    certain: Certain,
    limit: int,
    terms: ClosedJaxpr,
    state: list[Array],
    more: ClosedJaxpr | None = None,
) -> Any | None:
    """A tree of arrays from M, Q, A, b at a state, by `found` from a scalar program, or by the fallback `otherwise`.

    Args:
        otherwise: (M, Q, A, b, and the results of `more`) -> the tree.
        found: (q'', a, constraint force, residual, rows that count) -> the tree, where the program is certain of them.
        certain: The thresholds for being certain.
        limit: Most operations of the program.
        terms: state -> M, Q, A, b, traced.
        state: Arrays.
        more: state -> further arguments of `otherwise`, traced.

    Returns:
        The tree; None if there is no such program.
    """
    closed, further = with_constants_as_arguments(terms)
    try:
        piece = MotionPiece(closed, certain, limit, vanishing=more is not None)
    except (TooLong, NotScalar):
        return None
    tree, structure = _leaves_of(found, piece.gives[:-2])
    otherwise, arrays = _with_more(otherwise, piece.terms, [*state, *further], len(state), more)
    slow = traced(lambda *arrays: jax.tree_util.tree_leaves(otherwise(*arrays)), map(jax.typeof, arrays))
    return jax.tree_util.tree_unflatten(structure, FastOrSlowOp(piece, tree, slow)(*arrays))


def _with_more(
    otherwise: Callable[..., Any],
    terms: Callable[..., Sequence[Array]],
    arrays: list[Array],
    count: int,
    more: ClosedJaxpr | None,
) -> tuple[Callable[..., Any], list[Array]]:
    """Makes `otherwise` a function of arrays; returns it, and the arrays, of which the first `count` are the state."""
    if more is None:
        return lambda *arrays: otherwise(*terms(*arrays)), arrays
    closed, unknown = with_constants_as_arguments(more)
    known = len(arrays)
    both = lambda *args: otherwise(*terms(*args[:known]), *jaxpr_as_fun(closed)(*args[:count], *args[known:]))
    return both, [*arrays, *unknown]


def guarded(
    otherwise: Callable[..., Any],
    found: Any,
    clear: Array,
    smooth: Array,
    terms: ClosedJaxpr,
    state: list[Array],
    limit: int | None = None,
    more: ClosedJaxpr | None = None,
) -> Any:
    """A tree of arrays: `found` where it is `clear`, and its derivatives where it is `smooth`, or else `otherwise`.

    `otherwise`, `terms`, `state`, `more`: as for `guarded_motion`. `otherwise` is evaluated only where it is needed.
    `limit`: most operations of `terms` as scalar code; None for operations on arrays.
    """
    closed, further = with_constants_as_arguments(terms)
    of = jaxpr_as_fun(closed) if limit is None else ScalarPiece(closed, limit)
    leaves, structure = jax.tree_util.tree_flatten(found)
    leaves = [jnp.asarray(x) for x in leaves]
    otherwise, arrays = _with_more(otherwise, of, [*state, *further], len(state), more)
    slow = traced(lambda *arrays: jax.tree_util.tree_leaves(otherwise(*arrays)), map(jax.typeof, arrays))
    mended = guarded_by(slow, [jax.typeof(x) for x in leaves])(~clear, ~smooth, *arrays, *leaves)
    return jax.tree_util.tree_unflatten(structure, mended)


def guarded_scalars(
    otherwise: Callable[..., Any], found: Callable[..., tuple[Any, Array, Array]], limit: int, state: Sequence[Array]
) -> Any | None:
    """A tree of arrays at a state, by `found` as scalar code where that is certain, or by the fallback `otherwise`.

    Args:
        otherwise: (*state) -> the tree.
        found: (*state) -> the tree, whether it is certain, and whether its derivatives are; raises NotScalar where it
            is not possible.
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
        piece = CertainScalars(closed, limit)
    except (TooLong, NotScalar):
        return None
    kept, unknown = with_constants_as_arguments(
        jax.make_jaxpr(lambda *state: jax.tree_util.tree_leaves(otherwise(*state)))(*state)
    )
    first, known = len(state), len(piece.takes)
    arrays = [*state, *further, *unknown]
    slow = traced(lambda *args: jaxpr_as_fun(kept)(*args[:first], *args[known:]), map(jax.typeof, arrays))
    tree, _ = _leaves_of(lambda *values: values, piece.gives[:-2])
    return jax.tree_util.tree_unflatten(structures[0], FastOrSlowOp(piece, tree, slow)(*arrays))


def _leaves_of(found: Callable[..., Any], values: Sequence[Any]) -> tuple[ClosedJaxpr, Any]:
    """The leaves of the tree that `found` makes of values like these, and its structure."""
    structures: list[Any] = []

    def leaves(*values):
        flat, structure = jax.tree_util.tree_flatten(found(*values))
        structures.append(structure)
        return [jnp.asarray(x) for x in flat]

    return traced(leaves, values), structures[0]
