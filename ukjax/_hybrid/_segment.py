"""One mode from where it begins to the event that ends it.

Twice integrated: first to find where it ends, which is not differentiated, and then to there. The time of the event
is corrected by one step of Newton's method, t - g / g', whose derivative is that of the true one.

y = (q, v); a, b: begin and end; g: event functions; T: saved times.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._integrate import Problem, advance, first_crossing
from .._program import hoist
from .._reactions import reactions
from .._result import RESULTS, worst
from .._simulation import Run, begin
from ._impact import after_impact
from ._mode import Mode, Modes


# Of the whole time: what counts as no time at all.
AT_ONCE = 1e-9


class Choices(NamedTuple):
    """What all modes have in common."""

    ts: Array
    formulation: Any
    solver: Any
    method: Any
    projection: Any
    integrator: Any


class Segment(NamedTuple):
    """What came of a mode.

    Attributes:
        ys: States at the saved times inside of it, (T, n); and which those are (T,).
        inside: (T,)
        t: When it ended.
        q: Where the next one begins.
        v: With which velocities.
        then: The mode that follows; -1 for none.
        which: The event, numbered within the mode; -1 if the end came before.
        tries: Attempted steps.
        result: `RESULTS`.
    """

    ys: Array
    inside: Array
    t: Array
    q: Array
    v: Array
    then: Array
    which: Array
    tries: Array
    result: Any


def segment(mode: Mode, modes: Modes, choices: Choices, a: Array, q: Array, v: Array) -> Segment:
    """The mode from the time a on."""
    ts, solver, method, integrator = choices.ts, choices.solver, choices.method, choices.integrator
    span = jnp.stack([a, ts[-1]])
    run = begin(mode.mechanism, mode.acting, (q, v), span, choices.formulation, method, choices.projection)
    flow, y0 = run.flow, run.y0
    events = hoist(lambda t, y: _values(mode, run, t, y), a, y0)
    b, which, tries, result = _end(mode, run, events, choices, a)
    local = _squeezed(ts, a, b)
    ys, _, counts, outcome = integrator(flow, y0, local, solver, method)
    result = worst(run.started, result, outcome)
    y, t = ys[-1], b
    if mode.events:
        g = lambda t, y: jnp.take(events(t, y), jnp.maximum(which, 0))
        value, rate = jax.jvp(g, (b, y), (jnp.ones_like(b), flow.field(b, y)))
        rate = stop_gradient(rate)
        late = jnp.where((which >= 0) & (rate != 0), value / jnp.where(rate != 0, rate, 1.0), 0.0)
        t = b - late
        y = advance(flow, y, b, t)
    q, v, then, begins = _after(mode, modes, which, t, *run.phase.split(y))
    result = worst(result, RESULTS.where(begins, RESULTS.successful, RESULTS.next_mode_not_met))
    inside = (ts > a) & (ts <= b)
    states = jnp.where((ts == b)[:, None], ys[-1][None], ys[1:-1])
    return Segment(states, inside, t, q, v, then, which, tries + counts["num_steps"], result)


def _values(mode: Mode, run: Run, t: Array, y: Array) -> Array:
    q, v = run.phase.split(y)
    carried = None
    if mode.needs_multipliers:
        motion, *_ = run.motion(t, y)
        carried = reactions(mode.mechanism.terms(q, v, t), motion.constraint_force).multipliers
    return mode.values(q, v, t, carried)


def _end(mode: Mode, run: Run, events: Any, choices: Choices, a: Array) -> tuple:
    """When the mode ends, by which event, after how many steps, and what became of the search."""
    end = choices.ts[-1]
    if not mode.events:
        return stop_gradient(end), jnp.asarray(-1), jnp.zeros((), int), RESULTS.successful
    fixed = lambda tree: jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
    flow, y0, a, events = fixed((run.flow, run.y0, a, events))
    span = jnp.stack([a, stop_gradient(end)])
    problem = Problem(flow, y0, span, choices.solver, fixed(choices.method), choices.integrator.max_steps)
    directions = mode.directions()
    value, rate = jax.jvp(events, (a, y0), (jnp.ones_like(a), flow.field(a, y0)))
    whole = stop_gradient(end - choices.ts[0])
    # What is about to cross, or has just done so, counts as if it came from the side from which it is to cross.
    at_zero = jnp.abs(value) <= jnp.abs(rate) * AT_ONCE * whole
    side = jnp.where(directions == 0, jnp.sign(rate), -directions.astype(value.dtype))
    found = first_crossing(problem, events, directions, jnp.where(at_zero, side, value))
    least = a + 0.01 * AT_ONCE * whole
    result = RESULTS.where(found.undefined, RESULTS.event_not_finite, RESULTS.promote(found.result))
    return jnp.clip(found.t, least, stop_gradient(end)), found.which, found.tries, result


def _squeezed(ts: Array, a: Array, b: Array) -> Array:
    """a, the times between a and b, and b, with as many more in between as there are others: increasing, (T + 2,)."""
    index, T = jnp.arange(ts.shape[0]), ts.shape[0]
    inside = (ts > a) & (ts < b)
    before, within = jnp.sum(ts <= a), jnp.sum(inside)
    low = stop_gradient(jnp.where(within > 0, ts[jnp.clip(before, 0, T - 1)], (a + b) / 2))
    high = stop_gradient(jnp.where(within > 0, ts[jnp.clip(before + within - 1, 0, T - 1)], (a + b) / 2))
    start = stop_gradient(a)
    part = lambda number, of: (number + 1).astype(ts.dtype) / (of + 1).astype(ts.dtype)
    early = start + (low - start) * part(index, before)
    late = high + (b - high) * part(index - before - within, T - before - within)
    others = jnp.where(index < before, early, late)
    return jnp.concatenate([a[None], jnp.where(inside, ts, others), b[None]])


def _after(mode: Mode, modes: Modes, which: Array, t: Array, q: Array, v: Array) -> tuple:
    """State and mode after the event, and whether that can begin there."""

    def after(event):
        number = -1 if event.then is None else modes.number(event.then)
        following = mode if event.then is None else modes.each[number]

        def apply(q, v):
            q, v, met = after_impact(event.impact, following.mechanism, q, v, t, ends=event.then is None)
            return q, v, jnp.asarray(number), met

        return apply

    branches = [
        lambda q, v: (q, v, jnp.asarray(-1), jnp.asarray(True)),
        *(after(event) for event in mode.events.values()),
    ]
    return jax.lax.switch(which + 1, branches, q, v)
