"""The unconstrained system: a mass matrix M and a force Q, with M a = Q, and how q changes with v.

q: coordinates (n_q,); v: their rates, or the speeds of a kinematics (n,); t: time [s]; M: mass matrix; Q: generalised
force; T, V: kinetic, potential energy; d: a small displacement (n,), a speed times a time.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from . import _check
from ._sharing import Origin, binding, joined, own_parameters, separated
from ._types import Coordinates, Matrix, Partition, Scalar, Vector


class AbstractKinematics(eqx.Module):
    r"""The kinematic differential equations $\dot q = N(q, t)\,v + n(q, t)$, affine in the speeds v.

    There may be more coordinates than speeds: a unit quaternion has four, and three angular speeds. The columns of N
    are then tangent to the set of admissible coordinates.
    """

    @abc.abstractmethod
    def rates(self, q: Coordinates, v: Vector, t: Scalar) -> Coordinates:
        """Returns q', shape (n_q,)."""

    @abc.abstractmethod
    def retract(self, q: Coordinates, d: Vector, t: Scalar) -> Coordinates:
        """Returns the coordinates after a displacement d (n,) from q, (n_q,): q + N(q, t) d up to second order in d.

        A retraction also returns to the set of admissible coordinates, for example from a quaternion of not quite unit
        length to one of unit length.
        """


class Kinematics(AbstractKinematics):
    r"""Kinematic differential equations from a function: $\dot q = $ `rates(q, v, t)`.

    Args:
        rates: `rates(q, v, t)`, shape (n_q,), affine in v.
        retract: `retract(q, d, t)`, shape (n_q,), the coordinates after a displacement d (n,); q + N(q, t) d if
            omitted. Pass a function if the coordinates depend on each other, so that its result is admissible.

    Raises:
        TypeError: If `rates` or `retract` is not callable.
        ValueError: While tracing, if a shape is not that of q.

    Gradients: through the arrays that the functions hold or close over.

    Source: Kane & Levinson (1985), Dynamics: Theory and Applications, 2.12.
    """

    rates_function: Callable
    retract_function: Callable | None

    def __init__(self, rates: Callable, retract: Callable | None = None):
        self.rates_function = _check.function(rates, "rates", "rates(q, v, t) -> (n_q,)")
        retract = retract and _check.function(retract, "retract", "retract(q, d, t) -> (n_q,)")
        self.retract_function = retract

    def through(self, change: Callable[[Callable], Callable]) -> "Kinematics":
        """Returns these kinematics with each function replaced by `change(function)`."""
        return Kinematics(change(self.rates_function), self.retract_function and change(self.retract_function))

    def rates(self, q, v, t):
        return _like(self.rates_function(q, v, t), q, "rates(q, v, t)")

    def retract(self, q, d, t):
        if self.retract_function is None:
            return q + self.rates(q, d, t) - self.rates(q, jnp.zeros_like(d), t)
        return _like(self.retract_function(q, d, t), q, "retract(q, d, t)")


def _like(value: object, q: Coordinates, what: str) -> Coordinates:
    return _check.output(value, q.shape, q.dtype, what, f"q has {q.shape[0]} coordinates.")


def kinematics_of(value: object) -> AbstractKinematics | None:
    """Returns the argument `kinematics` of a system, None, a function or an object, as an object or None."""
    if value is None or isinstance(value, AbstractKinematics):
        return value
    if not callable(value):
        raise TypeError(
            "kinematics must be a function kinematics(q, v, t) -> q', a ukjax.Kinematics or None, but is a "
            f"{type(value).__name__}."
        )
    return Kinematics(value)


