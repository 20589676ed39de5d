"""The steps between two checkpoints, found again by running them.

A segment is the steps found at once: `Layout.steps` steps, or those from one checkpoint to the next if these are fewer.
Where every step has a checkpoint, segments are only looked up. Where there are more steps between two checkpoints of
the record, the run that finds a segment leaves finer checkpoints at the ends of the segments that it passes through:
each takes the place of an older one in its layer, of which the last few are kept. From the first segment to the last
every step is run again once; in the other order, once more for each layer.

F, L: room for finer checkpoints and for the steps of a segment.
"""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int, PyTree

from ._flow import IntegrationProblem, vector_field
from ._march import Attempt, Place, Stepper, step_until
from ._record import Checkpoint, Record, layout_of
from ._steps import step
from ._variants import solver_of


class Segment(eqx.Module):
    """The steps from a checkpoint on: between `times` (L + 1,) and `states` (L + 1, n), of which `count` + 1 count.

    `slots`: the slots of the record with their checkpoints (L + 1,); beyond its last slot where it has none.
    """

    slots: Int[Array, " _"]
    times: Float[Array, " _"]
    states: Float[Array, "_ n"]
    count: Int[Array, ""]


class _Notes(NamedTuple):
    """The notes of a run: ends of steps, finer checkpoints, steps since the start of the solve, and the state."""

    times: Array
    states: Array
    finer: Checkpoint
    number: Array
    y: Array


class _Wanted(NamedTuple):
    """The number of steps before a segment, its length, the number of steps before its end, and the time of its end.

    If the time of its end is not `known`, `end` is the time of the next checkpoint of the record.
    """

    number: Array
    length: Array
    following: Array
    end: Array
    known: Array


def length_of(problem: IntegrationProblem, record: Record) -> Array:
    """The number of steps of a segment, except the last one."""
    steps = layout_of(problem).steps
    return jnp.where(record.stride == 1, steps, jnp.minimum(record.stride, steps)).astype(record.count.dtype)


