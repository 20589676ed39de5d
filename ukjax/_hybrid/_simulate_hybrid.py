"""Motions whose constraints change when something happens.

y = (q, v); K: events at the most; T: saved times.
"""

from collections.abc import Mapping
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, for_use
from .._manifold import Projection
from .._program import apart, is_plain, lightly_compiled
from .._result import RESULTS, is_traced, throw_if_failed, worst
from .._simulation import Phase, integrator, method, motion_at, residuals
from ._hybrid_trajectory import HybridTrajectory
from ._mode import Mode
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
    modes, first = _modes_of(modes, start)
    one = next(iter(modes.values())).mechanism
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
    names = _Names(tuple(modes))
    got = apart(_simulate, tuple(modes.values()), names, first, q0, v0, choices, _check.count(max_events, "max_events"))
    if is_traced(got):
        return throw_if_failed(got, got.result) if throw else got
    if throw and bool(got.result != RESULTS.successful):
        happened = got.happened()
        last = f", after {happened[-1][2]!r} at t = {happened[-1][0]:.6g} s" if happened else ""
        throw_if_failed(got, got.result, f" ({len(happened)} events{last})")
    return got


def _modes_of(modes: Any, start: str | None) -> tuple[dict[str, Mode], int]:
    """The modes, and the number of the first; TypeError or ValueError if they are none."""
    if not isinstance(modes, Mapping) or not modes:
        raise TypeError('modes must be a mapping, name -> ukjax.Mode, with at least one: {"flight": ukjax.Mode(...)}.')
    modes = dict(modes)
    for name, mode in modes.items():
        _check.instance(mode, Mode, f"modes[{name!r}]", "ukjax.Mode(mechanism, events)")
        for called, event in mode.events.items():
            if event.then is not None and event.then not in modes:
                raise ValueError(
                    f"event {called!r} of mode {name!r} is followed by {event.then!r}, but modes are "
                    f"{', '.join(map(repr, modes))}."
                )
    if start is not None and start not in modes:
        raise ValueError(f"start must be one of {', '.join(map(repr, modes))}, but is {start!r}.")
    return modes, 0 if start is None else list(modes).index(start)


class _Names(eqx.Module):
    names: tuple[str, ...] = eqx.field(static=True)


@lightly_compiled
def _simulate(each, names, first, q0, v0, choices, count):
    ts, modes = choices.ts, dict(zip(names.names, each, strict=True))
    size = q0.shape[0]
    branches = [lambda a, q, v, mode=mode: segment(mode, modes, choices, a, q, v)._asdict() for mode in modes.values()]
    rows = jnp.full((ts.shape[0], size + v0.shape[0]), jnp.nan, q0.dtype)

    def on(carry, _):
        def go(carry):
            a, q, v, mode, _, rows, of_rows, tries, _ = carry
            got = jax.lax.switch(mode, branches, a, q, v)
            inside = got["inside"]
            rows = jnp.where(inside[:, None], got["ys"], rows)
            of_rows = jnp.where(inside, mode, of_rows)
            okay = got["result"] == RESULTS.successful
            going = okay & (got["then"] >= 0) & (stop_gradient(got["t"]) < ts[-1])
            event = jnp.where(okay, got["which"], -1)
            following = jnp.where(going, got["then"], mode)
            note = (jnp.where(event >= 0, got["t"], jnp.nan), event, mode, got["q"], got["v"])
            carry = (got["t"], got["q"], got["v"], following, going, rows, of_rows, tries + got["tries"], got["result"])
            return carry, note

        def rest(carry):
            _, q, v, mode, *_ = carry
            nan = lambda x: jnp.full_like(x, jnp.nan)
            return carry, (jnp.asarray(jnp.nan, q.dtype), jnp.asarray(-1), mode, nan(q), nan(v))

        return jax.lax.cond(carry[4], go, rest, carry)

    # The first row is the start itself, whatever happens at once.
    rows = rows.at[0].set(jnp.concatenate([q0, v0]))
    of_rows = jnp.full(ts.shape, -1).at[0].set(first)
    okay = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    index = jnp.asarray(first)
    carry = (ts[0], q0, v0, index, jnp.asarray(True), rows, of_rows, jnp.zeros((), int), okay)
    carry, notes = jax.lax.scan(on, carry, length=count + 1)
    _, _, _, _, going, rows, of_rows, tries, result = carry
    times, event, event_mode, event_q, event_v = jax.tree_util.tree_map(lambda x: x[:count], notes)
    result = worst(result, RESULTS.where(going, RESULTS.too_many_events, RESULTS.successful))
    stats = {"num_steps": tries, "num_events": jnp.sum(event >= 0)}
    more = _of_rows(modes, choices, rows, of_rows, size)
    return HybridTrajectory(
        t=ts, q=rows[:, :size], v=rows[:, size:], mode=of_rows, event_times=times, event=event, event_mode=event_mode,
        event_q=event_q, event_v=event_v, modes=tuple(modes), events=tuple(tuple(m.events) for m in modes.values()),
        result=result, stats=stats, **more,
    )  # fmt: skip


def _of_rows(modes: dict[str, Mode], choices: Choices, rows: Array, of_rows: Array, size: int) -> dict[str, Array]:
    """Acceleration, force and errors at the saved states, each in its mode."""

    def of(mode):
        def one(t, y):
            phase = Phase.of(mode.mechanism, (y[:size], y[size:]))
            at, *_ = motion_at(phase, mode.acting, choices.formulation, t, y)
            errors = residuals(phase, None, t, y)
            return at.acceleration, at.constraint_force, errors["position_residual"], errors["velocity_residual"]

        return one

    branches = [of(mode) for mode in modes.values()]

    def row(t, y, which):
        reached = jnp.all(jnp.isfinite(y))
        found = jax.lax.switch(jnp.maximum(which, 0), branches, t, y)
        return tuple(jnp.where(reached, x, jnp.nan) for x in found)

    names = ("acceleration", "constraint_force", "position_residual", "velocity_residual")
    return dict(zip(names, jax.vmap(row)(choices.ts, rows, of_rows), strict=True))
