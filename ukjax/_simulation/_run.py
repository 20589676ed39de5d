"""The start of a run, on its constraints or not, and the making of its trajectory.

The integration between them is an `Integrator`.

y = (q, v) side by side; T: saved times; m: servo rows.
"""

import functools as ft
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree

from .. import _expand
from .._constraint import members_of
from .._formulation import AbstractFormulation
from .._integrate import Dynamics, Integrated, Kinked
from .._manifold import ConstraintSizes
from .._mechanism import Mechanism
from .._program import hoist
from .._result import RESULTS, InconsistentStart, worst
from .._rounding import missed
from .._servo import AbstractController
from .._trajectory import OF_EACH, OPTIONAL, Trajectory
from ._rattle import onto_constraints, rattle_step
from ._settings import Settings
from ._states import (
    OF_MOTION,
    MotionAt,
    StateLayout,
    derivative,
    margins_at,
    motion_at,
    of_each,
    report_state,
    residuals,
    row_errors,
    verdict,
)


# A start may be off the constraints by this part of the terms of a row without a warning.
OFF = 1e-4


def warn_of_start(position: Array, velocity: Array, much: Array, callers: int = 2) -> None:
    """Warns of an `InconsistentStart` if `much`; the warning is attributed to the frame `callers` levels up."""
    if much:
        warnings.warn(
            f"q0, v0 are off the constraints, by up to {position:.3g} in position and {velocity:.3g} in velocity, and "
            "nothing returns to them: the error stays, or grows. Start from ukjax.assemble(mechanism, q0, v0, ts[0]), "
            "give the constraints a ukjax.Baumgarte(...), or pass projection=ukjax.Projection().",
            InconsistentStart,
            stacklevel=callers + 1,
        )


def off_constraints(layout: StateLayout, t: Array, y: Array, ys: Array) -> tuple[Array, Array, Array]:
    """The largest position and velocity errors of constraints without stabilisation, and whether these are too large.

    `ys`: states (T, n) of the run that begins at y, for the scales of its coordinates and rates.
    """
    which = [
        name
        for name, constraint in layout.mechanism.named_constraints.items()
        if any(getattr(one, "stabilization", None) is None for one in members_of(constraint))
    ]
    ys = stop_gradient(ys)
    along = layout.split(jnp.max(jnp.where(jnp.isfinite(ys), jnp.abs(ys), 0.0), axis=0, initial=0.0))
    most = max(OFF, 10 * float(jnp.finfo(y.dtype).eps) ** 0.5)

    def errors(q: Array, v: Array) -> tuple[Array, Array]:
        return layout.mechanism.errors(q, v, t, which)

    (position, of_position), (velocity, of_velocity) = _missed(errors, layout.split(stop_gradient(y)), along)
    return position, velocity, (of_position > most) | (of_velocity > most)


def starts_on_constraints(layout: StateLayout, t: Array, y: Array, before: Array, otherwise: RESULTS) -> RESULTS:
    """Returns success if the positions of y satisfy the constraints, else `otherwise`; `before`: y unprojected."""
    (q, _), (q0, _) = layout.split(stop_gradient(y)), layout.split(stop_gradient(before))
    ((_, part),) = _missed(lambda q: (layout.mechanism.position_error(q, t),), (q,), (jnp.abs(q0),))
    okay = (part <= 10 * jnp.sqrt(jnp.finfo(y.dtype).eps)) | ~jnp.isfinite(part)
    return RESULTS.where(okay, RESULTS.successful, otherwise)


