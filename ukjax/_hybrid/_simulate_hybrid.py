"""Simulation of motions whose constraints change at events, and its result.

y = (q, v); K: events at the most; T: saved times; p: actuators.
"""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba
from .._manifold import ConstraintSizes, Projection
from .._program import jit_fast_compile, not_tracing, outside_mesh
from .._result import RESULTS, first_failure, is_traced, throw_if_failed, worst
from .._show import AbstractShown, Report, number, outcome, shortened, values
from .._simulation import (
    OF_MOTION,
    Settings,
    StateLayout,
    motion_at,
    of_each,
    off_constraints,
    report_state,
    residuals,
    warn_of_start,
)
from .._trajectory import OF_CONTROLLERS, OF_EACH, OPTIONAL, Norms, Positions, Vectors
from .._types import Numbers
from ._mode import Came, Choices, Mode, Modes
from ._segment import segment


class HybridTrajectory(AbstractShown):
    """A motion at the saved times, with its events; rows that it did not reach are NaN.

    A field that `simulate_hybrid(keep=...)` left out is None.

    Attributes:
        t: Times (T,) [s]. At the time of an event, up to rounding, the state is the one before the event; with several
            events at a time, before the first.
        q: Coordinates (T, n_q) [m or rad].
        v: Rates of q, or the speeds (T, n) [m/s or rad/s].
        acceleration: (T, n) [m/s^2 or rad/s^2].
        constraint_force: Ideal constraint force (T, n) [N or N m].
        position_residual: Euclidean norm of Φ over all holonomic constraints of the mode (T,).
        velocity_residual: Euclidean norm of Φ̇ and ψ over all constraints of the mode (T,).
        mode: Number of the mode (T,), as in `modes`; -1 in rows that were not reached.
        event_times: Times of the events (K,) [s], never decreasing; NaN beyond the last.
        event: Number of each event (K,) within its mode, as in `events`; -1 beyond the last.
        event_mode: The mode that each event ended (K,); -1 beyond the last.
        event_q: Coordinates after the events (K, n_q); NaN beyond the last.
        event_v: Velocities after the events (K, n); NaN beyond the last.
        modes: Names of the modes.
        events: Names of the events of each mode, then "NAME to rest" for each event with a `rest` mode.
        result: `RESULTS`; empty message if all went well.
        stats: `num_steps`: attempted steps, those of the search for events included; `num_events`.
        nonideal_force: Acting part of the non-ideal force (T, n) [N or N m].
        control: Control of all actuators (T, p), p as large as in the mode that has most; NaN for actuators that the
            mode does not have. None if nothing acts in any mode.
        servo_residual: As in `Trajectory` (T,), like the next two; NaN in modes without a servo, None if none has one.
        servo_position_residual: (T,).
        servo_velocity_residual: (T,).
        rank: Rank of A (T,); -1 in rows that were not reached.
        constraint_forces: Share of each constraint in `constraint_force`, by its name, (T, n) [N or N m]; NaN in
            modes that have no constraint of this name. None unless `simulate_hybrid(keep="all")`, or `keep` names it.
        multipliers: Lagrange multipliers of the rows of each constraint, by its name, (T, m); NaN and None likewise.
    """

    t: Float[Array, " T"]
    q: Positions
    v: Vectors
    acceleration: Vectors
    constraint_force: Vectors
    position_residual: Norms
    velocity_residual: Norms
    mode: Int[Array, " T"]
    event_times: Float[Array, " K"]
    event: Int[Array, " K"]
    event_mode: Int[Array, " K"]
    event_q: Float[Array, "K n_q"]
    event_v: Float[Array, "K n"]
    modes: tuple[str, ...] = eqx.field(static=True)
    events: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    result: RESULTS
    stats: dict[str, Array]
    nonideal_force: Float[Array, "T n"] | None = None
    control: Float[Array, "T p"] | None = None
    servo_residual: Float[Array, " T"] | None = None
    servo_position_residual: Float[Array, " T"] | None = None
    servo_velocity_residual: Float[Array, " T"] | None = None
    rank: Int[Array, " T"] | None = None
    constraint_forces: dict[str, Float[Array, "T n"]] | None = None
    multipliers: dict[str, Float[Array, "T _"]] | None = None

    def _report(self) -> Report:
        if self.t.ndim != 1:
            return Report(f"HybridTrajectory: {outcome(self.result)}", [("q", values(self.q))])
        found = [(f"{t:.6g}", mode, event) for t, mode, event in self.happened()]
        shown, more = shortened(found)
        about = f"{len(self.t)} saved times from {number(self.t[0])} to {number(self.t[-1])} s, {len(found)} events"
        head = ("event at [s]", "ends the mode", "by")
        return Report(f"HybridTrajectory: {outcome(self.result)}", shown, head if shown else (), [*more, about])

    def happened(self) -> list[tuple[float, str, str]]:
        """Returns time, mode and event of all events, in order; raises ValueError if traced, or for a batch."""
        if is_traced(self.event) or self.event.ndim != 1:
            raise ValueError("happened() is of one trajectory outside of jit, vmap and grad: index the batch first.")
        found = []
        for t, mode, event in zip(*map(np.asarray, (self.event_times, self.event_mode, self.event)), strict=True):
            if event >= 0:
                found.append((float(t), self.modes[mode], self.events[mode][event]))
        return found


