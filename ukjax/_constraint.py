"""Constraints: each gives rows of A q'' = b, and the errors of a state in position and velocity.

q: coordinates; v: their rates, or the speeds of a kinematics; t: time [s]; m: rows; A: constraint matrix (m, n);
b: its right-hand side (m,).
"""

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from . import _check
from ._result import is_traced
from ._sharing import Binding, Origin, binding, joined, separated
from ._system import AbstractKinematics
from ._types import Coordinates, Numbers, Rows, RowValues, Scalar, Vector


class Baumgarte(eqx.Module):
    r"""Stabilisation: instead of $\ddot\Phi = 0$ enforce $\ddot\Phi + d\,\dot\Phi + k\,\Phi = 0$.

    For a nonholonomic constraint $\dot\psi + d\,\psi = 0$ is enforced; there is no position to return to, so
    `stiffness` must stay zero.

    Args:
        damping: d [1/s], scalar, one per row (m,), or a matrix (m, m) that couples the rows.
        stiffness: k [1/s^2], likewise.

    Raises:
        ValueError: If a gain is no scalar, vector or square matrix, or is not finite.

    Warns:
        UserWarning: If a scalar or an entry of a vector is negative, so that errors grow.

    Gradients: both gains are differentiable leaves.

    Source: Baumgarte (1972); Xu & Liu (2017), eq. 52.
    """

    damping: Float[Array, "..."]
    stiffness: Float[Array, "..."]

    def __init__(self, damping: Numbers, stiffness: Numbers = 0.0):
        self.damping = _gain(damping, "damping")
        self.stiffness = _gain(stiffness, "stiffness")
        for name, gain in (("damping", self.damping), ("stiffness", self.stiffness)):
            if gain.ndim < 2:
                _check.warn_if_negative(gain, f"{name} of Baumgarte", "errors of the constraint grow", callers=4)

    @classmethod
    def classic(cls, alpha: Numbers, beta: Numbers) -> "Baumgarte":
        r"""Returns gains for $\ddot\Phi + 2\alpha\,\dot\Phi + \beta^2\,\Phi = 0$; critical for alpha = beta [1/s]."""
        alpha, beta = _gain(alpha, "alpha"), _gain(beta, "beta")
        return cls(2.0 * alpha, beta @ beta if beta.ndim == 2 else beta**2)

    def correction(self, position: RowValues | None, velocity: RowValues) -> RowValues:
        """Returns d Φ̇ + k Φ, to be subtracted from b, (m,); without a position, d ψ."""
        change = _times(self.damping, velocity, "damping")
        return change if position is None else change + _times(self.stiffness, position, "stiffness")


def _gain(value: Numbers, name: str) -> Array:
    gain = _check.floating(value, name)
    if gain.ndim > 2 or (gain.ndim == 2 and gain.shape[0] != gain.shape[1]):
        raise ValueError(
            f"{name} must be a scalar or have shape (m,), one gain per constraint row, or (m, m), but has shape "
            f"{gain.shape}."
        )
    _check.finite(gain, name)
    return gain


def _times(gain: Array, rows: Array, name: str) -> Array:
    m = rows.shape[0]
    if gain.ndim > 0 and gain.shape[0] != m:
        raise ValueError(
            f"{name} of ukjax.Baumgarte has shape {gain.shape}, but the constraint has {m} rows. Pass a scalar or "
            f"shape ({m},) or ({m}, {m})."
        )
    gain = gain.astype(rows.dtype)
    return gain @ rows if gain.ndim == 2 else gain * rows


