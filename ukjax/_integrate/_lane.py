"""A solve out of many: its start and its steps.

B: solves; T: saved times.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .._result import is_traced
from ._flow import Dynamics, IntegrationProblem, vector_field
from ._march import Attempt, Place, Stepper, before_end
from ._solve import solved
from ._unchecked import KnownFirstStep
from ._variants import solver_of


class Common(eqx.Module):
    """The settings that all solves share (`IntegrationProblem`), and whether a step of many lanes is one program."""

    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    max_steps: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)


def within(interpolant: Any, span: tuple[Array, Array], dense: PyTree, t: Array) -> Array:
    """The state at t within a step over `span`."""
    return interpolant(t0=span[0], t1=span[1], **dense).evaluate(t)


class _NoSteps(diffrax.AbstractAdjoint):
    """An adjoint that makes no steps: its solution holds the first `Place` as the state of the controller."""

    def loop(self, *, init_state: Any, **others: Any) -> Any:
        at = init_state
        place = Place(at.tprev, at.tnext, at.y, at.solver_state, at.controller_state, jnp.asarray(at.made_jump))
        place = jax.tree_util.tree_map(jnp.asarray, place)
        return dataclasses.replace(at, controller_state=place), {}


def problem_of(begin: Callable[[PyTree], tuple[Dynamics, Array]], common: Common, sample: PyTree) -> IntegrationProblem:
    return IntegrationProblem(*begin(sample), common.ts, common.solver, common.method, common.max_steps)


def starts_of(
    begin: Callable[[PyTree], tuple[Dynamics, Array]], common: Common, samples: PyTree, width: int
) -> tuple[Place, Float[Array, " B"]]:
    """The places where solves begin (B, ...), `width` at a time, and their paces: fast solves tend to take more steps.

    A place has the first stage if a method hands on its last one. The first step size is no measure of pace: without
    dt0 diffrax begins with the same one always.
    """

    def start(sample):
        problem = problem_of(begin, common, sample)
        place = start_of(problem)
        first = vector_field(place.t, place.y, problem.flow)
        # The norm of a method with equal tolerances, which correlates with the number of steps.
        pace = jnp.sqrt(jnp.mean((first / (1 + jnp.abs(place.y))) ** 2))
        if isinstance(problem.solver, diffrax.AbstractERK) and place.solver is not None:
            place = eqx.tree_at(lambda p: p.solver, place, (jnp.asarray(False), first))
        return place, pace

    return jax.lax.map(start, samples, batch_size=width)


def in_order(pace: Float[Array, " B"] | Float[np.ndarray, " B"], total: Any) -> Any:
    """The order in which solves are best begun: fast ones first; those from `total` on are last and not to be done.

    Then no solve of many steps begins when the others are done.
    """
    xp = jnp if is_traced(pace, total) else np
    index = xp.arange(pace.shape[0])
    fast = xp.where(xp.isfinite(pace), pace, 0.0)  # a solve whose pace is not finite ends at once
    return xp.argsort(xp.where(index < total, -fast, xp.inf), stable=True)


def start_of(problem: IntegrationProblem) -> Place:
    """The place where a solve begins."""
    saveat = diffrax.SaveAt(t1=True, controller_state=True)
    solution: Any = solved(problem, KnownFirstStep(*problem.method), saveat, _NoSteps())
    return solution.controller_state


def stepper_of(problem: IntegrationProblem) -> Stepper:
    controller = KnownFirstStep(*problem.method).wrap(1).controller
    return Stepper(diffrax.ODETerm(vector_field), solver_of(problem, diffrax.ForwardMode()), controller, problem.flow)


def attempt(problem: IntegrationProblem, at: Place, t: Array) -> tuple[Place, Attempt, Array]:
    """Makes a step: returns the place after it, the attempt, and the state at t if that lies within the step."""
    at, tried = stepper_of(problem).attempt(at)
    t1 = problem.ts[-1]
    t_next = before_end(at, tried, t1)
    value = within(problem.solver.interpolation_cls, tried.span, tried.dense, t)
    return eqx.tree_at(lambda at: (at.t, at.t_next), at, (jnp.minimum(at.t, t1), t_next)), tried, value


def okay(shape: tuple[int, ...]) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.full(shape, x), diffrax.RESULTS.successful)


def chosen(which: Array, new: PyTree, old: PyTree) -> Any:
    choose = lambda a, b: jnp.where(which.reshape(which.shape + (1,) * (jnp.ndim(a) - 1)), a, b)
    return jax.tree_util.tree_map(choose, new, old)


def rows(tree: PyTree, index: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.take(x, index, axis=0, mode="clip"), tree)