def fields_of(
    modes: Modes, choices: Choices, ys: Array, which: Array, coordinates: int
) -> tuple[dict[str, PyTree], RESULTS]:
    """Returns the fields of states (T, n), each in one of the modes (T,), by name, and the first failure among them.

    Entries that a mode does not have, such as an actuator or a multiplier, are NaN.
    """
    known = [_of_mode(mode, choices.settings, coordinates) for mode in modes.each]
    shapes = [jax.eval_shape(one, choices.ts[0], ys[0])[0] for one in known]
    whole: dict[str, PyTree] = {}
    for shape in shapes:
        _widen(whole, shape)
    branches = [lambda t, y, one=one: _padded(one(t, y), whole) for one in known]

    def state(t: Array, y: Array, which: Array) -> tuple[dict[str, PyTree], RESULTS]:
        reached = jnp.all(jnp.isfinite(y))
        # A row that was not reached uses the state at the start, so that no derivative is taken at NaN.
        fields, result = jax.lax.switch(jnp.maximum(which, 0), branches, t, jnp.where(reached, y, ys[0]))
        fields = jax.tree_util.tree_map(lambda x: jnp.where(reached, x, _nothing(x.dtype)), fields)
        return fields, RESULTS.where(reached, result, RESULTS.successful)

    fields, results = jax.vmap(state)(choices.ts, ys, which)
    return fields, first_failure(results)


def _nothing(dtype: DTypeLike) -> float:
    """Returns the number that stands for no value."""
    return jnp.nan if jnp.issubdtype(dtype, jnp.inexact) else -1


def _of_mode(
    mode: Mode, settings: Settings, coordinates: int
) -> Callable[[Array, Array], tuple[dict[str, PyTree], RESULTS]]:
    """Returns a function (t, y) -> fields of a state in a mode, and whether there is a motion."""

    def one(t: Array, y: Array) -> tuple[dict[str, PyTree], RESULTS]:
        layout, controller = StateLayout.of(mode.mechanism, (y[:coordinates], y[coordinates:])), mode.controller
        result = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
        if settings.projection is not None:
            sizes = ConstraintSizes.of(mode.mechanism, *layout.split(y), t)
            y = settings.projection(mode.mechanism, t, y, settings.expands(y.dtype), coordinates, sizes)
            result = RESULTS.where(jnp.all(jnp.isfinite(y)), result, RESULTS.projection_off_constraints)
        fields: dict[str, PyTree] = dict(zip(("q", "v"), layout.split(y), strict=True))
        if any(name in OF_MOTION for name in settings.keep):
            found = report_state(ft.partial(motion_at, layout, controller, settings.formulation), t, y)
            fields, result = fields | found.fields, worst(result, found.result)
        fields |= residuals(layout, controller, t, y)
        if any(name in OF_EACH for name in settings.keep):
            fields |= of_each(layout, t, y, fields["constraint_force"])
        return {name: fields[name] for name in settings.keep if name in fields}, result

    return one


def _widen(whole: dict[str, PyTree], more: dict[str, PyTree]) -> None:
    """Adds shapes by name to others: the names of both, and the larger size where both have one."""
    for name, shape in more.items():
        if isinstance(shape, dict):
            _widen(whole.setdefault(name, {}), shape)
        elif name not in whole or shape.shape > whole[name].shape:
            whole[name] = shape


def _padded(found: tuple[dict[str, PyTree], RESULTS], whole: dict[str, PyTree]) -> tuple[dict[str, PyTree], RESULTS]:
    """Returns fields of one mode in the shapes of all modes, with NaN where it has none."""

    def pad(fields: dict[str, PyTree], whole: dict[str, PyTree]) -> dict[str, PyTree]:
        full = {}
        for name, shape in whole.items():
            if isinstance(shape, dict):
                full[name] = pad(fields.get(name, {}), shape)
                continue
            x, missing = fields.get(name), jnp.full(shape.shape, _nothing(shape.dtype), shape.dtype)
            full[name] = missing if x is None else missing.at[tuple(map(slice, x.shape))].set(x)
        return full

    return pad(found[0], whole), found[1]


