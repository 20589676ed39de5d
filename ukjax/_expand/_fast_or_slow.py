"""A fast piece where it is certain, and a slow function elsewhere, as one piece.

The slow function is evaluated only where it is needed. The derivatives are single pieces too: the fast derivative
itself reports whether it is certain. So neither the value nor a second derivative of zeros is computed on the way.

x: arguments; values: results of the fast piece; leaves: results of the whole.
"""

import abc
import functools as ft
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, PyTree

from .._lowering import Traceable, can_be_deferred
from .._lowering._program import Program
from .._lowering._stages import NativeProgram
from .._program import with_results
from ._graph import TooLong
from ._interpret import interpret
from ._piece import (
    AbstractBatchedOp,
    AbstractChangedPiece,
    AbstractSmallOp,
    Change,
    EvalForm,
    Shaped,
    traced,
    traced_cotangent,
    traced_tangent,
)
from ._scalar import over_batch, size_of
from ._scalar_piece import AbstractCertainPiece, AbstractJudgedSlope, PlainPiece, SureWays, along_axes, inlined


# On a GPU, where every check costs a pause, the states of a batch that need a function are gathered into tiles.
TILE = 256
FEW = 8  # they are gathered if they are no more than one in so many of the batch


T = TypeVar("T")
# A function of arrays that returns arrays.
OfArrays = Callable[..., Sequence[Array]]


class AbstractSeldomPiece(AbstractChangedPiece):
    """A function that is needed, and traced, only where its argument number `flag` is set.

    `otherwise` gives the same results where the flag is not set. The derivatives are those of `slope`.
    """

    flag: int

    def __init__(self, function: Traceable, otherwise: ClosedJaxpr, slope: Traceable | None = None):
        super().__init__(function.in_avals, function.out_avals)
        self.function, self.otherwise, self.slope = function, otherwise, function if slope is None else slope
        self._ways = SureWays()
        self._along: dict[tuple[tuple[int | None, ...], int], tuple[AbstractSeldomPiece, list[int]]] = {}

    @abc.abstractmethod
    def each(self, change: Change) -> "AbstractSeldomPiece":
        """The piece with each of its functions changed."""

    def through(self, change):
        otherwise = change(self.otherwise)
        return GuardedDerivative(self.slope.changed(change, otherwise.in_avals, otherwise.out_avals), otherwise)

    def along(self, axes, size):
        # Directions share a state: it need not be repeated for each, nor need the values passed on be moved.
        if axes[self.flag] is not None:
            return None
        if (axes, size) not in self._along:
            avals = along_axes(self.takes, axes, size)
            passed = self.otherwise.jaxpr
            lie = dict(zip(map(id, passed.invars), axes, strict=True))
            found = [lie.get(id(x)) or 0 for x in passed.outvars]

            def every(closed: ClosedJaxpr) -> ClosedJaxpr:
                return traced(jax.vmap(jaxpr_as_fun(closed), axes, found), avals)

            self._along[axes, size] = self.each(every), found
        return self._along[axes, size]

    def inline(self, graph, batched, arguments):
        graph.doubts.extend(arguments[self.flag].flat)
        return inlined(graph, self.otherwise, batched, arguments)

    def evaluate(self, form, *arrays):
        if form.native and can_be_deferred(self.function):
            form, arrays = form.wide(arrays)
            fast = list(over_batch(jaxpr_as_fun(self.otherwise), form.batched)(*arrays))
            return self._ways.mended(self.function, form, arrays[self.flag], arrays, fast)
        whole, otherwise = jaxpr_as_fun(self.function.closed), jaxpr_as_fun(self.otherwise)
        return _evaluated(form, self.flag, whole, otherwise, self.gives, arrays)


