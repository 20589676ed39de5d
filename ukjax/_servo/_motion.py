"""The motion under the control of servos.

M q'' = Q + Q^c + G u: actuation G (n, p), control u (p,), passive constraint force Q^c; A q'' = b: servo constraints, m
rows; q0'': acceleration without control; N: response to a force under the passive constraints, q'' = q0'' + N G u;
C = A N G (m, p); d = b - A q0'': the demand; D: row scales.

Scalar code (`_expand.controlled`) finds the motion where it is certain of it; `Tolerances` and `certify` test that.
"""

import functools as ft
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from .. import _expand
from .._collector import seldom_collecting
from .._formulation import (
    AbstractFormulation,
    Motion,
    WhitenedTerms,
    allowance,
    certain_of,
    in_metric,
    is_contradictory,
)
from .._mechanism import Mechanism
from .._result import RESULTS, worst
from .._show import AbstractShown, Report, outcome, values
from .._terms import Terms
from .._types import BoolScalar, Coordinates, IntScalar, RowValues, Scalar, Vector
from ._servo import AbstractLaw, AbstractServo, Plant, respond


# Rounding errors, in units of the last place, beyond which a row is surely missed.
MANY = 1e6
# Part of a row's response to the control, squared, that the passive constraints must leave.
LOST = 1e-12


class Tolerances(NamedTuple):
    """Limits within which factors of the mechanism's rows, and of those of the servos, are trusted."""

    passive: _expand.Certain
    servo: _expand.Certain

    @property
    def least(self) -> tuple[float, float]:
        """Parts of a row, squared, that must be independent of other rows for the row to count."""
        return self.passive.dependent**2, self.servo.dependent**2


class Certificate(NamedTuple):
    """The ranks of A and of C, whether they and the motion are certain, and whether its derivatives are."""

    rank: Array
    reached: Array
    clear: BoolScalar
    smooth: BoolScalar


def certify(
    judges: Tolerances, terms: _expand.KKTTerms, wanted: _expand.ServoTerms, found: _expand.Controlled
) -> Certificate:
    """Returns the verdict on a motion that scalar code has found."""
    terms, wanted, found = stop_gradient((terms, wanted, found))
    (M, _, A, b), (H, h, *_), S = terms, wanted, found.S
    passive, answers = (_expand.pivots(*x) for x in zip((S, found.K), judges.least, strict=True))

    demand = b - A @ found.free
    push = jnp.sqrt(jnp.abs(found.multipliers @ demand))
    clear = _expand.are_clear(judges.passive, S, passive, b, demand, b - A @ found.x, push)
    push = jnp.sqrt(jnp.abs(found.g @ found.lacking))
    clear &= _expand.are_clear(judges.servo, found.K, answers, h, found.lacking, h - H @ found.wanted_x, push)
    # Responses of the size of rounding errors do not count.
    clear &= jnp.all(jnp.diag(found.K) >= LOST * jnp.diag(found.without @ wanted.V @ found.without.T))
    clear &= _expand.is_definite(judges.passive, M) & jnp.isfinite(jnp.sum(found.x))
    smooth = clear & jnp.all(passive.kept) & jnp.all(answers.kept)
    return Certificate(jnp.sum(passive.kept), jnp.sum(answers.kept), clear, smooth)


class Missed(NamedTuple):
    """The error that the nearest control leaves of the rows (m,), whether it is none, and whether that is certain."""

    unreachable: Array
    consistent: BoolScalar
    clear: BoolScalar


def missed(
    certain: _expand.Certain, rtol: float, M: Array, wanted: _expand.ServoTerms, C: Array, found: _expand.Controlled
) -> Missed:
    """Returns what a control leaves of rows that outnumber the actuators, C their response to it."""
    M, wanted, C, found = stop_gradient((M, wanted, C, found))
    H, h, _, root, _ = wanted
    squares = H @ _expand.solve(M, H.T)
    rows = _expand.pivots(squares, certain.dependent**2)
    # Rows that are surely independent do not contradict each other.
    clear = jnp.all(rows.kept) & _expand.are_clear(certain, squares, rows, h, h, jnp.zeros_like(h), jnp.zeros(()))
    # The rank is that of the responses as they are: an actuator of little effect beside another one may not count.
    K = (C @ root).T @ (C @ root)
    effects, bound = jnp.diag(K), _expand.pivots(K).bound
    clear &= jnp.min(effects) > (certain.rank * bound) ** 2 * len(K) * jnp.max(effects)

    unreachable = h - H @ found.wanted_x
    terms = jnp.abs(h) + jnp.abs(H) @ jnp.abs(found.x)
    sizes = sum(jnp.sqrt(jnp.abs(x @ (M @ x))) for x in (found.x, found.free))
    rounding = terms + jnp.abs(H) @ jnp.abs(found.free) + jnp.sqrt(jnp.abs(jnp.diag(squares))) * sizes
    least, error = rtol * terms, jnp.abs(unreachable)
    most = least + MANY * jnp.finfo(h.dtype).eps * rounding
    met = error <= least
    clear &= jnp.all(met | (error > most))
    return Missed(jnp.where(met, 0.0, unreachable), jnp.all(met), clear)