class AbstractConstraint(eqx.Module):
    r"""A set of rows of $A(q, \dot q, t)\,\ddot q = b(q, \dot q, t)$."""

    @abc.abstractmethod
    def rows(
        self, q: Coordinates, v: Vector, t: Scalar, kinematics: AbstractKinematics | None = None
    ) -> tuple[Rows, RowValues]:
        """Returns A (m, n) and b (m,), with the stabilisation; q' follows from the kinematics, or is v without one.

        A user's constraint for systems without a kinematics may omit that argument.
        """

    @abc.abstractmethod
    def position_error(self, q: Coordinates, t: Scalar) -> RowValues:
        """Returns Φ(q, t), or an empty vector if the constraint does not restrict positions."""

    @abc.abstractmethod
    def velocity_error(
        self, q: Coordinates, v: Vector, t: Scalar, kinematics: AbstractKinematics | None = None
    ) -> RowValues:
        """Returns Φ̇ or ψ(q, v, t), or an empty vector if the constraint does not restrict velocities."""


class AbstractFunctionConstraint(AbstractConstraint):
    """A constraint defined by functions of the state, which can be replaced by other functions."""

    @abc.abstractmethod
    def through(self, change: Callable[[Callable], Callable]) -> "AbstractFunctionConstraint":
        """Returns this constraint with each function replaced by `change(function)`."""


class AbstractConstraintGroup(AbstractConstraint):
    """Several constraints with equally many rows each, one after the other."""

    @property
    @abc.abstractmethod
    def members(self) -> Mapping[str, AbstractConstraint]:
        """The constraints by name, in the order of the rows, each on its own coordinates only."""

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The coordinates that each member depends on, equally many, (k, n_k)."""

    @abc.abstractmethod
    def each_rows(self, q: Coordinates, v: Vector, t: Scalar) -> tuple[Float[Array, "k m n_k"], Float[Array, "k m"]]:
        """Returns A and b of each member, in the member's own columns."""

    @abc.abstractmethod
    def bound(self, binding: Binding) -> "AbstractConstraintGroup":
        """Returns this group, evaluated with the present values of the arrays that its members reach."""


class BoundConstraint(AbstractConstraint):
    """A constraint of the user's own class with its methods bound; other attributes are those of `constraint`."""

    constraint: AbstractConstraint
    binding: Binding

    def rows(self, q, v, t, kinematics=None):
        return self.binding(self.constraint.rows)(q, v, t, *_given(kinematics))

    def position_error(self, q, t):
        return self.binding(self.constraint.position_error)(q, t)

    def velocity_error(self, q, v, t, kinematics=None):
        return self.binding(self.constraint.velocity_error)(q, v, t, *_given(kinematics))

    def __getattr__(self, name: str) -> Any:
        if name in ("constraint", "binding"):  # not set yet
            raise AttributeError(name)
        return getattr(self.constraint, name)


def bound(constraint: AbstractConstraint, binding: Binding) -> AbstractConstraint:
    """Returns the constraint, evaluated with the present values of the arrays that it reaches."""
    if not binding.is_needed:
        return constraint
    if isinstance(constraint, AbstractFunctionConstraint):
        return constraint.through(binding)
    group = isinstance(constraint, AbstractConstraintGroup)
    return constraint.bound(binding) if group else BoundConstraint(constraint, binding)


def _given(kinematics: AbstractKinematics | None) -> tuple[AbstractKinematics, ...]:
    # A user's own constraint need not accept a kinematics where the system has none.
    return () if kinematics is None else (kinematics,)


def members_of(constraint: AbstractConstraint) -> tuple[AbstractConstraint, ...]:
    """Returns the constraints of a group, or the constraint itself."""
    return tuple(constraint.members.values()) if isinstance(constraint, AbstractConstraintGroup) else (constraint,)


def are_rates(constraints: Iterable[AbstractConstraint]) -> bool:
    """Whether every velocity error is the rate of a position error, hence affine in the speeds."""
    members = (member for constraint in constraints for member in members_of(constraint))
    return all(isinstance(member, Holonomic | AccelerationConstraint) for member in members)


class AbstractGap(eqx.Module):
    """A function Φ(q, t) that is zero in other states too, which only a search from far away reaches."""

    @abc.abstractmethod
    def __call__(self, q: Coordinates, t: Scalar) -> RowValues:
        """Returns Φ(q, t), (m,)."""

    @abc.abstractmethod
    def from_afar(self, q: Coordinates, t: Scalar) -> RowValues:
        """Returns errors (m,) that vanish in the states that are meant only, and there have the slopes of Φ."""


