"""Runge-Kutta methods that end every step on the constraint manifold, or evaluate their stages differently."""

from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._flow import IntegrationProblem, vector_field
from ._steps import Explicit


# The result of a run whose projection misses the constraints, for which diffrax has no name.
LOST: Any = diffrax.RESULTS.internal_error
# A projection corrects a step. It is lost if it moves positions by more than PART of what the step moves them, plus
# LEAP of the largest position.
PART, LEAP = 0.1, 1e-3


class AbstractVariant(diffrax.AbstractAdaptiveSolver):
    """A Runge-Kutta method that wraps another and differs in how a step is made, or ends.

    It is no `AbstractWrappedSolver`: the adjoints would take that for the Runge-Kutta method that it wraps, and set
    fields which it has not.
    """

    solver: eqx.AbstractVar[diffrax.AbstractSolver]

    @property
    def term_structure(self):
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore
        return self.solver.interpolation_cls

    @property
    def term_compatible_contr_kwargs(self):
        return self.solver.term_compatible_contr_kwargs

    def order(self, terms):
        return self.solver.order(terms)

    def strong_order(self, terms):
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(terms, t0, t1, y0, args)

    def func(self, terms, t0, y0, args):
        return self.solver.func(terms, t0, y0, args)


class Projecting(AbstractVariant):
    """A Runge-Kutta method whose every step ends with `args.project`.

    The stage that a method would hand on to its next step belongs to the state before the projection; it is evaluated
    anew, as after a jump. Otherwise the method would lose its order. A projection that does not arrive returns NaN; a
    projection that leaps is lost too.
    """

    solver: diffrax.AbstractSolver

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, error, dense, state, result = self.solver.step(terms, t0, t1, y0, args, solver_state, made_jump=True)
        end = args.project(t1, y1)
        lost = jnp.all(jnp.isfinite(y1)) & ~jnp.all(jnp.isfinite(end))
        if args.scales is not None:
            scales, least = args.scales
            largest = lambda x: jnp.max(jnp.abs(x[: scales.shape[0]]) / scales)
            leapt = largest(end - y1) > PART * largest(y1 - y0) + LEAP * largest(y0) + least
            lost, end = lost | leapt, jnp.where(leapt, jnp.nan, end)
        return end, error, dense, state, diffrax.RESULTS.where(lost, LOST, result)


class AbstractStaged(AbstractVariant):
    """An explicit method, for many steps at a time under `jax.vmap`, and without derivatives.

    diffrax weighs the stages by products of matrices, for which the stages are transposed each time, and which XLA
    hands out to threads that other devices need. Here the stages are added up in place.
    """

    solver: eqx.AbstractVar[diffrax.AbstractERK]

    def made(self, method: Explicit, y0: Array, k: Array, f: Array, solver_state: Any) -> tuple[Any, ...]:
        """The results of a step, from its stages and the field at the last of them."""
        y1 = method.after(y0, k)
        state = None if solver_state is None else (jnp.zeros_like(solver_state[0]), f)
        error = method.error(self.solver.tableau, k)
        return y1, error, {"y0": y0, "y1": y1, "k": k}, state, diffrax.RESULTS.successful


class Staged(AbstractStaged):
    """An explicit method whose stages are a loop."""

    solver: diffrax.AbstractERK

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        method = Explicit.of(self.solver.tableau, jnp.asarray(t0), jnp.asarray(t1))
        # If the last stage of a step is the first of the next, that is known, except in the first step.
        first, f = (True, jnp.zeros_like(y0)) if solver_state is None else solver_state
        again = eqxi.unvmap_any(first | jnp.asarray(made_jump))

        def stage(i, carry):
            k, _ = carry
            f = vector_field(method.times[i], method.before(i, y0, k), args)
            return k.at[i].set(method.h * f), f

        count = method.b.shape[0]
        k = jnp.zeros((count, *y0.shape), y0.dtype).at[0].set(method.h * f)
        k, f = jax.lax.fori_loop(jnp.where(again, 0, 1), count, stage, (k, f))
        return self.made(method, y0, k, f, solver_state)


class Written(AbstractStaged):
    """An explicit method whose stages are unrolled, for scalar code.

    If the last stage of a step is the first of the next, that is taken to be known.
    """

    solver: diffrax.AbstractERK

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        method = Explicit.of(self.solver.tableau, jnp.asarray(t0), jnp.asarray(t1))
        k = jnp.zeros((method.b.shape[0], *y0.shape), y0.dtype)
        known = None if solver_state is None or made_jump is True else solver_state[1]
        f = vector_field(method.times[0], y0, args) if known is None else known
        for i in range(len(k)):
            f = f if i == 0 else vector_field(method.times[i], method.before(i, y0, k), args)
            k = k.at[i].set(method.h * f)
        return self.made(method, y0, k, f, solver_state)


def solver_of(problem: IntegrationProblem, adjoint: diffrax.AbstractAdjoint) -> diffrax.AbstractSolver:
    """The solver of `problem`, with its projection and the loop over the stages that diffrax takes under `adjoint`."""
    solver, simple = problem.solver, isinstance(adjoint, diffrax.ForwardMode)
    projects = problem.flow.project is not None
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None and (simple or projects):
        kind = "lax" if simple else "bounded"
        solver = eqx.tree_at(lambda s: s.scan_kind, solver, kind, is_leaf=lambda x: x is None)
    return Projecting(solver) if projects else solver


def staged(problem: IntegrationProblem, written: bool = False) -> IntegrationProblem:
    """The problem with a solver that is fast for many steps at a time, if there is one; not to be differentiated."""
    if not isinstance(problem.solver, diffrax.AbstractERK):
        return problem
    solver = (Written if written else Staged)(problem.solver)
    return eqx.tree_at(lambda p: p.solver, problem, solver)
