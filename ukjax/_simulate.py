"""Trajectories: the equation of motion through diffrax.

y = (q, v) side by side; n: coordinates; T: saved times.
"""

from collections.abc import Callable, Sequence
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from . import _check
from ._formulation import AbstractFormulation, Motion, UdwadiaKalaba
from ._integrate import Flow, Integrator
from ._manifold import Projection
from ._mechanism import Mechanism
from ._result import RESULTS, first_failure, is_traced, throw_if_failed, worst
from ._servo import AbstractServo, Control, as_servos, controlled_motion
from ._trajectory import Trajectory


LOOSE = 1e-7


def simulate(
    mechanism: Mechanism,
    q0: Any,
    v0: Any,
    ts: Any,
    *,
    servo: AbstractServo | Sequence[AbstractServo] | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    solver: diffrax.AbstractSolver = diffrax.Tsit5(),
    rtol: ArrayLike = 1e-8,
    atol: ArrayLike = 1e-8,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    dt0: ArrayLike | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    projection: Projection | None = None,
    max_steps: int = 16_384,
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
) -> Trajectory:
    r"""Integrates $\dot q = v$, $\dot v = \ddot q(q, v, t)$ with the constrained acceleration, from ts[0] to ts[-1].

    Args:
        mechanism: System and constraints; its array leaves are differentiable.
        q0: Coordinates at ts[0], shape (n,) [m or rad]. `assemble` makes a state consistent.
        v0: Their rates at ts[0], shape (n,) [m/s or rad/s].
        ts: Times to save at, strictly increasing, shape (T,), T >= 2 [s].
        servo: `Servo` or `ConstraintFollowing`, or several of one kind: the control acts on the mechanism, and
            `control` records it.
        formulation: How the acceleration is computed.
        solver: Any diffrax solver. `Tsit5` and `Dopri8` for ordinary problems, `Kvaerno5` for stiff ones (large
            Baumgarte gains).
        rtol: Relative tolerance of the integration.
        atol: Absolute tolerance of the integration.
        stepsize_controller: Any diffrax controller, in place of the adaptive one with `rtol` and `atol`.
        dt0: First step [s]; chosen automatically if None. Needed by `diffrax.ConstantStepSize`.
        adjoint: Any diffrax adjoint. None differentiates in both modes, and twice by `jax.hessian`, by replaying the
            recorded steps (a Runge-Kutta solver; `diffrax.DirectAdjoint()` for others).
        projection: `Projection()` returns the state to the constraint manifold after every accepted step; None lets it
            drift.
        max_steps: Step budget. A derivative takes memory for a few hundred states, however large it is; a motion of
            more steps is integrated once more for it, between one checkpoint and the next.
        progress: True for a progress bar, or a diffrax progress meter.
        throw: Raise if the simulation fails. With False look at `result`.

    Returns:
        `Trajectory`. Under `jax.vmap` every field gets a leading batch axis.

    Raises:
        ValueError: If an argument has a wrong shape, `q0` or `v0` is not finite, `ts` does not increase, or the dtype
            cannot reach the tolerances.
        TypeError: If `servo`, `solver`, `stepsize_controller`, `adjoint`, `projection` or `formulation` is something
            else.
        RuntimeError: If `throw` and the mass matrix is not positive definite, the constraints contradict each other,
            a number is not finite, the step budget is exhausted, the initial state is too far from the constraints
            to be projected on them, the servo constraints are out of reach, or `ts`, if traced, does not increase.

    Gradients: forward and reverse mode, with respect to the initial state, `ts`, and every array leaf of the mechanism
    and the servo, where the ranks are constant along the trajectory; of `t`, `q`, `v`, `acceleration`, the forces and
    `control`. The
    residuals, `rank`, `result` and `stats` carry none.
    """
    q0, v0, ts = _initial(q0, v0, ts)
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    _check.instance(solver, diffrax.AbstractSolver, "solver", "diffrax.Tsit5()")
    if stepsize_controller is None:
        stepsize_controller = _adaptive(rtol, atol, ts, q0.dtype, projection is not None)
    _check.instance(
        stepsize_controller, diffrax.AbstractStepSizeController, "stepsize_controller", "diffrax.PIDController(...)"
    )
    if adjoint is not None:
        _check.instance(adjoint, diffrax.AbstractAdjoint, "adjoint", "diffrax.DirectAdjoint()")
    if projection is not None:
        _check.instance(projection, Projection, "projection", "ukjax.Projection()")
        if isinstance(adjoint, diffrax.BacksolveAdjoint):
            raise ValueError(
                "adjoint must not be diffrax.BacksolveAdjoint with a projection: it integrates backwards, where there "
                "is none. Pass adjoint=None."
            )
    _check.count(max_steps, "max_steps")
    if isinstance(progress, bool):
        progress = diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    if dt0 is None and isinstance(stepsize_controller, diffrax.ConstantStepSize):
        raise ValueError("dt0 must be given with diffrax.ConstantStepSize: pass the step size [s].")
    if dt0 is not None:
        first = _check.scalar(dt0, "dt0")
        if not is_traced(first) and first <= 0:
            raise ValueError(f"dt0 must be a positive step size [s], but is {first}.")
    integrator = Integrator(adjoint, max_steps, progress)
    method = (stepsize_controller, None if dt0 is None else jnp.asarray(dt0, ts.dtype))
    y0 = jnp.concatenate([q0, v0])
    servos = None if servo is None else as_servos(servo)
    trajectory = _simulate(mechanism, servos, y0, ts, formulation, solver, method, projection, integrator)
    if not throw:
        return trajectory
    where = "" if is_traced(trajectory) else f" (at t = {trajectory.stats['t_reached']:.6g} s)"
    return throw_if_failed(trajectory, trajectory.result, where)


