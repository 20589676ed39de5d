"""Motions whose constraints change when something happens.

y = (q, v); K: events at the most; T: saved times.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, for_use
from .._manifold import Projection
from .._program import apart, is_plain, lightly_compiled
from .._result import RESULTS, is_traced, throw_if_failed, worst
from .._simulation import Phase, integrator, method, motion_at, off_constraints, residuals, warn_of_start
from ._hybrid_trajectory import HybridTrajectory
from ._mode import Mode, Modes
from ._segment import Choices, segment


def simulate_hybrid(
    modes: Mapping[str, Mode],
    q0: Any,
    v0: Any,
    ts: Any,
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
    throw: bool = True,
) -> HybridTrajectory:
    r"""A motion through several modes: constraints come and go, joints hit their stops, ropes get slack, wheels slip.

    Each mode is integrated until one of its events: a function of the state, or of what its constraints carry, crosses
    zero. There velocities change by an impact, in any case by the smallest impulse,

    $$v^+ = v^- - M^{-1} J^\top (J M^{-1} J^\top)^{+} (J v^- - r),$$

    that brings them to the constraints of the next mode (r: what those, and the law of restitution, ask for), and the
    next mode begins.

    Args:
        modes: Name -> `Mode`. All have the same coordinates.
        q0: Coordinates at ts[0], shape (n,) [m or rad].
        v0: Their rates at ts[0], shape (n,) [m/s or rad/s].
        ts: Times to save at, strictly increasing, shape (T,), T >= 2 [s].
        start: The mode to begin with; the first if None.
        max_events: How many events there may be. Some motions have infinitely many in a finite time (a ball that comes
            to rest): let them end in a mode of their own, or at an event with `then=None`.
        formulation: As in `simulate`, like the following.
        solver: A Runge-Kutta method of diffrax.
        rtol: Relative tolerance; 1e-8 if None.
        atol: Absolute tolerance; 1e-8 if None.
        stepsize_controller: In place of the adaptive one.
        dt0: First step of every mode [s].
        projection: `Projection()` or None.
        max_steps: Step budget of each mode.
        throw: Raise if it fails. With False look at `result`.

    Returns:
        `HybridTrajectory`. After an event with `then=None` rows are NaN, which is no failure.

    Raises:
        TypeError: If a mode or an option is something else.
        ValueError: If there is no such mode as `start` or as an event's `then`, or an argument has a wrong shape.
        RuntimeError: If `throw` and a mode fails as in `simulate`, or there are more events than `max_events`.

    Gradients: forward and reverse mode, once, of all states, times and velocities at events, where events are
    transversal (the function crosses with a speed) and their order does not change. Times that a function only touches,
    or two events at once, have none.

    Each step is looked at six times; what crosses twice in between is not seen. A mode takes about twice as long as
    `simulate`: it is integrated once to find where it ends.

    Source: events: Shampine & Thompson (2000); impacts: Moreau (1988), by Gauss's principle for impulses.
    """
    given = Modes.of(modes)
    first = given.number(start)
    one = given.each[first].mechanism
    q0, v0 = _check.floating(q0, "q0"), _check.floating(v0, "v0")
    q0, v0, _ = _check.state(q0, v0, names=("q0", "v0"), kinematics=one.kinematics)
    _check.finite(q0, "q0")
    _check.finite(v0, "v0")
    ts = _check.times(ts).astype(q0.dtype)
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    _check.instance(solver, diffrax.AbstractRungeKutta, "solver", "diffrax.Tsit5()")
    integrate = integrator(None, projection, max_steps, False)
    steps = method(stepsize_controller, rtol, atol, dt0, ts, projection is not None, None)
    if isinstance(steps.controller, diffrax.StepTo):
        raise ValueError("stepsize_controller must not fix the steps, which end at events. Pass rtol and atol.")
    chosen = for_use(formulation, often=not is_plain())
    choices = Choices(ts, chosen, solver, steps, projection, integrate)
    got, off = apart(_simulate, given, first, q0, v0, choices, _check.count(max_events, "max_events"))
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
    """How far a motion is: where the mode begins, which it is, whether it goes on; rows so far; steps; `RESULTS`."""

    t: Array
    q: Array
    v: Array
    mode: Array
    going: Array
    rows: Array
    of_rows: Array
    tries: Array
    result: Any


class _Happened(NamedTuple):
    """When an event happened, which of which mode, and q and v after it."""

    t: Array
    event: Array
    mode: Array
    q: Array
    v: Array


@lightly_compiled
def _simulate(modes, first, q0, v0, choices, count):
    ts, size = choices.ts, q0.shape[0]
    branches = [lambda a, q, v, mode=mode: segment(mode, modes, choices, a, q, v) for mode in modes.each]

    def go(at: _Way) -> tuple[_Way, _Happened]:
        got = jax.lax.switch(at.mode, branches, at.t, at.q, at.v)
        rows = jnp.where(got.inside[:, None], got.ys, at.rows)
        of_rows = jnp.where(got.inside, at.mode, at.of_rows)
        okay = got.result == RESULTS.successful
        going = okay & (got.then >= 0) & (stop_gradient(got.t) < ts[-1])
        event = jnp.where(okay, got.which, -1)
        happened = _Happened(jnp.where(event >= 0, got.t, jnp.nan), event, at.mode, got.q, got.v)
        following = jnp.where(going, got.then, at.mode)
        return _Way(
            got.t, got.q, got.v, following, going, rows, of_rows, at.tries + got.tries, got.result
        ), happened  # fmt: skip

    def rest(at: _Way) -> tuple[_Way, _Happened]:
        nan = lambda x: jnp.full_like(x, jnp.nan)
        return at, _Happened(nan(at.t), jnp.asarray(-1), at.mode, nan(at.q), nan(at.v))

    # The first row is the start itself, whatever happens at once.
    y0 = jnp.concatenate([q0, v0])
    rows = jnp.full((ts.shape[0], y0.shape[0]), jnp.nan, q0.dtype).at[0].set(y0)
    of_rows = jnp.full(ts.shape, -1).at[0].set(first)
    okay = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    start = _Way(ts[0], q0, v0, jnp.asarray(first), jnp.asarray(True), rows, of_rows, jnp.zeros((), int), okay)
    end, happened = jax.lax.scan(lambda at, _: jax.lax.cond(at.going, go, rest, at), start, length=count + 1)
    happened = jax.tree_util.tree_map(lambda x: x[:count], happened)
    result = worst(end.result, RESULTS.where(end.going, RESULTS.too_many_events, RESULTS.successful))
    trajectory = HybridTrajectory(
        t=ts,
        q=end.rows[:, :size],
        v=end.rows[:, size:],
        **_of_rows(modes, choices, end.rows, end.of_rows, size),
        mode=end.of_rows,
        event_times=happened.t,
        event=happened.event,
        event_mode=happened.mode,
        event_q=happened.q,
        event_v=happened.v,
        modes=modes.names,
        events=tuple(tuple(mode.events) for mode in modes.each),
        result=result,
        stats={"num_steps": end.tries, "num_events": jnp.sum(happened.event >= 0)},
    )
    return trajectory, off_constraints(Phase.of(modes.each[first].mechanism, (q0, v0)), ts[0], y0)


def _of_rows(modes: Modes, choices: Choices, rows: Array, of_rows: Array, size: int) -> dict[str, Array]:
    """Acceleration, force and errors at the saved states, each in its mode."""

    def of(mode):
        def one(t, y):
            phase = Phase.of(mode.mechanism, (y[:size], y[size:]))
            at, *_ = motion_at(phase, mode.acting, choices.formulation, t, y)
            errors = residuals(phase, None, t, y)
            return at.acceleration, at.constraint_force, errors["position_residual"], errors["velocity_residual"]

        return one

    branches = [of(mode) for mode in modes.each]

    def row(t, y, which):
        reached = jnp.all(jnp.isfinite(y))
        found = jax.lax.switch(jnp.maximum(which, 0), branches, t, y)
        return tuple(jnp.where(reached, x, jnp.nan) for x in found)

    names = ("acceleration", "constraint_force", "position_residual", "velocity_residual")
    return dict(zip(names, jax.vmap(row)(choices.ts, rows, of_rows), strict=True))
