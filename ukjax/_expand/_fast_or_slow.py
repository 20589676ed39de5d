"""A fast piece where it is certain, and a slow function elsewhere, as one piece.

Its derivatives are single pieces too: the fast derivative itself reports whether it is certain. So neither the value
nor a second derivative of zeros is computed on the way to it.

x: arguments; values: results of the fast piece; leaves: results of the whole.
"""

import abc
import functools as ft
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._entry import NotScalar
from ._graph import TooLong
from ._guarded_op import GuardedOp, guarded_by, where_needed
from ._piece import AbstractBatchedOp, AbstractSmallOp, traced, traced_cotangent, traced_tangent
from ._scalar import PlainPiece, ScalarPiece, grown, over_batch


class AbstractCertainPiece(AbstractSmallOp):
    """A piece whose last two results tell whether the others are certain, and whether their derivatives are."""

    @abc.abstractmethod
    def judged_tangent(self, moving: tuple[int, ...]) -> AbstractBatchedOp | None:
        """The function (x, tangents of those `moving`) -> tangents of the inexact values, and whether they are certain.

        Returns None if that is no scalar program.
        """

    @abc.abstractmethod
    def judged_cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> AbstractBatchedOp | None:
        """The function (x, cotangents of the `given` values) -> those of the `moving` x, and whether certain."""


class CertainScalars(AbstractCertainPiece):
    """A traced function with such results as a `ScalarProgram` of at most `limit` operations; raises as that does."""

    def __init__(self, closed: ClosedJaxpr, limit: int):
        super().__init__(closed.in_avals, closed.out_avals)
        self.piece, self.closed, self.limit = ScalarPiece(closed, limit), closed, limit
        _ = self.piece.program

    def evaluate(self, form, *arrays):
        return self.piece.evaluate(form, *arrays)

    def make_tangent(self, moving):
        return self.piece.make_tangent(moving)

    def make_cotangent(self, moving, given):
        return self.piece.make_cotangent(moving, given)

    def judged_tangent(self, moving):
        return self._judged(traced_tangent(self.closed, moving, self.inexact))

    def judged_cotangent(self, moving, given):
        return self._judged(traced_cotangent(self.closed, moving, given))

    def _judged(self, slope: ClosedJaxpr) -> ScalarPiece | None:
        count = len(self.takes)
        judged = lambda *args: [*jaxpr_as_fun(slope)(*args), jaxpr_as_fun(self.closed)(*args[:count])[-1]]
        piece = ScalarPiece(traced(judged, slope.in_avals), grown(self.limit))
        try:
            _ = piece.program
        except (TooLong, NotScalar):
            return None
        return piece


class FastOrSlowOp(AbstractSmallOp):
    """The piece x -> leaves: `found` of the values of a fast piece where that is certain, and `slow` elsewhere.

    Args:
        fast: The fast piece, of the first of x.
        found: values -> leaves, of which the inexact ones are values, or have no derivative.
        slow: x -> leaves.
    """

    def __init__(self, fast: AbstractCertainPiece, found: ClosedJaxpr, slow: ClosedJaxpr):
        super().__init__(slow.in_avals, slow.out_avals)
        self.fast, self.found, self.slow, self.known = fast, found, slow, len(fast.takes)
        jaxpr: Any = found.jaxpr
        place = {id(x): i for i, x in enumerate(jaxpr.invars)}
        # The index of the value that each leaf is, or None.
        self.origin = [place.get(id(x)) for x in jaxpr.outvars]

    @ft.cached_property
    def guarded_slow(self) -> GuardedOp:
        return guarded_by(self.slow, self.gives)

    def evaluate(self, form, *arrays):
        fast = over_batch(self.fast, form.batched[: self.known])
        *values, clear, _ = fast(*arrays[: self.known])
        wide = (any(form.batched[: self.known]),)
        leaves = over_batch(jaxpr_as_fun(self.found), wide * len(values))(*values)
        batched = (*form.batched, *wide * len(leaves))
        return where_needed(self.slow, form._replace(batched=(*wide, *batched)), ~clear, arrays, leaves)

    @ft.cached_property
    def whole(self) -> ClosedJaxpr:
        """The whole function by pieces, each of which has derivatives of any order."""

        def by_parts(*arrays):
            *values, clear, smooth = self.fast(*arrays[: self.known])
            return self.guarded_slow(~clear, ~smooth, *arrays, *jaxpr_as_fun(self.found)(*values))

        return traced(by_parts, self.takes)

    def make_tangent(self, moving):
        return _ChosenTangent(self, moving)

    def make_cotangent(self, moving, given):
        return _ChosenCotangent(self, moving, given)


