"""The call of diffrax, without its checks at run time; a loop of ours over the steps replaces its own.

`diffrax.diffeqsolve` checks the times to save at, the first step and the times of a `StepTo` while the compiled program
runs. Such a check is a call from the program back to Python, and JAX's persistent compilation cache does not take a
program that calls back. Here known values are checked before the work starts, and others as data
(`RESULTS.times_do_not_fit`). `KnownFirstStep` and `SavesAt` stand in while diffrax checks, and hand over the real times
and steps to its loop.

`diffrax.diffeqsolve` prepares a solve and hands it to the loop of its adjoint, which may be a class of our own.
diffrax's loops do more than is needed here (events, dense output, a second trace to find what is static), and count a
hundred floating point numbers back from the end, one after the other. That takes long to compile.
"""

import dataclasses

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ._march import Attempt, IntegrationProblem, Place, Stepper, before_end, step_until, vector_field
from ._record import Layout, Record, written
from ._steps import solver_of


def solved(
    problem: IntegrationProblem,
    controller: diffrax.AbstractStepSizeController,
    saveat: diffrax.SaveAt,
    loop: diffrax.AbstractAdjoint,
    adjoint: diffrax.AbstractAdjoint = diffrax.ForwardMode(),
    progress: diffrax.AbstractProgressMeter = diffrax.NoProgressMeter(),
) -> diffrax.Solution:
    """diffrax's solution of a problem, with the `loop` over the steps of an adjoint.

    The loop over the stages of a step is the one that diffrax takes under `adjoint`: by default that for a solve
    without derivatives.
    """
    return diffrax.diffeqsolve(
        diffrax.ODETerm(vector_field),
        solver_of(problem, adjoint),
        t0=problem.ts[0],
        t1=problem.ts[-1],
        dt0=None,
        y0=problem.y0,
        args=problem.flow,
        saveat=saveat,
        stepsize_controller=controller,
        adjoint=loop,
        max_steps=problem.max_steps,
        throw=False,
        progress_meter=progress,
    )


class KnownFirstStep(diffrax.AbstractStepSizeController):
    """A step size controller that knows its first step."""

    controller: diffrax.AbstractStepSizeController
    dt0: Array | None

    def wrap(self, direction):
        forward = isinstance(self.controller, diffrax.StepTo)  # times increase, so that nothing need be reversed
        return KnownFirstStep(self.controller if forward else self.controller.wrap(direction), self.dt0)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        if isinstance(self.controller, diffrax.StepTo):
            return self.controller.ts[1], 2
        return self.controller.init(terms, t0, t1, y0, self.dt0, args, func, error_order)

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        return self.controller.adapt_step_size(t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state)


class SavesAt(diffrax.AbstractAdjoint):
    """An adjoint whose solve saves at `ts` where its `saveat` asks diffrax to save the end.

    It goes with `KnownFirstStep`. The `diffrax.SubSaveAt(t1=True)` to replace is the only one, or the one named "ts".
    """

    adjoint: diffrax.AbstractAdjoint
    ts: Array

    def loop(self, *, saveat, init_state, stepsize_controller, **others):
        several = isinstance(saveat.subs, dict)
        wanted = diffrax.SubSaveAt(ts=self.ts)
        subs = {**saveat.subs, "ts": wanted} if several else wanted
        saveat = diffrax.SaveAt(subs=subs, controller_state=saveat.controller_state)
        state = init_state.save_state["ts"] if several else init_state.save_state
        room = [jnp.full((self.ts.shape[0], *x.shape[1:]), jnp.inf, x.dtype) for x in (state.ts, state.ys)]
        state = eqx.tree_at(lambda s: (s.ts, s.ys), state, room)
        states = {**init_state.save_state, "ts": state} if several else state
        init_state = eqx.tree_at(lambda s: s.save_state, init_state, states)
        controller = stepsize_controller
        controller = controller.controller if isinstance(controller, KnownFirstStep) else controller
        return self.adjoint.loop(saveat=saveat, init_state=init_state, stepsize_controller=controller, **others)


