"""The first time at which one of several functions of the state crosses zero on the way.

g: event functions (k,), as `events(t, y)`; g': their rates along the motion; L: times at which a step is looked at.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ._flow import Problem
from ._lane import start_of, stepper_of
from ._march import Attempt, Place, before_end, march


LOOKS = 6  # times at which a step is looked at
BISECTIONS = 60
# Of the largest value of a function in a step: what a function that is continuous cannot change by at once.
JUMP = 1e-6


class Watch(NamedTuple):
    """What is known of event functions where the search begins; each (k,).

    Attributes:
        before: A number with the sign that a function has, or had; zero where that is not known.
        rates: g' at the beginning.
        at_zero: Whether a function begins at zero.
        floor: The size that the value of a function which begins at zero must exceed before its sign counts.
        rounding: What rounding makes of a value.
    """

    before: Array
    rates: Array
    at_zero: Array
    floor: Array
    rounding: Array


class Found(eqx.Module):
    """Where a solve first met an event, or how it ended.

    Attributes:
        t: Time of the event, or of the end.
        which: The number of the event; -1 for none.
        undefined: Whether an event function was no number.
        jumped: Whether the event function jumped over zero.
        tries: Attempted steps.
        result: That of diffrax.
    """

    t: Float[Array, ""]
    which: Int[Array, ""]
    undefined: Bool[Array, ""]
    jumped: Bool[Array, ""]
    tries: Int[Array, ""]
    result: Any


class _Bracket(eqx.Module):
    """A step in which functions cross zero, and between which times each of them does; (k,) all but `span`, `dense`."""

    span: tuple[Array, Array]
    dense: Any
    low: Array
    high: Array
    before: Array
    crossed: Array
    scale: Array


class _Notes(eqx.Module):
    """Signs and rates at the end of the last step; when each function was last seen on the side that it is on."""

    before: Array
    rates: Array
    seen: Array
    met: Array
    undefined: Array
    bracket: _Bracket


def first_crossing(
    problem: Problem,
    events: Callable[[Array, Array], Array],
    directions: np.ndarray,
    watch: Watch,
    wanted: Array,
) -> Found:
    """The first crossing on the way of a problem, from its first time to its last.

    Two crossings between two looks are found if the rate of the function changes its sign once between them.

    Args:
        problem: Its times count by the first and the last.
        events: (t, y) -> g (k,).
        directions: -1 for functions that are to fall through zero, 1 for those that are to rise, 0 for both.
        watch: What is known of the functions at the start.
        wanted: Whether to search at all; otherwise it ends where it begins. A span without length needs that.
    """
    stepper, start, end = stepper_of(problem), start_of(problem), problem.ts[-1]
    crossing = _Crossing(directions, watch)

    def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
        along = _along(problem, events, tried.span, tried.dense)
        before, rates, seen, values, bracket = crossing.looked_at(notes, tried, along)
        met = tried.keep & jnp.any(bracket.crossed)
        undefined = tried.keep & ~met & jnp.any(jnp.isnan(values))
        keep: Any = lambda which, new, old: jax.tree_util.tree_map(lambda a, b: jnp.where(which, a, b), new, old)
        before, rates, seen = keep(tried.keep, (before, rates, seen), (notes.before, notes.rates, notes.seen))
        return _Notes(before, rates, seen, met, undefined, keep(met, bracket, notes.bracket))

    shapes = jax.eval_shape(stepper.attempt, start)[1]
    dense = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.dense)
    nothing, begin = jnp.zeros_like(watch.before), jnp.full_like(watch.before, start.t)
    bracket = _Bracket((start.t, end), dense, begin, begin, nothing, jnp.zeros(nothing.shape, bool), nothing)
    lost = jnp.any(jnp.isnan(watch.before))
    notes = _Notes(watch.before, watch.rates, begin, jnp.asarray(False), lost, bracket)
    enough = lambda notes: notes.met | notes.undefined | ~wanted
    clip = lambda at, tried: before_end(at, tried, end)
    at, notes, result, tries = march(
        stepper, start, end, problem.max_steps, clip, note, notes, lambda notes: [], enough
    )
    t, which, jumped = crossing.root(notes.bracket, _along(problem, events, notes.bracket.span, notes.bracket.dense))
    # A solve that was stopped by an event did not run out of steps.
    result = diffrax.RESULTS.where(enough(notes), diffrax.RESULTS.successful, result)
    which = jnp.where(notes.met, which, -1)
    return Found(jnp.where(notes.met, t, at.t), which, notes.undefined, notes.met & jumped, tries, result)


def _along(problem: Problem, events: Callable, span: tuple[Array, Array], dense: Any) -> Callable:
    """t -> g and g' (k,) along the interpolant of a step."""
    state = problem.solver.interpolation_cls(t0=span[0], t1=span[1], **dense).evaluate
    return lambda t: jax.jvp(lambda t: events(t, state(t)), (t,), (jnp.ones_like(t),))