def simulate_hybrid(
    modes: Mapping[str, Mode],
    q0: Numbers,
    v0: Numbers,
    ts: Numbers,
    *,
    start: str | None = None,
    max_events: int = 32,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    solver: diffrax.AbstractSolver = diffrax.Tsit5(),
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    dt0: ArrayLike | None = None,
    projection: Projection | None = None,
    max_steps: int = 16_384,
    keep: str | Sequence[str] | None = None,
    throw: bool = True,
) -> HybridTrajectory:
    r"""Simulates a motion through several modes, in which constraints come and go: stops, slack ropes, slipping wheels.

    Each mode is integrated until one of its events: a function of the state, or of the multipliers of its constraints,
    crosses zero. There velocities change by an impact, in any case by the smallest impulse,

    $$v^+ = v^- - M^{-1} J^\top (J M^{-1} J^\top)^{+} (J v^- - r),$$

    that brings them to the constraints of the next mode. r holds the velocities that those, and the law of restitution,
    require. Then the next mode begins.

    Args:
        modes: Name -> `Mode`. All have the same coordinates.
        q0: Coordinates at ts[0], shape (n,) [m or rad].
        v0: Rates of q0 at ts[0], shape (n,) [m/s or rad/s].
        ts: Times to save at, strictly increasing, shape (T,), T >= 2 [s].
        start: The mode to begin with; the first if None.
        max_events: Largest number of events. Some motions have infinitely many in a finite time: a ball that comes to
            rest. Name the mode that follows by `rest=` of its `Event`.
        formulation: As in `simulate`, like the following.
        solver: A Runge-Kutta method of diffrax.
        rtol: Relative tolerance; 1e-8 if None.
        atol: Absolute tolerance; 1e-8 if None.
        stepsize_controller: A diffrax controller; it replaces the adaptive one.
        dt0: First step of every mode [s].
        projection: `Projection()` or None.
        max_steps: Step budget of each mode.
        keep: As in `simulate`: names of the fields to compute; "all"; or None for all but `constraint_forces` and
            `multipliers`.
        throw: Raise if the simulation fails. With False look at `result`.

    Returns:
        `HybridTrajectory`. After an event with `then=None` rows are NaN, which is no failure.

    Raises:
        TypeError: If a mode or an option is something else.
        ValueError: If `start` or an event's `then` names no mode, or an argument has a wrong shape.
        RuntimeError: If `throw` and a mode fails as in `simulate`; there are more events than `max_events`; something
            comes to rest at an event without a `rest` mode; an event function jumps over zero; or the mode that follows
            an event cannot begin there.

    Gradients: forward and reverse mode, of all states, times and velocities at events, with respect to everything, the
    saved times included, where events are transversal (the function crosses with a speed) and their order does not
    change; twice, if the outer derivative is taken forwards: `jax.hessian`. Times that a function only touches have
    none.

    Event functions are evaluated six times in each step. A function that crosses zero twice between two evaluations is
    found if its rate changes sign once between them. A mode takes about twice as long as `simulate`, because it is
    integrated once more to find its end. With a `projection` saved states, and those at events, are projected too.

    Source: events: Shampine & Thompson (2000); impacts: Moreau (1988), by Gauss's principle for impulses.
    """
    given = Modes.of(modes)
    first = given.number(start)
    one = given.each[first].mechanism
    q0, v0 = _check.floating(q0, "q0"), _check.floating(v0, "v0")
    q0, v0, _ = _check.state(q0, v0, names=("q0", "v0"), kinematics=one.kinematics)
    _check.finite(q0, "q0")
    _check.finite(v0, "v0")
    given.check(q0, v0)
    ts = _check.times(ts).astype(q0.dtype)
    _check.instance(solver, diffrax.AbstractRungeKutta, "solver", "diffrax.Tsit5()")
    settings = Settings.of(
        ts, given.controllers, formulation, solver, rtol=rtol, atol=atol, stepsize_controller=stepsize_controller,
        dt0=dt0, projection=projection, max_steps=max_steps, keep=keep, often=not not_tracing(),
    )  # fmt: skip
    if isinstance(settings.method.controller, diffrax.StepTo):
        raise ValueError("stepsize_controller must not fix the steps, which end at events. Pass rtol and atol.")
    count = _check.count(max_events, "max_events")
    got, off = outside_mesh(_simulate, given, first, q0, v0, Choices(ts, settings), count)
    if is_traced(got):
        return throw_if_failed(got, got.result) if throw else got
    failed = bool(got.result != RESULTS.successful)
    if not failed and projection is None:
        warn_of_start(*off)
    if throw and failed:
        happened = got.happened()
        last = f", after {happened[-1][2]!r} at t = {happened[-1][0]:.6g} s" if happened else ""
        throw_if_failed(got, got.result, f" ({len(happened)} events{last})")
    return got


