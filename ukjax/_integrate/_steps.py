"""One step of a Runge-Kutta method as a function that can be differentiated, and the states within it."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array, PyTree

from ._flow import Flow, Problem, advance, call


def replayable(solver: diffrax.AbstractSolver) -> bool:
    """Whether a step depends on nothing but the state at its start."""
    return isinstance(solver, diffrax.AbstractRungeKutta)


def step(problem: Problem, t0: Array, t1: Array, y: Array, flow: Flow) -> tuple[Array, PyTree]:
    """The state at t1 and what the interpolant between t0 and t1 is made of."""
    if isinstance(problem.solver, diffrax.AbstractERK):
        y1, dense = _explicit_step(problem.solver.tableau, t0, t1, y, flow)
    else:
        # The only kind of loop over the stages that diffrax can differentiate in both modes.
        solver = eqx.tree_at(lambda s: s.scan_kind, problem.solver, "bounded", is_leaf=lambda x: x is None)
        term = diffrax.ODETerm(call)
        state = solver.init(term, t0, t1, y, flow)
        y1, _, dense, _, _ = solver.step(term, t0, t1, y, flow, state, made_jump=False)
    return (y1 if flow.project is None else flow.project(t1, y1)), dense


def _explicit_step(tableau: Any, t0: Array, t1: Array, y: Array, flow: Flow) -> tuple[Array, PyTree]:
    """The same for an explicit method, as a scan over the stages, which is much cheaper to differentiate."""
    h, stages = t1 - t0, tableau.b_sol.shape[0]
    a = jnp.array([np.pad(row, (0, stages - len(row))) for row in ((), *tableau.a_lower)], y.dtype)
    times = t0 + h * jnp.array([0.0, *tableau.c], y.dtype)

    def stage(k, i):
        return k.at[i].set(h * call(times[i], y + a[i] @ k, flow)), None

    k, _ = jax.lax.scan(stage, jnp.zeros((stages, *y.shape), y.dtype), jnp.arange(stages))
    y1 = y + jnp.asarray(tableau.b_sol, y.dtype) @ k
    return y1, {"y0": y, "y1": y1, "k": k}


def first(y0: Array, t0: Array, flow: Flow, moving: bool) -> Array:
    """The state from which the steps start, at a time that is constant; y0 is that at t0, which may be `moving`."""
    return advance(flow, y0, t0, stop_gradient(t0)) if moving else y0


def saved(problem: Problem, span: tuple[Array, Array], dense: PyTree, t: Array, flow: Flow, moving: bool) -> Array:
    """The state at t, which may be `moving`, within a step over `span`."""
    y = problem.solver.interpolation_cls(t0=span[0], t1=span[1], **dense).evaluate(stop_gradient(t))
    return advance(flow, y, stop_gradient(t), t) if moving else y
