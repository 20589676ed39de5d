"""Trajectories: the equation of motion integrated by diffrax.

y = (q, v) side by side; n: coordinates; m: servo rows; T: saved times.
"""

from collections.abc import Sequence

import diffrax
import equinox as eqx
import numpy as np
from jaxtyping import Array, ArrayLike

from . import _check
from ._collector import seldom_collecting
from ._formulation import AbstractFormulation, UdwadiaKalaba
from ._manifold import Projection
from ._mechanism import Mechanism, culprit_along
from ._program import PlainCalls, in_batch, jit_fast_compile, not_tracing, outside_mesh
from ._result import RESULTS, is_traced, throw_if_failed
from ._servo import AbstractServo, Feedback, as_controller, missed_rows
from ._simulation import (
    RunDiagnostics,
    Settings,
    assemble_trajectory,
    check_rattle,
    diagnose_failure,
    set_up,
    warn_of_start,
)
from ._trajectory import Trajectory
from ._types import Numbers
from ._user_code import noted
from ._waiting import reported


def simulate(
    mechanism: Mechanism,
    q0: Numbers,
    v0: Numbers,
    ts: Numbers,
    *,
    servo: AbstractServo | Sequence[AbstractServo] | Feedback | None = None,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    solver: diffrax.AbstractSolver = diffrax.Tsit5(),
    rtol: ArrayLike | None = None,
    atol: ArrayLike | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    dt0: ArrayLike | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    projection: Projection | None = None,
    max_steps: int = 16_384,
    progress: bool | diffrax.AbstractProgressMeter = False,
    keep: str | Sequence[str] | None = None,
    throw: bool = True,
) -> Trajectory:
    r"""Integrates $\dot q = v$, $\dot v = \ddot q(q, v, t)$ with the constrained acceleration, from ts[0] to ts[-1].

    With a kinematics, $\dot q$ follows from the kinematics, and v are the speeds.

    Args:
        mechanism: System and constraints; its array leaves are differentiable. A number that its functions read from
            elsewhere, such as a global variable or a list, is what it was when they were first compiled for these
            shapes; make what changes a parameter of the system.
        q0: Coordinates at ts[0], shape (n,) [m or rad]. `assemble` makes a state consistent.
        v0: Rates of q0 at ts[0], shape (n,) [m/s or rad/s].
        ts: Times to save at, strictly increasing, shape (T,), T >= 2 [s].
        servo: `Servo` or `ConstraintFollowing`, or several of one kind, or a `Feedback`: the control acts on the
            mechanism, and `control` records it.
        formulation: Method by which the acceleration is computed.
        solver: Any diffrax solver. `Tsit5` and `Dopri8` for ordinary problems;
            `Kvaerno5(root_finder=optimistix.Newton(rtol, atol))` for stiff ones (with diffrax's own root finder it
            rejects half of its steps); `ukjax.Rattle()` for millions of steps.
        rtol: Relative tolerance of the integration; 1e-8 if None.
        atol: Absolute tolerance of the integration; 1e-8 if None.
        stepsize_controller: A diffrax controller; it replaces the adaptive one and its `rtol` and `atol`.
        dt0: First step [s]; chosen automatically if None. Needed by `diffrax.ConstantStepSize`, without effect beside
            `diffrax.StepTo`.
        adjoint: Any diffrax adjoint. None differentiates in both modes, and twice by `jax.hessian`, by replaying the
            recorded steps (a Runge-Kutta solver; `diffrax.DirectAdjoint()` for others).
        projection: `Projection()` returns the state to the constraint manifold after every accepted step; None lets it
            drift.
        max_steps: Step budget. A derivative replays the motion from checkpoints. With a budget beyond 33 steps it takes
            memory for up to 1,024 states for a single run, and for some sixty in a `jax.vmap`, with three more for
            every factor of four in the budget. With more steps than checkpoints it integrates the motion once more.
            Reverse mode does so twice from about 30,000 steps on (600 in a batch), and once more for every factor of
            four.
        progress: True for a progress bar, or a diffrax progress meter.
        keep: Names of the fields of the trajectory to compute, for example ("q", "v"); "all"; or None for all but
            `constraint_forces` and `multipliers`. Fields left out are None and cost neither compilation, which is most
            of the cost, nor computation. If none of acceleration, forces, control, `servo_residual` and `rank` is kept,
            saved states are not checked, only whether the run got to its end. Inside of `jit` and other transformations
            `result` then does not say why a run failed.
        throw: Raise if the simulation fails. With False look at `result`. Inside your own `jax.jit` raising needs a
            call back to Python, and JAX's persistent compilation cache takes no program with such a call: pass
            throw=False there, and look at `result` outside.

    Returns:
        `Trajectory`. Under `jax.vmap` every field gets a leading batch axis.

    Warns:
        InconsistentStart: Outside of `jit` and other transformations, if a run that did not fail starts off the
            constraints, with neither a stabilisation nor a projection to return to them.

    Raises:
        ValueError: If an argument has a wrong shape or no effect beside the others, `q0` or `v0` is not finite, `ts`
            does not increase, `keep` names something else, or the dtype cannot reach the tolerances.
        TypeError: If `servo`, `solver`, `stepsize_controller`, `adjoint`, `projection`, `progress` or
            `formulation` is something else.
        RuntimeError: If `throw` and the mass matrix is not positive definite, nor made so by the constraints, the
            constraints contradict each other, a number is not finite, the step budget is exhausted, the initial state
            is too far from the constraints to be projected on them, the servo constraints are out of reach, or `ts`,
            if traced, does not increase.

    Example:
        ```python
        import jax.numpy as jnp, ukjax

        system = ukjax.System(
            mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81])
        )
        rod = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - 1.0]))
        pendulum = ukjax.Mechanism(system, rod)
        ts = jnp.linspace(0.0, 1.0, 101)
        run = ukjax.simulate(
            pendulum, [1.0, 0.0], [0.0, 0.0], ts, projection=ukjax.Projection()
        )
        print(
            run.q[-1], run.constraint_force[-1]
        )  # where it is after a second [m], and how the rod pulls [N]
        ```

    Gradients: forward and reverse mode, with respect to the initial state, `ts`, and every array leaf of the mechanism
    and the servo, where the ranks are constant along the trajectory; of `t`, `q`, `v`, `acceleration`, the forces and
    `control`. The residuals, `rank`, `result` and `stats` carry none. Derivatives with respect to `ts` are right up to
    the third order. They are one-sided, from before, where a saved time is a sampling time of the servo.
    """
    objects = mechanism, servo, formulation, solver, stepsize_controller, adjoint, projection, ts
    options = rtol, atol, dt0, max_steps, tuple(keep) if isinstance(keep, list) else keep, progress
    plain = all(x is None or isinstance(x, _PLAIN) for x in options)
    prepared = _plain.find(objects, (q0, v0), options) if plain else None
    if prepared is None or not all(np.isfinite(np.asarray(x)).all() for x in (q0, v0)):
        _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
        q0, v0, times = _initial(mechanism, q0, v0, ts)
        controller = as_controller(servo)
        settings = Settings.of(
            times, (controller,), formulation, solver, rtol=rtol, atol=atol, stepsize_controller=stepsize_controller,
            dt0=dt0, projection=projection, max_steps=max_steps, keep=keep, often=not not_tracing(), adjoint=adjoint,
            progress=progress, alone=not in_batch(mechanism, servo, q0, v0, ts),
        )  # fmt: skip
        if settings.rattle is not None:
            check_rattle(mechanism, q0, v0)
        used = mechanism, controller, times, settings
        prepared = _plain.prepare(_simulate, objects, used, (q0, v0), options) if plain else None
        if prepared is None:
            trajectory, notes = outside_mesh(_simulate_within, *used, q0, v0)
        else:
            with noted(), reported("simulate"):
                trajectory, notes = prepared(q0, v0)
    else:
        trajectory, notes = prepared(q0, v0)
    if is_traced(trajectory, notes):
        return throw_if_failed(trajectory, trajectory.result) if throw else trajectory
    failed = bool(trajectory.result != RESULTS.successful)
    if failed and notes.unexplained is not None:
        result, unreachable = _explain(as_controller(servo), formulation, notes.unexplained)
        trajectory = eqx.tree_at(lambda t: t.result, trajectory, result)
        notes = notes._replace(unreachable=unreachable)
    if failed and throw:
        throw_if_failed(trajectory, trajectory.result, _where(trajectory, notes) + culprit_along(mechanism, trajectory))
    if not failed and notes.start is not None:
        warn_of_start(*notes.start)
    return trajectory


