"""Controllers: nothing, servos that are solved together, or a feedback, which act on a mechanism during a run.

u: control (p,) of all actuators; G (n, p): actuation; store: numbers that a run carries for a controller beside q, v.
"""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._formulation import AbstractFormulation, Motion, motion_by
from .._mechanism import Mechanism
from .._types import Coordinates, Matrix, Scalar, Vector
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