class AbstractSystem(eqx.Module):
    r"""A mechanical system before any constraint: $M(q, t)\,\ddot q = Q(q, \dot q, t)$.

    Subclass it to keep parameters as array leaves, so that they can be differentiated and batched. A Python float or a
    NumPy array in a field becomes a JAX array when the system is made, and is one parameter. Read the parameter from
    the system: a number kept elsewhere is a constant.
    """

    def __check_init__(self):
        methods = {"mass": "mass(self, q, t) -> (n, n)", "force": "force(self, q, v, t) -> (n,)"}
        for name, signature in methods.items():
            _check.function(getattr(type(self), name), f"{name} of {type(self).__name__}", signature)
        own_parameters(self)

    @abc.abstractmethod
    def mass(self, q: Coordinates, t: Scalar) -> Matrix:
        """Returns the mass matrix M, symmetric positive definite, shape (n, n) [kg or kg m^2]."""

    @abc.abstractmethod
    def force(self, q: Coordinates, v: Vector, t: Scalar) -> Vector:
        """Returns the generalised force Q, applied, gyroscopic and Coriolis terms together, shape (n,) [N or N m]."""


class AbstractKinematicSystem(AbstractSystem):
    r"""A system whose v need not be the rates of q: $M(q, t)\,\dot v = Q(q, v, t)$, q' by a kinematics.

    There may be more coordinates than speeds; M, Q, and every force and acceleration are those of the speeds.
    """

    @property
    @abc.abstractmethod
    def kinematics(self) -> AbstractKinematics | None:
        """The kinematics by which q changes with v; None for q' = v."""


