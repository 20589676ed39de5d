r"""Further functions of a mechanism: multipliers, what each constraint and each joint carries, linearisations, RATTLE.

M, A: mass matrix and rows; S = A M^-1 A^T; f = A^T l: force of all constraints (n,), with multipliers l (m,).
N: combinations of rows that vanish, A^T N = 0. K = M^-1 - M^-1 A^T S^+ A M^-1: the accelerations that the rows leave,
by forces; its columns span the free speeds. With independent entries I of these, T = K[:, I] K[I, I]^-1 are the free
speeds by their independent entries.
"""

import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _expand
from .._analysis import Independent, is_consistent, linearize
from .._constraint import are_rates
from .._coordinate import Coordinate
from .._formulation import certainty
from .._linalg import SVD
from .._mechanism import Mechanism
from .._servo import AbstractController, Uncontrolled
from .._simulation import check_rattle, scalar_rattle_step
from .._types import Matrix, Rows, Scalar, Vector
from ..rigid import Robot
from ..rigid._reactions import reactions_of
from ._quantities import BASIC, Argument, Context, Quantity, driven, is_fine, pushed


# Part of the sizes of its terms by which the force of the multipliers may miss the force of the constraints.
MISSED = 1e-9
# Least part of a free speed that those before it must leave, for states to be independent.
INDEPENDENT = 1e-6


def _multipliers(of: Context) -> Quantity:
    def function(mechanism, controller, q, v, t):
        found, fine, _ = _shares(mechanism, controller, q, v, t)
        return [found], fine

    names = tuple(f"{name} row {i + 1}" for name, m in _rows(of) for i in range(m))
    about = "Multipliers of the rows of the constraints; of dependent rows those of least norm."
    found = Argument("l", "multipliers", names, len(names), "{ROWS}")
    return Quantity(about, of.state, (found,), function, {"ROWS": len(names)})


def _constraint_forces(of: Context) -> Quantity:
    rows = _rows(of)
    ends = np.cumsum([m for _, m in rows])

    def function(mechanism, controller, q, v, t):
        multipliers, fine, A = _shares(mechanism, controller, q, v, t)
        parts = [slice(end - m, end) for end, (_, m) in zip(ends, rows, strict=True)]
        return [jnp.concatenate([A[part].T @ multipliers[part] for part in parts])], fine

    names = ", ".join(name for name, _ in rows)
    force = Argument(
        "force", f"generalised forces, one after the other, of {names}", (), len(rows) * len(of.speeds),
        "{CONSTRAINTS} * {SPEEDS}",
    )  # fmt: skip
    about = "Generalised force of each constraint."
    return Quantity(about, of.state, (force,), function, {"CONSTRAINTS": len(rows)})


def _rows(of: Context) -> list[tuple[str, int]]:
    """The names of the constraints, and how many rows each has. Raises ValueError if there are none."""
    found = list[tuple[str, int]]()
    jax.eval_shape(lambda *state: found.extend(of.mechanism.terms(*state).rows or ()), *of.start)
    if not sum(m for _, m in found):
        raise ValueError(
            "what names forces of constraints, but the mechanism has no constraints. Leave them out of what."
        )
    return found


def _shares(
    mechanism: Mechanism, controller: AbstractController, q: Array, v: Array, t: Array
) -> tuple[Array, Array, Rows]:
    """The multipliers of least norm (m,), whether they are certain, and the rows."""
    motion = driven(mechanism, controller, q, v, t).motion
    force, terms = motion.constraint_force, mechanism.terms(q, v, t)
    A, through = terms.A, _factors(terms.M, terms.A)
    of_force = ft.partial(_expand.solve, through.S, least=through.least)
    multipliers = of_force(through.levers.T @ force)
    multipliers = multipliers + of_force(through.levers.T @ (force - A.T @ multipliers))
    # Without rows that depend on others N is zero.
    kept = _expand.pivots(through.S, through.least).kept
    N = jnp.where(kept[None], 0.0, jnp.eye(len(A), dtype=A.dtype) - of_force(through.S))
    multipliers = multipliers - N @ _expand.solve(N.T @ N + jnp.diag(kept.astype(A.dtype)), N.T @ multipliers)
    terms_of_force = jnp.abs(A.T) @ jnp.abs(multipliers) + jnp.abs(force)
    met = jnp.abs(A.T @ multipliers - force) <= MISSED * terms_of_force
    return multipliers, is_fine(motion) & jnp.all(met), A


def _factors(M: Matrix, A: Rows) -> _expand.SchurComplement:
    return _expand.SchurComplement.of(M, A, _certain(A).dependent ** 2)


def _certain(A: Rows) -> _expand.Certain:
    return certainty(SVD(), 1e-6, A.shape[0], A.dtype)