def error_from_afar(constraint: AbstractConstraint, q: Coordinates, t: Scalar) -> RowValues:
    """Returns the position error of a constraint by which a search finds it: of an `AbstractGap` that `from_afar`."""
    if isinstance(constraint, Holonomic) and isinstance(constraint.phi, AbstractGap):
        return constraint.phi.from_afar(q, t)
    return constraint.position_error(q, t)


class Holonomic(AbstractFunctionConstraint):
    r"""$\Phi(q, t) = 0$; $A = \partial\Phi/\partial q$ and b by automatic differentiation.

    $b = -\left.\frac{d^2}{ds^2}\,\Phi(q + s v, t + s)\right|_{s=0} - d\,\dot\Phi - k\,\Phi$.
    With a kinematics, q' = N v + n, $A = \partial\Phi/\partial q\,N$; b is the rest of the second derivative.

    Args:
        phi: `phi(q, t)`, shape (m,); put a single scalar in a list: `jnp.array([...])` or `[None]`.
        stabilization: `Baumgarte(damping, stiffness)`, or None for none.

    Raises:
        TypeError: If `phi` is not callable or `stabilization` is not a `Baumgarte`.
        ValueError: While tracing, if `phi` does not return shape (m,).

    Gradients: through `phi` and the gains; `phi` must be three times differentiable for the gradient of b.
    """

    phi: Callable
    stabilization: Baumgarte | None

    def __init__(self, phi: Callable, stabilization: Baumgarte | None = None):
        self.phi = _check.function(phi, "phi", "phi(q, t) -> (m,)")
        self.stabilization = _stabilization(stabilization)

    def through(self, change):
        return Holonomic(change(self.phi), self.stabilization)

    def rows(self, q, v, t, kinematics=None):
        ones = jnp.ones_like(t)

        def errors(q: Coordinates, t: Scalar) -> tuple[RowValues, RowValues]:
            return jax.jvp(self.position_error, (q, t), (_rates(kinematics, q, v, t), ones))

        # A constraint that ignores t has a symbolically zero tangent there, which jvp propagates at no cost.
        (position, velocity), (_, curvature) = jax.jvp(errors, (q, t), (_rates(kinematics, q, v, t), ones))
        if kinematics is None:
            matrix = jax.jacfwd(self.position_error)(q, t)
        else:
            matrix = jax.jacfwd(lambda v: self.velocity_error(q, v, t, kinematics))(v)
        return matrix, stabilized(self.stabilization, -curvature, position, velocity)

    def position_error(self, q, t):
        return _rows_of(self.phi(q, t), q, "phi(q, t)")

    def velocity_error(self, q, v, t, kinematics=None):
        return jax.jvp(self.position_error, (q, t), (_rates(kinematics, q, v, t), jnp.ones_like(t)))[1]


class Nonholonomic(AbstractFunctionConstraint):
    r"""$\psi(q, \dot q, t) = 0$, also nonlinear in $\dot q$; $A = \partial\psi/\partial v$.

    $b = -\frac{\partial\psi}{\partial q} v - \frac{\partial\psi}{\partial t} - d\,\psi$.

    Args:
        psi: `psi(q, v, t)`, shape (m,).
        stabilization: `Baumgarte(damping)`, or None for none.

    Raises:
        TypeError: If `psi` is not callable or `stabilization` is not a `Baumgarte`.
        ValueError: If the stabilization has a stiffness; while tracing, if `psi` does not return shape (m,).

    Gradients: through `psi` and the gain, where A keeps its rank (a row that is quadratic in v loses it at v = 0).
    """

    psi: Callable
    stabilization: Baumgarte | None

    def __init__(self, psi: Callable, stabilization: Baumgarte | None = None):
        self.psi = _check.function(psi, "psi", "psi(q, v, t) -> (m,)")
        self.stabilization = _stabilization(stabilization)
        if stabilization is not None:
            stiffness = stabilization.stiffness
            if not is_traced(stiffness) and np.any(np.asarray(stiffness) != 0.0):
                raise ValueError(
                    f"stabilization of a Nonholonomic has stiffness {stiffness}, but there is no position to return "
                    "to. Pass ukjax.Baumgarte(damping)."
                )

    def through(self, change):
        return Nonholonomic(change(self.psi), self.stabilization)

    def rows(self, q, v, t, kinematics=None):
        along = _rates(kinematics, q, v, t), jnp.ones_like(t)
        velocity, drift = jax.jvp(lambda q_, t_: self.velocity_error(q_, v, t_), (q, t), along)
        matrix = jax.jacfwd(self.velocity_error, argnums=1)(q, v, t)
        return matrix, stabilized(self.stabilization, -drift, None, velocity)

    def position_error(self, q, t):
        return jnp.zeros(0, q.dtype)

    def velocity_error(self, q, v, t, kinematics=None):
        return _rows_of(self.psi(q, v, t), q, "psi(q, v, t)")


