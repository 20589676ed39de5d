"""The integrator: one call of diffrax, under any adjoint."""

from collections.abc import Mapping

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, PyTree

from .._result import RESULTS
from ._march import Dynamics, IntegrationProblem, StepSizes, room_for
from ._record import Record, layout_of
from ._replay import both_modes
from ._run import Member, run
from ._solve import KnownFirstStep, OwnLoop, SavesAt, solved
from ._steps import Kinked, Sampled, replayable, staged


# The end (t, y) of a run, its statistics, and its result; and these after the states at the saved times.
Rest = tuple[tuple[Array, Array], dict[str, Array], RESULTS]
Integrated = tuple[Array, tuple[Array, Array], dict[str, Array], RESULTS]


class Integrator(eqx.Module):
    """Integrates y' = field(t, y), with the projection of the flow if any, from ts[0] to ts[-1]; holds no arrays.

    A solve that stands `alone` may take more memory for its derivatives than one of many.
    """

    adjoint: diffrax.AbstractAdjoint | None = eqx.field(static=True)
    max_steps: int = eqx.field(static=True)
    progress: diffrax.AbstractProgressMeter = eqx.field(static=True)
    alone: bool = eqx.field(static=True, default=False)

    def __call__(
        self,
        flow: Dynamics,
        y0: Array,
        ts: Array,
        solver: diffrax.AbstractSolver,
        method: StepSizes,
        repeats: bool = False,
    ) -> Integrated:
        """Returns the states at ts, the end (t, y) of the run, its statistics, and its `RESULTS`.

        Times that do not increase, which only a trace lets pass, give a run that ends at once. If it `repeats` some,
        successive times may be equal.
        """
        increasing, begin, problem = self._problem(flow, y0, ts, solver, method, repeats)
        if self.adjoint is None and replayable(problem):
            ys, rest = both_modes(self._record, problem)
        else:
            ys, rest = self._solve(problem, self.adjoint or diffrax.DirectAdjoint())
        return _in_given_order(increasing, y0, ys, _from_begin(begin, rest))

    def value(
        self,
        flow: Dynamics,
        y0: Array,
        ts: Array,
        solver: diffrax.AbstractSolver,
        method: StepSizes,
        due: Array,
        native: bool,
    ) -> Integrated | None:
        """The results without a derivative, of a solve that is `due`.

        By a loop of machine code if it is to be `native`; None where it cannot be one.
        """
        increasing, begin, problem = self._problem(flow, y0, ts, solver, method)
        if native:
            ran = run(problem, due=due)
            if ran is None:
                return None
            ys, rest = _of_run(problem, *ran[:2])
        else:
            ys, _, rest = self._stepped(staged(problem), record=False)
        return _in_given_order(increasing, y0, ys, _from_begin(begin, rest))

    def _problem(
        self,
        flow: Dynamics,
        y0: Array,
        ts: Array,
        solver: diffrax.AbstractSolver,
        method: StepSizes,
        repeats: bool = False,
    ) -> tuple[Array, Array | None, IntegrationProblem]:
        """Whether times increase; the time from which a problem counts its own, if it does; and the problem."""
        increasing, ts = _increasing(ts, repeats)
        solver, begin = _with_tolerances(solver, method[0]), None
        if isinstance(method[0], Sampled):
            begin = ts[0]
            flow, ts, method = flow.from_time(begin), ts - begin, (method[0].from_zero(), *method[1:])
        room = room_for(y0.size, self.alone)
        return increasing, begin, IntegrationProblem(flow, y0, ts, solver, method, self.max_steps, room)

    def _record(self, problem: IntegrationProblem, record: bool) -> tuple[Array, Record | None, Rest]:
        ran = run(problem, record, progress=self.progress)
        if ran is not None:
            ys, rest = _of_run(problem, *ran[:2])
            return ys, ran[2], rest
        return self._stepped(problem, record)

    def _stepped(self, problem: IntegrationProblem, record: bool) -> tuple[Array, Record | None, Rest]:
        """The results by a loop of JAX."""
        # The replay differentiates, so diffrax need not.
        saveat = diffrax.SaveAt(t1=True, controller_state=record)
        loop = OwnLoop(problem.ts, layout_of(problem) if record else None)
        solution = solved(problem, KnownFirstStep(*problem.method), saveat, loop, progress=self.progress)
        times, states = solution.ts, solution.ys
        assert times is not None
        assert states is not None
        ys, end = _saved(problem.y0, states[:-1]), (times[-1], states[-1])
        return ys, solution.controller_state, _rest(problem.ts, ys, end, solution.stats, solution.result)

    def _solve(self, problem: IntegrationProblem, adjoint: diffrax.AbstractAdjoint) -> tuple[Array, Rest]:
        # The end tells why a run failed; the backsolve adjoint has room for one kind of output only.
        outputs = {"ts": diffrax.SubSaveAt(t1=True)}  # `SavesAt` replaces the end by ts
        if not isinstance(adjoint, diffrax.BacksolveAdjoint):
            outputs["end"] = diffrax.SubSaveAt(t1=True)
        saveat = diffrax.SaveAt(subs=outputs if len(outputs) > 1 else outputs["ts"])
        if isinstance(adjoint, diffrax.BacksolveAdjoint) and isinstance(problem.method[0], Kinked):
            # Steps backwards have another state, with cotangents beside y.
            controller, dt0 = problem.method
            problem = eqx.tree_at(lambda p: p.method, problem, (controller.controller, dt0))
        loop = SavesAt(adjoint, problem.ts)
        solution = solved(problem, KnownFirstStep(*problem.method), saveat, loop, adjoint, self.progress)
        times, states, several = solution.ts, solution.ys, len(outputs) > 1
        assert times is not None
        assert states is not None
        ys = _saved(problem.y0, states["ts"] if several else states)
        end = (times["end"][0], states["end"][0]) if several else None
        return ys, _rest(problem.ts, ys, end, solution.stats, solution.result)


