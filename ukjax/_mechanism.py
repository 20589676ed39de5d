"""Mechanism: a system and its constraints, and the search for the function of it that returned NaN or infinity."""

import abc
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array, ArrayLike, Float, PyTree

from . import _check
from ._constraint import AbstractConstraint, AbstractConstraintGroup, bound, error_from_afar, members_of
from ._dataset import Names
from ._program import jit_fast_compile
from ._result import RESULTS
from ._sharing import Origin, binding, joined, separated
from ._show import AbstractShown, Report, parameters, shortened
from ._system import (
    AbstractKinematics,
    AbstractKinematicSystem,
    AbstractModularSystem,
    AbstractNamedSystem,
    AbstractSystem,
    applied_force,
)
from ._terms import BlockTerms, ForwardDynamics, ModularTerms, Terms, TermsFunctions, of_loose
from ._trajectory import Trajectory
from ._types import Coordinates, Matrix, Rows, RowValues, Scalar, Vector


# Any number of constraints, with names or without.
Constraints = AbstractConstraint | Iterable[AbstractConstraint] | Mapping[str, AbstractConstraint]


class AbstractConstrainedSystem(AbstractSystem):
    """A system with constraints of its own, which every `Mechanism` of it enforces."""

    @property
    @abc.abstractmethod
    def own_constraints(self) -> Mapping[str, AbstractConstraint]:
        """The constraints by name, in the order of their rows."""


class OwnRows(NamedTuple):
    """A and b of a constraint, and the errors of the state in position (empty without one) and in velocity."""

    A: Rows
    b: RowValues
    position: RowValues
    velocity: RowValues


class ErrorRows(NamedTuple):
    """Rows A (m, n) and their errors in position and in velocity (m,), zero where a row has none.

    Attributes:
        A: Slopes of the errors in velocity by v, and of those in position by displacements.
        position, velocity: The errors.
        of_position, of_velocity: Whether a row has such an error (m,).
    """

    A: Rows
    position: RowValues
    velocity: RowValues
    of_position: np.ndarray
    of_velocity: np.ndarray

    @classmethod
    def of(cls, A: Rows, position: RowValues | None, velocity: RowValues | None) -> "ErrorRows":
        """The rows A with errors of both kinds, or of one."""
        none = jnp.zeros(len(A), A.dtype)
        return cls(
            A,
            none if position is None else position,
            none if velocity is None else velocity,
            np.full(len(A), position is not None),
            np.full(len(A), velocity is not None),
        )


class AbstractLinkedSystem(AbstractConstrainedSystem):
    """A system that can compute the rows of several constraints together."""

    @abc.abstractmethod
    def own_rows(self, q: Coordinates, v: Vector, t: Scalar) -> Mapping[str, OwnRows]:
        """Returns the rows of several constraints by name, as each gives by itself; zero where rounding errors."""

    @abc.abstractmethod
    def own_errors(
        self, q: Coordinates, v: Vector | None, t: Scalar, afar: bool
    ) -> Mapping[str, tuple[RowValues, RowValues]]:
        """Returns the errors of the same constraints in position (empty without one) and in velocity, as each does.

        v: None at rest; `afar`: see `Mechanism.errors`.
        """

    @abc.abstractmethod
    def own_imbalance(self) -> Callable[..., tuple[Vector, Mapping[str, RowValues]]] | None:
        """Returns the function (q, v, t, a, l) -> Q - M a + A^T l (n,), and b - A a of the same constraints by name.

        a: accelerations (n,); l: multipliers by name. None if it takes no fewer operations than M and A do.
        """


class AbstractRecursiveSystem(AbstractSystem):
    """A system that can compute its unconstrained acceleration without forming M."""

    @abc.abstractmethod
    def free(self, applied: Vector | None) -> ForwardDynamics | None:
        """Returns the unconstrained dynamics, or None; `applied`: forces (n,) beside the system's, or None."""