class _Way(NamedTuple):
    """The progress of a motion: the current mode and its beginning, whether it goes on, and the rows so far."""

    t: Array
    q: Array
    v: Array
    mode: Array
    came: Came
    going: Array
    rows: Array
    of_rows: Array
    tries: Array
    result: RESULTS


class _Happened(NamedTuple):
    """The time of an event, its number and mode, and q and v after it."""

    t: Array
    event: Array
    mode: Array
    q: Array
    v: Array


@jit_fast_compile
def _simulate(
    modes: Modes, first: int, q0: Array, v0: Array, choices: Choices, count: int
) -> tuple[HybridTrajectory, tuple[Array, Array, Array]]:
    ts, size = choices.ts, q0.shape[0]
    branches = [
        lambda a, q, v, came, number=number: segment(number, modes, choices, a, q, v, came)
        for number in range(len(modes.each))
    ]

    def go(at: _Way) -> tuple[_Way, _Happened]:
        # In a batch a motion that has ended is run again, from the end of the time, with nothing left to do.
        begin = jnp.where(at.going, at.t, ts[-1])
        got = jax.lax.switch(at.mode, branches, begin, at.q, at.v, at.came)
        rows = jnp.where(got.inside[:, None], got.ys, at.rows)
        of_rows = jnp.where(got.inside, at.mode, at.of_rows)
        okay = got.result == RESULTS.successful
        going = okay & (got.then >= 0) & (stop_gradient(got.t) < ts[-1])
        happened = _happened(okay & (got.which >= 0), got.t, got.which, at.mode, got.q, got.v)
        following = jnp.where(going, got.then, at.mode)
        way = _Way(
            got.t, got.q, got.v, following, got.came, going, rows, of_rows, at.tries + got.tries, got.result
        )  # fmt: skip
        return way, happened

    def rest(at: _Way) -> tuple[_Way, _Happened]:
        return at, _happened(jnp.asarray(False), at.t, at.mode, at.mode, at.q, at.v)

    # The first row is the start itself, whatever happens at once.
    y0 = jnp.concatenate([q0, v0])
    rows = jnp.full((ts.shape[0], y0.shape[0]), jnp.nan, q0.dtype).at[0].set(y0)
    of_rows = jnp.full(ts.shape, -1).at[0].set(first)
    okay = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    most = max(len(mode.events) for mode in modes.each)
    came = Came(jnp.asarray(-1), jnp.asarray(-1), jnp.zeros(most, bool))
    increasing = jnp.all(ts[1:] > ts[:-1])
    start = _Way(ts[0], q0, v0, jnp.asarray(first), came, increasing, rows, of_rows, jnp.zeros((), int), okay)
    end, happened = jax.lax.scan(lambda at, _: jax.lax.cond(at.going, go, rest, at), start, length=count + 1)
    happened = jax.tree_util.tree_map(lambda x: x[:count], happened)
    result = worst(end.result, RESULTS.where(end.going, RESULTS.too_many_events, RESULTS.successful))
    result = RESULTS.where(increasing, result, RESULTS.times_do_not_fit)
    fields, failed = fields_of(modes, choices, end.rows, end.of_rows, size)
    optional: dict[str, PyTree] = {name: fields.get(name) for name in OPTIONAL if name not in OF_CONTROLLERS}
    trajectory = HybridTrajectory(
        t=ts,
        mode=end.of_rows,
        event_times=happened.t,
        event=happened.event,
        event_mode=happened.mode,
        event_q=happened.q,
        event_v=happened.v,
        modes=modes.names,
        events=tuple(mode.names for mode in modes.each),
        result=worst(result, failed),
        stats={"num_steps": end.tries, "num_events": jnp.sum(happened.event >= 0)},
        **optional,
    )
    return trajectory, off_constraints(StateLayout.of(modes.each[first].mechanism, (q0, v0)), ts[0], y0, end.rows)


def _happened(event: Array, t: Array, which: Array, mode: Array, q: Array, v: Array) -> _Happened:
    """Returns the record of an event, blank if there was none."""
    return _Happened(*(jnp.where(event, x, _nothing(x.dtype)) for x in (t, which, mode, q, v)))