def _evaluated(
    form: EvalForm, flag: int, closed: OfArrays, otherwise: OfArrays, gives: Sequence[Shaped], arrays: Sequence[Array]
) -> list[Array]:
    """The results of `closed`, of shapes as in `gives`, or those of `otherwise`, the same where the flag is not set."""
    batched, needed = form.batched, arrays[flag]
    whole, short = (over_batch(x, batched) for x in (closed, otherwise))

    def wide(*xs: Array) -> list[Array]:
        size = size_of(batched, xs)
        return [jnp.broadcast_to(x, (*size, *y.shape)) for x, y in zip(short(*xs), gives)]

    def at_once(*xs: Array) -> list[Array]:
        return lax.cond(jnp.any(xs[flag]), lambda *xs: list(whole(*xs)), wide, *xs)

    if form.on_cpu or not batched[flag] or needed.shape[0] <= TILE:
        return at_once(*arrays)
    return _gathered(whole, needed, wide(*arrays), batched, arrays)


def _gathered(
    function: OfArrays, needed: Array, start: Sequence[Array], batched: Sequence[bool], arrays: Sequence[Array]
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

    def step(carry):
        return lax.cond(jnp.sum(carry[0]) > size // FEW, everything, some_of_them, *carry)

    return lax.while_loop(lambda carry: jnp.any(carry[0]), step, (needed, list(start)))[1]


def where_needed(
    slow: Traceable, form: EvalForm, needed: Array, arrays: Sequence[Array], fast: Sequence[Array], ways: SureWays
) -> list[Array]:
    """The results of `slow` where it is needed, and `fast` elsewhere; `form` is that of all three together."""
    if form.native and can_be_deferred(slow):
        some, arrays = form._replace(batched=form.batched[1 : 1 + len(arrays)]).wide(arrays)
        return ways.mended(slow, some, needed, arrays, fast)

    def passed(_: Array, *args: Array) -> list[Array]:
        return list(args[len(arrays) :])

    return _evaluated(form, 0, _mended(slow.closed), passed, slow.out_avals, [needed, *arrays, *fast])


def _mended(slow: ClosedJaxpr) -> OfArrays:
    """The function (needed, x, leaves) -> the results of `slow` if these are needed, else the leaves."""
    count = len(slow.in_avals)

    def whole(needed, *args):
        others = jaxpr_as_fun(slow)(*args[:count])
        return [jnp.where(needed, x, y) for x, y in zip(others, args[count:], strict=True)]

    return whole


class DeferredOp(AbstractBatchedOp):
    """The function (needed, x, leaves) -> leaves; of one state it is traced and compiled when it is first needed.

    Where it is not needed it gives the leaves that it takes. A batch is computed at once: its members tell by `needed`
    who has nothing to do.
    """

    def __init__(self, slow: Traceable):
        super().__init__(slow.in_avals, slow.out_avals)
        self.slow, self._ways = slow, SureWays()

    def evaluate(self, form, *arrays):
        if any(form.batched) or not form.native or not can_be_deferred(self.slow):
            return over_batch(jaxpr_as_fun(self.slow.closed), form.batched)(*arrays)
        return self._ways.mended(self.slow, form, arrays[0], arrays, arrays[len(arrays) - len(self.gives) :])


def deferred(function: Callable[..., T], needed: Array, given: PyTree, otherwise: T) -> T:
    """The tree `function(needed, given, otherwise)`, like `otherwise`, which it is where it is not `needed`.

    On a CPU the function of one state is traced and compiled when it is first needed. It closes over no array being
    traced.
    """
    leaves, structure = jax.tree_util.tree_flatten((needed, given, otherwise))

    def flat(*leaves: Array) -> list[Array]:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(structure, leaves)))

    kept, form = jax.tree_util.tree_flatten(otherwise)
    avals = [ShapedArray(x.shape, x.dtype) for x in map(jnp.asarray, leaves)]
    slow = Traceable(lambda: traced(flat, avals), avals, avals[len(leaves) - len(kept) :], False)
    return jax.tree_util.tree_unflatten(form, DeferredOp(slow)(*leaves))


