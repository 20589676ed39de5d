"""The first time at which one of several functions of the state crosses zero on the way.

g: event functions (k,), as `events(t, y)`; s: their values at the start of a step and at several times in it.
"""

from collections.abc import Callable
from typing import Any

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


class Found(eqx.Module):
    """Where a solve first met an event, or how it ended.

    The time, which event (-1: none), whether an event function was no number, attempts, and diffrax's result.
    """

    t: Float[Array, ""]
    which: Int[Array, ""]
    undefined: Bool[Array, ""]
    tries: Int[Array, ""]
    result: Any


class _Notes(eqx.Module):
    """The values at the end of the last step, the event that was met, and whether a function was no number."""

    before: Float[Array, " k"]
    met: Array
    t: Float[Array, ""]
    which: Int[Array, ""]
    undefined: Array


def first_crossing(
    problem: Problem, events: Callable[[Array, Array], Array], directions: np.ndarray, before: Array
) -> Found:
    """The first crossing on the way of a problem, from its first time to its last.

    Args:
        problem: Its times count by the first and the last.
        events: (t, y) -> g (k,).
        directions: -1 for functions that are to fall through zero, 1 for those that are to rise, 0 for both.
        before: Which sign each of g is to have had at the start (k,), where that is not plain from its value.
    """
    stepper, start, end = stepper_of(problem), start_of(problem), problem.ts[-1]
    clip = lambda at, tried: before_end(at, tried, end)

    def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
        begin, stop = tried.span
        state = problem.solver.interpolation_cls(t0=begin, t1=stop, **tried.dense).evaluate
        g = lambda t: events(t, state(t))
        times = begin + (stop - begin) * jnp.arange(1, LOOKS + 1, dtype=begin.dtype) / LOOKS
        values = jax.vmap(g)(times)
        earlier = jnp.concatenate([notes.before[None], values[:-1]])
        crossed = _crossed(earlier, values, directions)
        any_at = jnp.any(crossed, axis=1)
        i = jnp.argmax(any_at)
        low = jnp.where(i > 0, times[i - 1], begin)
        t, which = _first_root(g, low, times[i], earlier[i], crossed[i], directions)
        met = tried.keep & jnp.any(any_at)
        last = jnp.where(tried.keep, values[-1], notes.before)
        # A value that is zero tells nothing.
        last = jnp.where(tried.keep & (values[-1] == 0), notes.before, last)
        undefined = tried.keep & ~met & jnp.any(jnp.isnan(values))
        return _Notes(last, met, jnp.where(met, t, notes.t), jnp.where(met, which, notes.which), undefined)

    notes = _Notes(before, jnp.asarray(False), end, jnp.asarray(-1), jnp.any(jnp.isnan(before)))
    enough = lambda notes: notes.met | notes.undefined
    at, notes, result, tries = march(
        stepper, start, end, problem.max_steps, clip, note, notes, lambda notes: [], enough
    )
    # A solve that was stopped by an event did not run out of steps.
    result = diffrax.RESULTS.where(enough(notes), diffrax.RESULTS.successful, result)
    return Found(jnp.where(notes.met, notes.t, at.t), notes.which, notes.undefined, tries, result)


def _crossed(before: Array, after: Array, directions: np.ndarray) -> Array:
    falls, rises = (before > 0) & (after <= 0), (before < 0) & (after >= 0)
    down, up = (np.broadcast_to(x, before.shape) for x in (directions <= 0, directions >= 0))
    return (falls & down) | (rises & up)


def _first_root(
    g: Callable[[Array], Array], low: Array, high: Array, before: Array, crossed: Array, directions: np.ndarray
) -> tuple[Array, Array]:
    """The earliest of the crossings between two times, by bisection, and which of the functions it is of."""

    def halve(_, span):
        low, high = span
        middle = (low + high) / 2
        # Whether each has crossed before the middle.
        earlier = jax.vmap(lambda t, i: g(t)[i])(middle, jnp.arange(before.shape[0]))
        passed = _crossed(before, earlier, directions)
        return jnp.where(passed, low, middle), jnp.where(passed, middle, high)

    full = lambda t: jnp.full(before.shape, t)
    _, high_each = jax.lax.fori_loop(0, BISECTIONS, halve, (full(low), full(high)))
    times = jnp.where(crossed, high_each, jnp.inf)
    which = jnp.argmin(times)
    return times[which], which
