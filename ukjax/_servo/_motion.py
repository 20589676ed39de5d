"""The motion under the control of servos.

M q'' = Q + Q^c + G u: actuation G (n, p), control u (p,), passive constraint force Q^c; A q'' = b: servo constraints, m
rows; q0'': acceleration without control; N: what the passive constraints leave of a force, q'' = q0'' + N G u;
C = A N G (m, p); d = b - A q0'': the demand; D: row scales.
"""

import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float

from .._formulation import AbstractFormulation, Motion, Problem, allowance, in_metric, is_contradictory
from .._mechanism import Mechanism, Terms
from .._result import RESULTS, worst
from .._types import BoolScalar, IntScalar, RowValues, Scalar, Vector
from ._plant import fields_of_force, respond
from ._servo import AbstractServo


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

    law = servos[0].law(servos, sizes, q, v, t)
    b = b - law.decay

    rows_of_servos = in_metric(Terms(terms.M, terms.Q, A, b, None, terms.partition))
    under = ft.partial(respond, terms, formulation, rows_of_servos.W)
    u = before = jnp.zeros(G.shape[1], q.dtype)
    linear = terms.nonideal is None
    for _ in range(1 if linear else NEWTON):
        plant = under(G @ u)
        wanted, rank, unmet = law.control(plant, A, G, b - A @ plant.motion.acceleration, u)
        before, u = u, wanted
    limits = [one.limits_at(p, q.dtype) for one, p in zip(servos, sizes, strict=True)]
    low, high = (jnp.concatenate(x) for x in zip(*limits, strict=True))
    acts = jnp.clip(u, low, high)
    motion = plant.under(G @ (acts - before)) if linear else under(G @ acts).motion

    found = _Found(u, low, high, acts, rank, stop_gradient(unmet))
    control = _judged(servos[0].consistency_rtol, law.exact, rows_of_servos, found, motion, plant.motion)
    return _with_result(motion, control.result), control


class _Found(NamedTuple):
    """The control wanted and within its limits (p,), the rank of C, and what no control meets of the demand (m,)."""

    u: Array
    low: Array
    high: Array
    acts: Array
    rank: Array
    unreachable: Array


def _judged(rtol: float, exact: bool, rows: Problem, found: _Found, motion: Motion, before: Motion) -> Control:
    """The control, and whether it does what it is for; `motion` under it, `before` without its last part."""
    unreachable, rank = found.unreachable, found.rank
    allowed = allowance(rows, rtol, motion.acceleration, before.acceleration)
    consistent = jnp.all(jnp.abs(unreachable) <= allowed)
    contradictory = is_contradictory(rows, rtol)
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
        result=worst(motion.result, RESULTS.where(consistent | (not exact), RESULTS.successful, fault)),
    )


def _with_result(motion: Motion, result: Any) -> Motion:
    return Motion(*fields_of_force(motion), rank=motion.rank, residual=motion.residual, result=result)