def _initial(mechanism: Mechanism, q0: Numbers, v0: Numbers, ts: Numbers) -> tuple[Array, Array, Array]:
    q0, v0 = _check.floating(q0, "q0"), _check.floating(v0, "v0")
    q0, v0, _ = _check.state(q0, v0, names=("q0", "v0"), kinematics=mechanism.kinematics)
    _check.finite(q0, "q0")
    _check.finite(v0, "v0")
    return q0, v0, _check.times(ts).astype(q0.dtype)


def _where(trajectory: Trajectory, notes: RunDiagnostics) -> str:
    """Returns the place where a run failed, as text for its message."""
    time = f"at t = {trajectory.stats['t_reached']:.6g} s"
    if bool(trajectory.result == RESULTS.not_assembled):
        return (
            f" ({time}, the start: q0, v0 are too far from the constraints for a projection. "
            "ukjax.assemble(mechanism, q0, v0, ts[0]) searches farther, or says what is missed.)"
        )
    if notes.unreachable is None:
        return f" ({time})"
    if any(bool(trajectory.result == result) for result in (RESULTS.servo_unreachable, RESULTS.servo_not_actuated)):
        return f" ({time}; {missed_rows(notes.unreachable)})"
    since = float(trajectory.stats.get("servo_missed_from", np.inf))
    return f" ({time}; the servo first missed its rows at t = {since:.6g} s)" if np.isfinite(since) else f" ({time})"


# Types of options whose values tell whether a call is the same as one before.
_PLAIN = (float, int, str, tuple)
_plain = PlainCalls()


@seldom_collecting()
def _simulate(mechanism, controller, ts, settings, q0, v0):
    run = set_up(mechanism, controller, (q0, v0), ts, settings)
    integrated = settings.integrator(run.flow, run.y0, ts, settings.solver, settings.method)
    return assemble_trajectory(run, ts, integrated, settings.keep)


_simulate_within = jit_fast_compile(_simulate)


_explain = jit_fast_compile(diagnose_failure)
