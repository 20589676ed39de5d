"""The loop of a solve: steps are tried, one after the other, until the end.

`diffrax.diffeqsolve` prepares a solve and hands it to the loop of its adjoint, which may be one's own. Its own loops
can do more than is needed here (events, dense output, looking twice what is static), and count a hundred floating point
numbers back from the end, one after the other: together a fifth of what a simulation took to compile.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._unchecked import Starting


class Place(eqx.Module):
    """Where a solve stands: before a step from t to t_next."""

    t: Float[Array, ""]
    t_next: Float[Array, ""]
    y: Float[Array, " n"]
    solver: PyTree
    controller: PyTree
    jumped: Bool[Array, ""]


class Attempt(eqx.Module):
    """What became of a step that was tried over `span`; `dense` is what its interpolant is made of."""

    keep: Bool[Array, ""]
    span: tuple[Array, Array]
    dense: PyTree
    result: Any


class Stepper(eqx.Module):
    """A Runge-Kutta method with its control of the step size."""

    terms: Any
    solver: Any
    controller: Any
    args: Any

    def attempt(self, at: Place) -> tuple[Place, Attempt]:
        solver, span = self.solver, (at.t, at.t_next)
        y, error, dense, memory, result = solver.step(self.terms, *span, at.y, self.args, at.solver, at.jumped)
        # A step into a place where there is no motion is one with an error too large.
        error = jax.tree_util.tree_map(lambda x: jnp.where(jnp.isnan(x), jnp.inf, x), error)
        order = solver.error_order(self.terms)
        keep, t, t_next, jumped, controller, failure = self.controller.adapt_step_size(
            *span, at.y, y, self.args, error, order, at.controller
        )
        keep = jnp.asarray(keep)
        new, old = (y, memory, jnp.asarray(jumped)), (at.y, at.solver, at.jumped)
        y, memory, jumped = jax.tree_util.tree_map(lambda x, y: jnp.where(keep, x, y), new, old)
        okay = diffrax.RESULTS.successful
        result = diffrax.RESULTS.where(keep, result, okay)
        result = diffrax.RESULTS.where(result == okay, failure, result)
        return Place(t, t_next, y, memory, controller, jumped), Attempt(keep, span, dense, result)


def march(
    stepper: Stepper,
    at: Place,
    end: Array,
    max_steps: int,
    clip: Callable[[Place, Attempt], Array],
    note: Callable[[PyTree, Place, Attempt], PyTree],
    notes: PyTree,
    written: Callable[[PyTree], PyTree],
) -> tuple[Place, PyTree, Any, Int[Array, ""]]:
    """Steps from a place to the end: the place reached, what was noted on the way, how it ended, the attempts.

    Args:
        stepper: Makes the steps.
        at: Where to start.
        end: The time to get to.
        max_steps: After how many attempts to give up.
        clip: Where the next step ends, given the place and the attempt that led there.
        note: `notes` after an attempt, and the place that it led to.
        notes: Before the first one.
        written: The arrays in `notes` that are written to once in every place, which spares a batch copies of them.
    """
    okay = diffrax.RESULTS.successful

    def going(carry):
        tries, at, result, _ = carry
        return (at.t < end) & (result == okay) & (tries < max_steps)

    def body(carry):
        tries, at, _, notes = carry
        at, tried = stepper.attempt(at)
        at = eqx.tree_at(lambda at: (at.t, at.t_next), at, (jnp.minimum(at.t, end), clip(at, tried)))
        return tries + 1, at, tried.result, note(notes, at, tried)

    start = jnp.zeros((), int), jax.tree_util.tree_map(jnp.asarray, at), okay, notes
    buffers: Any = lambda carry: written(carry[-1])
    tries, at, result, notes = eqxi.while_loop(going, body, start, kind="lax", buffers=buffers)
    short = (result == okay) & (at.t < end)
    return at, notes, diffrax.RESULTS.where(short, diffrax.RESULTS.max_steps_reached, result), tries


class _Notes(eqx.Module):
    """States saved so far, the number of the next one, accepted steps, and what the progress meter remembers."""

    ys: Any  # (T, n); within a loop equinox wraps it
    following: Int[Array, ""]
    accepted: Int[Array, ""]
    meter: PyTree


class Marching(diffrax.AbstractAdjoint):
    """The loop of a solve that is not differentiated; it saves the states at `ts`, and then the last one.

    Goes with `Starting`, and with `diffrax.SaveAt(t1=True)`, of which it makes the rest.
    """

    ts: Float[Array, " T"]

    def loop(
        self, *, terms: Any, solver: Any, stepsize_controller: Any, args: Any, init_state: Any,
        t0: Any, t1: Any, max_steps: Any, progress_meter: Any, **others: Any,
    ) -> Any:  # fmt: skip
        first, ts = init_state, self.ts
        controller = stepsize_controller
        controller = controller.controller if isinstance(controller, Starting) else controller
        stepper = Stepper(terms, solver, controller, args)
        start = Place(
            first.tprev, first.tnext, first.y, first.solver_state, first.controller_state, jnp.asarray(first.made_jump)
        )
        # As in diffrax: no step is to end so near before the end that the next one has hardly any length.
        near = t1 - 100 * jnp.finfo(t1.dtype).eps * jnp.abs(t1)

        def clip(at: Place, tried: Attempt) -> Array:
            return jnp.where(at.t_next > near, jnp.where(tried.keep, t1, at.t + (t1 - at.t) / 2), at.t_next)

        def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
            (begin, end), count = tried.span, ts.shape[0]
            interpolant = solver.interpolation_cls(t0=begin, t1=end, **tried.dense)
            due = lambda inner: tried.keep & (inner[0] < count) & (ts[inner[0]] <= end)
            save = lambda inner: (inner[0] + 1, inner[1].at[inner[0]].set(interpolant.evaluate(ts[inner[0]])))
            inner = notes.following, notes.ys
            j, ys = eqxi.while_loop(due, save, inner, kind="lax", buffers=lambda inner: inner[1])
            part = (at.t - t0) / jnp.where(t1 > t0, t1 - t0, 1)
            return _Notes(ys, j, notes.accepted + tried.keep.astype(int), progress_meter.step(notes.meter, part))

        zero = jnp.zeros((), int)
        ys = jnp.full((ts.shape[0], *first.y.shape), jnp.inf, first.y.dtype)
        notes = _Notes(ys, zero, zero, first.progress_meter_state)
        at, notes, result, tries = march(stepper, start, t1, max_steps, clip, note, notes, lambda notes: notes.ys)
        times, states = jnp.append(ts, at.t), jnp.concatenate([notes.ys, at.y[None]])
        final = dataclasses.replace(
            first,
            y=at.y,
            tprev=at.t,
            tnext=at.t_next,
            made_jump=at.jumped,
            solver_state=at.solver,
            controller_state=at.controller,
            result=result,
            num_steps=tries,
            num_accepted_steps=notes.accepted,
            num_rejected_steps=tries - notes.accepted,
            save_state=dataclasses.replace(first.save_state, ts=times, ys=states),
            progress_meter_state=notes.meter,
        )
        return final, {}