def guarded_by(slow: Traceable) -> "GuardedOp":
    """The piece (not clear, not smooth, x, leaves) -> the leaves, with values or slopes of `slow` where not certain."""
    count, leaves = len(slow.in_avals), slow.out_avals
    flags = [ShapedArray((), np.dtype(bool))] * 2
    avals = [*flags, *slow.in_avals, *leaves]

    def where(flag: int) -> Traceable:
        def trace(closed: ClosedJaxpr) -> ClosedJaxpr:
            whole = _mended(closed)
            return traced(lambda *args: whole(args[flag], *args[2:]), avals)

        return slow.changed(trace, avals, leaves)

    return GuardedOp(where(0), where(1), traced(lambda _, __, *args: list(args[count:]), avals), 2 + count)


class GuardedOp(AbstractSeldomPiece):
    """A guarded piece whose derivatives are those of `slope`, which is needed where the second argument is set."""

    flag = 0

    def __init__(self, function: Traceable, slope: Traceable, otherwise: ClosedJaxpr, passed: int):
        """Takes the functions; arguments from `passed` on are the results where it is not needed, each only its own."""
        super().__init__(function, otherwise, slope)
        self.passed = passed

    def each(self, change):
        otherwise = change(self.otherwise)
        types = otherwise.in_avals, otherwise.out_avals
        function, slope = self.function.changed(change, *types), self.slope.changed(change, *types)
        return GuardedOp(function, slope, otherwise, self.passed)

    def depends(self, argument, given):
        return argument < self.passed or argument - self.passed in given


class GuardedDerivative(AbstractSeldomPiece):
    """A derivative of a `GuardedOp`, of any order."""

    flag = 1

    def each(self, change):
        otherwise = change(self.otherwise)
        return GuardedDerivative(self.function.changed(change, otherwise.in_avals, otherwise.out_avals), otherwise)


class FastOrSlowOp(AbstractSmallOp):
    """The piece x -> leaves: `found` of the values of a fast piece where that is certain, and `slow` elsewhere.

    Args:
        fast: The fast piece, of the first of x.
        found: values -> leaves, of which the inexact ones are values, or have no derivative.
        slow: x -> leaves.
    """

    def __init__(self, fast: AbstractCertainPiece, found: ClosedJaxpr, slow: Traceable):
        super().__init__(slow.in_avals, slow.out_avals)
        self.fast, self.found, self.slow, self.known = fast, found, slow, len(fast.takes)
        self._ways = SureWays()
        place = {id(x): i for i, x in enumerate(found.jaxpr.invars)}
        # The index of the value that each leaf is, or None.
        self.origin = [place.get(id(x)) for x in found.jaxpr.outvars]

    @ft.cached_property
    def guarded_slow(self) -> GuardedOp:
        return guarded_by(self.slow)

    @ft.cached_property
    def native(self) -> NativeProgram:
        """x -> the leaves, and whether they are in doubt, as one program."""
        fast = self.fast.scalar
        *values, clear, _ = fast.results
        leaves = interpret(fast.graph, self.found, values)
        doubt = fast.graph.negation(clear.item())
        program = Program(fast.inputs, [*(x for leaf in leaves for x in leaf.ravel()), doubt])
        return NativeProgram.of(program, self.takes, [*self.gives, ShapedArray((), np.dtype(bool))])

    def inline_one(self, graph, arguments):
        *values, clear, _ = self.fast.inline(graph, (False,) * self.known, arguments[: self.known])
        graph.doubts.append(graph.negation(clear.item()))
        return interpret(graph, self.found, values)

    def evaluate(self, form, *arrays):
        if form.on_arrays:
            return over_batch(jaxpr_as_fun(self.slow.closed), form.batched)(*arrays)
        if form.native and self.native.is_possible and can_be_deferred(self.slow):
            form, arrays = form.wide(arrays)
            found = self.native(form.batched, arrays, self._ways.of(self.slow, form.batched), form.gpu)
            if found is not None:
                return found[:-1]
        fast = over_batch(self.fast, form.batched[: self.known])
        *values, clear, _ = fast(*arrays[: self.known])
        wide = (any(form.batched[: self.known]),)
        leaves = over_batch(jaxpr_as_fun(self.found), wide * len(values))(*values)
        batched = (*form.batched, *wide * len(leaves))
        form = form._replace(batched=(*wide, *batched))
        return where_needed(self.slow, form, ~clear, arrays, leaves, self._ways)

    @ft.cached_property
    def whole(self) -> ClosedJaxpr:
        """The whole function by pieces, each of which has derivatives of any order."""

        def by_parts(*arrays):
            *values, clear, smooth = self.fast(*arrays[: self.known])
            return self.guarded_slow(~clear, ~smooth, *arrays, *jaxpr_as_fun(self.found)(*values))

        return traced(by_parts, self.takes)

    def make_some(self, outputs):
        gives = [self.gives[i] for i in outputs]
        slow = self.slow.changed(lambda closed: with_results(closed, outputs), self.takes, gives)
        return FastOrSlowOp(self.fast, with_results(self.found, outputs), slow)

    def make_tangent(self, moving):
        return _ChosenTangent(self, moving)

    def make_cotangent(self, moving, given):
        return _ChosenCotangent(self, moving, given)


