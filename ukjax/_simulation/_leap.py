"""A step of RATTLE for a mechanism.

y = (q, v); h: step; M = L L^T: constant mass matrix; W = L^-1; Q: force; A: Jacobian of the position errors.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._constraint import AccelerationConstraint, members_of
from .._formulation import row_scales
from .._integrate import Rattle
from .._linalg import SVD, pseudoinverse, pseudosolve, whiten
from .._manifold import ConstraintSizes, Linearisation, Projection, root
from .._mechanism import Mechanism
from .._program import uses
from .._result import is_traced
from .._rounding import missed_part
from .._system import applied_force
from ._options import Method
from ._states import StateLayout


SEARCH = 32  # most iterations for speeds that agree with the velocity-dependent forces at them
NEAREST = 3  # iterations that lead a state between two steps to the constraints
NEWTON = 5  # Newton steps, where the rows at the start of a step do not lead to the constraints
EXACT, ENOUGH = 1.0, 0.5  # powers of rounding: the wanted violation of constraints, and the largest accepted one


def check_rattle(mechanism: Mechanism, acting: Any, projection: Any, controller: Any, start: tuple) -> None:
    """Raises ValueError, with the name of the argument at fault, unless RATTLE can integrate the mechanism."""
    advice = "Use ukjax.Rattle for unconstrained or holonomic mechanisms in absolute coordinates, or another solver."
    if not isinstance(controller, diffrax.ConstantStepSize):
        raise ValueError(
            "stepsize_controller must be diffrax.ConstantStepSize(), with dt0, for ukjax.Rattle: what it preserves, it "
            "preserves at constant steps."
        )
    if projection is not None:
        raise ValueError(
            "projection has no effect with ukjax.Rattle, which keeps the constraints by itself. Leave it out."
        )
    if acting is not None:
        raise ValueError(f"servo does not go with ukjax.Rattle. {advice}")
    if mechanism.kinematics is not None:
        raise ValueError(f"mechanism has speeds that are no rates, which ukjax.Rattle does not take. {advice}")
    if mechanism.nonideal is not None:
        raise ValueError(f"mechanism has a non-ideal force, which ukjax.Rattle does not take. {advice}")
    q, v = start
    t = jnp.zeros((), q.dtype)
    for name, constraint in mechanism.named_constraints.items():
        for one in members_of(constraint):
            rows = jax.eval_shape(lambda c=one: (c.position_error(q, t), c.velocity_error(q, v, t)))
            if isinstance(one, AccelerationConstraint) or rows[0].shape != rows[1].shape:
                raise ValueError(f"{name} is not holonomic, which ukjax.Rattle needs. {advice}")
    if any(uses(lambda q: mechanism.mass(q, t, v.shape[0]), q)):
        raise ValueError(
            f"mechanism has a mass matrix that changes with q, but ukjax.Rattle takes constant ones. {advice}"
        )
    M = mechanism.mass(q, t, v.shape[0])
    if not is_traced(M) and not bool(whiten(M)[2]):
        raise ValueError(
            f"mechanism has a mass matrix that is not positive definite, which ukjax.Rattle does not take. {advice}"
        )


def equal_steps(method: Method, ts: Array) -> Method:
    """Returns the method with steps of equal length, the longest up to dt0 of which the span is a multiple.

    diffrax itself fits steps to the end of the span, but not the first two.
    """
    span, h = stop_gradient((ts[-1] - ts[0], jnp.asarray(method.dt0)))
    count = jnp.ceil(span / h * (1 - 4 * float(jnp.finfo(ts.dtype).eps)))
    return method._replace(dt0=jnp.where(count >= 1, span / jnp.maximum(count, 1), h))


def rattle_step(
    mechanism: Mechanism, layout: StateLayout, solver: Rattle, expand: bool
) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """Returns the step of RATTLE: (t0, t1, y0) -> y1, and whether y1 satisfies the constraints."""
    way = Projection()

    def leap(t0: Array, t1: Array, y0: Array) -> tuple[Array, Array]:
        h, (q0, v0) = t1 - t0, layout.split(y0)
        mass = lambda q, t: mechanism.mass(q, t, v0.shape[0])
        force = lambda q, v, t: applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)")
        L, W, _ = whiten(mass(q0, t0))
        kick = lambda q, v, t: h / 2 * (W.T @ (W @ force(q, v, t)))
        of_speeds = uses(force, q0, v0, t0)[1]
        gap = lambda q, t: mechanism.position_error(q, t)
        v = v0 + kick(q0, v0, t0)
        if not mechanism.constraints:
            q = q0 + h * v
            end, met = v + kick(q, v, t1), jnp.asarray(True)
            if of_speeds:
                end, met = _agreeing(lambda v: kick(q, v, t1), v, end)
            return jnp.concatenate([q, end]), met
        rows = jax.jacfwd(gap)

        def correct(q: Array, _: Any) -> tuple[Array, None]:
            # The correction is along the rows at q0, wherever q is: that makes the step symplectic.
            along = lambda q, q0, t0, t1: Linearisation(mass(q0, t0), gap(q, t1), rows(q0, t0), q)
            return q + way.shortest(along, (q, q0, t0, t1), expand, 1.0), None

        free = q0 + h * v
        q, _ = jax.lax.scan(correct, free, length=solver.iterations)
        M = mass(q0, t0)
        to_rounding = _missed(lambda q: gap(q, t1), q, M) <= _part(EXACT, q)
        q = jax.lax.cond(to_rounding, lambda: q, lambda: _newton(free, rows, gap, q0, t0, t1, W))
        met = to_rounding | (_missed(lambda q: gap(q, t1), q, M) <= _part(ENOUGH, q))
        v = (q - q0) / h
        back = lambda v, q, t: Linearisation(mass(q, t), mechanism.velocity_error(q, v, t), rows(q, t), v)
        onto = lambda v: v + way.shortest(back, (v, q, t1), expand, 0.0)
        end = onto(v + kick(q, v, t1))
        if of_speeds:
            B = _scaled(rows(q, t1), W)
            within = jnp.eye(v.shape[0], dtype=v.dtype) - W.T @ (pseudoinverse(SVD(), B)[0] @ B) @ L.T
            end, agree = _agreeing(lambda v: within @ kick(q, v, t1), v, end)
            met &= agree
        return jnp.concatenate([q, end]), met

    return leap


def onto_constraints(mechanism: Mechanism, layout: StateLayout, expand: bool) -> Callable[[Array, Array], Array]:
    """Returns (t, y) -> y projected on the constraints, for states between two steps; ends of steps stay."""
    nearest = Projection(iterations=NEAREST)

    def onto(t: Array, y: Array) -> Array:
        q, v = layout.split(y)
        M = mechanism.mass(q, t, v.shape[0])
        missed = _missed(lambda q: mechanism.position_error(q, t), q, M)
        missed = jnp.maximum(missed, _missed(lambda v: mechanism.velocity_error(q, v, t), v, M))
        there = missed <= _part(EXACT, q)
        sizes = ConstraintSizes.of(mechanism, q, v, t)
        return jnp.where(there, y, nearest(mechanism, t, y, expand, layout.coordinates, sizes))

    return onto


def _agreeing(kick: Callable[[Array], Array], v: Array, end: Array) -> tuple[Array, Array]:
    """Returns the speeds at the end of a step that agree with the forces at them, and whether these were found.

    `end`: the speeds after a kick with the force at v. With the force at v alone the order would be one, for it misses
    the change of the speeds by the constraints in half a step. The first half takes the force at the speeds at the
    start of the step, so that a step back undoes a step.
    """
    there = kick(v)
    change = lambda u: end + (kick(u) - there)
    size = stop_gradient(jnp.max(jnp.abs(jnp.stack([end, v, there]))))
    unit = jnp.where(size > 0, size, 1.0)
    at = lambda x: end + unit * x
    found = at(root(lambda x, _: (at(x) - change(at(x))) / unit, jnp.zeros_like(end), SEARCH))
    missed = stop_gradient(found - change(found))
    return found, jnp.all(jnp.abs(missed) <= (1e3 * float(jnp.finfo(v.dtype).eps)) ** ENOUGH * size)


def _scaled(J: Array, W: Array) -> Array:
    """The rows J in coordinates in which the mass matrix is the identity, scaled to about equal length."""
    return row_scales(J)[:, None] * (J @ W.T)


def _missed(error: Callable[[Array], Array], x: Array, M: Array) -> Array:
    """The largest violation of a row relative to its terms; each number of x counts as much as the largest, in M."""
    x, M = stop_gradient((x, M))
    unit = jnp.sqrt(jnp.diagonal(M))
    size = jnp.minimum(jnp.max(jnp.abs(x) * unit) / unit, jnp.max(jnp.abs(x)))
    return jnp.max(missed_part(error, x, size), initial=0.0)


def _part(power: float, x: Array) -> float:
    """The violation of a row, relative to its terms, that counts: a power of the rounding error of a state."""
    return (1e3 * float(jnp.finfo(x.dtype).eps)) ** power


def _newton(q: Array, rows: Callable, gap: Callable, q0: Array, t0: Array, t1: Array, W: Array) -> Array:
    """Leads q to the constraints by Newton's method with the rows at q, by steps along the rows at q0.

    Next to singular configurations rows change within a step by as much as their own length, so that the rows at q0
    alone do not lead to the constraints.
    """
    B0 = _scaled(rows(q0, t0), W)
    onto = pseudoinverse(SVD(), B0)[0] @ B0

    def step(q: Array, _: Any) -> tuple[Array, None]:
        J = rows(q, t1)
        way, _ = pseudosolve(SVD(), _scaled(J, W) @ onto, row_scales(J) * gap(q, t1))
        return q - W.T @ (onto @ way), None

    return jax.lax.scan(step, q, length=NEWTON)[0]
