"""A mode, from the events at its very beginning to the event that ends it.

The mode is integrated twice: first to find its end, without derivatives, and then up to that end. The time of the event
is corrected by steps t - g / g' along the motion, with a constant g'. Each step reduces the error by a factor of the
distance to the zero, and so gives one more derivative of the true time.

y = (q, v); a, b: begin and end; T: saved times; k: events of the mode; g: event functions (k,); g': their rates along
the motion of the mode; r: row of a function, g' = r v + ...; s: the side from which a function is to cross, the sign it
has there.

An impact gives the velocities closest to those before, in the metric of M, that satisfy given rows. J v+ = r: rows of
the mode that follows, and of the impact, whose speeds are returned unless the mode holds them; W^T W = M^-1; B = D J
W^T; v+ = v - W^T B^+ D (J v - r): the impulse M (v+ - v) lies in the space of the rows, as one of ideal constraints
does.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, PyTree

from .. import _check
from .._equation import reactions
from .._formulation import coordinate_scales, metric, row_scales
from .._integrate import IntegrationProblem, Watch, advance, first_crossing
from .._linalg import SVD, pseudosolve
from .._manifold import Rounding
from .._mechanism import Mechanism
from .._program import hoist, uses
from .._result import RESULTS, worst
from .._rounding import missed_part, with_rounding_errors
from .._simulation import Run, StateLayout, motion_at, named, set_up
from .._types import BoolScalar
from ._mode import AT_ONCE, Came, Choices, Event, Impact, Mode, Modes, Velocities


STEPS = 3  # of Newton's method, for rows that are nonlinear in v; the first step is exact for linear rows
LEAST_SIZE = 1e-3  # size of a coordinate, in its own unit, since all coordinates may be zero at an impact
MISSED = 1e-6  # allowed error of a row, as a part of the size of its terms, or of the coordinates


def after_impact(
    impact: Impact | Velocities | None, mechanism: Mechanism, q: Array, v: Array, t: Array, ends: bool
) -> tuple[Array, Array, BoolScalar]:
    """Returns q and v after an event, where a mode with this mechanism begins, and whether the mode can begin there.

    If the motion `ends`, only the rows of the impact need be satisfied.
    """
    if impact is not None and not isinstance(impact, Impact):
        q, v = _given(impact(q, v, t), q, v)

    def held(v: Array) -> Array:
        return jnp.zeros(0, v.dtype) if ends else mechanism.velocity_error(q, v, t)

    def hits(v: Array) -> Array:
        if isinstance(impact, Impact):
            return mechanism.velocity_error_of(impact.constraint, q, v, t)
        return jnp.zeros(0, v.dtype)

    def rows(v: Array) -> Array:
        return jnp.concatenate([held(v), hits(v)])

    if isinstance(impact, Impact):
        _check_rows(impact, hits(v).shape)
    of_start, errors = with_rounding_errors(lambda v: (rows(v), jax.jacfwd(rows)(v)), v)
    rounding = Rounding(*errors)
    speeds, J = rounding.without(*of_start)
    M, m = mechanism.mass(q, t, v.shape[0]), jax.eval_shape(held, v).shape[0]
    W = metric(M, J, all_are_real=True).W
    returned = jnp.zeros_like(speeds)
    if isinstance(impact, Impact):
        back = jnp.where(_stay(J[:m] @ W.T, J[m:] @ W.T), 0.0, impact.restitution * speeds[m:])
        returned = returned.at[m:].set(back)
    before = v

    def nearer(v: Array, _: None) -> tuple[Array, None]:
        e, J = rounding.without(rows(v) + returned, jax.jacfwd(rows)(v))
        B = J @ W.T
        D = row_scales(B, all_are_real=True)
        return v - W.T @ pseudosolve(SVD(), D[:, None] * B, D * e)[0], None

    v, _ = jax.lax.scan(nearer, v, length=STEPS if returned.shape[0] else 0)
    C = coordinate_scales(M, J)
    fast = stop_gradient(C * jnp.max(jnp.maximum(jnp.abs(before), jnp.abs(v)) / C))
    met = jnp.all(missed_part(lambda v: rows(v) + returned, v, fast) <= MISSED)
    if not ends:
        gaps = missed_part(lambda q: mechanism.position_error(q, t), q, _extent(mechanism, q, t, C))
        met &= jnp.all(gaps <= MISSED)
    return q, v, met


def _extent(mechanism: Mechanism, q: Array, t: Array, C: Array) -> Array:
    """Returns the sizes of coordinates (n_q,) that, with scales C (n,) of a metric, are all as large as the largest."""
    slopes, moved = mechanism.displacements(q, t, C.shape[0])
    slopes = jnp.abs(slopes)
    return jnp.maximum(LEAST_SIZE, jnp.max(slopes * C[None], axis=1) * jnp.max(moved / C))


def _stay(B: Array, hit: Array) -> Array:
    """Whether the rows of a mode hold each speed of an impact, so that it cannot return; both in the metric."""
    B, hit = stop_gradient((B, hit))
    if not B.shape[0]:
        return jnp.zeros(hit.shape[0], bool)
    B = row_scales(B, all_are_real=True)[:, None] * B
    left = hit - jax.vmap(lambda row: pseudosolve(SVD(), B, B @ row)[0])(hit)
    return jnp.linalg.norm(left, axis=1) <= MISSED * jnp.linalg.norm(hit, axis=1)


def _check_rows(impact: Impact, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless there are rows to be hit, and a restitution for all or for each."""
    if shape == (0,):
        raise ValueError("constraint of an Impact has no rows that could be hit. Return at least one: q[1:] of two.")
    e = impact.restitution.shape
    if e not in ((), shape):
        raise ValueError(f"restitution must be a scalar or of shape {shape}, one per row of constraint, but has {e}.")