class AbstractFastOrSlowSlope(AbstractSmallOp):
    """A derivative of a chosen piece; further derivatives are those of its parts."""

    base: FastOrSlowOp

    def __init__(self, takes: Sequence[Shaped], gives: Sequence[Shaped]):
        super().__init__(takes, gives)
        self._ways = SureWays()
        self._along: dict[tuple[tuple[int | None, ...], int], FastOrSlowDirections] = {}

    @abc.abstractmethod
    def make_judged(self) -> tuple[AbstractJudgedSlope, OfArrays] | None:
        """A derivative of the fast piece, and that of the leaves by it, with whether it is certain; or None."""

    @abc.abstractmethod
    def make_slow(self) -> Traceable:
        """The derivative by the slow function."""

    @ft.cached_property
    def judged(self) -> tuple[AbstractJudgedSlope, OfArrays] | None:
        return self.make_judged()

    @property
    def fast(self) -> OfArrays | None:
        """The derivative by the fast piece, and whether it is certain; None if that is no scalar program."""
        return None if self.judged is None or self.judged[0].program is None else self.judged[1]

    @ft.cached_property
    def slow(self) -> Traceable:
        return self.make_slow()

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

    def along(self, axes, size):
        if any(i is not None for i in axes[: len(self.base.takes)]):
            return None
        if (axes, size) not in self._along:
            self._along[axes, size] = FastOrSlowDirections(self, axes, size)
        return self._along[axes, size], [0] * len(self.gives)

    def inline(self, graph, batched, arguments):
        if self.judged is None:
            return super().inline(graph, batched, arguments)
        *values, smooth = inlined(graph, self._traced_fast, batched, arguments)
        graph.doubts.extend(map(graph.negation, smooth.flat))
        return values

    @ft.cached_property
    def _traced_fast(self) -> ClosedJaxpr:
        assert self.judged is not None
        return traced(self.judged[1], self.takes)

    def evaluate(self, form, *arrays):
        if form.on_arrays:
            return over_batch(jaxpr_as_fun(self.slow.closed), form.batched)(*arrays)
        fast = self.fast
        if fast is None:
            return self.plain.evaluate(form, *arrays)
        *found, smooth = over_batch(fast, form.batched)(*arrays)
        wide = any(form.batched)
        batched = (wide, *form.batched, *(wide,) * len(found))
        return where_needed(self.slow, form._replace(batched=batched), ~smooth, arrays, found, self._ways)