def _missed(
    errors: Callable[..., Sequence[Array]], xs: Sequence[Array], sizes: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """The largest of the errors for each of xs, and of the parts of their terms that they are: see `missed`."""
    found = missed(errors, xs, sizes, _expand.scalars)
    return [(jnp.max(jnp.abs(values), initial=0.0), jnp.max(parts, initial=0.0)) for values, parts in found]


class FailureEvidence(NamedTuple):
    """The data to explain a failure later; explaining it in the main program would double the size of that program."""

    started: RESULTS
    outcome: RESULTS
    layout: StateLayout
    states: tuple[Array, Array]


class RunDiagnostics(NamedTuple):
    """The findings of a run that go into messages and not into its trajectory.

    Attributes:
        start: Largest position and velocity errors at the start, of constraints without stabilisation, and whether
            these are too large; None if the run is projected on them.
        unreachable: The part of each servo row that no control meets, at the state that made the run fail (m,); None
            without a servo.
        unexplained: The data for `diagnose_failure`, if no reason of a failure was looked for.
    """

    start: tuple[Array, Array, Array] | None
    unreachable: Array | None
    unexplained: FailureEvidence | None


class Run(eqx.Module):
    """The dynamics of a run, its first state, and whether it may start there.

    `motion` is (t, y) -> `motion_at`; `onto` leads a saved state to the constraints, or is None.
    """

    layout: StateLayout
    controller: AbstractController
    motion: MotionAt
    onto: Callable | None
    flow: Dynamics
    y0: Float[Array, " n"]
    started: RESULTS


def set_up(
    mechanism: Mechanism,
    controller: AbstractController,
    start: tuple[Array, Array],
    ts: Array,
    settings: Settings,
    motion: MotionAt | None = None,
    sizes: ConstraintSizes | None = None,
) -> Run:
    """Sets up the run of a mechanism; `motion`: if traced already; `sizes`: of the rows at the start, if known."""
    layout, y0, started = StateLayout.of(mechanism, start), jnp.concatenate(start), RESULTS.successful
    onto, projection, expand = None, settings.projection, settings.expands(y0.dtype)
    if projection is not None:
        sizes = ConstraintSizes.of(mechanism, *start, ts[0]) if sizes is None else sizes
        whole = with_store(layout, controller, ts[0], y0)

        def back(t: Array, y: Array) -> Array:
            return projection(mechanism, t, y, expand, layout.coordinates, sizes)

        projected = ft.partial(_of_mechanism, layout, back)
        if expand:  # one program for all steps of Newton's method, of which XLA would compile what lies between
            projected = _expand.scalars(projected, ts[0], whole, joins=True)
        onto = hoist(projected, ts[0], whole)
        y0 = jax.vmap(onto)(ts[:1], whole[None])[0, : layout.size]
        # From far away the few iterations of a projection do not reach the constraints.
        arrived = jnp.all(jnp.isfinite(y0)) | ~jnp.all(jnp.isfinite(whole))
        started = starts_on_constraints(layout, ts[0], y0, whole, RESULTS.not_assembled)
        started = worst(RESULTS.where(arrived, RESULTS.successful, RESULTS.not_assembled), started)
    y0 = with_store(layout, controller, ts[0], y0)
    if motion is None:
        # The conversion finds every array that the user's functions close over, so that it can be differentiated.
        motion = hoist(ft.partial(motion_at, layout, controller, settings.formulation), ts[0], y0)
    project = onto
    if controller.period is not None:
        project = hoist(
            lambda t, y: _sampled(layout, controller, ts[0], t, y if onto is None else onto(t, y)), ts[0], y0
        )
    kinks = None
    if isinstance(settings.method.controller, Kinked):
        margins = _expand.scalars(ft.partial(margins_at, layout, controller), ts[0], y0)
        kinks = hoist(margins, ts[0], y0)
    leap = None
    if settings.rattle is not None:
        leap = hoist(rattle_step(settings.rattle, mechanism, layout, expand), ts[0], ts[1], y0)
        if mechanism.constraints:
            onto = hoist(onto_constraints(mechanism, layout, expand), ts[0], y0)
        started = starts_on_constraints(layout, ts[0], y0, y0, RESULTS.off_constraints)
    okay = RESULTS.successful
    started = worst(RESULTS.where(_fits(ts, *settings.method), okay, RESULTS.times_do_not_fit), started)
    started = worst(started, RESULTS.where(jnp.all(jnp.isfinite(y0)), okay, RESULTS.not_finite))
    flow = Dynamics(Partial(derivative, motion), project, leap, None if sizes is None else sizes.scales, kinks)
    return Run(layout, controller, motion, onto, flow, y0, started)


def with_store(layout: StateLayout, controller: AbstractController, t: Array, y: Array) -> Array:
    """The state y = (q, v) extended by the initial store of a controller."""
    return jnp.concatenate([y, controller.start(*layout.split(y), t)]) if controller.has_store else y


def _of_mechanism(layout: StateLayout, function: Callable, t: Array, y: Array) -> Array:
    """Applies a function of (t, (q, v)) to a state with a store, which stays unchanged."""
    moved = function(t, y[: layout.size])
    return moved if y.shape[0] == layout.size else jnp.concatenate([moved, layout.stored(y)])


def _sampled(layout: StateLayout, controller: AbstractController, start: Array, t: Array, y: Array) -> Array:
    """The state at the end of a step, with its store updated if a sample is due."""
    store = controller.sampled(*layout.split(y), t, start, layout.stored(y))
    return jnp.concatenate([y[: layout.size], store])


def assemble_trajectory(
    run: Run, ts: Array, integrated: Integrated, kept: tuple[str, ...]
) -> tuple[Trajectory, RunDiagnostics]:
    """Makes the trajectory, with the fields to keep, and its `RunDiagnostics` from the results of an `Integrator`."""
    (ys, end, stats, outcome), started = integrated, run.started
    layout, controller, motion = run.layout, run.controller, run.motion
    if run.flow.leap is not None:
        outcome = RESULTS.where(outcome == RESULTS.nonlinear_divergence, RESULTS.step_off_constraints, outcome)
    if run.onto is not None:
        # Between two steps lies an interpolant, which misses the constraints.
        between, ys = ys, jax.vmap(run.onto)(ts, ys)
        lost = jnp.any(_are_finite(between) & ~_are_finite(ys))
        okay = RESULTS.where(lost, RESULTS.projection_off_constraints, RESULTS.successful)
        outcome = worst(named(outcome), okay)
    # At the time of a sample the control is the one decided there, with which the run continues.
    sampled = jax.vmap(ft.partial(_sampled, layout, controller, ts[0]))
    decided = ys if controller.period is None else sampled(ts, ys)
    whole = any(name in OF_MOTION for name in kept)
    states = row_errors(layout, ts, decided, end, whole)
    errors = _expand.scalars(ft.partial(residuals, layout, controller), ts[0], run.y0)
    fields: dict[str, PyTree] = dict(zip(("q", "v"), layout.split(ys), strict=True))
    if controller.memory is not None:
        fields["memory"] = controller.seen(layout.stored(ys))
    stats = {**stats, "t_reached": jnp.where(started == RESULTS.successful, end[0], ts[0])}
    if whole:
        # One function for a whole state, so that common parts are computed once.
        rows, others = jax.vmap(lambda t, y: (report_state(motion, t, y), errors(t, y)))(*states)
        fields |= jax.tree_util.tree_map(lambda x: x[:-2], rows.fields | others)
        if any(name in OF_EACH for name in kept):
            fields |= jax.vmap(ft.partial(of_each, layout))(ts, ys, fields["constraint_force"])
        result, unreachable = verdict(rows, outcome)
        if rows.missed is not None:
            stats["servo_missed_from"] = jnp.min(jnp.where(rows.missed[:-2], ts, jnp.inf))
    else:
        fields |= jax.vmap(errors)(ts, ys)
        finite = RESULTS.where(jnp.all(jnp.isfinite(ys)), RESULTS.successful, RESULTS.not_finite)
        result, unreachable = worst(outcome, finite), None
    values: dict[str, PyTree] = {name: fields[name] if name in kept else None for name in OPTIONAL}
    # A projection returns from where a run starts, or says that it is too far.
    at_start = None if run.onto is not None else off_constraints(layout, ts[0], ys[0], ys)
    trajectory = Trajectory(t=ts, result=worst(started, result), stats=stats, names=layout.mechanism.names, **values)
    return trajectory, RunDiagnostics(
        at_start, unreachable, None if whole else FailureEvidence(started, outcome, layout, states)
    )


def _are_finite(ys: Array) -> Array:
    return jnp.all(jnp.isfinite(ys), axis=1)


def named(outcome: RESULTS) -> RESULTS:
    """Replaces the code of a lost projection, diffrax's `internal_error`, by `projection_off_constraints`."""
    return RESULTS.where(outcome == RESULTS.internal_error, RESULTS.projection_off_constraints, outcome)


def diagnose_failure(
    controller: AbstractController, formulation: AbstractFormulation, run: FailureEvidence
) -> tuple[RESULTS, Array | None]:
    """Finds the `RESULTS` of a run that failed, and the servo errors that no control could meet."""
    motion = ft.partial(motion_at, run.layout, controller, formulation)
    result, unreachable = verdict(jax.vmap(ft.partial(report_state, motion))(*run.states), run.outcome)
    return worst(run.started, result), unreachable


def _fits(ts: Array, controller: diffrax.AbstractStepSizeController, dt0: Array | None) -> Array:
    """Whether `ts`, dt0 and the times of a `StepTo` are valid; traced ones could not be checked before."""
    fits = jnp.all(ts[1:] > ts[:-1])
    if dt0 is not None:
        fits &= dt0 > 0
    if isinstance(controller, diffrax.StepTo):
        steps = controller.ts.astype(ts.dtype)
        fits &= jnp.all(steps[1:] > steps[:-1]) & (steps[0] == ts[0]) & (steps[-1] == ts[-1])
    return fits