def _reactions(of: Context) -> Quantity:
    """The wrenches that the joints of a robot carry. Raises ValueError if they are not known."""
    robot = of.mechanism.system
    if not isinstance(robot, Robot):
        raise ValueError(
            "what='reactions' is about the joints of a ukjax.rigid.Robot, but the system is a "
            f'{type(robot).__name__}. Export "constraint_forces" or "multipliers".'
        )
    others = [name for name in of.mechanism.named_constraints if name not in robot.own_constraints]
    if others or not isinstance(of.controller, Uncontrolled):
        what = f"constraints beside the robot's own, {others}" if others else "a servo, whose motors are not known"
        raise ValueError(f"what='reactions' does not go with {what}. Leave it out, or pass servo=None.")
    shapes = jax.eval_shape(lambda *state: _wrenches(of.mechanism, of.controller, *state)[0], *of.start)
    entries = tuple(
        Coordinate(f"{name} {kind} {x}", unit)
        for name in shapes for kind, unit in (("force", "N"), ("torque", "N m")) for x in "xyz"
    )  # fmt: skip

    def function(mechanism, controller, q, v, t):
        found, fine = _wrenches(mechanism, controller, q, v, t)
        return [jnp.concatenate([x for wrench in found.values() for x in wrench])], fine

    about = "force and torque of each joint's parent on its child, about and along the child's frame"
    wrench = Argument("wrench", about, entries, len(entries), "6 * {JOINTS}")
    return Quantity("What each joint carries.", of.state, (wrench,), function, {"JOINTS": len(shapes)})


def _wrenches(mechanism: Mechanism, controller: AbstractController, q: Array, v: Array, t: Array) -> tuple:
    """The wrench of each joint by its name, and whether all of them are certain."""
    robot = mechanism.system
    assert isinstance(robot, Robot)
    motion, multipliers, fine = driven(mechanism, controller, q, v, t).motion, {}, jnp.asarray(True)
    rows = mechanism.terms(q, v, t).rows or ()
    if sum(m for _, m in rows):
        found, fine, _ = _shares(mechanism, controller, q, v, t)
        ends = np.cumsum([m for _, m in rows])
        multipliers = {name: found[end - m : end] for (name, m), end in zip(rows, ends, strict=True)}
    return reactions_of(robot, t, q, v, motion.acceleration, multipliers), is_fine(motion) & fine


def _linearization(of: Context) -> Quantity:
    states, rank = _independent(of)

    def function(mechanism, controller, q, v, t):
        def rates(q, v):
            motion = driven(mechanism, controller, q, v, t).motion
            return _chosen(states, mechanism.rates(q, v, t), motion.acceleration), is_fine(motion)

        T, clear = _tangents(mechanism, states, rank, q, v, t)
        R, fine = jax.jacfwd(lambda y: rates(y[: q.size], y[q.size :]), has_aux=True)(jnp.concatenate([q, v]))
        return [(R @ T).ravel()], fine & clear

    about = "Linearisation about a consistent state: x' = A x for small changes x of independent states."
    k = len(_names(of, states))
    return Quantity(about, of.state, (_matrix(of, states, "A", "x", k),), function, {"STATES": k})


def _plant_linearization(of: Context) -> Quantity:
    states, rank = _independent(of)

    def function(mechanism, controller, q, v, t, u):
        def rates(q, v, u):
            motion = pushed(mechanism, controller, q, v, t, u)
            return _chosen(states, mechanism.rates(q, v, t), motion.acceleration), is_fine(motion)

        T, clear = _tangents(mechanism, states, rank, q, v, t)
        y, ends = jnp.concatenate([q, v, u]), [q.size, q.size + v.size]
        R, fine = jax.jacfwd(lambda y: rates(*jnp.split(y, ends)), has_aux=True)(y)
        return [(R[:, : ends[1]] @ T).ravel(), R[:, ends[1] :].ravel()], fine & clear

    about = "Linearisation about a consistent state: x' = A x + B w for small changes x of independent states, w of u."
    k, p = len(_names(of, states)), len(of.controls)
    gives = _matrix(of, states, "A", "x", k), _matrix(of, states, "B", "u", p)
    return Quantity(about, (*of.state, of.u), gives, function, {"STATES": k})


def _matrix(of: Context, states: Independent, name: str, columns: str, width: int) -> Argument:
    names = ", ".join(_names(of, states))
    k = len(_names(of, states))
    room = "{STATES} * {STATES}" if columns == "x" else "{STATES} * {CONTROLS}"
    return Argument(name, f"row after row, of the rates of x; columns: {columns}. x: {names}", (), k * width, room)


def _names(of: Context, states: Independent) -> list[Coordinate]:
    return [*(of.coordinates[i] for i in states.q), *(of.speeds[i] for i in states.v)]


def _chosen(states: Independent, q: Array, v: Array) -> Array:
    return jnp.concatenate([q[np.array(states.q, int)], v[np.array(states.v, int)]])