class _Crossing(NamedTuple):
    """Which crossings count; see `first_crossing`."""

    directions: np.ndarray
    watch: Watch

    def over(self, before: Array, value: Array) -> Array:
        """Which functions of a value (..., k) are on the other side, or at zero, if that is where they are to get."""
        directions = np.broadcast_to(self.directions, value.shape)
        return ((before > 0) & (value <= 0) & (directions <= 0)) | ((before < 0) & (value >= 0) & (directions >= 0))

    def clearly(self, before: Array, value: Array) -> Array:
        """The same, but of functions that began at zero beyond their floor only."""
        at_zero, floor = (jnp.broadcast_to(x, value.shape) for x in (self.watch.at_zero, self.watch.floor))
        return self.over(before, value) & (~at_zero | (jnp.abs(value) > floor))

    def looked_at(self, notes: _Notes, tried: Attempt, along: Callable) -> tuple[Array, Array, Array, Array, _Bracket]:
        """Signs, rates and times seen at the end of a step; the values at all looks; the first of the crossings."""
        begin, stop = tried.span
        times = begin + (stop - begin) * (jnp.arange(1, LOOKS + 1, dtype=begin.dtype) / LOOKS)
        values, rates = jax.vmap(along)(times)
        before, seen, earlier, lows = notes.before, notes.seen, [], []
        for i in range(LOOKS):
            earlier.append(before)
            lows.append(seen)
            seen = jnp.where(values[i] * before > 0, times[i], seen)
            counts = jnp.abs(values[i]) > jnp.where(self.watch.at_zero, self.watch.floor, 0.0)
            seen = jnp.where(counts, times[i], seen)
            before = jnp.where(counts, values[i], before)
        earlier, lows = jnp.stack(earlier), jnp.stack(lows)
        crossed = self.clearly(earlier, values)
        starts = jnp.concatenate([begin[None], times[:-1]])
        turning = jnp.concatenate([notes.rates[None], rates[:-1]])
        between = self.dips(along, starts, times, earlier, values, turning, rates)
        highs = jnp.where(jnp.isfinite(between), between, times[:, None])
        crossed = crossed | jnp.isfinite(between)
        i = jnp.argmax(jnp.any(crossed, axis=1))
        scale = jnp.max(jnp.abs(values), axis=0)
        bracket = _Bracket(tried.span, tried.dense, lows[i], highs[i], earlier[i], crossed[i], scale)
        return before, rates[-1], seen, values, bracket

    def dips(
        self, along: Callable, starts: Array, stops: Array, earlier: Array, values: Array, before: Array, after: Array
    ) -> Array:
        """Times (L, k) between two looks at which a function is over zero that is not so at either; infinite for none.

        The rate of such a function leads to zero at the earlier look and away from it at the later one. Where it
        changes its sign, the function comes nearest.
        """
        side = jnp.sign(earlier)
        wanted = jnp.asarray(self.directions, values.dtype)
        directions, rounding = (jnp.broadcast_to(x, values.shape) for x in (wanted, self.watch.rounding))
        same = (values * side > 0) & ((directions == 0) | (side == -directions))
        between = same & (before * side < 0) & (after * side > 0)
        index = jnp.broadcast_to(jnp.arange(values.shape[1]), values.shape)
        at = jax.vmap(jax.vmap(lambda t, j: jax.tree_util.tree_map(lambda x: x[j], along(t))))

        def halve(carry):
            i, between, low, high, found = carry
            middle = (low + high) / 2
            value, rate = at(middle, index)
            over = between & self.over(earlier, value) & (jnp.abs(value) > rounding)
            found = jnp.where(over, middle, found)
            low, high = jnp.where(rate * side < 0, middle, low), jnp.where(rate * side < 0, high, middle)
            return i + 1, between & ~over, low, high, found

        full = lambda t: jnp.broadcast_to(t[:, None], values.shape)
        carry = jnp.zeros((), int), between, full(starts), full(stops), jnp.full(values.shape, jnp.inf, values.dtype)
        going = lambda carry: (carry[0] < BISECTIONS) & jnp.any(carry[1])
        return jax.lax.while_loop(going, halve, carry)[-1]

    def root(self, at: _Bracket, along: Callable) -> tuple[Array, Array, Array]:
        """The earliest of the crossings in a step, by bisection, which function it is of, and whether that jumps."""
        begin, stop = at.span
        index = jnp.arange(at.before.shape[0])
        value_at = jax.vmap(lambda t, j: along(t)[0][j])

        def halve(_, span):
            low, high = span
            middle = (low + high) / 2
            passed = self.over(at.before, value_at(middle, index))
            return jnp.where(passed, low, middle), jnp.where(passed, middle, high)

        # Of a function that has been within its floor for longer than this step, what is known is when it was not.
        known = at.low < begin - 1e-9 * (stop - begin)
        low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.maximum(at.low, begin), at.high))
        change = jnp.abs(value_at(high, index) - value_at(low, index))
        jumps = ~known & (change > JUMP * at.scale + self.watch.rounding)
        times = jnp.where(at.crossed, jnp.where(known, at.low, high), jnp.inf)
        # Of events at one time, but for rounding, the first counts.
        tie = 1e-9 * (stop - begin) + 16 * jnp.finfo(begin.dtype).eps * jnp.abs(stop)
        which = jnp.argmax(times <= jnp.min(times) + tie)
        return times[which], which, jumps[which]