class Mechanism(AbstractShown):
    r"""A system, its constraints, and the non-ideal part of their forces.

    Args:
        system: `System`, `LagrangianSystem`, or your own subclass of `AbstractSystem`. Constraints that it brings along
            (a `Composite`, a `SympySystem`) come first.
        constraints: One `AbstractConstraint` or any number of them, or a mapping that names them: name -> constraint.
            All are enforced together. Without a name the first is called "constraints[0]".
        nonideal: `nonideal(q, v, t, ideal_force)`, shape (n,) [N or N m]: the force c whose work the constraints do
            (friction); only its part along admissible directions acts.

    Raises:
        TypeError: If `system` or a constraint is something else.
        ValueError: If a name is no text, or occurs twice.

    A parameter that the system and a constraint share, as in `Mechanism(model, Holonomic(model.rod))`, is one leaf: it
    lies in `system`, and a gradient, a batch or a replacement of it there acts wherever it occurs. An object or an
    array that several constraints share lies in the first of them. `constraints` and `nonideal` are assembled from the
    leaves at every access.

    A function may reach a shared array in any way: by a closure, a default, a partial, an attribute, a global variable,
    within `jax.jit` or a rule of derivatives. It must be that array, in JAX's arithmetic. A number that Python or NumPy
    computes from the array (`float(model.length)`) is a constant.

    A program keeps the constants that it was compiled with. If a function reads a number from a global variable, a list
    or an attribute, and that number changes, calls that were compiled before (`equation_of_motion`, `simulate`) go on
    with the old one. Make what changes a parameter of the system.

    Source: Udwadia & Kalaba (1992); the non-ideal force: Liu et al. (2015), eq. 7 to 13.
    """

    system: AbstractSystem
    _further: tuple[PyTree, ...]
    _nonideal: PyTree
    _names: tuple[str, ...] = eqx.field(static=True)
    _origin: Origin = eqx.field(static=True)

    def __init__(
        self,
        system: AbstractSystem,
        constraints: Constraints = (),
        nonideal: Callable | None = None,
    ):
        if not isinstance(system, AbstractSystem):
            raise TypeError(
                f"system must be a ukjax.System, ukjax.LagrangianSystem or ukjax.AbstractSystem, but is "
                f"{type(system).__name__}."
            )
        own = _own(system)
        further = {k: c for k, c in _named(constraints, len(own)).items() if not _is_among(c, own)}
        for name in further:
            if name in own:
                raise ValueError(
                    f"constraints has {name!r}, but the system already has a constraint of that name. Rename it."
                )
        if isinstance(system, AbstractKinematicSystem) and system.kinematics is not None:
            _check_kinematics({**own, **further})
        signature = "nonideal(q, v, t, ideal_force) -> (n,)"
        nonideal = nonideal if nonideal is None else _check.function(nonideal, "nonideal", signature)
        (self.system, *rest, self._nonideal), self._origin = separated(system, *further.values(), nonideal)
        self._further, self._names = tuple(rest), tuple(further)

    @property
    def constraints(self) -> tuple[AbstractConstraint, ...]:
        """All constraints, in the order of their rows: those of the system, then those given."""
        return tuple(self.named_constraints.values())

    @property
    def named_constraints(self) -> dict[str, AbstractConstraint]:
        """All constraints by name, in the order of their rows."""
        _, *further, _ = joined(self._parts, self._origin)
        present = binding(self._parts, self._origin)
        return {**_own(self.system), **{k: bound(c, present) for k, c in zip(self._names, further, strict=True)}}

    @property
    def nonideal(self) -> Callable | None:
        """The function `nonideal` of the mechanism, or None."""
        nonideal = joined(self._parts, self._origin)[-1]
        return nonideal if nonideal is None else binding(self._parts, self._origin)(nonideal)

    @property
    def _parts(self) -> list[PyTree]:
        return [self.system, *self._further, self._nonideal]

    @property
    def kinematics(self) -> AbstractKinematics | None:
        """The kinematics by which q changes with v, or None if v are the rates of q."""
        return self.system.kinematics if isinstance(self.system, AbstractKinematicSystem) else None

    def _report(self) -> Report:
        constraints = self.named_constraints
        rows = [(name, _kind(constraint)) for name, constraint in constraints.items()]
        shown, notes = shortened(rows)
        if self._nonideal is not None:
            shown.append(("nonideal", "forces whose work the constraints do"))
        further = zip(self._names, self._further, strict=True)
        found, more = shortened([*parameters(self.system), *parameters(dict(further))])
        known = [] if self.names is None else [f"coordinates: {', '.join(self.names.coordinates or ())}"]
        notes += [*known, "parameters:" if found else "no parameters", *(f"  {k} = {x}" for k, x in found), *more]
        count = f"{len(rows)} constraint{'' if len(rows) == 1 else 's'}"
        return Report(f"Mechanism of a {type(self.system).__name__} and {count}", shown, notes=notes)

    @property
    def names(self) -> Names | None:
        """The names of coordinates and speeds, if the system has names; speeds have their own if they are no rates."""
        if not isinstance(self.system, AbstractNamedSystem):
            return None
        coordinates, speeds = self.system.names
        return Names(coordinates, None if self.kinematics is None else speeds)

    def rates(self, q: Coordinates, v: Vector, t: Scalar) -> Coordinates:
        """Returns q', shape (n_q,)."""
        return v if self.kinematics is None else self.kinematics.rates(q, v, t)

    def retract(self, q: Coordinates, d: Vector, t: Scalar) -> Coordinates:
        """Returns the coordinates after a displacement d (n,) from q."""
        return q + d if self.kinematics is None else self.kinematics.retract(q, d, t)

    def displacements(self, q: Coordinates, t: Scalar, n: int) -> tuple[Array, Vector]:
        """Returns dq / dd (n_q, n) for displacements d, and the size of q in units of each d (n,); no gradient."""
        q = stop_gradient(q)
        slopes = stop_gradient(jax.jacfwd(lambda d: self.retract(q, d, t))(jnp.zeros(n, q.dtype)))
        largest = jnp.max(jnp.where(slopes != 0, jnp.abs(q)[:, None], 0.0), axis=0)
        return slopes, largest / jnp.max(jnp.abs(slopes), axis=0)

    def mass(self, q: Coordinates, t: Scalar, n: int) -> Matrix:
        """Returns M (n, n); raises ValueError, while tracing, if the system's has another shape."""
        what = "coordinates" if self.kinematics is None else "speeds"
        return _check.output(self.system.mass(q, t), (n, n), q.dtype, "mass(q, t)", f"There are {n} {what}.")

    def terms(
        self, q: Coordinates, v: Vector, t: Scalar, applied: Vector | None = None, rows_by: Callable | None = None
    ) -> Terms:
        """Returns M, Q, A, b and the non-ideal force at one state; raises ValueError, while tracing, on a wrong shape.

        `rows_by`: see `TermsFunctions`.
        """
        n = v.shape[0]
        M = self.mass(q, t, n)
        Q = applied_force(self.system.force(q, v, t), v, "force(q, v, t)")
        if applied is not None:
            Q = Q + applied_force(applied, v, "applied")
        named = self.named_constraints
        known = self._own_rows(q, v, t)

        def others(q: Coordinates, v: Vector, t: Scalar) -> list[tuple[Rows, RowValues]]:
            # A system that gives rows itself has already zeroed their rounding errors.
            return [self.rows_of(c, q, v, t) for name, c in named.items() if name not in known]

        found, errors = (others(q, v, t), None) if rows_by is None else rows_by(others, q, v, t)
        following = iter(found)
        rows = [known[name][:2] if name in known else next(following) for name in named]
        A = jnp.concatenate([A for A, _ in rows]) if rows else jnp.zeros((0, n), q.dtype)
        b = jnp.concatenate([b for _, b in rows]) if rows else jnp.zeros(0, q.dtype)
        nonideal = None if self._nonideal is None else Partial(_nonideal_force, self.nonideal, q, v, t)
        partition = self.system.partition if isinstance(self.system, AbstractModularSystem) else None
        pairs = list(zip(named.items(), rows, strict=True))
        sizes = [entry for (name, c), (_, b) in pairs for entry in _sizes(name, c, len(b))]
        loose = tuple(name not in known for (name, _), (_, b) in pairs for _ in range(len(b)))
        rounding = None if errors is None else of_loose(loose, errors)
        return Terms(M, Q, A, b, nonideal, partition, tuple(sizes), rounding, loose)

    def terms_of(self, applied: Vector | None = None) -> TermsFunctions:
        """Returns the terms as functions of the state; `applied`: forces (n,) beside the system's, or None."""

        def dense(q: Coordinates, v: Vector, t: Scalar, rows_by: Callable | None = None) -> Terms:
            return self.terms(q, v, t, applied, rows_by)

        system, groups = self.system, [c for c in self.constraints if isinstance(c, AbstractConstraintGroup)]
        whole = len(groups) == len(self.constraints) and self._nonideal is None
        if whole and not groups and isinstance(system, AbstractRecursiveSystem):
            return TermsFunctions(dense, free=system.free(applied))
        if not whole or not isinstance(system, AbstractModularSystem):
            known = isinstance(system, AbstractLinkedSystem) and system.own_imbalance() is not None
            return TermsFunctions(dense, imbalance=Partial(Mechanism.imbalance, self, applied) if known else None)

        def modular(q: Coordinates, v: Vector, t: Scalar) -> ModularTerms:
            Q = applied_force(system.force(q, v, t), v, "force(q, v, t)")
            Q = Q if applied is None else Q + applied_force(applied, v, "applied")
            return ModularTerms(system.blocks(q, t), Q, tuple(group.each_rows(q, v, t) for group in groups))

        return TermsFunctions(dense, BlockTerms(system.partition, tuple(group.columns for group in groups), modular))

    def imbalance(
        self,
        applied: Vector | None,
        rows: Iterable[tuple[str, int]],
        q: Coordinates,
        v: Vector,
        t: Scalar,
        a: Vector,
        multipliers: RowValues,
    ) -> tuple[Vector, RowValues]:
        """Returns Q - M a + A^T l (n,) and b - A a (m,) by `own_imbalance`; `rows`: as in `Terms`."""
        own = self.system.own_imbalance() if isinstance(self.system, AbstractLinkedSystem) else None
        assert own is not None
        names, counts = zip(*rows, strict=True)
        parts = jnp.split(multipliers, np.cumsum(counts)[:-1])
        force, errors = own(q, v, t, a, dict(zip(names, parts, strict=True)))
        force = applied_force(force, v, "force(q, v, t)")
        force = force if applied is None else force + applied_force(applied, v, "applied")
        found, start = list[RowValues](), 0
        for name, c in self.named_constraints.items():
            if name in errors:
                found.append(errors[name].astype(q.dtype))
            else:
                A, b = self.rows_of(c, q, v, t)
                force = force + A.T @ multipliers[start : start + len(b)]
                found.append(b - A @ a)
            start += len(found[-1])
        return force, jnp.concatenate(found)

    def position_error(self, q: Coordinates, t: Scalar) -> Float[Array, " r"]:
        """Returns Φ of every holonomic constraint, in order."""
        known = self.system.own_errors(q, None, t, False) if isinstance(self.system, AbstractLinkedSystem) else {}
        named = self.named_constraints.items()
        return _concatenate([known[name][0] if name in known else c.position_error(q, t) for name, c in named], q)

    def velocity_error(self, q: Coordinates, v: Vector, t: Scalar) -> Float[Array, " r"]:
        """Returns Φ̇ of every holonomic and ψ of every nonholonomic constraint, in order."""
        return self.errors(q, v, t)[1]

    def errors(
        self, q: Coordinates, v: Vector, t: Scalar, of: Collection[str] | None = None, afar: bool = False
    ) -> tuple[Float[Array, " r"], Float[Array, " k"]]:
        """Returns the errors in position and in velocity of all constraints, or of those with these names, in order.

        `afar`: whether the errors in position are those by which a search finds states: see `error_from_afar`.
        """
        known = self.system.own_errors(q, v, t, afar) if isinstance(self.system, AbstractLinkedSystem) else {}

        def each(c: AbstractConstraint) -> tuple[RowValues, RowValues]:
            position = error_from_afar(c, q, t) if afar else c.position_error(q, t)
            return position, self.velocity_error_of(c, q, v, t)

        pairs = [
            known[name] if name in known else each(c)
            for name, c in self.named_constraints.items()
            if of is None or name in of
        ]
        return _concatenate([x for x, _ in pairs], q), _concatenate([x for _, x in pairs], q)

    def error_rows(self, q: Coordinates, v: Vector, t: Scalar) -> ErrorRows:
        """Returns the errors of all constraints in position and velocity, in order, with the slopes of their rows."""
        known = self._own_rows(q, v, t)

        def rows(name: str, c: AbstractConstraint) -> list[ErrorRows]:
            if name in known:
                A, _, position, velocity = known[name]
                m = position.shape[0]
                return [ErrorRows.of(A[:m], position, velocity[:m]), ErrorRows.of(A[m:], None, velocity[m:])]

            def error(v: Vector) -> RowValues:
                return self.velocity_error_of(c, q, v, t)

            def moved(d: Vector) -> RowValues:
                return c.position_error(self.retract(q, d, t), t)

            position, velocity, A = c.position_error(q, t), error(v), jax.jacfwd(error)(v)
            if position.shape[0] in (0, velocity.shape[0]):
                return [ErrorRows.of(A, position if position.shape[0] else None, velocity)]
            J = jax.jacfwd(moved)(jnp.zeros_like(v))
            return [ErrorRows.of(J, position, None), ErrorRows.of(A, None, velocity)]

        found = [ErrorRows.of(jnp.zeros((0, v.shape[0]), q.dtype), None, None)]
        for name, c in self.named_constraints.items():
            found += rows(name, c)
        return ErrorRows(
            jnp.concatenate([x.A for x in found]),
            jnp.concatenate([x.position for x in found]),
            jnp.concatenate([x.velocity for x in found]),
            np.concatenate([x.of_position for x in found]),
            np.concatenate([x.of_velocity for x in found]),
        )

    def velocity_rows(self, q: Coordinates, v: Vector, t: Scalar) -> tuple[Float[Array, " r"], Float[Array, "r n"]]:
        """Returns Φ̇ of every holonomic and ψ of every nonholonomic constraint, and its derivative by v (n,)."""
        rows = self.error_rows(q, v, t)
        return rows.velocity[rows.of_velocity], rows.A[rows.of_velocity]

    def _own_rows(self, q: Coordinates, v: Vector, t: Scalar) -> Mapping[str, OwnRows]:
        return self.system.own_rows(q, v, t) if isinstance(self.system, AbstractLinkedSystem) else {}

    def rows_of(self, constraint: AbstractConstraint, q: Coordinates, v: Vector, t: Scalar) -> tuple[Rows, RowValues]:
        """Returns A and b of any constraint on this mechanism, for example of a servo's."""
        return constraint.rows(q, v, t, *self._kinematics)

    def velocity_error_of(self, constraint: AbstractConstraint, q: Coordinates, v: Vector, t: Scalar) -> RowValues:
        """Returns Φ̇ or ψ of any constraint on this mechanism."""
        return constraint.velocity_error(q, v, t, *self._kinematics)

    @property
    def _kinematics(self) -> tuple[AbstractKinematics, ...]:
        # A user's own constraint need not accept a kinematics where the system has none.
        return () if self.kinematics is None else (self.kinematics,)


