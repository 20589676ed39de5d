"""Controllers: nothing, servos that are solved together, or a feedback, which act on a mechanism during a run.

u: control (p,) of all actuators; G (n, p): actuation; store: numbers that a run carries for a controller beside q, v.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._formulation import AbstractFormulation, Motion, UdwadiaKalaba, motion_by, with_lowering
from .._mechanism import Mechanism
from .._program import PlainCalls, in_batch, jit_fast_compile, outside_mesh
from .._result import is_traced, throw_if_failed
from .._types import Coordinates, Matrix, Numbers, Scalar, Vector
from ._motion import Control, controlled_motion
from ._servo import AbstractServo


class Driven(NamedTuple):
    """The motion of a mechanism under a controller.

    Attributes:
        motion: The motion under the control.
        u: Control of all actuators (p,); None if nothing acts.
        control: The control with its verdict, which only servos have; else None.
        change: Rate of the store; None if there is no store.
    """

    motion: Motion
    u: Float[Array, " p"] | None = None
    control: Control | None = None
    change: Array | None = None


class AbstractController(eqx.Module):
    """A law that acts on a mechanism during a run.

    Attributes:
        memory: States of the controller at the start; None if it has none.
        limits: Limits at which the motion has kinks that steps have to meet; None if there are none.
        period: Time between two samples; None for a controller that acts all the time.
        fields: Names of the fields that a `Trajectory` has only because of this controller.
    """

    memory: eqx.AbstractVar[Array | None]
    limits: eqx.AbstractVar[tuple[Array, Array] | None]
    period: eqx.AbstractVar[float | None]
    fields: eqx.AbstractVar[frozenset[str]]

    @property
    def has_store(self) -> bool:
        """Whether a run carries numbers for this controller beside q and v."""
        return self.memory is not None or self.period is not None

    @abc.abstractmethod
    def matrix(self, q: Coordinates, t: Scalar, n: int) -> Matrix:
        """Returns G(q, t) of all actuators, (n, p)."""

    def actuators(self, q: Coordinates, t: Scalar, n: int) -> int:
        """Returns the number of actuators p."""
        return jax.eval_shape(lambda q, t: self.matrix(q, t, n), q, t).shape[1]

    @abc.abstractmethod
    def drive(
        self,
        mechanism: Mechanism,
        formulation: AbstractFormulation,
        q: Coordinates,
        v: Vector,
        t: Scalar,
        store: Array | None,
        applied: Vector | None = None,
    ) -> Driven:
        """Returns the motion under this controller.

        `store`: None if it has none. `applied`: generalised forces (n,) that act beside the system's, or None.
        """

    @abc.abstractmethod
    def force(
        self,
        mechanism: Mechanism,
        formulation: AbstractFormulation,
        q: Coordinates,
        v: Vector,
        t: Scalar,
        store: Array | None,
        applied: Vector | None = None,
    ) -> Vector | None:
        """Returns the generalised force G u of this controller (n,), or None if nothing acts."""

    @abc.abstractmethod
    def start(self, q: Coordinates, v: Vector, t: Scalar) -> Array:
        """Returns the store at the start, with the first sample taken."""

    @abc.abstractmethod
    def sampled(self, q: Coordinates, v: Vector, t: Scalar, start: Scalar, store: Array) -> Array:
        """Returns the store at the end of a step, with a sample taken if due; the first sample was at `start`."""

    @abc.abstractmethod
    def seen(self, store: Array) -> Array:
        """Returns the memory in a store."""

    @abc.abstractmethod
    def margins(self, q: Coordinates, v: Vector, t: Scalar, store: Array) -> Array:
        """Returns the distances from the limits at which the motion has a kink, (2 p,); (0,) without."""

    @abc.abstractmethod
    def residuals(self, mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> dict[str, Array]:
        """Returns the errors of servo constraints in position and velocity, by the fields of a `Trajectory`."""


class AbstractStaticController(AbstractController):
    """A controller that is a function of the state, and makes no kinks that steps have to meet."""

    memory = limits = period = None

    def start(self, q, v, t):
        return jnp.zeros(0, q.dtype)

    def sampled(self, q, v, t, start, store):
        return store

    def seen(self, store):
        return store

    def margins(self, q, v, t, store):
        return jnp.zeros(0, q.dtype)


class Uncontrolled(AbstractStaticController):
    """Nothing that acts."""

    fields = frozenset()

    def __init__(self):
        pass

    def matrix(self, q, t, n):
        return jnp.zeros((n, 0), q.dtype)

    def drive(self, mechanism, formulation, q, v, t, store, applied=None):
        return Driven(motion_by(formulation, mechanism.terms_of(applied), q, v, t))

    def force(self, mechanism, formulation, q, v, t, store, applied=None):
        return None

    def residuals(self, mechanism, q, v, t):
        return {}


class Servos(AbstractStaticController):
    """Servos that act at once and are solved together, by one law."""

    each: tuple[AbstractServo, ...]

    fields = frozenset({"control", "servo_residual", "servo_position_residual", "servo_velocity_residual"})

    def __init__(self, each: Sequence[AbstractServo]):
        self.each = tuple(each)

    def matrix(self, q, t, n):
        return jnp.concatenate([one.matrix(q, t, n) for one in self.each], axis=1)

    def drive(self, mechanism, formulation, q, v, t, store, applied=None):
        motion, control = controlled_motion(mechanism, self.each, formulation, q, v, t, applied)
        return Driven(motion, control.u, control)

    def force(self, mechanism, formulation, q, v, t, store, applied=None):
        _, control = controlled_motion(mechanism, self.each, formulation, q, v, t, applied)
        return self.matrix(q, t, v.shape[0]) @ control.u

    def residuals(self, mechanism, q, v, t):
        wanted = [one.constraint for one in self.each]
        return {
            "servo_position_residual": jnp.concatenate([x.position_error(q, t) for x in wanted]),
            "servo_velocity_residual": jnp.concatenate([mechanism.velocity_error_of(x, q, v, t) for x in wanted]),
        }


# The argument `servo` of a simulation.
ServoLike = AbstractServo | Sequence[AbstractServo] | AbstractController | None


def servo_control(
    mechanism: Mechanism,
    servo: AbstractServo | Sequence[AbstractServo],
    q: Numbers,
    v: Numbers,
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
    objects = mechanism, *(servo if isinstance(servo, tuple | list) else (servo,)), formulation
    prepared = _plain.find(objects, (q, v, t))
    if prepared is not None:
        control = prepared(q, v, t)
    else:
        _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
        _check.instance(formulation, AbstractFormulation, "formulation", "ukjax.UdwadiaKalaba()")
        servos, state = as_servos(servo), _check.state(q, v, t, kinematics=mechanism.kinematics)
        lowered = with_lowering(formulation, often=in_batch(mechanism, servos, *state))
        used = (mechanism, servos, lowered)
        prepared = _plain.prepare(_control, objects, used, state)
        control = outside_mesh(_servo_control, *used, *state) if prepared is None else prepared(*state)
    if not throw:
        return control
    where = ""
    if not is_traced(control) and not bool(control.consistent):
        where = f" ({missed_rows(control.unreachable)})"
    return throw_if_failed(control, control.result, where)


_plain = PlainCalls()


def _control(mechanism, servos, formulation, q, v, t):
    return controlled_motion(mechanism, servos, formulation, q, v, t)[1]


_servo_control = jit_fast_compile(_control, inlined=True)


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


def as_servos(servo: object) -> tuple[AbstractServo, ...]:
    """Returns one servo or several as a tuple; raises TypeError or ValueError if they are invalid or incompatible."""
    several = isinstance(servo, (tuple, list))
    each = servo if several else [servo]
    for i, one in enumerate(each):
        _check.instance(one, AbstractServo, f"servo[{i}]" if several else "servo", "ukjax.Servo(constraint, actuation)")
    servos = tuple(one for one in each if isinstance(one, AbstractServo))
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