class AccelerationConstraint(AbstractFunctionConstraint):
    r"""Rows given outright: $A(q, \dot q, t)\,\ddot q = b(q, \dot q, t)$.

    Args:
        matrix: `matrix(q, v, t)`, A, shape (m, n).
        vector: `vector(q, v, t)`, b, shape (m,).

    Raises:
        TypeError: If `matrix` or `vector` is not callable.
        ValueError: While tracing, if the shapes do not fit each other or the coordinates.

    Nothing below the acceleration is known, so it counts neither in `assemble` nor in the position and velocity
    residuals of a trajectory.
    """

    _matrix: Callable
    _vector: PyTree
    _origin: Origin = eqx.field(static=True)

    def __init__(self, matrix: Callable, vector: Callable):
        matrix = _check.function(matrix, "matrix", "matrix(q, v, t) -> (m, n)")
        vector = _check.function(vector, "vector", "vector(q, v, t) -> (m,)")
        (self._matrix, self._vector), self._origin = separated(matrix, vector)

    @property
    def matrix(self) -> Callable:
        """The function A(q, v, t)."""
        return self._functions()[0]

    @property
    def vector(self) -> Callable:
        """The function b(q, v, t)."""
        return self._functions()[1]

    def _functions(self) -> tuple[Callable, Callable]:
        parts = self._matrix, self._vector
        matrix, vector = map(binding(parts, self._origin), joined(parts, self._origin))
        return matrix, vector

    def through(self, change):
        return AccelerationConstraint(change(self.matrix), change(self.vector))

    def rows(self, q, v, t, kinematics=None):
        n = v.shape[0]
        A = _check.output(self.matrix(q, v, t), ("m", n), q.dtype, "matrix(q, v, t)", "One row per constraint.")
        hint = "It must match the rows of matrix(q, v, t)."
        return A, _check.output(self.vector(q, v, t), (A.shape[0],), q.dtype, "vector(q, v, t)", hint)

    def position_error(self, q, t):
        return jnp.zeros(0, q.dtype)

    def velocity_error(self, q, v, t, kinematics=None):
        return jnp.zeros(0, q.dtype)


def _rates(kinematics: AbstractKinematics | None, q: Coordinates, v: Vector, t: Scalar) -> Vector:
    return v if kinematics is None else kinematics.rates(q, v, t)


def _stabilization(value: object) -> Baumgarte | None:
    if value is None or isinstance(value, Baumgarte):
        return value
    raise TypeError(
        f"stabilization must be a ukjax.Baumgarte(damping, stiffness) or None, but is {type(value).__name__}."
    )


def stabilized(stabilization: Baumgarte | None, b: Array, position: Array | None, velocity: Array) -> Array:
    """Returns b less the stabilisation's correction; `position` is None for constraints of velocities."""
    return b if stabilization is None else b - stabilization.correction(position, velocity)


def _rows_of(value: object, q: Array, what: str) -> Array:
    hint = "A single row is a vector of length one: write jnp.array([...]) or add [None]."
    return _check.output(value, ("m",), q.dtype, what, hint)