def _kind(constraint: AbstractConstraint) -> str:
    """Returns the kind of a constraint, and its stabilisation, as text."""
    one = members_of(constraint)[0]
    stabilization = parameters(getattr(one, "stabilization", None))
    gains = ", ".join(f"{name} {x}" for name, x in stabilization)
    return f"{type(one).__name__}{f', {gains}' if gains else ''}"


def _own(system: AbstractSystem) -> dict[str, AbstractConstraint]:
    return dict(system.own_constraints) if isinstance(system, AbstractConstrainedSystem) else {}


def _named(constraints: AbstractConstraint | Iterable, before: int) -> dict[str, AbstractConstraint]:
    """Returns the argument `constraints` as a dict by name; raises TypeError or ValueError if it is invalid."""
    if isinstance(constraints, AbstractConstraint):
        constraints = (constraints,)
    elif callable(constraints) or not isinstance(constraints, Iterable):
        what = "a function" if callable(constraints) else type(constraints).__name__
        raise TypeError(_NOT_A_CONSTRAINT.format("constraints", what))
    if isinstance(constraints, Mapping):
        for name in constraints:
            if not isinstance(name, str) or not name:
                raise ValueError(f"constraints must map names, which are text, to constraints, but one is {name!r}.")
        named = dict(constraints)
    else:
        named = {f"constraints[{before + i}]": constraint for i, constraint in enumerate(constraints)}
    for name, constraint in named.items():
        if not isinstance(constraint, AbstractConstraint):
            where = name if name.startswith("constraints[") else f"constraints[{name!r}]"
            raise TypeError(_NOT_A_CONSTRAINT.format(where, type(constraint).__name__))
    return named


