"""The steps of a solve, remembered in little memory: checkpoints, and the steps between two of them run again.

A checkpoint is all that the solve needs to go on from there. There is one after every `stride` accepted steps; when
there is no room for another, the stride doubles, and every other one gives up its place. So no length need be known,
and up to `CAPACITY` steps nothing is run twice.

K: room for checkpoints; number: accepted steps before a checkpoint, -1 for none; L: steps between two checkpoints.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int, PyTree

from ._flow import Problem, call
from ._march import Place, Stepper, march
from ._projecting import solver_of


CAPACITY = 256


class Checkpoint(eqx.Module):
    """A place to go on from, or K of them: time, state, where the next step was to end, and the controller's memory."""

    number: Int[Array, "*K"]
    t: Float[Array, "*K"]
    t_next: Float[Array, "*K"]
    y: Float[Array, "*K n"]
    controller: PyTree


class Record(eqx.Module):
    """K checkpoints of a solve, after every `stride` of `count` accepted steps, the last of which ended at `end`."""

    checkpoints: Checkpoint
    stride: Int[Array, ""]
    count: Int[Array, ""]
    end: Float[Array, ""]

    @property
    def segments(self) -> Array:
        """How many stretches of steps there are from one checkpoint to the next, or to the end."""
        return -(-self.count // self.stride)

    def slot(self, segment: Array) -> Array:
        """Where the checkpoint lies at which a segment starts."""
        return jnp.argmax(self.checkpoints.number == segment * self.stride)


class Segment(eqx.Module):
    """The steps from a checkpoint on: between `times` (L + 1,) and `states` (L + 1, n), of which `count` + 1 count."""

    slot: Int[Array, ""]
    times: Float[Array, " _"]
    states: Float[Array, "_ n"]
    count: Int[Array, ""]


class Recording(diffrax.AbstractStepSizeController):
    """A step size controller that keeps a `Record` of what it accepts, in its state."""

    controller: diffrax.AbstractStepSizeController
    max_steps: int = eqx.field(static=True)

    def wrap(self, direction):
        return Recording(self.controller.wrap(direction), self.max_steps)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t_next, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        room = min(CAPACITY, 2 * (self.max_steps // 2 + 1))  # even, for every other one to be given up
        zero = jnp.zeros((), int)
        here = _checkpoint(zero, t0, t_next, y0, state)
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros((room, *x.shape), x.dtype), here)
        empty = eqx.tree_at(lambda c: c.number, empty, jnp.full(room, -1))
        start = jax.tree_util.tree_map(lambda all, x: all.at[0].set(x), empty, here)
        return t_next, (state, Record(start, zero + 1, zero, jnp.asarray(t0)))

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        state, record = controller_state
        keep, t, t_next, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, state
        )
        record = _continued(record, jnp.asarray(keep), t, t_next, y1_candidate, state)
        return keep, t, t_next, jumped, (state, record), result


def longest(max_steps: int) -> int:
    """L, which no segment exceeds: the stride last doubled when every place was taken."""
    return 1 if max_steps < CAPACITY else 2 * -(-max_steps // CAPACITY)


def segment_of(problem: Problem, record: Record, index: Array) -> Segment:
    """The steps of a segment, run again unless they are a single one. Without derivative: step sizes are constants."""
    problem, record = _constant((problem, record))
    room = longest(problem.max_steps)
    # Under jax.vmap a solve with few segments is asked for more while others are not done: nothing is run for it.
    wanted = (index >= 0) & (index < record.segments)
    index = jnp.clip(index, 0, jnp.maximum(record.segments - 1, 0))
    slot = record.slot(index)
    following = record.slot(jnp.minimum(index + 1, record.segments - 1))
    end = jnp.where(index + 1 < record.segments, record.checkpoints.t[following], record.end)
    start = jax.tree_util.tree_map(lambda x: x[slot], record.checkpoints)
    one = jnp.ones((), record.count.dtype)
    times = jnp.full(room + 1, end).at[0].set(start.t)
    states = jnp.zeros((room + 1, *start.y.shape), start.y.dtype).at[0].set(start.y)
    if room == 1:
        return Segment(slot, times, states, one)

    def again(carry):
        todo, times, states, _ = carry
        times, states, count = _run_again(problem, start, jnp.where(todo, end, start.t), times, states)
        count = jnp.clip(count, 1, room).astype(one.dtype)
        return jnp.asarray(False), times.at[count].set(end), states, count

    # Once or not at all: unlike that of a conditional, the body of a loop is left out under jax.vmap too.
    todo = wanted & (record.stride > 1)
    _, times, states, count = jax.lax.while_loop(lambda carry: carry[0], again, (todo, times, states, one))
    return Segment(slot, times, states, count)


def _run_again(
    problem: Problem, start: Checkpoint, end: Array, times: Array, states: Array
) -> tuple[Array, Array, Array]:
    """Where and when the steps from a checkpoint on end, and how many there are.

    The stage that a method hands on to its next step is evaluated anew, which may change a digit of rounding in the
    step sizes; so a step that ends near enough to the end of the segment is taken to end there.
    """
    flow, term = problem.flow, diffrax.ODETerm(call)
    solver = solver_of(problem, diffrax.ForwardMode())
    memory = solver.init(term, start.t, start.t_next, start.y, flow)
    near = lambda t, t_next: jnp.where(end - t_next < 1e-3 * (t_next - t), end, t_next)

    def note(notes, at, tried):
        times, states, count = notes
        count = count + tried.keep.astype(count.dtype)
        place = jnp.where(tried.keep, count, times.shape[0])
        return times.at[place].set(at.t, mode="drop"), states.at[place].set(at.y, mode="drop"), count

    at = Place(start.t, near(start.t, start.t_next), start.y, memory, start.controller, jnp.asarray(False))
    stepper = Stepper(term, solver, problem.method[0], flow)
    clip = lambda at, _: near(at.t, at.t_next)
    notes = times, states, jnp.zeros((), int)
    _, notes, *_ = march(stepper, at, end, problem.max_steps, clip, note, notes, lambda _: ())
    return notes


def _continued(record: Record, keep: Array, t: Any, t_next: Any, y: Any, state: PyTree) -> Record:
    """The record after a step that ended at t with y, if it is one to keep."""
    count = record.count + keep.astype(record.count.dtype)
    number = record.checkpoints.number
    in_use = lambda stride: (number >= 0) & (number % stride == 0)
    due = lambda stride: keep & (count % stride == 0)
    full = due(record.stride) & jnp.all(in_use(record.stride))
    stride = jnp.where(full, 2 * record.stride, record.stride)
    slot = jnp.where(due(stride), jnp.argmin(in_use(stride)), number.shape[0])  # beyond the last: nowhere
    here = _checkpoint(count, t, t_next, y, state)
    put = lambda all, x: all.at[slot].set(x.astype(all.dtype), mode="drop")
    return Record(jax.tree_util.tree_map(put, record.checkpoints, here), stride, count, jnp.where(keep, t, record.end))


def _checkpoint(number: Array, t: Any, t_next: Any, y: Array, state: PyTree) -> Checkpoint:
    return Checkpoint(number, *jax.tree_util.tree_map(jnp.asarray, (t, t_next, y, state)))


def _constant(tree: PyTree) -> Any:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