def _given(value: object, q: Array, v: Array) -> tuple[Array, Array]:
    if not isinstance(value, tuple) or len(value) != 2:
        shape = getattr(value, "shape", None)
        what = type(value).__name__ if shape is None else f"an array of shape {shape}"
        what = f"a tuple of {len(value)}" if isinstance(value, tuple) else what
        raise ValueError(f"impact(q, v, t) must return a pair (q, v), but returned {what}.")
    new = _check.output(value[0], q.shape, q.dtype, "q of impact(q, v, t)")
    return new, _check.output(value[1], v.shape, v.dtype, "v of impact(q, v, t)")


# (q, v, t, multipliers) -> q, v, number of the next mode (-1: the end), whether it can begin there
Transition = Callable[[Array, Array, Array, dict[str, Array] | None], tuple[Array, Array, Array, Array]]


def transitions(mode: Mode, modes: Modes) -> list[Transition]:
    """Returns the transitions without an event, at each event, and at each coming to rest, as in `Mode.names`."""
    events = tuple(mode.events.values())
    rests = [_towards(None, mode, modes, events[i].rest) for i in mode.resting]
    return [_stays, *(of_event(event, mode, modes) for event in events), *rests]


def _stays(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple[Array, Array, Array, Array]:
    return q, v, jnp.asarray(-1), jnp.asarray(True)


def of_event(event: Event, mode: Mode, modes: Modes) -> Transition:
    """Returns the transition at an event of a mode."""
    ways = [_towards(event.impact, mode, modes, target) for target in event.targets]
    if len(ways) == 1:
        return ways[0]

    def chosen(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        which = event.chosen(q, v, t, carried)
        return jax.lax.switch(which, [lambda q, v, t, way=way: way(q, v, t, carried) for way in ways], q, v, t)

    return chosen


def _towards(impact: Impact | Velocities | None, mode: Mode, modes: Modes, target: str | None) -> Transition:
    number = -1 if target is None else modes.number(target)
    following = mode if target is None else modes.each[number]

    def apply(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        q, v, met = after_impact(impact, following.mechanism, q, v, t, ends=target is None)
        return q, v, jnp.asarray(number), met

    return apply


# (t, y) -> all event functions of a mode (k,); (q, v, t) -> one of them.
EventValues = Callable[[Array, Array], Array]
EventOfState = Callable[[Array, Array, Array], Array]

CORRECTIONS = 4  # steps for the time of an event: two for its second derivatives, the others for large tolerances
# Part of the whole time within which events count as simultaneous.
SAME_TIME = 1e-12
# Multiple of the rounding of its terms by which a number may be wrong.
ROUNDINGS = 64
# Part of its rate before that the rate of a function may have after an event that stops it.
STOPPED = 1e-6


class Onset(NamedTuple):
    """Events at the beginning of a mode.

    Attributes:
        which: The first event that happens at once; -1 if there is none.
        due: Whether each event happens at once (k,).
        turns: Whether each event turns its function back (k,).
        presses: Whether an event that turns back begins at zero, without a speed across it (k,).
        height: Height above which an arc exceeds the error of the value at its beginning (k,).
        watch: Data for the search for the other events.
    """

    which: Array
    due: Array
    turns: Array
    presses: Array
    height: Array
    watch: Watch


class Beginning(NamedTuple):
    """A mode at its beginning: the mode, its number, all modes and settings, and its run."""

    mode: Mode
    number: int
    modes: Modes
    choices: Choices
    run: Run


class _Sizes(NamedTuple):
    """Errors of the value and of the rate of each function, the size of its terms, and their rounding; (k,)."""

    value: Array
    rate: Array
    terms: Array
    rounded: Array


def onset(at: Beginning, events: EventValues, a: Array, y: Array, came: Came) -> Onset:
    """Returns the events at the beginning of a mode, whose functions are `events(t, y)`."""
    mode, k = at.mode, len(at.mode.events)
    value, rate = jax.jvp(events, (a, y), (jnp.ones_like(a), at.run.flow.field(a, y)))
    sizes = _sizes(at, a, y, rate)
    side = -mode.directions().astype(value.dtype)
    turns = jnp.stack([jnp.asarray(_turns_back(at, i, a, y, rate[i])) for i in range(k)])
    again = came.mode == at.number
    own, pending = again & (jnp.arange(k) == came.event), again & came.pending[:k]
    beyond = side * value < 0
    near = jnp.abs(value) <= sizes.value + MISSED * sizes.terms
    # The function of the event before is at zero, unless its impact has displaced the motion.
    stayed = jnp.abs(value) <= sizes.value * MISSED / (ROUNDINGS * float(jnp.finfo(value.dtype).eps))
    at_zero = (jnp.abs(value) <= sizes.value) | (near & (pending | (turns & beyond))) | (stayed & own)
    moves = jnp.abs(rate) > sizes.rate
    crosses = at_zero & moves & (side * rate < 0)
    # A force that a mode cannot carry ends the mode; a position from which a function did not cross does not.
    carried = np.array([event.multipliers for event in mode.events.values()])
    due = (crosses & (turns | pending)) | (carried & turns & beyond & ~at_zero)
    heading = jnp.where(moves, jnp.sign(rate), jnp.where(turns, side, 0.0))
    within = jnp.abs(value) + sizes.value + jnp.where(turns, MISSED * sizes.terms, 0.0)
    watch = Watch(
        before=jnp.where(at_zero, heading, value),
        rates=rate,
        at_zero=at_zero,
        floor=jnp.where(moves, 0.0, within),
        rounding=sizes.value,
    )
    which = jnp.where(jnp.any(due), jnp.argmax(due), -1)
    height = 4 * jnp.abs(value) + sizes.rounded
    return Onset(which, due, turns, at_zero & turns & ~crosses, height, watch)


def _sizes(at: Beginning, t: Array, y: Array, rate: Array) -> _Sizes:
    """Returns the errors of values and rates, from rounding and from the accuracy of the states.

    The error of a value is the rounding of its terms, of their change in the whole time, over which states are
    integrated, and of the time. The error of a rate is the accuracy of its terms, and the rounding of all velocities,
    measured by the metric of M (where it is singular, of M and the rows). The terms of a function of multipliers are
    not known.
    """
    layout, mechanism, whole = at.run.layout, at.run.layout.mechanism, at.choices.whole
    (q, v), each = layout.split(y), tuple(at.mode.events.values())
    eps = ROUNDINGS * float(jnp.finfo(v.dtype).eps)

    def of_state(q: Array, v: Array, t: Array) -> Array:
        zero = jnp.zeros((), v.dtype)
        return jnp.stack([zero if event.multipliers else at.mode.value(i, q, v, t) for i, event in enumerate(each)])

    of_q, of_v, of_t = jax.jacrev(of_state, argnums=(0, 1, 2))(q, v, t)
    a = at.run.flow.field(t, y)[layout.coordinates :]
    rows = of_q if mechanism.kinematics is None else of_q @ jax.jacfwd(lambda v: mechanism.rates(q, v, t))(v)
    terms = jnp.abs(of_q) @ jnp.abs(q) + jnp.abs(of_v) @ jnp.abs(v) + jnp.abs(of_t * t)
    speeds = jnp.abs(rows) @ jnp.abs(v) + jnp.abs(of_v) @ jnp.abs(a) + jnp.abs(of_t)
    G = metric(mechanism.mass(q, t, v.shape[0]), mechanism.velocity_rows(q, v, t)[1])

    def of_metric(rows: Array, x: Array) -> Array:
        return jnp.linalg.norm(rows @ G.W.T, axis=1) * jnp.linalg.norm(G.L.T @ x)

    carried = np.array([event.multipliers for event in each])
    value = eps * (terms + whole * speeds + whole**2 * (jnp.abs(rows) @ jnp.abs(a)))
    value = value + eps * jnp.abs(t * rate)
    value = jnp.where(carried, AT_ONCE * whole * jnp.abs(rate), value)
    error = at.choices.accuracy * speeds + eps * (of_metric(rows, v) + of_metric(of_v, a))
    return _Sizes(value, jnp.where(carried, 0.0, error), terms, eps * terms)


def _turns_back(at: Beginning, i: int, t: Array, y: Array, rate: Array) -> bool | Array:
    """Whether an event stops or reverses its function: an impact does, and constraints of the next mode may.

    If the function depends on q only, a crossing speed is passed through the event, and its sign afterwards decides. If
    the function depends on v, its rate after the event decides.
    """
    event, value = tuple(at.mode.events.values())[i], lambda q, v, t: at.mode.value(i, q, v, t)
    others = [target for target in event.targets if target not in (at.modes.names[at.number], None)]
    if event.direction == "both" or isinstance(event.impact, Impact):
        return event.direction != "both"
    if event.multipliers or (event.impact is None and not others):
        return bool(others)
    (q, v), mechanism, apply = at.run.layout.split(y), at.run.layout.mechanism, of_event(event, at.mode, at.modes)
    of_q, of_v = uses(lambda q, v: value(q, v, t), q, v)
    if of_v:
        before = rate
        q, v, then, _ = apply(q, v, t, None)
        for name in others:
            number = at.modes.number(name)
            rate = jnp.where(then == number, _rate_in(at.modes.each[number], value, at.choices, q, v, t), rate)
        return jnp.sign(before) * rate <= STOPPED * jnp.abs(before)
    if not of_q:
        return False

    def speed(q: Array, v: Array) -> Array:
        return jax.jvp(lambda q: value(q, v, t), (q,), (mechanism.rates(q, v, t),))[1]

    W = metric(mechanism.mass(q, t, v.shape[0]), mechanism.velocity_rows(q, v, t)[1]).W
    row = jax.grad(speed, argnums=1)(q, v)
    way = W.T @ (W @ row)
    _, after = jax.jvp(lambda v: speed(*apply(q, v, t, None)[:2]), (v,), (way,))
    return (after <= STOPPED * (row @ way)) & (row @ way > 0)


def _rate_in(other: Mode, value: EventOfState, choices: Choices, q: Array, v: Array, t: Array) -> Array:
    """Returns the rate of a function along the motion of another mode."""
    layout = StateLayout.of(other.mechanism, (q, v))
    (motion, *_), rates = motion_at(layout, other.controller, choices.settings.formulation, t, jnp.concatenate([q, v]))
    return jax.jvp(value, (q, v, t), (rates, motion.acceleration, jnp.ones_like(t)))[1]


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
    result: RESULTS


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
    result: RESULTS


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


def _fixed(tree: PyTree) -> PyTree:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)


def _search(at: Beginning, events: EventValues, a: Array, came: Came) -> _End:
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


def _integrated(at: Beginning, end: _End, a: Array) -> tuple[Array, Array, Array, RESULTS]:
    """Returns states at the saved times and at the end found, (T + 1,); the last state; attempted steps; `RESULTS`."""
    (ts, settings), run = at.choices, at.run
    b = jnp.where(end.which >= 0, end.b, ts[-1])
    ys, _, counts, outcome = settings.integrator(
        run.flow, run.y0, _local(ts, a, b), settings.solver, settings.method, True
    )
    moved = b > a
    outcome = RESULTS.where(moved, outcome, RESULTS.successful)
    return ys[1:], jnp.where(moved, ys[-1], run.y0), counts["num_steps"], outcome


def _corrected(at: Beginning, events: EventValues, end: _End, a: Array, y: Array) -> tuple[Array, Array, Array, Array]:
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
