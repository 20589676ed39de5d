"""Pieces of which most is evaluated only where it is needed."""

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from .._linalg import in_tiles
from ._piece import AbstractTracedPiece
from ._scalar import over_batch, size_of


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
        whole_shape = lambda aval, xs: (*size_of(batched, xs), *aval.shape)
        wide = lambda *xs: [jnp.broadcast_to(x, whole_shape(y, xs)) for x, y in zip(short(*xs), self.gives)]
        at_once = lambda *xs: lax.cond(jnp.any(xs[flag]), lambda *xs: list(whole(*xs)), wide, *xs)
        if not (form.on_cpu and batched[flag] and needed.shape[0] > TILE):
            return at_once(*arrays)
        axes = [0 if b else None for b in batched]
        return lax.cond(jnp.any(needed), lambda *xs: in_tiles(at_once, TILE, wide(*xs), axes, xs), wide, *arrays)


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