def segments_of(problem: IntegrationProblem, record: Record) -> Array:
    """The number of segments, of which the last ones may be empty.

    Then, from the last to the first, all systems of a batch come to their checkpoints, where there is more to run, at
    the same time.
    """
    length = length_of(problem, record)
    longest = jnp.maximum(record.stride, length)  # the steps between two checkpoints, or those looked up at once
    return -(-record.count // longest) * (longest // length)


def finer_of(problem: IntegrationProblem, record: Record) -> Checkpoint:
    """Room for finer checkpoints, for one at least, so that no array is empty."""
    return record.checkpoints[jnp.zeros((), int)].room(max(1, layout_of(problem).finer))


def segment_of(
    problem: IntegrationProblem, record: Record, finer: Checkpoint, index: Array, smooth: bool = False
) -> tuple[Segment, Checkpoint]:
    """Finds the steps of a segment; returns it, and the finer checkpoints left behind. Step sizes are constants.

    The states have a derivative only if `smooth`, which takes another run through the steps: they are then functions of
    the checkpoints of the record, and of the problem.
    """
    layout, live = layout_of(problem), (problem, record)
    problem, record = _constant(live)
    length = length_of(problem, record)
    # Under jax.vmap a solve with few segments gets an index beyond them while others are not done: nothing is run then.
    wanted = (index >= 0) & (index * length < record.count)
    index = jnp.clip(index, 0, jnp.maximum(record.count - 1, 0) // length)
    number = index * length
    slot = record.slot(number // record.stride * record.stride)
    place = jnp.argmax(jnp.where(finer.number[:] <= number, finer.number[:], -1))
    coarse, fine = record.checkpoints[slot], _constant(finer[place])
    nearer = (coarse.number < fine.number) & (fine.number <= number)
    start = _where(nearer, fine, coarse)
    y = start.y
    if smooth:
        y = jnp.where(nearer, finer.y[place], live[1].checkpoints.y[slot])
    segment = _segment(record, finer, coarse.number, number, length)
    every = record.stride == 1
    ends = number + jnp.arange(layout.steps + 1, dtype=number.dtype)
    recorded = (every | (ends == coarse.number)) & (ends <= record.count)
    slots = jnp.where(recorded, jnp.where(every, ends, slot), record.room)
    known = live[1] if smooth else record
    # A system of a batch that waits for others is evaluated even where it has no step: at its start, so that it causes
    # no work that no other system needs.
    there = slots < record.room
    times = jnp.where(there, record.checkpoints.t[slots], start.t)
    states = jnp.where(there[:, None], known.checkpoints.y[slots], start.y)
    count = jnp.where(wanted, segment.following - number, 0)
    if layout.complete:
        return Segment(slots, times, states, count), finer
    times, states = times.at[0].set(start.t), states.at[0].set(y)
    # A loop of at most one pass: under jax.vmap a conditional runs both branches, but a loop can skip its body.
    todo = wanted & ~every
    notes = _Notes(times, states, finer, start.number, y)

    def again(carry):
        _, notes = carry
        return jnp.asarray(False), _run_again(problem, live[0] if smooth else None, start, segment, notes)

    _, notes = eqxi.while_loop(
        lambda carry: carry[0], again, (todo, notes), kind="lax", buffers=lambda c: _written(c[1])
    )
    count = jnp.minimum(jnp.where(todo, notes.number - number, count), layout.steps)
    return Segment(slots, notes.times, notes.states, count), notes.finer


def _segment(record: Record, finer: Checkpoint, before: Array, number: Array, length: Array) -> _Wanted:
    """The data of a segment, given the number of the record's checkpoint `before` it, and its own number."""
    next_recorded = jnp.minimum(before + record.stride, record.count)
    end = jnp.where(next_recorded < record.count, record.checkpoints.t[record.slot(next_recorded)], record.end)
    following = jnp.minimum(number + length, record.count)
    fine = _constant(finer[jnp.argmax(finer.number[:] == following)])
    found = (following < next_recorded) & (fine.number == following)
    return _Wanted(number, length, following, jnp.where(found, fine.t, end), found | (following == next_recorded))


def _run_again(
    problem: IntegrationProblem, smooth: IntegrationProblem | None, start: Checkpoint, segment: _Wanted, notes: _Notes
) -> _Notes:
    """Runs the steps from a checkpoint to the end of the segment, and notes their times and states.

    The stage that a method hands on to its next step is evaluated anew, which may change a digit of rounding in the
    step sizes; so a step that ends near enough to the end of the segment is taken to end there.
    """
    flow, term = problem.flow, diffrax.ODETerm(vector_field)
    solver = solver_of(problem, diffrax.ForwardMode())
    memory = solver.init(term, start.t, start.t_next, start.y, flow)
    end, room, layout = segment.end, notes.times.shape[0], layout_of(problem)
    near = lambda t, t_next: jnp.where(end - t_next < 1e-3 * (t_next - t), end, t_next)

    def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
        number = notes.number + tried.keep.astype(notes.number.dtype)
        y = at.y if smooth is None else _smooth(smooth, tried, notes.y)
        since = number - segment.number
        place = jnp.where(tried.keep & (since >= 0), since, room)  # beyond the last: nowhere
        times, states = notes.times.at[place].set(at.t, mode="drop"), notes.states.at[place].set(y, mode="drop")
        passed = tried.keep & (number % segment.length == 0)
        slot = jnp.where(passed, layout.place(number // segment.length), layout.finer + 1)
        here = Checkpoint.here(number, Place(at.t, at.t_next, y, None, at.controller, at.jumped))
        return _Notes(times, states, notes.finer.put(slot, here), number, y)

    at = Place(start.t, near(start.t, start.t_next), start.y, memory, start.controller, jnp.asarray(False))
    stepper = Stepper(term, solver, problem.method[0], flow)
    clip = lambda at, _: near(at.t, at.t_next)
    enough = lambda notes: ~segment.known & (notes.number >= segment.following)
    _, notes, *_ = step_until(stepper, at, end, problem.max_steps, clip, note, notes, _written, enough)
    # Where rounding has made one more step of it than there is room for, the last one goes on to the end.
    last = jnp.minimum(notes.number - segment.number, room - 1)
    ended = jnp.where(segment.known, end, notes.times[last])
    return notes._replace(times=notes.times.at[last].set(ended))


def _smooth(problem: IntegrationProblem, tried: Attempt, y: Array) -> Array:
    """The state after a step, if it is kept, as a differentiable function of the state before it."""
    taken = lambda y: step(problem, *tried.span, y, problem.flow)[0]
    return jax.lax.cond(tried.keep, taken, lambda y: y, y)


def _written(notes: _Notes) -> Any:
    return notes.times, notes.states, notes.finer


def _where(condition: Array, a: PyTree, b: PyTree) -> Any:
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), a, b)


def _constant(tree: PyTree) -> Any:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
