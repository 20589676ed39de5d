"""Guarded pieces, most of which is evaluated only where it is needed."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._linalg import in_tiles
from ._piece import AbstractTracedPiece, EvalForm, traced
from ._scalar import over_batch, size_of


# A batch is checked tile by tile, so that one state that needs the function costs no more than a tile. On a GPU, where
# every check costs a pause, the states that need it are gathered into tiles instead.
TILE = 256
FEW = 8  # they are gathered if they are no more than one in so many of the batch


class AbstractSeldomPiece(AbstractTracedPiece):
    """A traced function that is needed only where its argument number `flag` is set.

    `otherwise` gives the same results where the flag is not set.
    """

    flag: int
    otherwise: ClosedJaxpr

    def __init__(self, closed: ClosedJaxpr):
        super().__init__(closed)
        self._along: dict[Any, tuple[AbstractSeldomPiece, list[int]]] = {}

    @abc.abstractmethod
    def each(self, change: Callable[[ClosedJaxpr], ClosedJaxpr]) -> "AbstractSeldomPiece":
        """The piece with each of its functions changed."""

    def along(self, axes, size):
        # Directions share a state: it need not be repeated for each, nor need the values passed on be moved.
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
    form: EvalForm, flag: int, closed: Callable, otherwise: Callable, gives: Sequence[Any], arrays: Sequence[Array]
) -> list[Array]:
    """The results of `closed`, of shapes as in `gives`, or those of `otherwise`, the same where the flag is not set."""
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
    # No tile is run if no state needs it: a conditional would copy the values passed on.
    return in_tiles(at_once, TILE, wide(*arrays), axes, arrays, jnp.any(needed))


def _gathered(
    function: Callable, needed: Array, start: Sequence[Array], batched: Sequence[bool], arrays: Sequence[Array]
) -> list[Array]:
    """The results of `function` for the states of a batch that need it, and `start` for the others.

    A tile of states is taken at a time if they are few; many tiles would take longer than the whole batch.
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
    slow: ClosedJaxpr, form: EvalForm, needed: Array, arrays: Sequence[Array], fast: Sequence[Array]
) -> list[Array]:
    """The results of `slow` where it is needed, and `fast` elsewhere; `form` is that of all three together."""
    passed = lambda _, *args: list(args[len(arrays) :])
    return _evaluated(form, 0, _mended(slow), passed, slow.out_avals, [needed, *arrays, *fast])


def _mended(slow: ClosedJaxpr) -> Callable[..., list[Array]]:
    """The function (needed, x, leaves) -> the results of `slow` if these are needed, else the leaves."""
    count = len(slow.in_avals)

    def whole(needed, *args):
        others = jaxpr_as_fun(slow)(*args[:count])
        return [jnp.where(needed, x, y) for x, y in zip(others, args[count:], strict=True)]

    return whole


def guarded_by(slow: ClosedJaxpr, leaves: Sequence[Any]) -> "GuardedOp":
    """The piece (not clear, not smooth, x, leaves) -> the leaves, with values or slopes of `slow` where not certain."""
    count, whole = len(slow.in_avals), _mended(slow)
    avals = [jax.ShapeDtypeStruct((), bool)] * 2, slow.in_avals, leaves
    passed = traced(lambda _, __, *args: list(args[count:]), *avals)
    values, slopes = (traced(lambda *args, i=i: whole(args[i], *args[2:]), *avals) for i in (0, 1))
    return GuardedOp(values, slopes, passed, 2 + count)


class GuardedOp(AbstractSeldomPiece):
    """A guarded piece whose derivatives are those of `slope`, which is needed where the second argument is set."""

    flag = 0

    def __init__(self, closed: ClosedJaxpr, slope: ClosedJaxpr, otherwise: ClosedJaxpr, passed: int):
        """Takes the functions; arguments from `passed` on are the results where it is not needed, each only its own."""
        super().__init__(closed)
        self.slope, self.otherwise, self.passed = slope, otherwise, passed

    def each(self, change):
        return GuardedOp(change(self.closed), change(self.slope), change(self.otherwise), self.passed)

    def through(self, change):
        return GuardedDerivative(change(self.slope), change(self.otherwise))

    def depends(self, argument, given):
        return argument < self.passed or argument - self.passed in given


class GuardedDerivative(AbstractSeldomPiece):
    """A derivative of a `GuardedOp`, of any order."""

    flag = 1

    def __init__(self, closed: ClosedJaxpr, otherwise: ClosedJaxpr):
        super().__init__(closed)
        self.otherwise = otherwise

    def each(self, change):
        return GuardedDerivative(change(self.closed), change(self.otherwise))

    def through(self, change):
        return self.each(change)