class _AbstractSlope(AbstractSmallOp):
    """A derivative of a chosen piece; further derivatives are those of its parts."""

    base: FastOrSlowOp

    @property
    @abc.abstractmethod
    def fast(self) -> Callable[..., list[Array]] | None:
        """The derivative by the fast piece, and whether it is certain; None if that is no scalar program."""

    @property
    @abc.abstractmethod
    def slow(self) -> ClosedJaxpr:
        """The derivative by the slow function."""

    @property
    @abc.abstractmethod
    def by_parts(self) -> ClosedJaxpr:
        """The derivative by parts: see `FastOrSlowOp.whole`."""

    @ft.cached_property
    def plain(self) -> PlainPiece:
        return PlainPiece(self.by_parts)

    def make_tangent(self, moving):
        return self.plain.make_tangent(moving)

    def make_cotangent(self, moving, given):
        return self.plain.make_cotangent(moving, given)

    def evaluate(self, form, *arrays):
        fast = self.fast
        if fast is None:
            return self.plain.evaluate(form, *arrays)
        *found, smooth = over_batch(fast, form.batched)(*arrays)
        wide = any(form.batched)
        batched = (wide, *form.batched, *(wide,) * len(found))
        return where_needed(self.slow, form._replace(batched=batched), ~smooth, arrays, found)


class _ChosenTangent(_AbstractSlope):
    """The piece (x, dx of those that are `moving`) -> tangents of the inexact leaves."""

    def __init__(self, base: FastOrSlowOp, moving: tuple[int, ...]):
        self.base, self.moving = base, moving
        super().__init__((*base.takes, *(base.takes[i] for i in moving)), [base.gives[i] for i in base.inexact])

    @ft.cached_property
    def fast(self):
        base, count = self.base, len(self.base.takes)
        here = tuple(i for i in self.moving if i < base.known)
        piece = base.fast.judged_tangent(here) if here else None
        if piece is None:
            return None
        moved = [count + k for k, i in enumerate(self.moving) if i < base.known]

        def tangent(*args):
            *changes, smooth = piece(*args[: base.known], *(args[k] for k in moved))
            of: dict[int | None, Array] = dict(zip(base.fast.inexact, changes, strict=True))
            return [*(_or_zero(of.get(base.origin[i]), base.gives[i]) for i in base.inexact), smooth]

        return tangent

    @ft.cached_property
    def slow(self):
        return traced_tangent(self.base.slow, self.moving, self.base.inexact)

    @property
    def by_parts(self):
        return traced_tangent(self.base.whole, self.moving, self.base.inexact)


class _ChosenCotangent(_AbstractSlope):
    """The piece (x, cotangents of the leaves that are `given`) -> those of the x that are `moving`."""

    def __init__(self, base: FastOrSlowOp, moving: tuple[int, ...], given: tuple[int, ...]):
        self.base, self.moving, self.given = base, moving, given
        super().__init__((*base.takes, *(base.gives[i] for i in given)), [base.takes[i] for i in moving])

    @ft.cached_property
    def fast(self):
        base, count = self.base, len(self.base.takes)
        here = tuple(i for i in self.moving if i < base.known)
        leaves = [(count + k, base.origin[i]) for k, i in enumerate(self.given)]
        values = sorted({i for _, i in leaves if i is not None})
        piece = base.fast.judged_cotangent(here, tuple(values)) if here and values else None
        if piece is None:
            return None

        def cotangent(*args):
            weights = [ft.reduce(jnp.add, (args[k] for k, j in leaves if j == i)) for i in values]
            *found, smooth = piece(*args[: base.known], *weights)
            of = dict(zip(here, found, strict=True))
            return [*(_or_zero(of.get(i), base.takes[i]) for i in self.moving), smooth]

        return cotangent

    @ft.cached_property
    def slow(self):
        return traced_cotangent(self.base.slow, self.moving, self.given)

    @property
    def by_parts(self):
        return traced_cotangent(self.base.whole, self.moving, self.given)


def _or_zero(x: Array | None, like: Any) -> Array:
    return jnp.zeros(like.shape, like.dtype) if x is None else x
