"""Pieces of which most is evaluated only where it is needed."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._linalg import in_tiles
from ._piece import AbstractTracedPiece, Form, traced
from ._scalar import over_batch, size_of


# A batch is asked in tiles, so that one state that needs it costs no more than a tile. A GPU, to which every question
# costs a pause, gathers those that need it into tiles instead.
TILE = 256
FEW = 8  # it gathers them if they are no more than this part of the batch


class AbstractSeldomPiece(AbstractTracedPiece):
    """A traced function of which an argument, number `flag`, tells whether it is needed.

    `otherwise` gives the same where it is not.
    """

    flag: int
    otherwise: ClosedJaxpr

    def __init__(self, closed: ClosedJaxpr):
        super().__init__(closed)
        self._along: dict[Any, tuple[AbstractSeldomPiece, list[int]]] = {}

    @abc.abstractmethod
    def each(self, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> "AbstractSeldomPiece":
        """With each of its functions changed."""

    def along(self, axes, size):
        # Directions share a state. It need not be there for each of them, nor need what is passed on be moved.
        if axes[self.flag] is not None:
            return None
        if (axes, size) not in self._along:
            of = lambda x, i: x.shape if i is None else (*x.shape[:i], size, *x.shape[i:])
            avals = [jax.ShapeDtypeStruct(of(x, i), x.dtype) for x, i in zip(self.takes, axes, strict=True)]
            passed: Any = self.otherwise.jaxpr
            lie = dict(zip(map(id, passed.invars), axes, strict=True))
            found = [lie.get(id(x)) or 0 for x in passed.outvars]
            every = lambda closed: traced(jax.vmap(jaxpr_as_fun(closed), axes, found), avals)
            self._along[axes, size] = self.each(every), found
        return self._along[axes, size]

    def evaluate(self, form, *arrays):
        return _evaluated(form, self.flag, jaxpr_as_fun(self.closed), jaxpr_as_fun(self.otherwise), self.gives, arrays)


def _evaluated(
    form: Form, flag: int, closed: Callable, otherwise: Callable, gives: Sequence[Any], arrays: Sequence[Array]
) -> list[Array]:
    """What `closed` gives, of shapes as in `gives`, or `otherwise`, which is the same where the flag is not set."""
    batched, needed = form.batched, arrays[flag]
    whole, short = (over_batch(x, batched) for x in (closed, otherwise))
    whole_shape = lambda aval, xs: (*size_of(batched, xs), *aval.shape)
    wide = lambda *xs: [jnp.broadcast_to(x, whole_shape(y, xs)) for x, y in zip(short(*xs), gives)]
    at_once = lambda *xs: lax.cond(jnp.any(xs[flag]), lambda *xs: list(whole(*xs)), wide, *xs)
    if not batched[flag] or needed.shape[0] <= TILE:
        return at_once(*arrays)
    if not form.on_cpu:
        return _gathered(whole, needed, wide(*arrays), batched, arrays)
    axes = [0 if b else None for b in batched]
    # No tile where none needs it: a condition would copy what is passed on.
    return in_tiles(at_once, TILE, wide(*arrays), axes, arrays, jnp.any(needed))


def _gathered(
    function: Callable, needed: Array, start: Sequence[Array], batched: Sequence[bool], arrays: Sequence[Array]
) -> list[Array]:
    """`function` of the states of a batch that need it, and elsewhere what is there.

    A tile of them at a time if they are few; many tiles would take longer than the whole batch.
    """
    size = needed.shape[0]

    def everything(needed, found):
        return jnp.zeros_like(needed), list(function(*arrays))

    def some_of_them(needed, found):
        (index,) = jnp.nonzero(needed, size=TILE, fill_value=size)  # beyond the last: one again, put nowhere
        some = [jnp.take(x, index, axis=0, mode="clip") if b else x for x, b in zip(arrays, batched, strict=True)]
        found = [x.at[index].set(y, mode="drop") for x, y in zip(found, function(*some), strict=True)]
        return needed.at[index].set(False, mode="drop"), found

    step = lambda carry: lax.cond(jnp.sum(carry[0]) > size // FEW, everything, some_of_them, *carry)
    return lax.while_loop(lambda carry: jnp.any(carry[0]), step, (needed, list(start)))[1]


def where_needed(
    slow: ClosedJaxpr, form: Form, needed: Array, arrays: Sequence[Array], fast: Sequence[Array]
) -> list[Array]:
    """What `slow` makes of the arrays where it is needed, and `fast` elsewhere; of the form of all three together."""
    passed = lambda _, *args: list(args[len(arrays) :])
    return _evaluated(form, 0, _mended(slow), passed, slow.out_avals, [needed, *arrays, *fast])


def _mended(slow: ClosedJaxpr) -> Callable[..., list[Array]]:
    """(needed, x, leaves) -> what `slow` finds if that is needed, else the leaves."""
    count = len(slow.in_avals)

    def whole(needed, *args):
        others = jaxpr_as_fun(slow)(*args[:count])
        return [jnp.where(needed, x, y) for x, y in zip(others, args[count:], strict=True)]

    return whole


def unless(slow: ClosedJaxpr, leaves: Sequence[Any]) -> "SeldomPiece":
    """(not clear, not smooth, x, leaves) -> the leaves, or what `slow` finds where they, or their slopes, are not."""
    count, whole = len(slow.in_avals), _mended(slow)
    avals = [jax.ShapeDtypeStruct((), bool)] * 2, slow.in_avals, leaves
    passed = traced(lambda _, __, *args: list(args[count:]), *avals)
    values, slopes = (traced(lambda *args, i=i: whole(args[i], *args[2:]), *avals) for i in (0, 1))
    return SeldomPiece(values, slopes, passed, 2 + count)


class SeldomPiece(AbstractSeldomPiece):
    """One whose derivatives are those of `slope`, of which the second argument tells whether it is needed."""

    flag = 0

    def __init__(self, closed: ClosedJaxpr, slope: ClosedJaxpr, otherwise: ClosedJaxpr, passed: int):
        """The arguments from `passed` on are the results where it is not needed, each its own only."""
        super().__init__(closed)
        self.slope, self.otherwise, self.passed = slope, otherwise, passed

    def each(self, change):
        return SeldomPiece(change(self.closed), change(self.slope), change(self.otherwise), self.passed)

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

    def each(self, change):
        return SeldomSlope(change(self.closed), change(self.otherwise))

    def through(self, change):
        return self.each(change)
