"""The search for the first time at which one of several functions of the state crosses zero.

g: event functions (k,), as `events(t, y)`; g': their rates along the motion; L: looks, times within a step at which
they are evaluated.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._march import Attempt, IntegrationProblem, Place, before_end, step_until, where
from ._solve import start_of, stepper_of


LOOKS = 6  # times within a step at which event functions are evaluated
BISECTIONS = 60
# The part of the largest value of a function in a step by which a continuous function cannot change at once.
JUMP = 1e-6


Events = Callable[[Array, Array], Array]  # (t, y) -> g (k,)
Along = Callable[[Array], tuple[Array, Array]]  # t -> g and g' (k,), within a step


class Watch(NamedTuple):
    """The data of event functions at the start of a search; each (k,).

    Attributes:
        before: A number with the sign that a function has, or had; zero where the sign is not known.
        rates: g' at the beginning.
        at_zero: Whether a function begins at zero.
        floor: The size that the value of a function which begins at zero must exceed before its sign counts.
        rounding: The rounding error of a value.
    """

    before: Array
    rates: Array
    at_zero: Array
    floor: Array
    rounding: Array


class Found(eqx.Module):
    """The first event of a solve, or its end without one.

    Attributes:
        t: Time of the event, or of the end.
        which: The number of the event; -1 for none.
        undefined: Whether an event function was NaN.
        jumped: Whether the event function jumped over zero.
        tries: Attempted steps.
        result: The result of diffrax.
    """

    t: Float[Array, ""]
    which: Int[Array, ""]
    undefined: Bool[Array, ""]
    jumped: Bool[Array, ""]
    tries: Int[Array, ""]
    result: diffrax.RESULTS


class _Bracket(eqx.Module):
    """A step in which functions cross zero, and the times that enclose each crossing; (k,) all but `span`, `dense`."""

    span: tuple[Array, Array]
    dense: PyTree
    low: Array
    high: Array
    before: Array
    crossed: Array
    scale: Array


class _Notes(eqx.Module):
    """Signs and rates at the end of the last step, and the last time each function was seen on its side of zero."""

    before: Array
    rates: Array
    seen: Array
    met: Array
    undefined: Array
    bracket: _Bracket


def first_crossing(
    problem: IntegrationProblem,
    events: Events,
    directions: np.ndarray,
    watch: Watch,
    wanted: Array,
) -> Found:
    """Finds the first crossing along a solve, from its first time to its last.

    Two crossings between two looks are found if the rate of the function changes its sign once between them.

    Args:
        problem: The solve; of its times only the first and the last count.
        events: (t, y) -> g (k,).
        directions: -1 for functions that are to fall through zero, 1 for those that are to rise, 0 for both.
        watch: The data of the functions at the start.
        wanted: Whether to search at all; otherwise the solve ends where it begins. A span without length needs that.
    """
    stepper, start, end = stepper_of(problem), start_of(problem), problem.ts[-1]
    crossing = _Crossing(directions, watch)

    def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
        along = _along(problem, events, tried.span, tried.dense)
        before, rates, seen, values, bracket = crossing.looked_at(notes, tried, along)
        met = tried.keep & jnp.any(bracket.crossed)
        undefined = tried.keep & ~met & jnp.any(jnp.isnan(values))
        before, rates, seen = where(tried.keep, (before, rates, seen), (notes.before, notes.rates, notes.seen))
        return _Notes(before, rates, seen, met, undefined, where(met, bracket, notes.bracket))

    def enough(notes: _Notes) -> Array:
        return notes.met | notes.undefined | ~wanted

    shapes = jax.eval_shape(stepper.attempt, start)[1]
    dense = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.dense)
    nothing, begin = jnp.zeros_like(watch.before), jnp.full_like(watch.before, start.t)
    bracket = _Bracket((start.t, end), dense, begin, begin, nothing, jnp.zeros(nothing.shape, bool), nothing)
    lost = jnp.any(jnp.isnan(watch.before))
    notes = _Notes(watch.before, watch.rates, begin, jnp.asarray(False), lost, bracket)
    at, notes, result, tries = step_until(
        stepper, start, end, problem.max_steps, before_end, note, notes, lambda notes: [], enough
    )
    t, which, jumped = crossing.root(notes.bracket, _along(problem, events, notes.bracket.span, notes.bracket.dense))
    # A solve that an event stopped did not run out of steps.
    result = diffrax.RESULTS.where(enough(notes), diffrax.RESULTS.successful, result)
    which = jnp.where(notes.met, which, -1)
    return Found(jnp.where(notes.met, t, at.t), which, notes.undefined, notes.met & jumped, tries, result)


def _along(problem: IntegrationProblem, events: Events, span: tuple[Array, Array], dense: PyTree) -> Along:
    """Returns t -> g and g' (k,) along the interpolant of a step."""
    state = problem.solver.interpolation_cls(t0=span[0], t1=span[1], **dense).evaluate
    return lambda t: jax.jvp(lambda t: events(t, state(t)), (t,), (jnp.ones_like(t),))