class AbstractNamedSystem(AbstractSystem):
    """A system that names its numbers."""

    @property
    @abc.abstractmethod
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the coordinates and of the speeds, with units."""


class AbstractModularSystem(AbstractSystem):
    """A system whose mass matrix is block-diagonal, whatever the state."""

    @property
    @abc.abstractmethod
    def partition(self) -> Partition:
        """Coordinates of the blocks; equal blocks, which are computed together, in one group."""

    @abc.abstractmethod
    def blocks(self, q: Coordinates, t: Scalar) -> tuple[Float[Array, "k n_k n_k"], ...]:
        """Returns the blocks of M, (k, n_k, n_k) for each group of the partition."""


class System(AbstractKinematicSystem):
    r"""A system from two functions: $M(q, t)\,\ddot q = Q(q, \dot q, t)$.

    Args:
        mass: `mass(q, t)`, shape (n, n) [kg or kg m^2].
        force: `force(q, v, t)`, shape (n,) [N or N m].
        kinematics: The rates of q where they are not v: `kinematics(q, v, t)`, q' of shape (n_q,), affine in v, or a
            `Kinematics`. The equation then is $M\,\dot v = Q$, with v (n,) the speeds, such as the angular velocity of
            a body whose orientation is a quaternion in q. None for q' = v.

    Raises:
        TypeError: If an argument is not callable.

    Gradients: through whatever arrays the two functions hold or close over. What both hold, as methods of one object
    do, is one leaf.
    """

    _mass: Callable
    _force: PyTree
    _kinematics: PyTree
    _origin: Origin = eqx.field(static=True)

    def __init__(self, mass: Callable, force: Callable, kinematics: Callable | AbstractKinematics | None = None):
        mass = _check.function(mass, "mass", "mass(q, t) -> (n, n)")
        force = _check.function(force, "force", "force(q, v, t) -> (n,)")
        (self._mass, self._force, self._kinematics), self._origin = separated(mass, force, kinematics_of(kinematics))

    @property
    def mass_function(self) -> Callable:
        """The function mass(q, t)."""
        return self._functions()[0]

    @property
    def force_function(self) -> Callable:
        """The function force(q, v, t)."""
        return self._functions()[1]

    @property
    def kinematics(self):
        return self._functions()[2]

    def _functions(self) -> tuple[Callable, Callable, AbstractKinematics | None]:
        parts = self._mass, self._force, self._kinematics
        bind = binding(parts, self._origin)
        mass, force, kinematics = joined(parts, self._origin)
        return bind(mass), bind(force), kinematics.through(bind) if isinstance(kinematics, Kinematics) else kinematics

    def mass(self, q, t):
        return self.mass_function(q, t)

    def force(self, q, v, t):
        return self.force_function(q, v, t)


class LagrangianSystem(AbstractSystem):
    r"""A system from its energies, by automatic differentiation of $L = T - V$.

    $$M = \frac{\partial^2 T}{\partial v^2}, \qquad
      Q = Q_\mathrm{applied} - \frac{\partial V}{\partial q} + \frac{\partial T}{\partial q}
          - \frac{\partial p}{\partial q} v - \frac{\partial p}{\partial t}, \qquad p = \frac{\partial T}{\partial v}$$

    so T may depend on time and have terms linear in v (moving frames). T must be at most quadratic in v and smooth
    at v = 0: write `v @ v`, not `norm(v)**2`.

    Args:
        kinetic: `kinetic(q, v, t)`, scalar [J].
        potential: `potential(q, t)`, scalar [J].
        applied: `applied(q, v, t)`, shape (n,) [N or N m]: forces that no potential gives; none if omitted.

    Raises:
        TypeError: If an argument is not callable.
        ValueError: While tracing, if an energy is not a scalar.

    Source: any mechanics text; Xu & Liu (2017), eq. 21.
    """

    _kinetic: Callable
    _others: tuple[PyTree, PyTree]
    _origin: Origin = eqx.field(static=True)

    def __init__(self, kinetic: Callable, potential: Callable, applied: Callable | None = None):
        kinetic = _check.function(kinetic, "kinetic", "kinetic(q, v, t) -> scalar")
        potential = _check.function(potential, "potential", "potential(q, t) -> scalar")
        applied = applied and _check.function(applied, "applied", "applied(q, v, t) -> (n,)")
        (self._kinetic, *others), self._origin = separated(kinetic, potential, applied)
        self._others = (others[0], others[1])

    @property
    def kinetic_function(self) -> Callable:
        """The function kinetic(q, v, t)."""
        return self._functions()[0]

    @property
    def potential_function(self) -> Callable:
        """The function potential(q, t)."""
        return self._functions()[1]

    @property
    def applied_function(self) -> Callable | None:
        """The function applied(q, v, t), or None."""
        return self._functions()[2]

    def _functions(self) -> tuple[Callable, Callable, Callable | None]:
        parts = self._kinetic, *self._others
        bind = binding(parts, self._origin)
        kinetic, potential, applied = joined(parts, self._origin)
        return bind(kinetic), bind(potential), applied and bind(applied)

    def kinetic(self, q: Coordinates, v: Vector, t: Scalar) -> Scalar:
        """Returns the kinetic energy T [J]."""
        return _check.output(self.kinetic_function(q, v, t), (), q.dtype, "kinetic(q, v, t)", _SCALAR)

    def potential(self, q: Coordinates, t: Scalar) -> Scalar:
        """Returns the potential energy V [J]."""
        return _check.output(self.potential_function(q, t), (), q.dtype, "potential(q, t)", _SCALAR)

    def energy(self, q: Coordinates, v: Vector, t: Scalar) -> Scalar:
        """Returns T + V [J], conserved if nothing is applied and neither energies nor constraints depend on time."""
        return self.kinetic(q, v, t) + self.potential(q, t)

    def mass(self, q, t):
        # T is quadratic in v, so its Hessian is the same at every v.
        return jax.hessian(self.kinetic, argnums=1)(q, jnp.zeros_like(q), t)

    def force(self, q, v, t):
        momentum = jax.grad(self.kinetic, argnums=1)
        # The part of dp/dt that the velocity makes; the acceleration's part is M q''.
        _, drift = jax.jvp(lambda q_, t_: momentum(q_, v, t_), (q, t), (v, jnp.ones_like(t)))
        force = jax.grad(self.kinetic)(q, v, t) - jax.grad(self.potential)(q, t) - drift
        applied = self.applied_function
        return force if applied is None else force + applied_force(applied(q, v, t), v)


_SCALAR = "An energy is a scalar: sum the parts, or index the single entry."


def applied_force(value: object, v: Vector, what: str = "applied(q, v, t)") -> Float[Array, " n"]:
    """Returns `value` if it is a generalised force for the rates `v`; raises ValueError otherwise."""
    return _check.output(value, v.shape, v.dtype, what, "It is one generalised force per coordinate.")