def _initial(q0: Any, v0: Any, ts: Any) -> tuple[Array, Array, Array]:
    q0, v0 = _check.floating(q0, "q0"), _check.floating(v0, "v0")
    q0, v0, _ = _check.state(q0, v0, names=("q0", "v0"))
    _check.finite(q0, "q0")
    _check.finite(v0, "v0")
    return q0, v0, _check.times(ts).astype(q0.dtype)


def _adaptive(rtol: Any, atol: Any, ts: Array, dtype: Any, projected: bool) -> diffrax.PIDController:
    eps = float(jnp.finfo(dtype).eps)
    rtol, atol = _check.scalar(rtol, "rtol"), _check.scalar(atol, "atol")
    if not is_traced(rtol, atol):
        if rtol < 0 or atol < 0:
            raise ValueError(f"rtol and atol must not be negative, but are {rtol} and {atol}.")
        if max(rtol, atol) < 10 * eps:
            raise ValueError(
                f"rtol = {rtol} and atol = {atol} are out of reach of {dtype}: one of them must be at least "
                f"{10 * eps:.1e}. Pass larger ones, or work in float64: jax.config.update('jax_enable_x64', True)."
            )
    # Below this the time no longer advances; a step that shrinks to it will never be accepted.
    dtmin = stop_gradient(64 * eps * jnp.max(jnp.abs(ts)))
    rtol, atol = jnp.asarray(rtol, ts.dtype), jnp.asarray(atol, ts.dtype)  # arrays: a new value compiles nothing
    if not projected:
        return diffrax.PIDController(rtol=rtol, atol=atol, dtmin=dtmin, force_dtmin=False)
    # Steps that are as long as a loose tolerance allows pass a singular configuration in one or two, where the estimate
    # of the error says little: there the next step is chosen with more care. At a tight tolerance that costs, and gains
    # nothing. Measured on the parallelogram: a tenth of the error at 1e-6, for about as many evaluations.
    loose = jnp.maximum(rtol, atol) > LOOSE
    choose = lambda careful, ordinary: jnp.where(loose, careful, ordinary).astype(ts.dtype)
    return diffrax.PIDController(
        rtol=rtol,
        atol=atol,
        dtmin=dtmin,
        force_dtmin=False,
        safety=choose(0.7, 0.9),
        pcoeff=choose(0.3, 0.0),
        icoeff=choose(0.4, 1.0),
    )


