"""The motion under the control of servos.

M q'' = Q + Q^c + G u: actuation G (n, p), control u (p,), passive constraint force Q^c; A q'' = b: servo constraints, m
rows; q0'': acceleration without control; N: what the passive constraints leave of a force, q'' = q0'' + N G u;
C = A N G (m, p); d = b - A q0'': the demand; D: row scales.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Bool, Float

from .._formulation import (
    AbstractFormulation,
    AbstractLinearFormulation,
    Motion,
    Problem,
    allowance,
    in_metric,
    is_contradictory,
    row_scales,
)
from .._linalg import pseudoinverse, pseudosolve
from .._mechanism import Mechanism, Terms
from .._result import RESULTS, worst
from .._types import BoolScalar, IntScalar, Matrix, Rows, RowValues, Scalar, Vector
from ._servo import AbstractServo, ConstraintFollowing, Servo


# A non-ideal force may depend on the constraint force, and so on the control, which then is found by Newton's method.
# Without one the motion is linear in the control, and the first step exact.
NEWTON = 6


class Control(eqx.Module):
    """The control at one state, and whether it does what it is for.

    Attributes:
        u: Control of all actuators, in the order of the servos (p,) [N or N m, by the actuation].
        rank: Rank of C = A N G: how many servo rows the actuators reach independently.
        residual: Euclidean norm of A q'' - b over the servo rows, with the control as it acts.
        contradictory: Whether no acceleration at all satisfies the servo rows, A A^+ b != b (Liu et al., Lemma 1).
        consistent: Whether a control exists that satisfies them (Assumption 3).
        controllable: Whether it is consistent and the actuators act on the rows at all (Theorem 1).
        unreachable: What no control meets of the demand b - A q0'', (m,): zero, or a direction in the space of the
            servo rows that is out of reach.
        saturated: Which actuators are at a limit (p,).
        result: `RESULTS`; empty message if all went well.
    """

    u: Float[Array, " p"]
    rank: IntScalar
    residual: Scalar
    contradictory: BoolScalar
    consistent: BoolScalar
    controllable: BoolScalar
    unreachable: RowValues
    saturated: Bool[Array, " p"]
    result: Any


def controlled_motion(
    mechanism: Mechanism,
    servos: tuple[AbstractServo, ...],
    formulation: AbstractFormulation,
    q: Vector,
    v: Vector,
    t: Scalar,
) -> tuple[Motion, Control]:
    """The motion under the control of all servos, and the control. The result of both is the same."""
    terms = mechanism.terms(q, v, t)
    rows = [one.constraint.rows(q, v, t) for one in servos]
    A, b = jnp.concatenate([A for A, _ in rows]), jnp.concatenate([b for _, b in rows])
    actuations = [one.matrix(q, t) for one in servos]
    G = jnp.concatenate(actuations, axis=1)
    sizes = [part.shape[1] for part in actuations]

    decay = jnp.zeros_like(b)
    if isinstance(servos[0], ConstraintFollowing):
        laws = cast(tuple[ConstraintFollowing, ...], servos)
        decay = jnp.concatenate([law.decay(q, v, t) for law in laws])
    b = b - decay

    rows_of_servos = in_metric(Terms(terms.M, terms.Q, A, b, None, terms.partition))
    respond = ft.partial(_respond, terms, formulation, rows_of_servos.W)
    u = before = jnp.zeros(G.shape[1], q.dtype)
    linear = terms.nonideal is None
    for _ in range(1 if linear else NEWTON):
        plant = respond(G @ u)
        demand = b - A @ plant.motion.acceleration
        if isinstance(servos[0], Servo):
            group = _Group(cast(tuple[Servo, ...], servos), sizes, (q, v, t))
            wanted, rank, demand = _least_effort(group, plant, A, G, demand, u)
        else:
            wanted, rank, demand = _constraint_following(servos[0].pseudoinverse, plant, A, G, demand, decay, u)
        before, u = u, wanted
    limits = [one.limits_at(p, q.dtype) for one, p in zip(servos, sizes, strict=True)]
    low, high = (jnp.concatenate(x) for x in zip(*limits, strict=True))
    acts = jnp.clip(u, low, high)
    motion = plant.under(G @ (acts - before)) if linear else respond(G @ acts).motion

    found = _Found(u, low, high, acts, rank, stop_gradient(demand))
    control = _judged(servos[0], rows_of_servos, found, motion, plant.motion)
    return _with_result(motion, control.result), control


class _Found(NamedTuple):
    """The control wanted and within its limits (p,), the rank of C, and what no control meets of the demand (m,)."""

    u: Array
    low: Array
    high: Array
    acts: Array
    rank: Array
    unreachable: Array


def _judged(servo: AbstractServo, rows: Problem, found: _Found, motion: Motion, before: Motion) -> Control:
    """The control, and whether it does what it is for; `motion` under it, `before` without its last part."""
    rtol, unreachable, rank = servo.consistency_rtol, found.unreachable, found.rank
    allowed = allowance(rows, rtol, motion.acceleration, before.acceleration)
    consistent = jnp.all(jnp.abs(unreachable) <= allowed)
    contradictory = is_contradictory(rows, rtol)
    fault = RESULTS.where(
        contradictory,
        RESULTS.servo_contradict,
        RESULTS.where(rank > 0, RESULTS.servo_unreachable, RESULTS.servo_not_actuated),
    )
    tolerated = isinstance(servo, Servo) and not servo.exact
    return Control(
        u=found.acts,
        rank=rank,
        residual=jnp.linalg.norm(stop_gradient(rows.A @ motion.acceleration - rows.b)),
        contradictory=contradictory,
        consistent=consistent,
        controllable=consistent & (rank > 0),
        unreachable=jnp.where(jnp.abs(unreachable) <= allowed, 0.0, unreachable),
        saturated=(found.u < found.low) | (found.u > found.high),
        result=worst(motion.result, RESULTS.where(consistent | tolerated, RESULTS.successful, fault)),
    )


class _Plant(eqx.Module):
    """A mechanism at one state and under some force, as its actuators see it.

    Attributes:
        terms: M, Q, A, b of the mechanism.
        W: The inverse of the Cholesky factor of M, (n, n).
        motion: Under the force.
        change: A further force (n,) -> what it adds to the fields of the motion, the acceleration first.
    """

    terms: Terms
    W: Matrix
    motion: Motion
    change: Callable[[Array], tuple[Array, ...]]

    def admit(self, forces: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """N times each column."""
        return jax.vmap(lambda force: self.change(force)[0], in_axes=1, out_axes=1)(forces)

    def under(self, force: Vector) -> Motion:
        """The motion under a further force."""
        values = (x + dx for x, dx in zip(_fields(self.motion), self.change(force), strict=True))
        return eqx.tree_at(_fields, self.motion, tuple(values))


def _fields(motion: Motion) -> tuple[Array, ...]:
    """What of a motion depends on the force."""
    return motion.acceleration, motion.unconstrained_acceleration, motion.constraint_force, motion.nonideal_force


def _respond(terms: Terms, formulation: AbstractFormulation, W: Matrix, force: Vector) -> _Plant:
    under = lambda force: Terms(terms.M, terms.Q + force, terms.A, terms.b, terms.nonideal, terms.partition)
    if terms.nonideal is None and isinstance(formulation, AbstractLinearFormulation):
        state = formulation.init(under(force))
        return _Plant(terms, W, state.motion, ft.partial(_change, terms, formulation, W, state))

    def motion(force):
        motion = formulation.solve(under(force))
        return _fields(motion), motion

    _, change, at = jax.linearize(motion, force, has_aux=True)
    return _Plant(terms, W, at, change)


def _change(
    terms: Terms, formulation: AbstractLinearFormulation, W: Matrix, state: Any, force: Vector
) -> tuple[Array, ...]:
    """What a further force adds to the fields of a motion."""
    response = formulation.compute(state, force, jnp.zeros_like(terms.b))
    return response.acceleration, W.T @ (W @ force), response.constraint_force, jnp.zeros_like(force)


class _Group(eqx.Module):
    """Several `Servo`s at one state, as one: effort, free part."""

    root: Float[Array, "p p"]
    free: Float[Array, " p"]
    first: Servo

    def __init__(self, servos: tuple[Servo, ...], sizes: list[int], state: tuple[Vector, Vector, Scalar]):
        dtype = state[0].dtype
        self.root = block_diag(*(one.inverse_root(p, dtype) for one, p in zip(servos, sizes, strict=True)))
        self.free = jnp.concatenate([one.free_at(*state, p) for one, p in zip(servos, sizes, strict=True)])
        self.first = servos[0]


def _least_effort(group: _Group, plant: _Plant, A: Rows, G: Array, miss: RowValues, u: Array):
    """The control (p,), the rank of C, and what the control leaves of the demand; `miss` is b - A q'' under u."""
    C = A @ plant.admit(G)
    demand = miss + C @ u
    solver, S, s = group.first.pseudoinverse, group.root, group.free
    inverse_of = lambda C: _inverse(solver, C, S, scaled=group.first.exact)
    if group.first.reading == "least_norm":
        inverse, rank = inverse_of(C)
        u = inverse @ (demand - C @ s) + s
    else:
        # Eq. 35 with the passive force that belongs to u: u = X^+ (d - (C - X) u) + (I - X^+ X) s, linear in u.
        X = A @ (plant.W.T @ (plant.W @ G))
        inverse, _ = inverse_of(X)
        _, rank = inverse_of(C)
        right = inverse @ (demand - X @ s) + s
        u, _ = pseudosolve(solver, jnp.eye(u.shape[0], dtype=u.dtype) + inverse @ (C - X), right)
    return u, rank, demand - C @ u


def _constraint_following(
    solver: lx.AbstractLinearSolver, plant: _Plant, A: Rows, G: Array, miss: RowValues, decay: RowValues, u: Array
):
    """The same by eq. 72; `miss` takes the decay P^-1 beta of the error into account."""
    M = plant.terms.M
    N = plant.admit(jnp.eye(M.shape[0], dtype=M.dtype))
    C = A @ N @ G
    demand = miss + C @ u
    identity = jnp.eye(M.shape[0], dtype=M.dtype)
    metric, _ = _inverse(solver, A @ N @ A.T, jnp.eye(A.shape[0], dtype=A.dtype))
    admissible, _ = _inverse(solver, A @ N @ M, identity)
    force = A.T @ (metric @ (demand + decay)) - M @ (admissible @ decay)
    u, _ = pseudosolve(solver, G, force)
    _, rank = _inverse(solver, C, jnp.eye(G.shape[1], dtype=G.dtype))
    return u, rank, demand - C @ u


def _inverse(solver: Any, C: Array, S: Array, scaled: bool = True) -> tuple[Array, Array]:
    """S (C S)^+, the inverse that gives the control of least effort, and the rank of C.

    Unless `scaled` is False, the rows of C are brought to about the same length first, for the sake of the rank test;
    where they cannot all be satisfied that changes which control comes nearest.
    """
    B = C @ S
    D = row_scales(B) if scaled else jnp.ones(B.shape[0], B.dtype)
    P, rank = pseudoinverse(solver, D[:, None] * B)
    return (S @ P) * D[None], rank


def _with_result(motion: Motion, result: Any) -> Motion:
    return Motion(*_fields(motion), rank=motion.rank, residual=motion.residual, result=result)
