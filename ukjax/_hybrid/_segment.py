"""A mode, from its beginning to the event that ends it.

The mode is integrated twice: first to find its end, without derivatives, and then up to that end. The time of the event
is corrected by steps t - g / g' along the motion, with a constant g'. Each step reduces the error by a factor of the
distance to the zero, and so gives one more derivative of the true time.

y = (q, v); a, b: begin and end; g: event functions; T: saved times; k: events of the mode.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._equation import reactions
from .._integrate import IntegrationProblem, advance, first_crossing
from .._program import hoist
from .._result import RESULTS, worst
from .._simulation import named, set_up
from ._impact import transitions
from ._mode import AT_ONCE, Came, Choices, Mode, Modes
from ._onset import ROUNDINGS, Beginning, Onset, onset


CORRECTIONS = 4  # steps for the time of an event: two for its second derivatives, the others for large tolerances
# Part of the whole time within which events count as simultaneous.
SAME_TIME = 1e-12


class Segment(NamedTuple):
    """The outcome of a mode.

    Attributes:
        ys: States at the saved times inside the mode, (T, n).
        inside: Whether each saved time lies inside the mode, (T,).
        t: Time of the end.
        q: Coordinates at which the next mode begins.
        v: Velocities at which the next mode begins.
        then: The mode that follows; -1 for none.
        which: The event, numbered within the mode; -1 if the end of the time came before.
        came: `Came` of the mode that follows.
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
    came: Came
    tries: Array
    result: Any


class _End(NamedTuple):
    """The end of a mode: its time and event, and data of the search, without derivatives.

    Attributes:
        b: Time of the end, as the search found it.
        which: The event; -1 if the end of the whole time came before.
        begun: Events at the beginning.
        rests: Whether nothing leads away from the event.
        tries: Attempted steps.
        result: `RESULTS`.
    """

    b: Array
    which: Array
    begun: Onset
    rests: Array
    tries: Array
    result: Any


def segment(number: int, modes: Modes, choices: Choices, a: Array, q: Array, v: Array, came: Came) -> Segment:
    """Runs the mode of this number from the time a on."""
    ts, mode = choices.ts, modes.each[number]
    span = jnp.stack([a, ts[-1]])
    run, settings = set_up(mode.mechanism, mode.controller, (q, v), span, choices.settings), choices.settings
    if not mode.events:
        local = _local(ts, a, ts[-1])
        ys, _, counts, outcome = settings.integrator(run.flow, run.y0, local, settings.solver, settings.method, True)
        inside, none = during(ts, a, ts[-1]), jnp.asarray(-1)
        came = Came(jnp.asarray(number), none, jnp.zeros_like(came.pending))
        q, v = run.layout.split(ys[-1])
        result = worst(run.started, named(outcome))
        return Segment(ys[1:-1], inside, ts[-1], q, v, none, none, came, counts["num_steps"], result)
    at = Beginning(mode, number, modes, choices, run)
    events = hoist(lambda t, y: _values(at, t, y), a, run.y0)
    end = _search(at, events, a, came)
    ys, y, tries, outcome = _integrated(at, end, a)
    t, y, values, rates = _corrected(at, events, end, a, y)
    resting = jnp.where(end.rests, _number_at_rest(mode)[jnp.maximum(end.which, 0)], -1)
    happens = jnp.where(resting >= 0, resting, end.which)
    q, v = run.layout.split(y)
    asks = any(event.conditions and event.multipliers for event in mode.events.values())
    carried = _carried(at, t, y) if asks else None
    branches = [lambda q, v, t, way=way: way(q, v, t, carried) for way in transitions(mode, modes)]
    q, v, then, met = jax.lax.switch(happens + 1, branches, q, v, t)
    result = worst(run.started, named(end.result), named(outcome))
    # Where an impact leads back to the state before it, the same event would happen again, without end.
    result = worst(
        result,
        RESULTS.where(end.rests & (resting < 0) & (then == number), RESULTS.comes_to_rest, RESULTS.successful),
        RESULTS.where(met, RESULTS.successful, RESULTS.next_mode_not_met),
    )
    rows, inside = _rows(at, ys, end, a, t)
    return Segment(
        rows, inside, t, q, v, then, happens, _came(at, came, end, a, values, rates), end.tries + tries, result
    )


def _values(at: Beginning, t: Array, y: Array) -> Array:
    q, v = at.run.layout.split(y)
    return at.mode.values(q, v, t, _carried(at, t, y) if at.mode.needs_multipliers else None)


def _carried(at: Beginning, t: Array, y: Array) -> dict[str, Array]:
    (motion, *_), _ = at.run.motion(t, y)
    terms = at.mode.mechanism.terms(*at.run.layout.split(y), t)
    return reactions(terms, motion.constraint_force).multipliers