class _Crossing(NamedTuple):
    """The rule which crossings count; see `first_crossing`."""

    directions: np.ndarray
    watch: Watch

    def over(self, before: Array, value: Array) -> Array:
        """Whether values (..., k) have crossed or reached zero from the side of `before`, in a wanted direction."""
        directions = np.broadcast_to(self.directions, value.shape)
        return ((before > 0) & (value <= 0) & (directions <= 0)) | ((before < 0) & (value >= 0) & (directions >= 0))

    def clearly(self, before: Array, value: Array) -> Array:
        """Whether values have crossed zero as in `over`, and beyond the floor if their function began at zero."""
        at_zero, floor = (jnp.broadcast_to(x, value.shape) for x in (self.watch.at_zero, self.watch.floor))
        return self.over(before, value) & (~at_zero | (jnp.abs(value) > floor))

    def looked_at(self, notes: _Notes, tried: Attempt, along: Along) -> tuple[Array, Array, Array, Array, _Bracket]:
        """Evaluates a step: signs, rates and times seen at its end, the values at all looks, the first crossings."""
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
        self, along: Along, starts: Array, stops: Array, earlier: Array, values: Array, before: Array, after: Array
    ) -> Array:
        """Times (L, k) between two looks at which a function has crossed zero, but at neither look; infinite for none.

        The rate of such a function leads to zero at the earlier look and away from it at the later one. Where the rate
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

        def going(carry):
            return (carry[0] < BISECTIONS) & jnp.any(carry[1])

        low, high = (jnp.broadcast_to(t[:, None], values.shape) for t in (starts, stops))
        carry = jnp.zeros((), int), between, low, high, jnp.full(values.shape, jnp.inf, values.dtype)
        return jax.lax.while_loop(going, halve, carry)[-1]

    def root(self, at: _Bracket, along: Along) -> tuple[Array, Array, Array]:
        """The time of the earliest crossing in a step, by bisection, its function, and whether that function jumps."""
        begin, stop = at.span
        index = jnp.arange(at.before.shape[0])
        value_at = jax.vmap(lambda t, j: along(t)[0][j])

        def halve(_, span):
            low, high = span
            middle = (low + high) / 2
            passed = self.over(at.before, value_at(middle, index))
            return jnp.where(passed, low, middle), jnp.where(passed, middle, high)

        # A function within its floor for longer than this step crosses at the last time at which it was beyond.
        known = at.low < begin - 1e-9 * (stop - begin)
        low, high = jax.lax.fori_loop(0, BISECTIONS, halve, (jnp.maximum(at.low, begin), at.high))
        change = jnp.abs(value_at(high, index) - value_at(low, index))
        jumps = ~known & (change > JUMP * at.scale + self.watch.rounding)
        times = jnp.where(at.crossed, jnp.where(known, at.low, high), jnp.inf)
        # Of events at one time, up to rounding, the first in order counts.
        tie = 1e-9 * (stop - begin) + 16 * jnp.finfo(begin.dtype).eps * jnp.abs(stop)
        which = jnp.argmax(times <= jnp.min(times) + tie)
        return times[which], which, jumps[which]