# A non-ideal force may depend on the constraint force and therefore on the control, which then is found by Newton's
# method. Without such a force the motion is linear in the control, and the first step exact.
NEWTON = 6


class Control(AbstractShown):
    """The control at one state, and whether it satisfies the servo constraints.

    Attributes:
        u: Control of all actuators, in the order of the servos (p,) [N or N m, by the actuation].
        rank: Rank of C = A N G: the number of servo rows that the actuators reach independently.
        residual: Euclidean norm of A q'' - b over the servo rows, with the control within its limits.
        contradictory: Whether no acceleration at all satisfies the servo rows, A A^+ b != b (Liu et al., Lemma 1).
        consistent: Whether a control exists that satisfies the servo rows (Assumption 3).
        controllable: Whether `consistent` holds and the actuators act on the rows at all (Theorem 1).
        unreachable: Part of the demand b - A q0'' that no control meets, (m,): zero, or a direction in the space of the
            servo rows that is out of reach.
        saturated: Whether each actuator is at a limit (p,).
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
    result: RESULTS

    def _report(self) -> Report:
        rows = [
            ("u [N or N m]", values(self.u)),
            ("at a limit", values(self.saturated)),
            ("rank of the servo rows", values(self.rank)),
            ("residual of the servo rows", values(self.residual)),
            ("contradictory", values(self.contradictory)),
            ("consistent", values(self.consistent)),
            ("controllable", values(self.controllable)),
            ("unreachable", values(self.unreachable)),
        ]
        return Report(f"Control: {outcome(self.result)}", rows)


@seldom_collecting()
def controlled_motion(
    mechanism: Mechanism,
    servos: tuple[AbstractServo, ...],
    formulation: AbstractFormulation,
    q: Coordinates,
    v: Vector,
    t: Scalar,
    applied: Vector | None = None,
) -> tuple[Motion, Control]:
    """Returns the motion under the control of all servos, and the control; both have the same result.

    `applied`: generalised forces (n,) that act beside the system's, or None.
    """
    asked, state = ft.partial(_ServoProblem.of, mechanism, servos, applied), (q, v, t)
    by_matrices = Partial(_by_matrices, formulation, servos[0].consistency_rtol)
    as_scalars = ft.partial(_as_scalars, formulation, servos[0])
    found = None
    if certain_of(formulation, 0, q.dtype) is not None:
        found = _expand.guarded_scalars(asked, by_matrices, as_scalars, _expand.limits().function, state)
    return by_matrices(asked(*state)) if found is None else found


class _ServoProblem(NamedTuple):
    """The problem of servos at a state: A q'' = b by the control u of G, within limits (p,), by a law."""

    terms: Terms
    A: Array
    b: Array
    G: Array
    law: AbstractLaw
    low: Array
    high: Array

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        servos: tuple[AbstractServo, ...],
        applied: Vector | None,
        q: Coordinates,
        v: Vector,
        t: Scalar,
    ) -> "_ServoProblem":
        rows = [mechanism.rows_of(one.constraint, q, v, t) for one in servos]
        A, b = jnp.concatenate([A for A, _ in rows]), jnp.concatenate([b for _, b in rows])
        actuations = [one.matrix(q, t, v.shape[0]) for one in servos]
        sizes = [part.shape[1] for part in actuations]
        law = servos[0].law(mechanism, servos, sizes, q, v, t)
        limits = [one.limits_at(p, q.dtype) for one, p in zip(servos, sizes, strict=True)]
        low, high = (jnp.concatenate(x) for x in zip(*limits, strict=True))
        return cls(
            mechanism.terms(q, v, t, applied), A, b - law.decay, jnp.concatenate(actuations, axis=1), law, low, high
        )


def _by_matrices(formulation: AbstractFormulation, rtol: float, asked: _ServoProblem) -> tuple[Motion, Control]:
    terms, A, b, G, law, low, high = asked
    rows_of_servos = in_metric(Terms(terms.M, terms.Q, A, b, None, terms.partition))
    under = ft.partial(respond, terms, formulation, rows_of_servos.W)
    linear = terms.nonideal is None

    def decided(u: Array) -> tuple[Array, Array, Array, Plant]:
        plant = under(G @ u)
        return *law.control(plant, A, G, b - A @ plant.motion.acceleration, u), plant

    before = jnp.zeros(G.shape[1], G.dtype)
    u, rank, unmet, plant = decided(before)
    for _ in range(0 if linear else NEWTON - 1):
        before = u
        u, rank, unmet, plant = decided(before)
    acts = jnp.clip(u, low, high)
    motion = plant.under(G @ (acts - before)) if linear else under(G @ acts).motion

    found = _Found(u, low, high, acts, rank, stop_gradient(unmet))
    control = _judged(rtol, law.exact, rows_of_servos, found, motion, plant.motion)
    return _with_result(motion, control.result), control


def _as_scalars(
    formulation: AbstractFormulation, servo: AbstractServo, asked: _ServoProblem
) -> tuple[tuple[Motion, Control], Array, Array]:
    """Returns motion and control for conversion to scalar code, and whether they and their derivatives are certain."""
    terms, A, b, G, law, low, high = asked
    wanted = None if terms.nonideal is not None else law.wanted(A, b, G)
    passive, of_servo = certain_of(formulation, len(terms.b), G.dtype), servo.certain(len(b), G.dtype)
    if wanted is None or passive is None or of_servo is None:
        raise _expand.NotScalar("a law, or a force that is not ideal, which goes by matrices")
    of_mechanism = _expand.KKTTerms(terms.M, terms.Q, terms.A, terms.b)
    judges = Tolerances(passive, of_servo)
    outnumbered = not law.exact and G.shape[1] < len(b)
    rows, C = _expand.nearest(judges.least[0], of_mechanism, wanted) if outnumbered else (wanted, None)
    found = _expand.controlled(judges.least, of_mechanism, rows, (low, high))
    rank, reached, clear, smooth = certify(judges, of_mechanism, rows, found)
    left = Missed(jnp.zeros_like(b), jnp.asarray(True), jnp.asarray(True))
    if C is not None:
        left = missed(of_servo, servo.consistency_rtol, terms.M, wanted, C, found)
        clear, smooth = clear & left.clear, smooth & left.clear
    motion = Motion(
        acceleration=found.x,
        unconstrained_acceleration=found.free,
        constraint_force=terms.A.T @ found.multipliers,
        nonideal_force=jnp.zeros_like(found.x),
        rank=rank,
        residual=jnp.linalg.norm(stop_gradient(terms.A @ found.x - terms.b)),
        result=RESULTS.successful,
        drifted=jnp.asarray(False),
    )
    control = Control(
        u=found.acts,
        rank=reached,
        residual=jnp.linalg.norm(stop_gradient(A @ found.x - b)),
        contradictory=jnp.asarray(False),
        consistent=left.consistent,
        controllable=left.consistent & (reached > 0),
        unreachable=left.unreachable,
        saturated=(found.u < low) | (found.u > high),
        result=RESULTS.successful,
    )
    return (motion, control), clear, smooth


class _Found(NamedTuple):
    """The control before and after its limits (p,), the rank of C, and the part of the demand out of reach (m,)."""

    u: Array
    low: Array
    high: Array
    acts: Array
    rank: Array
    unreachable: Array


def _judged(rtol: float, exact: bool, rows: WhitenedTerms, found: _Found, motion: Motion, before: Motion) -> Control:
    """Returns the control with its verdict; `motion` is that under the control, `before` that without its last part."""
    unreachable, rank = found.unreachable, found.rank
    allowed = allowance(rows, rtol, motion.acceleration, before.acceleration)
    consistent = jnp.all(jnp.abs(unreachable) <= allowed)
    contradictory = is_contradictory(rows, rtol)
    finite = jnp.all(jnp.isfinite(found.u))
    fault = RESULTS.where(
        contradictory,
        RESULTS.servo_contradict,
        RESULTS.where(rank > 0, RESULTS.servo_unreachable, RESULTS.servo_not_actuated),
    )
    return Control(
        u=found.acts,
        rank=rank,
        residual=jnp.linalg.norm(stop_gradient(rows.A @ motion.acceleration - rows.b)),
        contradictory=contradictory,
        consistent=consistent,
        controllable=consistent & (rank > 0),
        unreachable=jnp.where(jnp.abs(unreachable) <= allowed, 0.0, unreachable),
        saturated=(found.u < found.low) | (found.u > found.high),
        result=worst(
            motion.result,
            RESULTS.where(finite, RESULTS.successful, RESULTS.not_finite),
            RESULTS.where(consistent | (not exact), RESULTS.successful, fault),
        ),
    )


def _with_result(motion: Motion, result: RESULTS) -> Motion:
    return eqx.tree_at(lambda m: m.result, motion, result)
