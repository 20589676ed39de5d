"""The options of an integration: controller, steps, adjoint, projection, fields to keep."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._integrate import Integrator, Kinked, Sampled
from .._manifold import Projection
from .._result import is_traced
from .._servo import Controller, Feedback
from .._trajectory import OF_CONTROLLERS, OF_EACH, OF_SERVOS, OPTIONAL


LOOSE = 1e-7
TOLERANCE = 1e-8


class Method(NamedTuple):
    """The controller of step sizes, and the first step (None: the controller chooses it)."""

    controller: diffrax.AbstractStepSizeController
    dt0: Array | None


def method(
    controller: Any, rtol: Any, atol: Any, dt0: ArrayLike | None, ts: Array, projected: bool, *acting: Controller | None
) -> Method:
    """Returns the `Method` for the arguments of `simulate`; raises ValueError or TypeError if these conflict.

    `acting`: the controller or servos, one for each mode; a controller that takes samples has the only mode.
    """
    controllers = [one for one in acting if isinstance(one, Feedback)]
    period = controllers[0].period if controllers else None
    chosen = _method(controller, rtol, atol, dt0, ts, projected)
    if period is None:
        adapts = isinstance(chosen.controller, diffrax.AbstractAdaptiveStepSizeController)
        kinks = adapts and any(one.limits is not None for one in controllers)
        return chosen._replace(controller=Kinked.around(chosen.controller, ts)) if kinks else chosen
    if isinstance(chosen.controller, diffrax.StepTo):
        raise ValueError(
            "stepsize_controller=diffrax.StepTo(...) does not go with a controller that takes samples, at which steps "
            "must end too. Pass rtol and atol, or diffrax.ConstantStepSize() with dt0."
        )
    return chosen._replace(controller=Sampled(chosen.controller, ts[0], period))


def _method(controller: Any, rtol: Any, atol: Any, dt0: ArrayLike | None, ts: Array, projected: bool) -> Method:
    if controller is None:
        controller = adaptive(rtol, atol, ts, projected)
    else:
        example = "diffrax.PIDController(...)"
        _check.instance(controller, diffrax.AbstractStepSizeController, "stepsize_controller", example)
        for name, value in (("rtol", rtol), ("atol", atol)):
            if value is not None:
                raise ValueError(
                    f"{name} has no effect beside stepsize_controller, which has tolerances of its own or none. Pass "
                    f"stepsize_controller=diffrax.PIDController(rtol=..., atol=...), or leave one of the two out."
                )
    if isinstance(controller, diffrax.StepTo):
        _check_steps(controller.ts, ts)
        if dt0 is not None:
            raise ValueError("dt0 has no effect with diffrax.StepTo, which fixes every step. Leave it out.")
    if dt0 is None:
        if isinstance(controller, diffrax.ConstantStepSize):
            raise ValueError("dt0 must be given with diffrax.ConstantStepSize: pass the step size [s].")
        return Method(controller, None)
    first = _check.scalar(dt0, "dt0")
    if not is_traced(first) and first <= 0:
        raise ValueError(f"dt0 must be a positive step size [s], but is {first}.")
    return Method(controller, jnp.asarray(dt0, ts.dtype))


def _check_steps(steps: Array, ts: Array) -> None:
    if is_traced(steps, ts):
        return
    fixed, saved = np.asarray(steps, ts.dtype), np.asarray(ts)
    if np.any(np.diff(fixed) <= 0) or fixed[0] != saved[0] or fixed[-1] != saved[-1]:
        raise ValueError(
            f"stepsize_controller=diffrax.StepTo(ts=...) must go, increasing strictly, from ts[0] = {saved[0]} to "
            f"ts[-1] = {saved[-1]}, but goes from {fixed[0]} to {fixed[-1]}."
        )


def adaptive(rtol: Any, atol: Any, ts: Array, projected: bool) -> diffrax.PIDController:
    """Returns the adaptive controller; raises ValueError if tolerances are negative or out of reach of the dtype."""
    dtype = ts.dtype
    eps = float(jnp.finfo(dtype).eps)
    rtol, atol = (_check.scalar(TOLERANCE if x is None else x, name) for x, name in ((rtol, "rtol"), (atol, "atol")))
    if not is_traced(rtol, atol):
        if rtol < 0 or atol < 0:
            raise ValueError(f"rtol and atol must not be negative, but are {rtol} and {atol}.")
        if max(rtol, atol) < 10 * eps:
            raise ValueError(
                f"rtol = {rtol} and atol = {atol} are out of reach of {dtype}: one of them must be at least "
                f"{10 * eps:.1e}. Pass larger ones, or work in float64: jax.config.update('jax_enable_x64', True)."
            )
    # Below this the time no longer advances; a step that shrinks to it will never be accepted.
    latest = jnp.max(jnp.abs(ts)) if is_traced(ts) else np.max(np.abs(np.asarray(ts)))
    dtmin = stop_gradient(jnp.asarray(64 * eps * latest, dtype))
    rtol, atol = jnp.asarray(rtol, dtype), jnp.asarray(atol, dtype)  # arrays: a new value compiles nothing
    if not projected:
        return diffrax.PIDController(rtol=rtol, atol=atol, dtmin=dtmin, force_dtmin=False)
    # Steps as long as a loose tolerance allows pass a singular configuration in one or two, where the error estimate
    # says little: the next step is chosen with more care. At a tight tolerance that costs, and gains nothing.
    loose = jnp.maximum(rtol, atol) > LOOSE
    choose = lambda careful, ordinary: jnp.where(loose, careful, ordinary).astype(dtype)
    return diffrax.PIDController(
        rtol=rtol,
        atol=atol,
        dtmin=dtmin,
        force_dtmin=False,
        safety=choose(0.7, 0.9),
        pcoeff=choose(0.3, 0.0),
        icoeff=choose(0.4, 1.0),
    )


def integrator(adjoint: Any, projection: Any, max_steps: Any, progress: Any, alone: bool = False) -> Integrator:
    """Returns the `Integrator`; raises ValueError or TypeError if an option is invalid or conflicts with another."""
    if adjoint is not None:
        _check.instance(adjoint, diffrax.AbstractAdjoint, "adjoint", "diffrax.DirectAdjoint()")
    if projection is not None:
        _check.instance(projection, Projection, "projection", "ukjax.Projection()")
        if isinstance(adjoint, diffrax.BacksolveAdjoint):
            raise ValueError(
                "adjoint must not be diffrax.BacksolveAdjoint with a projection: it integrates backwards, where there "
                "is none. Pass adjoint=None."
            )
    if isinstance(progress, bool):
        progress = diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    _check.instance(progress, diffrax.AbstractProgressMeter, "progress", "True or diffrax.TextProgressMeter()")
    return Integrator(adjoint, _check.count(max_steps, "max_steps"), progress, alone)


def kept(keep: str | Sequence[str] | None, *acting: Controller | None) -> tuple[str, ...]:
    """The names of the fields to compute, in the order of `Trajectory`; raises ValueError or TypeError for others.

    `acting`: the controller or servos that act on the mechanism, one for each mode.
    """
    without = set.intersection(*map(_lacking, acting))
    possible = [name for name in OPTIONAL if name not in without]
    if keep is None or keep == "all":
        return tuple(name for name in possible if keep == "all" or name not in OF_EACH)
    if callable(keep) or not isinstance(keep, Iterable):
        hint = " A function of a trajectory is for `reduce` of ukjax.simulate_batch." if callable(keep) else ""
        raise TypeError(f'keep must be "all", or names of fields of {", ".join(possible)}, but is {keep!r}.{hint}')
    wanted = [keep] if isinstance(keep, str) else list(keep)
    for name in wanted:
        if name not in possible:
            hint = " It needs a servo, or a controller with a memory." if name in OPTIONAL else ""
            raise ValueError(f"keep must name fields of {', '.join(possible)}, but has {name!r}.{hint}")
    return tuple(name for name in possible if name in wanted)


def _lacking(acting: Controller | None) -> set[str]:
    """The names of the fields that a run with this controller or servo lacks."""
    if isinstance(acting, Feedback):
        return {*OF_SERVOS} - {"control"} | ({*OF_CONTROLLERS} if acting.memory is None else set())
    return {*OF_CONTROLLERS} if acting is not None else {*OF_SERVOS, *OF_CONTROLLERS}
