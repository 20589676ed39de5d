"""Controllers, which act on a mechanism during a run: nothing, servos solved together, or a function of the user's.

u: control (p,) of all actuators; G (n, p): actuation; store: numbers that a run carries for a controller beside q, v.

A function of the user's has memory or not, and is sampled or not. x: memory (s,); h: period; k: samples taken. A
sampled controller holds its control of the last sample: the numbers that a run carries beside q and v, its store, are
(x, u, k); without a period only x.
"""

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._formulation import AbstractFormulation, Motion, UdwadiaKalaba, motion_by, with_lowering
from .._integrate import is_due
from .._mechanism import Mechanism
from .._program import PlainCalls, in_batch, jit_fast_compile, outside_mesh
from .._result import is_traced, throw_if_failed
from .._types import Coordinates, Matrix, Numbers, Scalar, Vector
from ._motion import Control, controlled_motion
from ._servo import AbstractServo, ActuationLike, actuation_at, actuation_of, limits_at, limits_of


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


class Feedback(AbstractController):
    r"""A controller as a function of the state, u = law(q, v, t), for `simulate(..., servo=)`.

    With a `memory` x the controller has states of its own, which obey x' = rates(q, v, t, x) (an observer, an
    integrator) or change at every sample, x <- update(q, v, t, x) (a delay, a digital filter). With a `period` it
    samples the state at ts[0], ts[0] + period, ... only, and holds its control in between.

    Args:
        law: `law(q, v, t)` -> u (p,) [N or N m, by the actuation], or with a memory `law(q, v, t, x)`.
        actuation: G (n, p), a matrix or `actuation(q, t)`: the generalised force of a unit of each control.
        limits: (lower, upper), each a scalar or (p,), at which u saturates; None for none.
        memory: x at the start (s,), or None.
        rates: `rates(q, v, t, x)` -> x' (s,).
        update: `update(q, v, t, x)` -> x (s,), from one sample to the next. It is applied after `law`, which therefore
            gets the memory of the sample before. Needs a `period`.
        period: Time between two samples [s]; None for a controller that acts all the time.

    Raises:
        TypeError: If a function is not callable.
        ValueError: If a shape does not fit, `period` is not positive, `memory` comes without `rates` or `update` or
            they without it, or `update` without a `period`.

    Gradients: with respect to every array leaf of its functions, to `memory`, `actuation` and `limits`; not to
    `period`, which is static. Where u meets a limit the motion has a kink. Adaptive steps come ever nearer to the kink,
    so that first derivatives are as exact as elsewhere. Steps of constant length cross the kink, and derivatives have
    an error that grows with the step. A second derivative lacks the contribution of the kink, whose time moves.
    """

    law: Callable
    actuation: Array | Callable
    limits: tuple[Array, Array] | None
    memory: Float[Array, " s"] | None
    rates: Callable | None
    update: Callable | None
    period: float | None = eqx.field(static=True)

    def __init__(
        self,
        law: Callable,
        actuation: ActuationLike,
        *,
        limits: tuple[Numbers, Numbers] | None = None,
        memory: Numbers | None = None,
        rates: Callable | None = None,
        update: Callable | None = None,
        period: float | None = None,
    ):
        self.actuation = actuation_of(actuation)
        self.limits = None if limits is None else limits_of(limits)
        self.memory = None if memory is None else _memory(memory)
        self.rates = None if rates is None else _check.function(rates, "rates", "rates(q, v, t, x) -> (s,)")
        self.update = None if update is None else _check.function(update, "update", "update(q, v, t, x) -> (s,)")
        self.period = None if period is None else _check.positive(period, "period")
        given = [name for name, f in (("rates", rates), ("update", update)) if f is not None]
        if memory is None and given:
            raise ValueError(f"{given[0]} has nothing to change without a memory. Pass memory=x0, of shape (s,).")
        if memory is not None and not given:
            raise ValueError("memory never changes. Pass rates(q, v, t, x), or update(q, v, t, x) with a period.")
        if update is not None and period is None:
            raise ValueError("update needs a sampling period. Pass period=..., or rates in its place.")
        more = "" if memory is None else ", x"
        self.law = _check.function(law, "law", f"law(q, v, t{more}) -> (p,)")

    @property
    def fields(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset({"control"} if self.memory is None else {"control", "memory"})

    def matrix(self, q, t, n):
        return actuation_at(self.actuation, q, t, n)

    def drive(self, mechanism, formulation, q, v, t, store, applied=None):
        u = self.control(q, v, t, store)
        own = self.matrix(q, t, v.shape[0]) @ u
        change = None if store is None else self.change(q, v, t, store)
        force = own if applied is None else applied + own
        return Driven(motion_by(formulation, mechanism.terms_of(force), q, v, t), u, None, change)

    def force(self, mechanism, formulation, q, v, t, store, applied=None):
        return self.matrix(q, t, v.shape[0]) @ self.control(q, v, t, store)

    def start(self, q, v, t):
        x = self._x0(q.dtype)
        if self.period is None:
            return x
        # The store holds the control of this sample and the memory for the next one.
        u, x = self.sample(q, v, t, x)
        return jnp.concatenate([x, u, jnp.ones(1, q.dtype)])

    def sample(self, q: Coordinates, v: Vector, t: Scalar, x: Array) -> tuple[Array, Array]:
        """Returns the control at a sample (p,), and the memory for the next one (s,)."""
        return self._decide(q, v, t, x), self._updated(q, v, t, x)

    def control(self, q: Coordinates, v: Vector, t: Scalar, store: Array | None) -> Array:
        """Returns u (p,)."""
        if store is None or self.period is None:
            return self._decide(q, v, t, store)
        return store[self._s : -1]

    def margins(self, q, v, t, store):
        u = self._asked(q, v, t, store)
        lower, upper = limits_at(self.limits, u.shape[0], q.dtype)
        return jnp.concatenate([u - lower, upper - u])

    def change(self, q: Coordinates, v: Vector, t: Scalar, store: Array) -> Array:
        """Returns the rate of the store between samples."""
        if self.rates is None:
            return jnp.zeros_like(store)
        x = store[: self._s]
        hint = f"The memory has {self._s} numbers."
        d = _check.output(self.rates(q, v, t, x), (self._s,), q.dtype, "rates(q, v, t, x)", hint)
        return jnp.concatenate([d, jnp.zeros(store.shape[0] - self._s, q.dtype)])

    def sampled(self, q, v, t, start, store):
        if self.period is None:
            return store
        x, k = store[: self._s], store[-1]
        due = stop_gradient(is_due(t, k, start, self.period))
        u, x = self.sample(q, v, t, x)
        new = jnp.concatenate([x, u, k[None] + 1])
        return jnp.where(due, new, store)

    def seen(self, store):
        return store[..., : self._s]

    def residuals(self, mechanism, q, v, t):
        return {}

    @property
    def _s(self) -> int:
        return 0 if self.memory is None else self.memory.shape[0]

    def _x0(self, dtype: DTypeLike) -> Array:
        return jnp.zeros(0, dtype) if self.memory is None else self.memory.astype(dtype)

    def _updated(self, q: Coordinates, v: Vector, t: Scalar, x: Array) -> Array:
        if self.update is None:
            return x
        hint = f"The memory has {self._s} numbers."
        return _check.output(self.update(q, v, t, x), (self._s,), q.dtype, "update(q, v, t, x)", hint)

    def _decide(self, q: Coordinates, v: Vector, t: Scalar, x: Array | None) -> Array:
        u = self._asked(q, v, t, x)
        return u if self.limits is None else jnp.clip(u, *limits_at(self.limits, u.shape[0], q.dtype))

    def _asked(self, q: Coordinates, v: Vector, t: Scalar, x: Array | None) -> Array:
        """Returns the control of the law before the limits (p,)."""
        p = self.actuators(q, t, v.shape[0])
        value = self.law(q, v, t) if self.memory is None else self.law(q, v, t, x)
        what = "law(q, v, t)" if self.memory is None else "law(q, v, t, x)"
        return _check.output(
            value, (p,), q.dtype, what, f"One entry per column of the actuation, of which there are {p}."
        )


def _memory(value: object) -> Array:
    x = _check.floating(value, "memory")
    if x.ndim != 1 or not x.shape[0]:
        raise ValueError(f"memory must have shape (s,), one number per state of the controller, but has {x.shape}.")
    if not is_traced(x):
        _check.finite(x, "memory")
    return x
