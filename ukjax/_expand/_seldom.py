"""Pieces of which most is evaluated only where it is needed."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._piece import AbstractTracedPiece
from ._scalar import over_batch


# A batch is asked in tiles, so that one state that needs it costs no more than a tile.
TILE = 256


class SeldomPiece(AbstractTracedPiece):
    """A traced function whose first argument tells whether it is needed; `otherwise` gives the same where it is not."""

    def __init__(self, closed: ClosedJaxpr, otherwise: ClosedJaxpr, passed: int | None = None):
        """With `passed`, the arguments from there on are the results where it is not needed, each its own only."""
        super().__init__(closed)
        self.otherwise, self.passed = otherwise, passed

    def through(self, change):
        return SeldomPiece(change(self.closed), change(self.otherwise))

    def depends(self, argument, given):
        return self.passed is None or argument < self.passed or argument - self.passed in given

    def evaluate(self, batched, *arrays):
        needed, *_ = arrays
        whole, short = (over_batch(jaxpr_as_fun(x), batched) for x in (self.closed, self.otherwise))
        wide = lambda *xs: [
            jnp.broadcast_to(x, (*_size(batched, xs), *y.shape)) for x, y in zip(short(*xs), self.gives)
        ]
        at_once = lambda *xs: lax.cond(jnp.any(xs[0]), lambda *xs: list(whole(*xs)), wide, *xs)
        if not batched[0] or needed.shape[0] <= TILE:
            return at_once(*arrays)
        tiled = lambda *xs: lax.cond(jnp.any(xs[0]), lambda *xs: _in_tiles(at_once, wide, batched, xs), wide, *xs)
        return lax.platform_dependent(*arrays, cpu=tiled, default=at_once)


def _size(batched: Sequence[bool], arrays: Sequence[Array]) -> tuple[int, ...]:
    return next(((x.shape[0],) for x, b in zip(arrays, batched, strict=True) if b), ())


def _in_tiles(
    function: Callable[..., Any], start: Callable[..., Any], batched: Sequence[bool], arrays: Sequence[Array]
) -> list[Array]:
    """`function` of one tile after the other, the last of which overlaps the one before."""
    size = arrays[0].shape[0]

    def step(i, carry):
        at = jnp.minimum(i * TILE, size - TILE)
        cut = lambda x, b: lax.dynamic_slice_in_dim(x, at, TILE) if b else x
        found = function(*map(cut, arrays, batched))
        return [lax.dynamic_update_slice_in_dim(x, y, at, 0) for x, y in zip(carry, found, strict=True)]

    return lax.fori_loop(0, -(-size // TILE), step, start(*arrays))
