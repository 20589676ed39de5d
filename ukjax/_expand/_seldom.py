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


class AbstractSeldomPiece(AbstractTracedPiece):
    """A traced function of which an argument, number `flag`, tells whether it is needed.

    `otherwise` gives the same where it is not.
    """

    flag: int
    otherwise: ClosedJaxpr

    def evaluate(self, form, *arrays):
        batched, flag, needed = form.batched, self.flag, arrays[self.flag]
        whole, short = (over_batch(jaxpr_as_fun(x), batched) for x in (self.closed, self.otherwise))
        whole_shape = lambda aval, xs: (*_size(batched, xs), *aval.shape)
        wide = lambda *xs: [jnp.broadcast_to(x, whole_shape(y, xs)) for x, y in zip(short(*xs), self.gives)]
        at_once = lambda *xs: lax.cond(jnp.any(xs[flag]), lambda *xs: list(whole(*xs)), wide, *xs)
        if not (form.on_cpu and batched[flag] and needed.shape[0] > TILE):
            return at_once(*arrays)
        return lax.cond(jnp.any(needed), lambda *xs: _in_tiles(at_once, wide, batched, xs), wide, *arrays)


class SeldomPiece(AbstractSeldomPiece):
    """One whose derivatives are those of `slope`, of which the second argument tells whether it is needed."""

    flag = 0

    def __init__(self, closed: ClosedJaxpr, slope: ClosedJaxpr, otherwise: ClosedJaxpr, passed: int):
        """The arguments from `passed` on are the results where it is not needed, each its own only."""
        super().__init__(closed)
        self.slope, self.otherwise, self.passed = slope, otherwise, passed

    def through(self, change):
        return SeldomSlope(change(self.slope), change(self.otherwise))

    def depends(self, argument, given):
        return argument < self.passed or argument - self.passed in given


class SeldomSlope(AbstractSeldomPiece):
    """A derivative of a `SeldomPiece`, of any order."""

    flag = 1

    def __init__(self, closed: ClosedJaxpr, otherwise: ClosedJaxpr):
        super().__init__(closed)
        self.otherwise = otherwise

    def through(self, change):
        return SeldomSlope(change(self.closed), change(self.otherwise))


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
