"""A system whose terms were written by SymPy; without SymPy at run time.

q: coordinates (n,); v: their rates; u: generalised speeds (k,), u = J v + j; M_u, f_u: M_u u' = f_u + constraints.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .. import _check
from .._constraint import AbstractConstraint, Holonomic, Nonholonomic
from .._linalg import RowGramSchmidt, pseudoinverse
from .._mechanism import AbstractConstrainedSystem, Mechanism
from .._types import Coordinates, Matrix, RowValues, Scalar, Vector


@dataclasses.dataclass(frozen=True, eq=False)
class Functions:
    """What SymPy wrote: each takes `(q, v, u, t, parameters, specifieds)` and returns a list of scalars, or is None.

    Attributes:
        mass: M_u, row by row.
        force: f_u.
        kinematics: [K_u, K_v, k] row by row, for K_u u + K_v v + k = 0; None if u is v.
        explicit: Whether `kinematics` is [J, j] instead, for u = J v + j.
        blocks: Rows and columns of K_u that belong together, if it is not.
        rates: v as a function of u; None if u is v, or if v is to be found from `kinematics` by numbers.
        configuration: Constraints on positions.
        motion: Constraints on velocities.
        integrable: Whether the constraints on positions are to be differentiated: if not, `motion` has their rates.
        drive: Name of a specified function -> the slope of f_u by it, of those whose slope is a function of q and t.
        coordinates: Names of q.
        generalized_speeds: Names of u.
        parameters: Names of the parameters that occur.
        specifieds: Names of the functions of time that occur.
    """

    mass: Callable
    force: Callable
    kinematics: Callable | None
    explicit: bool
    blocks: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    rates: Callable | None
    configuration: Callable | None
    motion: Callable | None
    integrable: bool
    drive: Mapping[str, Callable]
    coordinates: tuple[str, ...]
    generalized_speeds: tuple[str, ...]
    parameters: tuple[str, ...]
    specifieds: tuple[str, ...]


class SympySystem(AbstractConstrainedSystem):
    r"""The system of `ukjax.from_sympy`: $M = J^\top M_u J$, $Q = J^\top (f_u - M_u (\dot J v + \dot j))$.

    Attributes:
        parameters: Name -> value, scalars, differentiable.
        specifieds: Name -> number or `f(q, v, t)`.
        functions: What SymPy wrote; static.

    Its constraints, "configuration" and "motion", come with it into any `Mechanism`.

    Gradients: with respect to `parameters`, which system and constraints share.
    """

    parameters: dict[str, Float[Array, ""]]
    specifieds: dict[str, Any]
    functions: Functions = eqx.field(static=True)

    @property
    def coordinates(self) -> tuple[str, ...]:
        """Names of the coordinates, in order; "∫u" for one that SymPy did not need, of which only the rate is known."""
        return self.functions.coordinates

    @property
    def generalized_speeds(self) -> tuple[str, ...]:
        """Names of the generalised speeds, in order."""
        return self.functions.generalized_speeds

    def mechanism(self, parameters: Mapping[Any, Any] | None = None) -> Mechanism:
        """The mechanism with these parameters instead, by symbol or name; no symbolic work is done again.

        Raises:
            ValueError: If a name is unknown, or a value is no real scalar.
        """
        changed = named_scalars(parameters or {}, "parameters")
        for name in changed:
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise ValueError(f"parameters has {name!r}, which the system does not; it has {known}.")
        return Mechanism(SympySystem({**self.parameters, **changed}, self.specifieds, self.functions))

    def actuation(self, *names: Any) -> "Driven":
        """G(q, t) of what SymPy left open, for `linearize`, `lqr`, servos, and whatever takes an `actuation`.

        The inputs are forces that are added to what `specifieds` says.

        Args:
            names: Dynamic symbols, or their names, in the order of the inputs; all that occur if none is given.

        Raises:
            ValueError: If a name is unknown, or its force depends on rates or on specified functions, itself included.
        """
        known, texts = self.functions.specifieds, tuple(map(name_of, names)) or self.functions.specifieds
        if not texts:
            raise ValueError("the equations of motion contain no specified function that could be an input.")
        for text in texts:
            if text not in known:
                raise ValueError(f"names has {text!r}, which is not specified; specified are {', '.join(known)}.")
            if text not in self.functions.drive:
                raise ValueError(
                    f"names has {text!r}, which is multiplied by rates or by specified functions, and so has no column "
                    "G(q, t). Specify it as f(q, v, t), and let the input be another force."
                )
        return Driven(self, texts)

    def driven(self, names: Sequence[str], q: Coordinates, t: Scalar) -> Matrix:
        """The generalised force (n, p) of a unit of each of these specified functions."""
        k = len(self.functions.generalized_speeds)
        G = jnp.stack([self._evaluate(self.functions.drive[name], (k,), q, t) for name in names], axis=1)
        return G if self.functions.kinematics is None else self._jacobian(q, t)[0].T @ G

    @property
    def own_constraints(self):
        constraints: dict[str, AbstractConstraint] = {}
        if self.functions.configuration is not None:
            positions = Holonomic if self.functions.integrable else Configuration
            constraints["configuration"] = positions(self.configuration)
        if self.functions.motion is not None or self.ties:
            constraints["motion"] = Nonholonomic(self.motion)
        return constraints

    def mass(self, q, t):
        M = self._speed_mass(q, t)
        if self.functions.kinematics is None:
            return M
        J, _ = self._jacobian(q, t)
        return J.T @ M @ J

    def force(self, q, v, t):
        u = self.speeds(q, v, t)
        f = self._evaluate(self.functions.force, (u.shape[0],), q, t, v, u, True)
        if self.functions.kinematics is None:
            return f
        J, _ = self._jacobian(q, t)
        _, drift = jax.jvp(lambda q_, t_: self.speeds(q_, v, t_), (q, t), (v, jnp.ones_like(t)))
        return J.T @ (f - self._speed_mass(q, t) @ drift)

    def speeds(self, q: Coordinates, v: Vector, t: Scalar) -> Float[Array, " k"]:
        """Generalised speeds u (k,) for the rates v."""
        if self.functions.kinematics is None:
            return v
        J, j = self._jacobian(q, t)
        return J @ v + j

    def rates(self, q: Coordinates, u: Float[Array, " k"], t: Scalar) -> Vector:
        """Rates v (n,) for the generalised speeds u: what SymPy's initial values are to ukjax."""
        if self.functions.rates is None:
            if self.functions.kinematics is None:
                return u
            K_u, K_v, k = self._kinematics(q, t)
            return jnp.linalg.solve(K_v, -(K_u @ u + k))
        return self._evaluate(self.functions.rates, q.shape, q, t, u=u)

    def configuration(self, q: Coordinates, t: Scalar) -> RowValues:
        """Constraints on positions, phi(q, t)."""
        return self._evaluate(self.functions.configuration, (-1,), q, t)

    def motion(self, q: Coordinates, v: Vector, t: Scalar) -> RowValues:
        """Constraints on velocities, psi(q, v, t); first those that tie coordinates of which there are too many."""
        u = self.speeds(q, v, t)
        rows = self._evaluate(self.functions.motion, (-1,), q, t, v, u)
        if not self.ties:
            return rows
        K_u, K_v, k = self._kinematics(q, t)
        return jnp.concatenate([*_tied(self.functions.blocks, K_u, K_v @ v + k), rows])

    @property
    def ties(self) -> bool:
        """Whether there are more coordinates than speeds, so that rates cannot be chosen freely."""
        return len(self.functions.coordinates) > len(self.functions.generalized_speeds)

    def _speed_mass(self, q: Coordinates, t: Scalar) -> Matrix:
        k = len(self.functions.generalized_speeds)
        return self._evaluate(self.functions.mass, (k, k), q, t)

    def _jacobian(self, q: Coordinates, t: Scalar) -> tuple[Array, Array]:
        """J and j of u = J v + j."""
        n, k = len(self.functions.coordinates), len(self.functions.generalized_speeds)
        if self.functions.explicit:
            J = self._evaluate(self.functions.kinematics, (k, n + 1), q, t)
            return J[:, :-1], J[:, -1]
        K_u, K_v, rest = self._kinematics(q, t)
        inverse = jnp.zeros((k, n), q.dtype)
        for rows, columns in self.functions.blocks:
            if columns:
                inverse = inverse.at[np.ix_(columns, rows)].set(_inverse(K_u[np.ix_(rows, columns)]))
        return -inverse @ K_v, -inverse @ rest

    def _kinematics(self, q: Coordinates, t: Scalar) -> tuple[Array, Array, Array]:
        n, k = len(self.functions.coordinates), len(self.functions.generalized_speeds)
        K = self._evaluate(self.functions.kinematics, (n, k + n + 1), q, t)
        return K[:, :k], K[:, k:-1], K[:, -1]

    def _evaluate(
        self,
        function: Callable | None,
        shape: tuple[int, ...],
        q: Array,
        t: Array,
        v: Any = None,
        u: Any = None,
        with_specifieds: bool = False,
    ) -> Array:
        if function is None:
            return jnp.zeros(0, q.dtype)
        values = [self.parameters[name].astype(q.dtype) for name in self.functions.parameters]
        # What is not passed does not occur.
        names = self.functions.specifieds
        given = [self._specified(name, q, v, t) if with_specifieds else jnp.nan for name in names]
        v = [jnp.nan] * q.shape[0] if v is None else v
        u = [jnp.nan] * len(self.functions.generalized_speeds) if u is None else u
        entries = function(q, v, u, t, values, given)
        return jnp.stack([jnp.asarray(entry, q.dtype) for entry in entries]).reshape(shape)

    def _specified(self, name: str, q: Array, v: Any, t: Array) -> Array:
        value = self.specifieds[name]
        if callable(value):
            hint = "It is one number."
            return _check.output(value(q, v, t), (), q.dtype, f"specifieds[{name!r}](q, v, t)", hint)
        return value.astype(q.dtype)