class _Notes(eqx.Module):
    """The states saved so far, the index of the next, the accepted steps, their record, the progress meter's state."""

    ys: PyTree  # (T, n); within a loop equinox wraps it
    following: Int[Array, ""]
    accepted: Int[Array, ""]
    record: Record | None
    meter: PyTree


class OwnLoop(diffrax.AbstractAdjoint):
    """The loop of a solve that is not differentiated; it saves the states at `ts`, and then the last one.

    It goes with `KnownFirstStep`, and with `diffrax.SaveAt(t1=True)`, to which it adds the rest. With a `layout` it
    records its steps: the `Record` takes the place of the controller's state, for `SaveAt(controller_state=True)`.
    """

    ts: Float[Array, " T"]
    layout: Layout | None = eqx.field(static=True)

    def loop(
        self, *, terms, solver, stepsize_controller, args, init_state, t0, t1, max_steps, progress_meter, **others
    ):
        first, ts = init_state, self.ts
        controller = stepsize_controller
        controller = controller.controller if isinstance(controller, KnownFirstStep) else controller
        stepper = Stepper(terms, solver, controller, args)
        start = Place(
            first.tprev, first.tnext, first.y, first.solver_state, first.controller_state, jnp.asarray(first.made_jump)
        )

        def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
            (begin, end), count = tried.span, ts.shape[0]
            interpolant = solver.interpolation_cls(t0=begin, t1=end, **tried.dense)

            def due(inner):
                return tried.keep & (inner[0] < count) & (ts[inner[0]] <= end)

            def save(inner):
                j, ys = inner
                return j + 1, ys.at[j].set(interpolant.evaluate(ts[j]))

            inner = notes.following, notes.ys
            j, ys = eqxi.while_loop(due, save, inner, kind="lax", buffers=lambda inner: inner[1])
            part = (at.t - t0) / jnp.where(t1 > t0, t1 - t0, 1)
            record = None if notes.record is None else notes.record.after(tried.keep, at)
            accepted = notes.accepted + tried.keep.astype(int)
            return _Notes(ys, j, accepted, record, progress_meter.step(notes.meter, part))

        zero = jnp.zeros((), int)
        ys = jnp.full((ts.shape[0], *first.y.shape), jnp.inf, first.y.dtype)
        record = Record.start(start, self.layout, max_steps) if self.layout else None
        notes = _Notes(ys, zero, zero, record, first.progress_meter_state)
        at, notes, result, tries = step_until(
            stepper, start, t1, max_steps, before_end, note, notes, lambda notes: (notes.ys, written(notes.record))
        )
        times, states = jnp.append(ts, at.t), jnp.concatenate([notes.ys, at.y[None]])
        final = dataclasses.replace(
            first,
            y=at.y,
            tprev=at.t,
            tnext=at.t_next,
            made_jump=at.jumped,
            solver_state=at.solver,
            controller_state=notes.record if self.layout else at.controller,
            result=result,
            num_steps=tries,
            num_accepted_steps=notes.accepted,
            num_rejected_steps=tries - notes.accepted,
            save_state=dataclasses.replace(first.save_state, ts=times, ys=states),
            progress_meter_state=notes.meter,
        )
        return final, {}


class _NoSteps(diffrax.AbstractAdjoint):
    """An adjoint that makes no steps: its solution holds the first `Place` as the state of the controller."""

    def loop(self, *, init_state, **others):
        at = init_state
        place = Place(at.tprev, at.tnext, at.y, at.solver_state, at.controller_state, jnp.asarray(at.made_jump))
        place = jax.tree_util.tree_map(jnp.asarray, place)
        return dataclasses.replace(at, controller_state=place), {}


def start_of(problem: IntegrationProblem) -> Place:
    """The place where a solve begins."""
    saveat = diffrax.SaveAt(t1=True, controller_state=True)
    place = solved(problem, KnownFirstStep(*problem.method), saveat, _NoSteps()).controller_state
    assert isinstance(place, Place)
    return place


def stepper_of(problem: IntegrationProblem) -> Stepper:
    controller = KnownFirstStep(*problem.method).wrap(1).controller
    return Stepper(diffrax.ODETerm(vector_field), solver_of(problem, diffrax.ForwardMode()), controller, problem.flow)
