"""One call of diffrax, under whichever adjoint."""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._result import RESULTS
from ._flow import Flow, Problem, call
from ._marching import Marching
from ._projecting import solver_of
from ._record import Record
from ._replay import both_modes
from ._steps import replayable
from ._unchecked import Saving, Starting


class Integrator(eqx.Module):
    """Integrates y' = field(t, y), projecting if asked to, from ts[0] to ts[-1]. Nothing in it is an array."""

    adjoint: diffrax.AbstractAdjoint | None = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    progress: diffrax.AbstractProgressMeter = eqx.field(static=True)

    def __call__(
        self, flow: Flow, y0: Array, ts: Array, solver: diffrax.AbstractSolver, method: Any
    ) -> tuple[Array, tuple[Array, Array], dict[str, Array], Any]:
        """The states at ts, where the run ended (t, y), its statistics, and its `RESULTS`.

        Times that do not increase, which only a trace lets pass, are a run that ends at once.
        """
        increasing = jnp.all(jnp.isfinite(ts)) & jnp.all(ts[1:] > ts[:-1])
        ts = jnp.where(increasing, ts, jnp.where(jnp.isfinite(ts[0]), ts[0], 0.0))
        solver = _with_tolerances(solver, method[0])
        problem = Problem(flow, y0, ts, solver, method, self.max_steps)
        if self.adjoint is None and replayable(solver):
            ys, rest = both_modes(self._record, problem)
        else:
            ys, rest = self._solve(problem, self.adjoint or diffrax.DirectAdjoint())
        end, counts, result = rest
        ys = jnp.where(increasing, ys, jnp.full_like(ys, jnp.nan).at[0].set(y0))
        return ys, end, counts, RESULTS.where(increasing, result, RESULTS.times_do_not_fit)

    def _record(self, problem: Problem, record: bool) -> tuple[Array, Record | None, Any]:
        # The replay differentiates, so diffrax need not.
        controller = Starting(*problem.method)
        saveat = diffrax.SaveAt(t1=True, controller_state=record)
        # The kind of loop over the stages is that of this adjoint.
        solver = solver_of(problem, diffrax.ForwardMode())
        solution: Any = self._diffeqsolve(problem, solver, controller, saveat, Marching(problem.ts, record))
        times, states = solution.ts, solution.ys
        ys, end = _saved(problem, states[:-1]), (times[-1], states[-1])
        rest = _rest(problem, ys, end, solution)
        return ys, solution.controller_state, rest

    def _solve(self, problem: Problem, adjoint: diffrax.AbstractAdjoint) -> tuple[Array, Any]:
        # The end tells why a run failed; the backsolve adjoint has room for one kind of output only.
        outputs = {"ts": diffrax.SubSaveAt(t1=True)}  # `Saving` makes ts of it
        if not isinstance(adjoint, diffrax.BacksolveAdjoint):
            outputs["end"] = diffrax.SubSaveAt(t1=True)
        saveat = diffrax.SaveAt(subs=outputs if len(outputs) > 1 else outputs["ts"])
        solver, controller = solver_of(problem, adjoint), Starting(*problem.method)
        solution: Any = self._diffeqsolve(problem, solver, controller, saveat, Saving(adjoint, problem.ts))
        if len(outputs) > 1:
            ys = _saved(problem, solution.ys["ts"])
            return ys, _rest(problem, ys, (solution.ts["end"][0], solution.ys["end"][0]), solution)
        ys = _saved(problem, solution.ys)
        return ys, _rest(problem, ys, None, solution)

    def _diffeqsolve(self, problem: Problem, solver: Any, controller: Any, saveat: Any, adjoint: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(call),
            solver,
            t0=problem.ts[0],
            t1=problem.ts[-1],
            dt0=None,
            y0=problem.y0,
            args=problem.flow,
            saveat=saveat,
            stepsize_controller=controller,
            adjoint=adjoint,
            max_steps=self.max_steps,
            throw=False,
            progress_meter=self.progress,
        )


def _saved(problem: Problem, states: Array) -> Array:
    # A run that fails at once saves nothing; its first row is known all the same.
    return jnp.where(jnp.isfinite(states), states, jnp.nan).at[0].set(problem.y0)


def _rest(problem: Problem, ys: Array, reached: tuple[Array, Array] | None, solution: Any) -> Any:
    """Where the run ended, its statistics, and its `RESULTS`."""
    end = _last_finite(problem.ts, ys)
    if reached is not None:
        finite = jnp.all(jnp.isfinite(reached[1]))
        end = jnp.where(finite, reached[0], end[0]), jnp.where(finite, reached[1], end[1])
    counts = {k: solution.stats[k] for k in ("num_steps", "num_accepted_steps", "num_rejected_steps")}
    return stop_gradient(end), counts, RESULTS.promote(solution.result)


def _with_tolerances(solver: Any, controller: Any) -> Any:
    """An implicit solver with the tolerances of the controller, as diffeqsolve does it: a replay lies outside."""
    if not isinstance(solver, diffrax.AbstractImplicitSolver):
        return solver
    unset = diffrax.with_stepsize_controller_tols(diffrax.VeryChord)().rtol
    names = [n for n in ("rtol", "atol", "norm") if getattr(solver.root_finder, n, None) is unset]
    if names and not isinstance(controller, diffrax.AbstractAdaptiveStepSizeController):
        raise ValueError(
            f"solver {type(solver).__name__} needs tolerances for its root finder when the step is not adaptive: pass "
            f"diffrax.{type(solver).__name__}(root_finder=diffrax.VeryChord(rtol=1e-10, atol=1e-10))."
        )
    values = [getattr(controller, n) for n in names]
    return eqx.tree_at(lambda s: [getattr(s.root_finder, n) for n in names], solver, values) if names else solver


def _last_finite(ts: Array, ys: Array) -> tuple[Array, Array]:
    reached = jnp.all(jnp.isfinite(ys), axis=1)
    last = jnp.sum(reached) - 1
    return ts[last], ys[last]