def _inverse(K: Array) -> Array:
    """K^+, whose columns are independent, or SymPy's own solution for u would not be unique."""
    return pseudoinverse(RowGramSchmidt(), K.T)[0].T


def _tied(blocks: Any, K: Array, r: Array) -> list[Array]:
    """What K u + r = 0 says of r alone, whatever u is, one number for each row that K has more than columns.

    A row without speeds says it as it stands. Of a block with more rows than columns the projection P = 1 - K K^+ has
    rank d, their difference; d of its rows that are far from each other are taken, by pivoting: all of them would
    depend on each other, and some may vanish.
    """
    found = []
    for rows, columns in blocks:
        part, over = r[np.array(rows, int)], len(rows) - len(columns)
        if not columns:
            found.append(part)
        elif over > 0:
            block = K[np.ix_(rows, columns)]
            P = jnp.eye(len(rows), dtype=r.dtype) - block @ _inverse(block)
            rest = stop_gradient(P)
            for _ in range(over):
                i = jnp.argmax(jnp.diag(rest))
                found.append((P[i] @ part)[None])
                rest = rest - jnp.outer(rest[:, i], rest[i]) / rest[i, i]
    return found


class Driven(eqx.Module):
    """G(q, t) of specified functions: what a unit of each adds to the generalised force."""

    system: SympySystem
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Scalar) -> Matrix:
        """G (n, p)"""
        return self.system.driven(self.names, q, t)


