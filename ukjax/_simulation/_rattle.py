"""RATTLE, a method whose steps are made by the mechanism itself, because they need more than its accelerations.

y = (q, v); h: step; M = L L^T: constant mass matrix; W = L^-1; Q: force; A: Jacobian of the position errors.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check, _expand
from .._constraint import AccelerationConstraint, members_of
from .._formulation import certainty, row_scales
from .._linalg import SVD, pseudoinverse, pseudosolve, whiten
from .._manifold import ConstraintSizes, Linearisation, Projection, root
from .._mechanism import Mechanism
from .._program import uses
from .._result import is_traced
from .._rounding import missed_part
from .._system import applied_force
from ._states import StateLayout


SEARCH = 32  # most iterations for speeds that agree with the velocity-dependent forces at them
NEAREST = 3  # iterations that lead a state between two steps to the constraints
NEWTON = 5  # Newton steps, where the rows at the start of a step do not lead to the constraints
EXACT, ENOUGH = 1.0, 0.5  # powers of rounding: the wanted violation of constraints, and the largest accepted one
ADVICE = "Use ukjax.Rattle for unconstrained or holonomic mechanisms in absolute coordinates, or another solver."


class Between(diffrax.AbstractLocalInterpolation):
    """Positions and speeds between the ends of a step, to third order of its length, without regard to constraints.

    q is the cubic with the positions and speeds at both ends. Its rate is no speed of the method, which leaps, so that
    (q1 - q0) / h is (v0 + v1) / 2 - h (a1 - a0) / 4, where a motion would have a third of the last term. v is the
    parabola through v0 and v1 whose second derivative is (a1 - a0) / h. It is the same seen from either end.
    """

    t0: Any  # as of diffrax's own interpolations, for which class variables are declared
    t1: Any
    y0: Array
    y1: Array

    def evaluate(self, t0, t1=None, left=True):
        if t1 is not None:
            return self.evaluate(t1) - self.evaluate(t0)
        h = self.t1 - self.t0
        part = (t0 - self.t0) / h
        (q0, v0), (q1, v1) = jnp.split(self.y0, 2), jnp.split(self.y1, 2)
        curve = diffrax.ThirdOrderHermitePolynomialInterpolation(
            t0=self.t0, t1=self.t1, y0=q0, y1=q1, k0=h * v0, k1=h * v1
        )
        leapt = (q1 - q0) / h - (v0 + v1) / 2
        v = v0 + part * (v1 - v0) + 2 * part * (1 - part) * leapt
        y = jnp.concatenate([curve.evaluate(t0), v])
        return jnp.where(t0 == self.t0, self.y0, jnp.where(t0 == self.t1, self.y1, y))


class Rattle(diffrax.AbstractSolver):
    r"""The structure-preserving step RATTLE for holonomic constraints, for runs of millions of steps.

    $$\begin{split}
    v_{1/2} &= v_0 + \tfrac h2 M^{-1}(Q(q_0, v_0) + A_0^\top\lambda), & q_1 &= q_0 + h\,v_{1/2}, & \Phi(q_1) &= 0 \\
    v_1 &= v_{1/2} + \tfrac h2 M^{-1}(Q(q_1, v_1) + A_1^\top\mu), & & & A_1 v_1 &= 0
    \end{split}$$

    RATTLE is symplectic and reversible: the energy of a conservative mechanism swings about its value by a part that
    grows with the square of the step, and does not drift. Its order is two. Constraints hold to rounding, whether rows
    are redundant or not, without a projection. Pass it as `simulate(..., solver=Rattle(), stepsize_controller=
    diffrax.ConstantStepSize(), dt0=...)`.

    It needs a constant mass matrix, as mechanisms in absolute coordinates have it, and holonomic constraints. A force
    that depends on velocities (drag, a magnetic or a gyroscopic one) is taken at the speeds at both ends of the step,
    for which the second half solves an equation in v_1. The order stays two, and a step back still undoes a step.

    Steps have equal length: dt0, or the longest below it of which the span is a multiple. A saved time between two
    steps changes none of them: the state there is interpolated to third order and led to the constraints, to rounding.

    Args:
        iterations: Iterations for the multipliers lambda, by Newton's method with the rows at q_0: each gains as many
            digits as the step has.

    Raises:
        ValueError: If `iterations` is not a positive integer; by `simulate`, if the mechanism or an option does not
            fit.

    Gradients: as those of `simulate`.

    Source: Andersen (1983); Leimkuhler & Skeel (1994); Hairer, Lubich & Wanner (2006), Geometric Numerical Integration,
    VII.1.
    """

    iterations: int = eqx.field(static=True)

    def __init__(self, iterations: int = 6):
        self.iterations = _check.count(iterations, "iterations")

    term_structure = diffrax.AbstractTerm
    interpolation_cls = Between

    def order(self, terms):
        return 2

    def init(self, terms, t0, t1, y0, args):
        return None

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, met = args.leap(t0, t1, y0)
        lost: Any = diffrax.RESULTS.nonlinear_divergence  # which diffrax has from lineax, of whose class it seems
        return y1, None, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.where(met, diffrax.RESULTS.successful, lost)

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)


def check_rattle(mechanism: Mechanism, q: Array, v: Array) -> None:
    """Raises ValueError unless RATTLE can integrate the mechanism, whose states have these shapes."""
    if mechanism.kinematics is not None:
        raise ValueError(f"mechanism has speeds that are no rates, which ukjax.Rattle does not take. {ADVICE}")
    if mechanism.nonideal is not None:
        raise ValueError(f"mechanism has a non-ideal force, which ukjax.Rattle does not take. {ADVICE}")
    t = jnp.zeros((), q.dtype)
    for name, constraint in mechanism.named_constraints.items():
        for one in members_of(constraint):
            rows = jax.eval_shape(lambda c=one: (c.position_error(q, t), c.velocity_error(q, v, t)))
            if isinstance(one, AccelerationConstraint) or rows[0].shape != rows[1].shape:
                raise ValueError(f"{name} is not holonomic, which ukjax.Rattle needs. {ADVICE}")
    if any(uses(lambda q: mechanism.mass(q, t, v.shape[0]), q)):
        raise ValueError(
            f"mechanism has a mass matrix that changes with q, but ukjax.Rattle takes constant ones. {ADVICE}"
        )
    M = mechanism.mass(q, t, v.shape[0])
    if not is_traced(M) and not bool(whiten(M)[2]):
        raise ValueError(
            f"mechanism has a mass matrix that is not positive definite, which ukjax.Rattle does not take. {ADVICE}"
        )


def rattle_step(
    solver: Rattle, mechanism: Mechanism, layout: StateLayout, expand: bool
) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """Returns the step of RATTLE: (t0, t1, y0) -> y1, and whether y1 satisfies the constraints."""
    way = Projection()

    def leap(t0: Array, t1: Array, y0: Array) -> tuple[Array, Array]:
        h, (q0, v0) = t1 - t0, layout.split(y0)
        mass, gap = ft.partial(mechanism.mass, n=v0.shape[0]), mechanism.position_error
        L, W, _ = whiten(mass(q0, t0))

        def force(q: Array, v: Array, t: Array) -> Array:
            return applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)")

        def kick(q: Array, v: Array, t: Array) -> Array:
            return h / 2 * (W.T @ (W @ force(q, v, t)))

        of_speeds = uses(force, q0, v0, t0)[1]
        v = v0 + kick(q0, v0, t0)
        if not mechanism.constraints:
            q = q0 + h * v
            end, met = v + kick(q, v, t1), jnp.asarray(True)
            if of_speeds:
                end, met = _agreeing(lambda v: kick(q, v, t1), v, end)
            return jnp.concatenate([q, end]), met
        rows = jax.jacfwd(gap)

        def along(q: Array, q0: Array, t0: Array, t1: Array) -> Linearisation:
            # The correction is along the rows at q0, wherever q is: that makes the step symplectic.
            return Linearisation(mass(q0, t0), gap(q, t1), rows(q0, t0), q, curved=1.0)

        def back(v: Array, q: Array, t: Array) -> Linearisation:
            return Linearisation(mass(q, t), mechanism.velocity_error(q, v, t), rows(q, t), v)

        def correct(q: Array, _: None) -> tuple[Array, None]:
            return q + way.shortest(along, (q, q0, t0, t1), expand), None

        free = q0 + h * v
        q, _ = jax.lax.scan(correct, free, length=solver.iterations)
        M = mass(q0, t0)
        to_rounding = _missed(lambda q: gap(q, t1), q, M) <= _part(EXACT, q)
        q = jax.lax.cond(to_rounding, lambda: q, lambda: _newton(free, rows, gap, q0, t0, t1, W))
        met = to_rounding | (_missed(lambda q: gap(q, t1), q, M) <= _part(ENOUGH, q))
        v = (q - q0) / h
        end = v + kick(q, v, t1)
        end = end + way.shortest(back, (end, q, t1), expand)
        if of_speeds:
            B = _scaled(rows(q, t1), W)
            within = jnp.eye(v.shape[0], dtype=v.dtype) - W.T @ (pseudoinverse(SVD(), B)[0] @ B) @ L.T
            end, agree = _agreeing(lambda v: within @ kick(q, v, t1), v, end)
            met &= agree
        return jnp.concatenate([q, end]), met

    return leap


def scalar_rattle_step(
    solver: Rattle, mechanism: Mechanism, q0: Array, v0: Array, t0: Array, h: Array
) -> tuple[Array, Array, Array]:
    """Returns q and v after a step of RATTLE, and whether all of its iterations went to rounding.

    The step is that of `rattle_step` where the iterations with the rows at q0 suffice, and speeds agree with the forces
    at them by iterations of their own. It has no pseudoinverse and no loop of unknown length: it can be scalar code.
    """
    way, t1, gap = Projection(), t0 + h, mechanism.position_error
    M, rows = mechanism.mass(q0, t0, v0.shape[0]), jax.jacfwd(gap)

    def force(q: Array, v: Array, t: Array) -> Array:
        return h / 2 * applied_force(mechanism.system.force(q, v, t), v, "force(q, v, t)")

    def along(q: Array) -> Linearisation:
        return Linearisation(M, gap(q, t1), rows(q0, t0), q, curved=1.0)

    free = v0 + _expand.solve(M, force(q0, v0, t0))
    q, has_rows = q0 + h * free, rows(q0, t0).shape[0] > 0
    if has_rows:
        q, _ = jax.lax.scan(lambda q, _: (q + way.shortest(along, (q,), True), None), q, length=solver.iterations)
    v, A = (q - q0) / h if has_rows else free, rows(q, t1)
    least = certainty(way.pseudoinverse, 1e-6, A.shape[0], q.dtype).dependent ** 2

    def kicked(u: Array) -> Array:
        """The speeds at the end, with the force at the speeds u."""
        end = v + _expand.solve(M, force(q, u, t1))
        return end + _expand.constrained(least, M, jnp.zeros_like(v), A, -mechanism.velocity_error(q, end, t1))[0]

    def back(end: Array) -> Linearisation:
        return Linearisation(M, mechanism.velocity_error(q, end, t1), A, end)

    end, agree = v + _expand.solve(M, force(q, v, t1)), jnp.asarray(True)
    end = end + way.shortest(back, (end,), True)
    if uses(force, q0, v0, t0)[1]:
        end, _ = jax.lax.scan(lambda u, _: (kicked(u), None), end, length=2 * solver.iterations)
        agree = jnp.max(jnp.abs(end - kicked(end))) <= _part(EXACT, v) * jnp.max(jnp.abs(end) + jnp.abs(v))
    met = _missed(lambda q: gap(q, t1), q, M) <= _part(EXACT, q) if has_rows else jnp.asarray(True)
    return q, end, met & agree & jnp.all(jnp.isfinite(end))


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

    def change(u: Array) -> Array:
        return end + (kick(u) - there)

    size = stop_gradient(jnp.max(jnp.abs(jnp.stack([end, v, there]))))
    unit = jnp.where(size > 0, size, 1.0)

    def error(x: Array, _: object) -> Array:
        u = end + unit * x
        return (u - change(u)) / unit

    found = end + unit * root(error, jnp.zeros_like(end), SEARCH)
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

    def step(q: Array, _: None) -> tuple[Array, None]:
        J = rows(q, t1)
        way = pseudosolve(SVD(), _scaled(J, W) @ onto, row_scales(J) * gap(q, t1))[0]
        return q - W.T @ (onto @ way), None

    return jax.lax.scan(step, q, length=NEWTON)[0]