class FastOrSlowDirections(AbstractFastOrSlowSlope):
    """A derivative of a chosen piece along several directions at one state.

    What depends on the state alone is computed once. `axes`: those of the arguments that have one for each direction.
    """

    def __init__(self, one: AbstractFastOrSlowSlope, axes: tuple[int | None, ...], count: int):
        super().__init__(along_axes(one.takes, axes, count), along_axes(one.gives, [0] * len(one.gives), count))
        self.base, self.one, self.axes, self.count = one.base, one, axes, count

    def _each(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """A function of one direction for all of them."""
        return traced(jax.vmap(jaxpr_as_fun(closed), self.axes), self.takes)

    def make_judged(self):
        judged = self.one.judged
        if judged is None:
            return None
        piece, derivative = judged

        def every(*args):
            *found, smooth = jax.vmap(derivative, self.axes)(*args)
            return [*found, jnp.all(smooth)]  # which is the same for all directions

        return piece, every

    def make_slow(self):
        return self.one.slow.changed(self._each, self.takes, self.gives)

    @property
    def by_parts(self):
        return self._each(self.one.by_parts)

    def make_some(self, outputs):
        some = self.one.some(outputs)
        return FastOrSlowDirections(some, self.axes, self.count) if isinstance(some, AbstractFastOrSlowSlope) else None

    def along(self, axes, size):
        return None

    def transposed(self, linear: tuple[int, ...], given: tuple[int, ...]) -> AbstractSmallOp:
        """The transpose in the arguments in which it is `linear`: see `AbstractChangedPiece`."""
        return self.plain.transposed(linear, given)

    def inline(self, graph, batched, arguments):
        if self.count * self.base.fast.scalar.program.length > graph.most_along:
            raise TooLong("directions one by one")
        return super().inline(graph, batched, arguments)


class _ChosenTangent(AbstractFastOrSlowSlope):
    """The piece (x, dx of those that are `moving`) -> tangents of the inexact leaves."""

    def __init__(self, base: FastOrSlowOp, moving: tuple[int, ...]):
        self.base, self.moving = base, moving
        super().__init__((*base.takes, *(base.takes[i] for i in moving)), [base.gives[i] for i in base.inexact])

    def make_judged(self):
        base, count = self.base, len(self.base.takes)
        here = tuple(i for i in self.moving if i < base.known)
        if not here:
            return None
        moved = [count + k for k, i in enumerate(self.moving) if i < base.known]
        leaves = {base.origin[i] for i in base.inexact}
        values = tuple(i for i in base.fast.inexact if i in leaves)
        piece = base.fast.judged_tangent(here, values)

        def tangent(*args):
            *changes, smooth = piece(*args[: base.known], *(args[k] for k in moved))
            of: dict[int | None, Array] = dict(zip(values, changes, strict=True))
            return [*(_or_zero(of.get(base.origin[i]), base.gives[i]) for i in base.inexact), smooth]

        return piece, tangent

    def make_slow(self):
        change = ft.partial(traced_tangent, moving=self.moving, results=self.base.inexact)
        return self.base.slow.changed(change, self.takes, self.gives)

    @property
    def by_parts(self):
        return traced_tangent(self.base.whole, self.moving, self.base.inexact)


class _ChosenCotangent(AbstractFastOrSlowSlope):
    """The piece (x, cotangents of the leaves that are `given`) -> those of the x that are `moving`."""

    def __init__(self, base: FastOrSlowOp, moving: tuple[int, ...], given: tuple[int, ...]):
        self.base, self.moving, self.given = base, moving, given
        super().__init__((*base.takes, *(base.gives[i] for i in given)), [base.takes[i] for i in moving])

    def make_judged(self):
        base, count = self.base, len(self.base.takes)
        here = tuple(i for i in self.moving if i < base.known)
        leaves = [(count + k, base.origin[i]) for k, i in enumerate(self.given)]
        values = sorted({i for _, i in leaves if i is not None})
        if not here or not values:
            return None
        piece = base.fast.judged_cotangent(here, tuple(values))

        def cotangent(*args):
            weights = [ft.reduce(jnp.add, (args[k] for k, j in leaves if j == i)) for i in values]
            *found, smooth = piece(*args[: base.known], *weights)
            of = dict(zip(here, found, strict=True))
            return [*(_or_zero(of.get(i), base.takes[i]) for i in self.moving), smooth]

        return piece, cotangent

    def make_slow(self):
        change = ft.partial(traced_cotangent, moving=self.moving, results=self.given)
        return self.base.slow.changed(change, self.takes, self.gives)

    @property
    def by_parts(self):
        return traced_cotangent(self.base.whole, self.moving, self.given)


def _or_zero(x: Array | None, like: ShapedArray) -> Array:
    return jnp.zeros(like.shape, like.dtype) if x is None else x