def _check_kinematics(constraints: Mapping[str, AbstractConstraint]) -> None:
    """Raises TypeError if a constraint of a system with a kinematics does not accept that kinematics."""
    for name, constraint in constraints.items():
        for method in (constraint.rows, constraint.velocity_error):
            parameters = inspect.signature(method).parameters.values()
            if len(parameters) < 4 and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
                raise TypeError(
                    f"{name} is a {type(constraint).__name__}, whose rows and velocity_error take (q, v, t), but the "
                    "system has a kinematics: v are not the rates of q. Let both take (q, v, t, kinematics=None), and "
                    "the rates from kinematics.rates(q, v, t)."
                )


def _is_among(constraint: AbstractConstraint, own: Mapping[str, AbstractConstraint]) -> bool:
    """Whether a constraint is one of a system's own: of the same structure with the same arrays, or the same group."""
    leaves, structure = jax.tree_util.tree_flatten(constraint)
    for other in own.values():
        if isinstance(constraint, AbstractConstraintGroup) and isinstance(other, AbstractConstraintGroup):
            if list(constraint.members) == list(other.members):
                return True
        elif structure == jax.tree_util.tree_structure(other):
            pairs = zip(leaves, jax.tree_util.tree_leaves(other), strict=True)
            if all(x is y for x, y in pairs):
                return True
    return False


