"""The loop of a solve over its steps, in place of diffrax's.

`diffrax.diffeqsolve` prepares a solve and hands it to the loop of its adjoint, which may be a class of our own.
diffrax's loops do more than is needed here (events, dense output, a second trace to find what is static), and count a
hundred floating point numbers back from the end, one after the other. That takes long to compile.
"""

import dataclasses
from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ._march import Attempt, Place, Stepper, before_end, step_until
from ._record import Layout, Record, written
from ._unchecked import KnownFirstStep


class _Notes(eqx.Module):
    """The states saved so far, the index of the next, the accepted steps, their record, the progress meter's state."""

    ys: Any  # (T, n); within a loop equinox wraps it
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
        self, *, terms: Any, solver: Any, stepsize_controller: Any, args: Any, init_state: Any,
        t0: Any, t1: Any, max_steps: Any, progress_meter: Any, **others: Any,
    ) -> Any:  # fmt: skip
        first, ts = init_state, self.ts
        controller = stepsize_controller
        controller = controller.controller if isinstance(controller, KnownFirstStep) else controller
        stepper = Stepper(terms, solver, controller, args)
        start = Place(
            first.tprev, first.tnext, first.y, first.solver_state, first.controller_state, jnp.asarray(first.made_jump)
        )
        clip = lambda at, tried: before_end(at, tried, t1)

        def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
            (begin, end), count = tried.span, ts.shape[0]
            interpolant = solver.interpolation_cls(t0=begin, t1=end, **tried.dense)
            due = lambda inner: tried.keep & (inner[0] < count) & (ts[inner[0]] <= end)
            save = lambda inner: (inner[0] + 1, inner[1].at[inner[0]].set(interpolant.evaluate(ts[inner[0]])))
            inner = notes.following, notes.ys
            j, ys = eqxi.while_loop(due, save, inner, kind="lax", buffers=lambda inner: inner[1])
            part = (at.t - t0) / jnp.where(t1 > t0, t1 - t0, 1)
            record = None if notes.record is None else notes.record.after(tried.keep, at)
            accepted = notes.accepted + tried.keep.astype(int)
            return _Notes(ys, j, accepted, record, progress_meter.step(notes.meter, part))

        zero = jnp.zeros((), int)
        ys = jnp.full((ts.shape[0], *first.y.shape), jnp.inf, first.y.dtype)
        record = Record.start(start, self.layout) if self.layout else None
        notes = _Notes(ys, zero, zero, record, first.progress_meter_state)
        buffers = lambda notes: (notes.ys, written(notes.record))
        at, notes, result, tries = step_until(stepper, start, t1, max_steps, clip, note, notes, buffers)
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