@eqx.filter_jit
def _simulate(mechanism, servos, y0, ts, formulation, solver, method, projection, integrator) -> Trajectory:
    motion = lambda t, y: _motion(mechanism, servos, formulation, t, y)
    # The conversion finds every array that the person's functions close over, so that it can be differentiated.
    field = eqx.filter_closure_convert(lambda t, y: _derivative(motion, t, y), ts[0], y0)
    project, started = None, RESULTS.successful
    if projection is not None:
        project = eqx.filter_closure_convert(lambda t, y: projection(mechanism, t, y), ts[0], y0)
        y0 = project(ts[0], y0)
        started = _started(mechanism, ts[0], y0)
    ys, end, stats, outcome = integrator(Flow(field, project), y0, ts, solver, method)
    if project is not None:
        ys = jax.vmap(project)(ts, ys)  # between two steps lies an interpolant, which does not know the constraints
    # A run that broke down ends just before the state it could not evaluate: look at its end and where it was heading,
    # in one batch with the saved states.
    t, y = stop_gradient(end)
    ahead = 1e4 * jnp.finfo(ts.dtype).eps * jnp.max(jnp.abs(ts))
    there = y + ahead * stop_gradient(field(t, y))
    at = jnp.concatenate([ts, jnp.stack([t, t + ahead])]), jnp.concatenate([ys, jnp.stack([y, there])])
    motions, controls = jax.vmap(lambda t, y: _motion_where_reached(motion, t, y))(*at)
    breakdown = jax.tree_util.tree_map(lambda x: x[-2:], motions.result)
    motions = jax.tree_util.tree_map(lambda x: x[:-2], motions)
    failure = RESULTS.where(
        outcome == RESULTS.successful, first_failure(motions.result), worst(first_failure(breakdown), outcome)
    )
    q, v = jnp.split(ys, 2, axis=1)
    return Trajectory(
        t=ts,
        q=q,
        v=v,
        acceleration=motions.acceleration,
        constraint_force=motions.constraint_force,
        nonideal_force=motions.nonideal_force,
        control=None if controls is None else controls.u[:-2],
        position_residual=_norms(jax.vmap(mechanism.position_error)(q, ts)),
        velocity_residual=_norms(jax.vmap(mechanism.velocity_error)(q, v, ts)),
        servo_residual=None if controls is None else controls.residual[:-2],
        servo_position_residual=_servo_norms(servos, lambda constraint: constraint.position_error, q, ts),
        servo_velocity_residual=_servo_norms(servos, lambda constraint: constraint.velocity_error, q, v, ts),
        rank=motions.rank,
        result=RESULTS.where(outcome == RESULTS.times_not_increasing, outcome, worst(started, failure)),
        stats={**stats, "t_reached": end[0]},
    )


def _started(mechanism: Mechanism, t: Array, y: Array) -> Any:
    """Whether the projection reached the manifold: from far away its few iterations do not."""
    q, _ = stop_gradient(jnp.split(y, 2))
    size = jnp.max(jnp.abs(q), initial=1.0)
    error = jnp.max(jnp.abs(stop_gradient(mechanism.position_error(q, t))), initial=0.0)
    okay = (error <= 10 * jnp.sqrt(jnp.finfo(y.dtype).eps) * size) | ~jnp.isfinite(error)
    return RESULTS.where(okay, RESULTS.successful, RESULTS.not_assembled)


def _motion(
    mechanism: Mechanism, servos: tuple[AbstractServo, ...] | None, formulation: AbstractFormulation, t: Array, y: Array
) -> tuple[Motion, Control | None]:
    q, v = jnp.split(y, 2)
    if servos is None:
        return formulation.solve(mechanism.terms(q, v, t)), None
    return controlled_motion(mechanism, servos, formulation, q, v, t)


def _derivative(motion: Any, t: Array, y: Array) -> Array:
    """y' = (v, q''), NaN where there is no motion: an adaptive controller then tries a smaller step."""
    at, _ = motion(t, y)
    acceleration = jnp.where(at.result == RESULTS.successful, at.acceleration, jnp.nan)
    return jnp.concatenate([y[y.shape[0] // 2 :], acceleration])


def _motion_where_reached(motion: Any, t: Array, y: Array) -> tuple[Motion, Control | None]:
    """The motion at a state, blank where the run did not get: a model need not notice that q is NaN."""
    (at, control), reached = motion(t, y), jnp.all(jnp.isfinite(y))
    blank = lambda x: jnp.where(reached, x, jnp.nan)
    if control is not None:
        control = eqx.tree_at(lambda c: (c.u, c.residual), control, (blank(control.u), blank(control.residual)))
    at = Motion(
        acceleration=blank(at.acceleration),
        unconstrained_acceleration=blank(at.unconstrained_acceleration),
        constraint_force=blank(at.constraint_force),
        nonideal_force=blank(at.nonideal_force),
        rank=jnp.where(reached, at.rank, -1),
        residual=blank(at.residual),
        result=worst(at.result, RESULTS.where(reached, RESULTS.successful, RESULTS.not_finite)),
    )
    return at, control


def _servo_norms(servos: tuple[AbstractServo, ...] | None, error: Callable, *states: Array) -> Array | None:
    """Norm over all servo constraints (T,) of the error that `error` picks; None without a servo."""
    if servos is None:
        return None
    errors = [jax.vmap(error(one.constraint))(*states) for one in servos]
    return _norms(jnp.concatenate(errors, axis=1))


def _norms(errors: Array) -> Array:
    return jnp.linalg.norm(stop_gradient(errors), axis=1)