def _sizes(name: str, constraint: AbstractConstraint, m: int) -> list[tuple[str, int]]:
    """Returns names and numbers of rows; for a group those of its members, which have equally many rows each."""
    if not isinstance(constraint, AbstractConstraintGroup):
        return [(name, m)]
    members = constraint.members
    return [(member, m // len(members)) for member in members]


_NOT_A_CONSTRAINT = (
    "{} must be a ukjax.Holonomic, Nonholonomic or AccelerationConstraint, but is {}. Wrap your function: "
    "ukjax.Holonomic(phi) for phi(q, t), ukjax.Nonholonomic(psi) for psi(q, v, t)."
)


def _nonideal_force(function: Callable, q: Coordinates, v: Vector, t: Scalar, ideal: Vector) -> Vector:
    return applied_force(function(q, v, t, ideal), v, "nonideal(q, v, t, ideal_force)")


def _concatenate(parts: list[Array], q: Array) -> Array:
    return jnp.concatenate(parts) if parts else jnp.zeros(0, q.dtype)


def culprit(mechanism: Mechanism, states: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> str:
    """Returns a sentence about the first function that is not finite at the first of these states where one is not.

    Empty if all functions are finite at all states that are themselves finite.
    """
    for state in states:
        if not all(np.all(np.isfinite(x)) for x in state):
            continue
        found = _finite(mechanism, *map(jnp.asarray, state))
        bad = [name for name, okay in found.items() if not okay]
        if bad:
            q, v = (np.array2string(np.asarray(x), precision=6, threshold=12) for x in state[:2])
            return f" {bad[0]} is not finite at q = {q}, v = {v}, t = {np.asarray(state[2]).item():.6g}."
    return ""


def culprit_along(mechanism: Mechanism, trajectory: Trajectory) -> str:
    """Returns a sentence about the function that ended a trajectory; empty if that is not why, or cannot be found.

    The states that are tried lead from the last saved one to where the run stopped, and a little beyond.
    """
    kept = vars(trajectory)
    if bool(trajectory.result != RESULTS.not_finite) or kept["q"] is None or kept["v"] is None:
        return ""
    q, v, t = (np.asarray(x) for x in (trajectory.q, trajectory.v, trajectory.t))
    whole = np.flatnonzero(np.isfinite(q).all(axis=1) & np.isfinite(v).all(axis=1))
    i = whole[-1] if len(whole) else 0
    further = float(trajectory.stats["t_reached"] - t[i])
    step = max(further, (t[-1] - t[0]) / len(t))
    start = tuple(map(jnp.asarray, (q[i], v[i], t[i])))
    rates = np.asarray(mechanism.rates(*start))
    ahead = [0.0, *(further + part * step for part in (0.0, 1e-6, 1e-3, 0.1, 1.0))]
    return culprit(mechanism, [(q[i] + dt * rates, v[i], t[i] + dt) for dt in ahead])


@jit_fast_compile
def _finite(mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> dict[str, Array]:
    """Whether each function of a mechanism is finite at a state."""
    kind = type(mechanism.system).__name__
    found = {f"The mass matrix of the {kind}": mechanism.mass(q, t, v.shape[0])}
    found[f"The force of the {kind}"] = applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)")
    for name, constraint in mechanism.named_constraints.items():
        called = f"{name!r} ({type(constraint).__name__})"
        error = jnp.append(constraint.position_error(q, t), mechanism.velocity_error_of(constraint, q, v, t))
        found[f"The value of the constraint {called}"] = error
        found[f"A derivative of the constraint {called}"] = jnp.append(*mechanism.rows_of(constraint, q, v, t))
    if mechanism.nonideal is not None:
        found["The nonideal force, without an ideal one,"] = mechanism.nonideal(q, v, t, jnp.zeros_like(v))
    return {name: jnp.all(jnp.isfinite(x)) for name, x in found.items()}
