"""Batches in tiles, which stay in the cache."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def size_of(batched: Sequence[bool], arrays: Sequence[Array]) -> tuple[int, ...]:
    """The size of the batch, or nothing if there is none."""
    return next(((x.shape[0],) for x, b in zip(arrays, batched, strict=True) if b), ())


def in_tiles(
    function: Callable[..., Any], tile: int, start: Any, axes: Sequence[int | None], arrays: Sequence[Array]
) -> Any:
    """`function` of one tile after the other, the last of which overlaps the one before.

    `start`: a tree of arrays, as `function` makes it of the whole batch, which is no smaller than a tile, with the
    batch as their first axis; `axes`: where the batch is in the arrays.
    """
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)

    def step(i, carry):
        at = jnp.minimum(i * tile, size - tile)
        cut = lambda x, axis: x if axis is None else lax.dynamic_slice_in_dim(x, at, tile, axis)
        put = lambda x, y: lax.dynamic_update_slice_in_dim(x, y, at, 0)
        return jax.tree_util.tree_map(put, carry, function(*map(cut, arrays, axes)))

    return lax.fori_loop(0, -(-size // tile), step, start)