def _of_run(problem: IntegrationProblem, rows: Array, at: Member) -> tuple[Array, Rest]:
    """The states at the saved times, and the rest, of a `run`."""
    ys = _saved(problem.y0, rows)
    return ys, _rest(problem.ts, ys, (at.place.t, at.place.y), *_outcome(at, at.place.t < problem.ts[-1]))


def _from_begin(begin: Array | None, rest: Rest) -> Rest:
    """The rest, with the end of a solve that counted its time from `begin`."""
    if begin is None:
        return rest
    (t, y), counts, result = rest
    return (t + stop_gradient(begin), y), counts, result


def _outcome(at: Member, short: Array) -> tuple[dict[str, Array], diffrax.RESULTS]:
    """The statistics of a solve and its result; `short`: whether it ended before the last time."""
    counts = {"num_steps": at.tries, "num_accepted_steps": at.accepted, "num_rejected_steps": at.tries - at.accepted}
    short &= at.result == diffrax.RESULTS.successful
    return counts, diffrax.RESULTS.where(short, diffrax.RESULTS.max_steps_reached, at.result)


def _increasing(ts: Array, repeats: bool = False) -> tuple[Array, Array]:
    """Whether times, which may be traced, increase; and the times for the solve, all equal if they do not."""
    follow = ts[1:] >= ts[:-1] if repeats else ts[1:] > ts[:-1]
    increasing = jnp.all(jnp.isfinite(ts)) & jnp.all(follow)
    return increasing, jnp.where(increasing, ts, jnp.where(jnp.isfinite(ts[0]), ts[0], 0.0))


def _in_given_order(increasing: Array, y0: Array, ys: Array, rest: Rest) -> Integrated:
    """The results of an integration, with those of a failure where the times do not increase."""
    end, counts, result = rest
    ys = jnp.where(increasing, ys, jnp.full_like(ys, jnp.nan).at[0].set(y0))
    return ys, end, counts, RESULTS.where(increasing, result, RESULTS.times_do_not_fit)


def _saved(y0: Array, states: Array) -> Array:
    # A run that fails at once saves nothing; its first row is known all the same.
    return jnp.where(jnp.isfinite(states), states, jnp.nan).at[0].set(y0)


def _rest(
    ts: Array, ys: Array, reached: tuple[Array, Array] | None, stats: Mapping[str, PyTree], result: diffrax.RESULTS
) -> Rest:
    """The end of the run (t, y), its statistics, and its `RESULTS`."""
    end = _last_finite(ts, ys)
    if reached is not None:
        finite = jnp.all(jnp.isfinite(reached[1]))
        end = jnp.where(finite, reached[0], end[0]), jnp.where(finite, reached[1], end[1])
    counts = {k: stats[k] for k in ("num_steps", "num_accepted_steps", "num_rejected_steps")}
    return stop_gradient(end), counts, RESULTS.promote(result)


def _with_tolerances(
    solver: diffrax.AbstractSolver, controller: diffrax.AbstractStepSizeController
) -> diffrax.AbstractSolver:
    """Gives an implicit solver the tolerances of the controller, as diffeqsolve does; a replay runs outside of it."""
    if not isinstance(solver, diffrax.AbstractImplicitSolver):
        return solver
    controller = controller.controller if isinstance(controller, Kinked | Sampled) else controller
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
