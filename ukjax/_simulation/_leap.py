"""One step of RATTLE for a mechanism.

y = (q, v); h: step; M: constant mass matrix; W: W^T W = M^-1; Q: force; A: Jacobian of the position errors.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._constraint import AccelerationConstraint, members_of
from .._formulation import row_scales
from .._integrate import Rattle
from .._linalg import SVD, pseudoinverse, pseudosolve, whiten
from .._manifold import Linearisation, Projection
from .._mechanism import Mechanism
from .._program import uses
from .._result import is_traced
from .._system import applied_force
from ._phase import Phase


NEWTON = 5  # steps, where those with the rows at the start of a step do not lead to the constraints
EXACT, ENOUGH = 1.0, 0.5  # powers of rounding: to what constraints are to hold, and from what on they do not


def check_leap(mechanism: Mechanism, acting: Any, projection: Any, controller: Any, start: tuple) -> None:
    """ValueError, with the name of what does not fit, unless RATTLE can make steps of a mechanism."""
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


def leap_of(
    mechanism: Mechanism, phase: Phase, solver: Rattle, expand: bool
) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """(t0, t1, y0) -> y1, and whether it is on the constraints."""
    way = Projection()

    def leap(t0: Array, t1: Array, y0: Array) -> tuple[Array, Array]:
        h, (q0, v0) = t1 - t0, phase.split(y0)
        mass = lambda q, t: mechanism.mass(q, t, v0.shape[0])
        _, W, _ = whiten(mass(q0, t0))
        kick = lambda q, v, t: W.T @ (W @ applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)"))
        gap = lambda q, t: mechanism.position_error(q, t)
        v = v0 + h / 2 * kick(q0, v0, t0)
        if not mechanism.constraints:
            q = q0 + h * v
            return jnp.concatenate([q, v + h / 2 * kick(q, v + h / 2 * kick(q, v, t1), t1)]), jnp.asarray(True)
        rows = jax.jacfwd(gap)

        def correct(q: Array, _: Any) -> tuple[Array, None]:
            # Along the rows at q0, wherever q is: that is what makes the step symplectic.
            along = lambda q, q0, t0, t1: Linearisation(mass(q0, t0), gap(q, t1), rows(q0, t0), q)
            return q + way.shortest(along, (q, q0, t0, t1), expand, 1.0), None

        free = q0 + h * v
        q, _ = jax.lax.scan(correct, free, length=solver.iterations)
        to_rounding = _met(gap(q, t1), rows(q, t1), q, EXACT)
        q = jax.lax.cond(to_rounding, lambda: q, lambda: _newton(free, rows, gap, q0, t0, t1, W))
        met = to_rounding | _met(gap(q, t1), rows(q, t1), q, ENOUGH)
        v = (q - q0) / h
        v = v + h / 2 * kick(q, v + h / 2 * kick(q, v, t1), t1)
        back = lambda v, q, t: Linearisation(mass(q, t), mechanism.velocity_error(q, v, t), rows(q, t), v)
        return jnp.concatenate([q, v + way.shortest(back, (v, q, t1), expand, 0.0)]), met

    return leap


def _met(gap: Array, J: Array, q: Array, power: float) -> Array:
    """Whether constraints hold to this power of what rounding makes of a state."""
    gap, J, q = jax.lax.stop_gradient((gap, J, q))
    least = (1e3 * float(jnp.finfo(q.dtype).eps)) ** power * jnp.max(jnp.abs(q), initial=1.0)
    return jnp.all(jnp.abs(gap) <= least * (1 + jnp.linalg.norm(J, axis=1)))


def _newton(q: Array, rows: Callable, gap: Callable, q0: Array, t0: Array, t1: Array, W: Array) -> Array:
    """The same by Newton's method, with the rows where q is, among ways along those at q0.

    Next to singular configurations rows change within a step by as much as they are long, so that those at q0 alone do
    not lead there.
    """
    scaled = lambda J: row_scales(J)[:, None] * (J @ W.T)
    B0 = scaled(rows(q0, t0))
    onto = pseudoinverse(SVD(), B0)[0] @ B0

    def step(q: Array, _: Any) -> tuple[Array, None]:
        J = rows(q, t1)
        way, _ = pseudosolve(SVD(), scaled(J) @ onto, row_scales(J) * gap(q, t1))
        return q - W.T @ (onto @ way), None

    return jax.lax.scan(step, q, length=NEWTON)[0]
