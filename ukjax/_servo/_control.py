"""The control that servos need at a state."""

import functools as ft
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, ArrayLike

from .. import _check
from .._formulation import AbstractFormulation, UdwadiaKalaba, with_lowering
from .._mechanism import Mechanism
from .._program import in_batch, jit_fast_compile, outside_mesh
from .._result import is_traced, throw_if_failed
from ._controller import AbstractController, ServoLike, Servos, Uncontrolled
from ._motion import Control, controlled_motion
from ._servo import AbstractServo


def servo_control(
    mechanism: Mechanism,
    servo: AbstractServo | Sequence[AbstractServo],
    q: Any,
    v: Any,
    t: ArrayLike = 0.0,
    *,
    formulation: AbstractFormulation = UdwadiaKalaba(),
    throw: bool = True,
) -> Control:
    r"""Returns the control that makes a mechanism follow its servo constraints, at one state.

    Args:
        mechanism: System and passive constraints; its array leaves are differentiable.
        servo: `Servo` or `ConstraintFollowing`, or several of one kind, which are solved together: all actuators serve
            each constraint.
        q: Coordinates, shape (n,) [m or rad].
        v: Rates of q, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].
        formulation: Method by which the acceleration is computed.
        throw: Raise if the result is not successful. With False look at `result`; do so inside your own `jax.jit`, as
            for `equation_of_motion`.

    Returns:
        `Control`: `u` (p,), `rank`, `residual`, `contradictory`, `consistent`, `controllable`, `unreachable` (m,),
        `saturated` (p,), `result`.

    Raises:
        TypeError: If `mechanism`, `servo` or `formulation` is something else.
        ValueError: While tracing, if a shape does not fit; or if servos do not go together.
        RuntimeError: If `throw` and the servo constraints contradict each other, lie out of reach of the actuators, or
            have no actuator at all; or if the mechanism itself has no motion (see `equation_of_motion`).

    Gradients: see `Servo`.

    Source: Liu et al. (2015), section II; Zhao et al. (2018), eq. 72.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
    servos, state = as_servos(servo), _check.state(q, v, t, kinematics=mechanism.kinematics)
    formulation = with_lowering(formulation, often=in_batch(mechanism, servos, *state))
    control = outside_mesh(_servo_control, mechanism, servos, formulation, *state)
    if not throw:
        return control
    where = ""
    if not is_traced(control) and not bool(control.consistent):
        where = f" ({missed_rows(control.unreachable)})"
    return throw_if_failed(control, control.result, where)


@ft.partial(jit_fast_compile, inlined=True)
def _servo_control(mechanism, servos, formulation, q, v, t):
    return controlled_motion(mechanism, servos, formulation, q, v, t)[1]


def missed_rows(unreachable: Array) -> str:
    """Describes in words by how much each servo row is missed."""
    return f"missed of each row: {', '.join(f'{x:.3g}' for x in np.asarray(unreachable))}"


def as_controller(servo: ServoLike) -> AbstractController:
    """Returns the argument `servo` as what acts in a run; raises TypeError or ValueError if it is no such thing."""
    if servo is None:
        return Uncontrolled()
    return servo if isinstance(servo, AbstractController) else Servos(as_servos(servo))


def as_static_controller(servo: ServoLike) -> AbstractController:
    """Returns `as_controller(servo)`; raises ValueError for a controller with memory or samples."""
    controller = as_controller(servo)
    if controller.has_store:
        raise ValueError(
            "servo must be a function of the state here, without memory or samples: the states are those of the "
            "mechanism. Pass a ukjax.Feedback without memory= and period=."
        )
    return controller


def as_servos(servo: Any) -> tuple[AbstractServo, ...]:
    """Returns one servo or several as a tuple; raises TypeError or ValueError if they are invalid or incompatible."""
    several = isinstance(servo, (tuple, list))
    servos = tuple(servo) if several else (servo,)
    for i, one in enumerate(servos):
        _check.instance(one, AbstractServo, f"servo[{i}]" if several else "servo", "ukjax.Servo(constraint, actuation)")
    if not servos:
        raise ValueError("servo must hold at least one ukjax.Servo, but is empty. Pass None for no servo.")
    if len({type(one) for one in servos}) > 1:
        raise ValueError(
            "Servos that act at once are solved together, by one law: pass ukjax.Servo only, or "
            "ukjax.ConstraintFollowing only."
        )
    for field in ("reading", "exact", "pseudoinverse", "consistency_rtol"):
        if len({getattr(one, field, None) for one in servos}) > 1:
            raise ValueError(f"Servos that act at once are solved together: give all of them the same {field}.")
    return servos