def _independent(of: Context) -> tuple[Independent, tuple[int, int]]:
    """The independent states at the given state, and the ranks of the rows there. Raises ValueError."""
    try:
        found = linearize(of.mechanism, *of.start)
    except RuntimeError as error:
        raise ValueError(
            f"what names a linearisation, but there is none about the given state: {error} Pass q and v of a regular "
            "state on the constraints."
        ) from error
    states = found.states
    assert isinstance(states, Independent)
    n = len(of.speeds)
    # As many free speeds as there are independent ones.
    return states, (n - len(states.q), n - len(states.v))


def _tangents(
    mechanism: Mechanism, states: Independent, rank: tuple[int, int], q: Array, v: Array, t: Scalar
) -> tuple[Matrix, Array]:
    """The changes of q and v by those of independent states (n_q + n, k), and whether they are certain."""
    rest, M = jnp.zeros_like(v), mechanism.mass(q, t, v.shape[0])

    def at(d: Vector) -> Array:
        return mechanism.retract(q, d, t)

    A = jax.jacfwd(lambda v: mechanism.velocity_error(q, v, t))(v)
    J = A if are_rates(mechanism.constraints) else jax.jacfwd(lambda d: mechanism.position_error(at(d), t))(rest)
    E = jax.jacfwd(lambda d: mechanism.velocity_error(at(d), v, t))(rest)
    D = jax.jacfwd(at)(rest)
    speeds, positions = _Free.of(M, A, rank[1]), _Free.of(M, J, rank[0])
    T, of_q = positions.by(D, states.q)
    moved = positions.K @ D[np.array(states.q, int)].T
    moves = moved @ _expand.solve(of_q, jnp.eye(len(of_q), dtype=q.dtype)) if len(of_q) else moved
    V, of_v = speeds.by(jnp.eye(v.size, dtype=v.dtype), states.v)
    # Changes of speeds that positions ask for, with the independent speeds held.
    asked = speeds.through.respond(jnp.zeros_like(moves), -E @ moves)[0]
    asked = asked - V @ asked[np.array(states.v, int)]
    whole = jnp.concatenate(
        [jnp.concatenate([T, jnp.zeros((q.size, V.shape[1]), q.dtype)], axis=1), jnp.concatenate([asked, V], axis=1)]
    )
    apart = [jnp.all(_expand.pivots(x, INDEPENDENT).kept) for x in (of_q, of_v)]
    fine = ft.reduce(jnp.logical_and, [speeds.clear, positions.clear, *apart])
    return whole, fine & is_consistent(mechanism, q, v, t)


class _Free:
    """The free speeds that some rows leave.

    Attributes:
        through: The factors of M and the rows.
        K: The accelerations by forces (n, n).
        clear: Whether the rows have the rank that they had where the function was exported, and this is certain.
    """

    def __init__(self, through: _expand.SchurComplement, K: Matrix, clear: Array):
        self.through, self.K, self.clear = through, K, clear

    @classmethod
    def of(cls, M: Matrix, rows: Rows, rank: int) -> "_Free":
        through, certain, identity = _factors(M, rows), _certain(rows), jnp.eye(len(M), dtype=M.dtype)
        K = through.respond(identity, jnp.zeros((len(rows), len(M)), M.dtype))[0]
        if not len(rows):
            return cls(through, K, _expand.is_definite(certain, M))
        found, none = _expand.pivots(through.S, through.least), jnp.zeros(len(rows), M.dtype)
        clear = _expand.are_clear(certain, through.S, found, none, none, none, jnp.zeros((), M.dtype))
        return cls(through, K, clear & _expand.is_definite(certain, M) & (jnp.sum(found.kept.astype(M.dtype)) == rank))

    def by(self, D: Matrix, chosen: tuple[int, ...]) -> tuple[Matrix, Matrix]:
        """D times the free speeds by the chosen entries of that, and the matrix that makes these independent."""
        wide = D @ self.K @ D.T
        i = np.array(chosen, int)
        part = wide[i][:, i]
        return (wide[:, i] @ _expand.solve(part, jnp.eye(len(i), dtype=D.dtype)) if len(i) else wide[:, i]), part


def _rattle_step(of: Context) -> Quantity:
    rattle = of.rattle
    if not isinstance(of.controller, Uncontrolled):
        raise ValueError("what='rattle_step' does not go with a servo, as ukjax.Rattle. Export \"step\".")
    check_rattle(of.mechanism, *of.start[:2])

    def function(mechanism, controller, q, v, t, h):
        q, v, fine = scalar_rattle_step(rattle, mechanism, q, v, t, h)
        return [q, v], fine

    about = f"A step of RATTLE, with {rattle.iterations} iterations for the multipliers."
    return Quantity(about, (*of.state, Argument("h", "time step [s]")), of.ends, function)


# All functions by their names.
QUANTITIES: dict[str, Callable[[Context], Quantity]] = {
    **BASIC,
    "multipliers": _multipliers,
    "constraint_forces": _constraint_forces,
    "reactions": _reactions,
    "linearization": _linearization,
    "plant_linearization": _plant_linearization,
    "rattle_step": _rattle_step,
}