def _fixed(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def _search(at: Beginning, events: Any, a: Array, came: Came) -> _End:
    """Searches for the end of the mode."""
    choices, directions = at.choices, at.mode.directions()
    begins = hoist(lambda a, y, *came: onset(at, events, a, y, Came(*came)), a, at.run.y0, *came)
    flow, y0, a, events, begins = _fixed((at.run.flow, at.run.y0, a, events, begins))
    begun: Onset = begins(a, y0, *came)
    end = stop_gradient(choices.ts[-1])
    at_once = begun.which >= 0
    settings = choices.settings
    problem = IntegrationProblem(
        flow, y0, jnp.stack([a, end]), settings.solver, _fixed(settings.method), settings.integrator.max_steps
    )
    found = first_crossing(problem, events, directions, begun.watch, ~at_once & (a < end))
    which = jnp.where(at_once, begun.which, found.which)
    b = jnp.where(at_once, a, jnp.clip(found.t, a, end))
    soon = b - a <= AT_ONCE * choices.whole
    i = jnp.maximum(which, 0)
    # An arc that is no higher than the error of its beginning is no motion either.
    arc = jnp.abs(jax.jvp(lambda t: events(t, y0 + (t - a) * flow.field(a, y0)), (b,), (jnp.ones_like(b),))[1][i])
    flat = arc * (b - a) <= begun.height[i]
    rests = (which >= 0) & ~at_once & begun.presses[i] & (soon | flat)
    result = RESULTS.where(found.undefined, RESULTS.event_not_finite, RESULTS.promote(found.result))
    result = worst(result, RESULTS.where(found.jumped & ~at_once, RESULTS.event_jumps, RESULTS.successful))
    return _End(jnp.where(rests, a, b), which, begun, rests, found.tries, result)


def _number_at_rest(mode: Mode) -> Array:
    """Returns, for each event, the number of its "to rest" event; -1 if it has none."""
    numbers = [-1] * len(mode.events)
    for place, i in enumerate(mode.resting):
        numbers[i] = len(mode.events) + place
    return jnp.array(numbers)


def _local(ts: Array, a: Array, b: Array) -> Array:
    """Returns a, the saved times, and b (T + 2,); times before a become a, those after b become b.

    Times after b keep their derivatives.
    """
    late = stop_gradient(b) + (ts - stop_gradient(ts))
    return jnp.concatenate([a[None], jnp.where(ts <= a, stop_gradient(a), jnp.where(ts <= b, ts, late)), b[None]])


def _integrated(at: Beginning, end: _End, a: Array) -> tuple[Array, Array, Array, Any]:
    """Returns states at the saved times and at the end found, (T + 1,); the last state; attempted steps; `RESULTS`."""
    (ts, settings), run = at.choices, at.run
    b = jnp.where(end.which >= 0, end.b, ts[-1])
    ys, _, counts, outcome = settings.integrator(
        run.flow, run.y0, _local(ts, a, b), settings.solver, settings.method, True
    )
    moved = b > a
    outcome = RESULTS.where(moved, outcome, RESULTS.successful)
    return ys[1:], jnp.where(moved, ys[-1], run.y0), counts["num_steps"], outcome


def _corrected(at: Beginning, events: Any, end: _End, a: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Returns time and state at the event, corrected from those of the search, and values and rates of functions."""
    run, i = at.run, jnp.maximum(end.which, 0)
    moved = end.b > a
    # An event at once has the time of the beginning, and its derivative.
    b = jnp.where(end.which < 0, at.choices.ts[-1], jnp.where(moved, stop_gradient(end.b), a))
    flow, fixed, at_b, y_b = _fixed((run.flow, events, b, y))
    values, rates = jax.jvp(fixed, (at_b, y_b), (jnp.ones_like(at_b), flow.field(at_b, y_b)))
    corrects = (end.which >= 0) & moved & (rates[i] != 0)
    rate = jnp.where(corrects, rates[i], 1.0)

    def correct(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        t, y = state
        late = jnp.where(corrects, jnp.take(events(t, y), i) / rate, 0.0)
        return (t - late, advance(run.flow, y, t, t - late)), None

    (t, y), _ = jax.lax.scan(correct, (b, y), length=CORRECTIONS)
    t = jnp.where(t < a, a, t)
    values = values + stop_gradient(t - b) * rates
    return t, y if run.onto is None else run.onto(t, y), values, rates


def _rows(at: Beginning, ys: Array, end: _End, a: Array, t: Array) -> tuple[Array, Array]:
    """Returns the states at the saved times until the event, and which times those are.

    At the time of an event it is the state before. The search may end a little before the event. From there to the
    event states change with their rate; their derivatives by the saved time are known already.
    """
    ts, b = at.choices.ts, end.b
    flow, y = _fixed((at.run.flow, jnp.where(b > a, ys[-1], at.run.y0)))
    rate = flow.field(b, y)
    beyond = stop_gradient(jnp.where(end.which >= 0, jnp.clip(ts, b, jnp.maximum(b, t)) - b, 0.0))
    return ys[:-1] + jnp.outer(beyond, rate), during(ts, a, t) | (during(ts, a, ts[-1]) & (end.which < 0))


def during(ts: Array, a: Array, t: Array) -> Array:
    """Whether each time is after a and not after t; times that are equal up to rounding count as equal."""
    rounding = 4 * jnp.finfo(ts.dtype).eps * jnp.max(jnp.abs(ts))
    return (ts > a + rounding) & (ts <= t + rounding)


def _came(at: Beginning, came: Came, end: _End, a: Array, values: Array, rates: Array) -> Came:
    """Returns `Came` of the next mode."""
    k, choices, watch = len(at.mode.events), at.choices, end.begun.watch
    same_time = SAME_TIME * choices.whole + ROUNDINGS * jnp.finfo(a.dtype).eps * jnp.abs(a)
    met = jnp.abs(values) <= watch.rounding + jnp.abs(rates) * same_time
    directions = jnp.asarray(at.mode.directions(), rates.dtype)
    crossing = jnp.where(directions == 0, rates != 0, directions * rates > 0)
    left = jnp.where(end.b > a, met & crossing, end.begun.due) & (jnp.arange(k) != end.which)
    pending = jnp.zeros_like(came.pending).at[:k].set(left & (end.which >= 0))
    return Came(jnp.asarray(at.number), end.which, pending)