class Configuration(AbstractConstraint):
    """Positions that velocity constraints keep; what `assemble` and a projection return to, and no row of its own."""

    phi: Callable

    def rows(self, q, v, t, kinematics=None):
        return jnp.zeros((0, q.shape[0]), q.dtype), jnp.zeros(0, q.dtype)

    def position_error(self, q, t):
        return self.phi(q, t)

    def velocity_error(self, q, v, t, kinematics=None):
        return jnp.zeros(0, q.dtype)


def named_scalars(values: Mapping[Any, Any], name: str) -> dict[str, Array]:
    """Values by name, as real scalars."""
    found = {}
    for key, value in by_name(values, name).items():
        found[key] = _check.floating(value, f"{name}[{key!r}]")
        if found[key].ndim != 0:
            raise ValueError(f"{name}[{key!r}] must be a scalar, but has shape {found[key].shape}.")
        _check.finite(found[key], f"{name}[{key!r}]")
    return found


def by_name(values: Any, name: str) -> dict[str, Any]:
    """A mapping with its symbols replaced by their names; "F" is the name of F(t)."""
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{name} must be a dict of SymPy symbols or their names to values, but is {type(values).__name__}."
        )
    found: dict[str, Any] = {}
    for key, value in values.items():
        text = name_of(key)
        if text in found:
            raise ValueError(f"{name} has two entries for {text!r}: symbols are told apart by their names.")
        found[text] = value
    return found


def name_of(key: Any) -> str:
    """F for F(t); anything else as it is printed."""
    text = str(key)
    return text.removesuffix("(t)") if text.count("(") == 1 else text
