"""Events at the very beginning of a mode, and the side from which each other event must cross.

g: event functions (k,); g': their rates along the motion of the mode; y = (q, v); a: time of the beginning;
r: row of a function, g' = r v + ...; s: the side from which a function is to cross, the sign it has there.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._formulation import metric
from .._integrate import Watch
from .._program import uses
from .._simulation import Run, StateLayout, motion_at
from ._impact import MISSED, of_event
from ._mode import AT_ONCE, Came, Choices, Impact, Mode, Modes


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


def onset(at: Beginning, events: Callable, a: Array, y: Array, came: Came) -> Onset:
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
    G = metric(mechanism.mass(q, t, v.shape[0]), jax.jacfwd(lambda v: mechanism.velocity_error(q, v, t))(v))
    of_metric = lambda rows, x: jnp.linalg.norm(rows @ G.W.T, axis=1) * jnp.linalg.norm(G.L.T @ x)
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
    speed = lambda q, v: jax.jvp(lambda q: value(q, v, t), (q,), (mechanism.rates(q, v, t),))[1]
    rows = jax.jacfwd(lambda v: mechanism.velocity_error(q, v, t))(v)
    W = metric(mechanism.mass(q, t, v.shape[0]), rows).W
    row = jax.grad(speed, argnums=1)(q, v)
    way = W.T @ (W @ row)
    _, after = jax.jvp(lambda v: speed(*apply(q, v, t, None)[:2]), (v,), (way,))
    return (after <= STOPPED * (row @ way)) & (row @ way > 0)


def _rate_in(other: Mode, value: Callable, choices: Choices, q: Array, v: Array, t: Array) -> Array:
    """Returns the rate of a function along the motion of another mode."""
    layout = StateLayout.of(other.mechanism, (q, v))
    (motion, *_), rates = motion_at(layout, other.controller, choices.settings.formulation, t, jnp.concatenate([q, v]))
    return jax.jvp(value, (q, v, t), (rates, motion.acceleration, jnp.ones_like(t)))[1]
