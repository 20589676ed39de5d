"""The settings of an integration: formulation, solver, steps, adjoint, projection, fields to keep."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation, certain_of, with_lowering
from .._integrate import Integrator, Kinked, Sampled
from .._manifold import Projection
from .._result import is_traced
from .._servo import AbstractController, Uncontrolled
from .._trajectory import OF_CONTROLLERS, OF_EACH, OF_SERVOS, OPTIONAL
from ._rattle import ADVICE, Rattle


LOOSE = 1e-7
TOLERANCE = 1e-8


class Method(NamedTuple):
    """The controller of step sizes, and the first step (None: the controller chooses it)."""

    controller: diffrax.AbstractStepSizeController
    dt0: Array | None


class Settings(eqx.Module):
    """The choices of a user about how motions are integrated, checked.

    Attributes:
        formulation: Method by which the acceleration is computed.
        solver: Method by which a step is made.
        method: Choice of the steps.
        projection: Return to the constraints after every step; None for none.
        integrator: Adjoint, step budget and progress meter.
        keep: Names of the fields to compute, in the order of `Trajectory`.
    """

    formulation: AbstractFormulation
    solver: diffrax.AbstractSolver
    method: Method
    projection: Projection | None
    integrator: Integrator
    keep: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        ts: Array,
        controllers: Sequence[AbstractController],
        formulation: AbstractFormulation,
        solver: diffrax.AbstractSolver,
        *,
        rtol: ArrayLike | None,
        atol: ArrayLike | None,
        stepsize_controller: diffrax.AbstractStepSizeController | None,
        dt0: ArrayLike | None,
        projection: Projection | None,
        max_steps: int,
        keep: str | Sequence[str] | None,
        often: bool,
        adjoint: diffrax.AbstractAdjoint | None = None,
        progress: bool | diffrax.AbstractProgressMeter = False,
        alone: bool = False,
    ) -> "Settings":
        """Returns the settings for the arguments of `simulate`; raises ValueError or TypeError if these conflict.

        `controllers`: what acts in each mode. `often`: whether the call is part of a larger program.
        `alone`: whether the run is one and not one of many, see `Integrator`.
        """
        _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
        _check.instance(solver, diffrax.AbstractSolver, "solver", "diffrax.Tsit5()")
        integrator = _integrator(adjoint, projection, max_steps, progress, alone)
        asked = _asked_steps(stepsize_controller, rtol, atol, dt0, ts, projection is not None)
        method = _met_by_steps(asked, ts, controllers)
        fields = kept(keep, *controllers)
        if isinstance(solver, Rattle):
            method = _equal_steps(method, ts, projection, controllers)
        return cls(with_lowering(formulation, often=often), solver, method, projection, integrator, fields)

    @property
    def rattle(self) -> Rattle | None:
        """The solver if it is one whose steps the mechanism makes, else None."""
        return self.solver if isinstance(self.solver, Rattle) else None

    def expands(self, dtype: DTypeLike) -> bool:
        """Whether the formulation may go by scalar code, where that is certain."""
        return certain_of(self.formulation, 0, dtype) is not None


def _met_by_steps(chosen: Method, ts: Array, controllers: Sequence[AbstractController]) -> Method:
    """Returns the method whose steps also end at samples and at kinks; a controller with samples is the only one."""
    periods = [one.period for one in controllers if one.period is not None]
    if not periods:
        adapts = isinstance(chosen.controller, diffrax.AbstractAdaptiveStepSizeController)
        kinks = adapts and any(one.limits is not None for one in controllers)
        return chosen._replace(controller=Kinked.around(chosen.controller, ts)) if kinks else chosen
    if isinstance(chosen.controller, diffrax.StepTo):
        raise ValueError(
            "stepsize_controller=diffrax.StepTo(...) does not go with a controller that takes samples, at which steps "
            "must end too. Pass rtol and atol, or diffrax.ConstantStepSize() with dt0."
        )
    return chosen._replace(controller=Sampled(chosen.controller, ts[0], periods[0]))


def _asked_steps(
    controller: diffrax.AbstractStepSizeController | None,
    rtol: ArrayLike | None,
    atol: ArrayLike | None,
    dt0: ArrayLike | None,
    ts: Array,
    projected: bool,
) -> Method:
    """Returns the steps that the user asks for, without regard to what acts on the mechanism."""
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


def _equal_steps(
    method: Method, ts: Array, projection: Projection | None, controllers: Sequence[AbstractController]
) -> Method:
    """Returns the method with steps of equal length, the longest up to dt0 of which the span is a multiple.

    diffrax itself fits steps to the end of the span, but not the first two. Raises ValueError for choices that do not
    go with RATTLE.
    """
    if not isinstance(method.controller, diffrax.ConstantStepSize):
        raise ValueError(
            "stepsize_controller must be diffrax.ConstantStepSize(), with dt0, for ukjax.Rattle: what it preserves, it "
            "preserves at constant steps."
        )
    if projection is not None:
        raise ValueError(
            "projection has no effect with ukjax.Rattle, which keeps the constraints by itself. Leave it out."
        )
    if not all(isinstance(one, Uncontrolled) for one in controllers):
        raise ValueError(f"servo does not go with ukjax.Rattle. {ADVICE}")
    span, h = stop_gradient((ts[-1] - ts[0], jnp.asarray(method.dt0)))
    count = jnp.ceil(span / h * (1 - 4 * float(jnp.finfo(ts.dtype).eps)))
    return method._replace(dt0=jnp.where(count >= 1, span / jnp.maximum(count, 1), h))


def adaptive(rtol: ArrayLike | None, atol: ArrayLike | None, ts: Array, projected: bool) -> diffrax.PIDController:
    """Returns the adaptive controller; raises ValueError if tolerances are negative or out of reach of the dtype."""
    dtype = ts.dtype
    eps = float(jnp.finfo(dtype).eps)
    relative = _check.scalar(TOLERANCE if rtol is None else rtol, "rtol")
    absolute = _check.scalar(TOLERANCE if atol is None else atol, "atol")
    if not is_traced(relative, absolute):
        if relative < 0 or absolute < 0:
            raise ValueError(f"rtol and atol must not be negative, but are {relative} and {absolute}.")
        if max(relative, absolute) < 10 * eps:
            raise ValueError(
                f"rtol = {relative} and atol = {absolute} are out of reach of {dtype}: one of them must be at least "
                f"{10 * eps:.1e}. Pass larger ones, or work in float64: jax.config.update('jax_enable_x64', True)."
            )
    # Below this the time no longer advances; a step that shrinks to it will never be accepted.
    latest = jnp.max(jnp.abs(ts)) if is_traced(ts) else np.max(np.abs(np.asarray(ts)))
    dtmin = stop_gradient(jnp.asarray(64 * eps * latest, dtype))
    rtol, atol = jnp.asarray(relative, dtype), jnp.asarray(absolute, dtype)  # arrays: a new value compiles nothing
    if not projected:
        return diffrax.PIDController(rtol=rtol, atol=atol, dtmin=dtmin, force_dtmin=False)
    # Steps as long as a loose tolerance allows pass a singular configuration in one or two, where the error estimate
    # says little: the next step is chosen with more care. At a tight tolerance that costs, and gains nothing.
    loose = jnp.maximum(rtol, atol) > LOOSE

    def choose(careful: float, ordinary: float) -> Array:
        return jnp.where(loose, careful, ordinary).astype(dtype)

    return diffrax.PIDController(
        rtol=rtol,
        atol=atol,
        dtmin=dtmin,
        force_dtmin=False,
        safety=choose(0.7, 0.9),
        pcoeff=choose(0.3, 0.0),
        icoeff=choose(0.4, 1.0),
    )


def _integrator(
    adjoint: diffrax.AbstractAdjoint | None,
    projection: Projection | None,
    max_steps: int,
    progress: bool | diffrax.AbstractProgressMeter,
    alone: bool,
) -> Integrator:
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


def kept(keep: str | Sequence[str] | None, *controllers: AbstractController) -> tuple[str, ...]:
    """The names of the fields to compute, in the order of `Trajectory`; raises ValueError or TypeError for others.

    `controllers`: what acts on the mechanism in each mode.
    """
    lacking = {*OF_SERVOS, *OF_CONTROLLERS}.difference(*(one.fields for one in controllers))
    possible = [name for name in OPTIONAL if name not in lacking]
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
