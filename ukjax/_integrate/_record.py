"""The steps of a solve, remembered in little memory: checkpoints, from which the steps between can be run again.

A checkpoint is all that the solve needs to go on from there. There is one after every `stride` accepted steps; when
there is no room for another, the stride doubles, and every other one gives up its place. So no length need be known.
A budget of steps that is never used up costs little: four times as many steps need room for three checkpoints more.

A segment is the steps found at once: `Layout.steps` steps, or those from one checkpoint to the next if these are fewer.
Where every step has a checkpoint, segments are only looked up. Where there are more steps between two checkpoints of
the record, the run that finds a segment leaves finer checkpoints at the ends of the segments that it passes through:
each takes the place of an older one in its layer, of which the last few are kept. From the first segment to the last
every step is run again once; in the other order, once more for each layer.

K: room for checkpoints; F, L: room for finer ones, and for the steps of a segment; number: accepted steps before a
checkpoint, -1 for none.
"""

from typing import NamedTuple, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float, Int, PyTree

from ._flow import IntegrationProblem, vector_field
from ._march import Attempt, Place, Stepper, step_until, where
from ._steps import solver_of, step


# Up to this budget every step has its checkpoint, and none is run twice.
EVERY = 33
# The most steps of a segment, which are found at once.
STEPS = 32
# Each layer of finer checkpoints divides the steps between two of the coarser ones by this.
PARTS = 4

T = TypeVar("T")


class Layout(NamedTuple):
    """Room for checkpoints, for layers of finer ones between them, and for the steps of a segment.

    All steps between two checkpoints fit, at the longest stride that `max_steps` allows. If that stride is 1, the
    checkpoints are `complete`: no step need be run again.
    """

    checkpoints: int
    layers: int
    steps: int
    complete: bool

    @classmethod
    def of(cls, max_steps: int, room: int) -> "Layout":
        if max_steps <= EVERY or max_steps < room:
            return cls(max_steps + 1, 0, min(max_steps, STEPS), True)
        between = 2 ** (max_steps // room).bit_length()
        layers = 0
        while between > STEPS * PARTS**layers:
            layers += 1
        return cls(room, layers, STEPS, False)

    @property
    def finer(self) -> int:
        """The number of places of finer checkpoints; a finer layer needs none where a coarser one has a checkpoint."""
        return (PARTS - 1) * self.layers

    def place(self, part: Array) -> Array:
        """The place of the checkpoint after this many of the finest parts; beyond the last place if it has none."""
        coarser = jnp.array([PARTS**i for i in range(1, self.layers)], part.dtype)
        layer = jnp.sum(part % coarser == 0, dtype=part.dtype)
        within = part // PARTS**layer % PARTS
        return jnp.where((within > 0) & (layer < self.layers), (PARTS - 1) * layer + within - 1, self.finer + 1)


def layout_of(problem: IntegrationProblem) -> Layout:
    return Layout.of(problem.max_steps, problem.room)


class Checkpoint(eqx.Module):
    """A checkpoint, or K of them: time, state, the planned end of the next step, and the memory of the controller."""

    number: Int[Array, "*K"]
    t: Float[Array, "*K"]
    t_next: Float[Array, "*K"]
    y: Float[Array, "*K n"]
    controller: PyTree

    @classmethod
    def here(cls, number: Array, place: Place) -> "Checkpoint":
        return cls(number, *jax.tree_util.tree_map(jnp.asarray, (place.t, place.t_next, place.y, place.controller)))

    def room(self, count: int) -> "Checkpoint":
        """Room for `count` checkpoints like this one, all empty."""
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros((count, *x.shape), x.dtype), self)
        return eqx.tree_at(lambda c: c.number, empty, jnp.full(count, -1, self.number.dtype))

    def put(self, slot: Array, one: "Checkpoint") -> "Checkpoint":
        """A copy with the checkpoint `one` in a slot; a write beyond the last slot is dropped."""

        def put(all, x):
            return all.at[slot].set(x.astype(all.dtype), mode="drop")

        return jax.tree_util.tree_map(put, self, one, is_leaf=_is_written_to)

    def __getitem__(self, slot: Array) -> "Checkpoint":
        return jax.tree_util.tree_map(lambda x: x[slot], self, is_leaf=_is_written_to)


class Record(eqx.Module):
    """K checkpoints of a solve, after every `stride` of `count` accepted steps, the last of which ended at `end`."""

    checkpoints: Checkpoint
    stride: Int[Array, ""]
    count: Int[Array, ""]
    end: Float[Array, ""]

    @classmethod
    def start(cls, place: Place, layout: Layout) -> "Record":
        zero = jnp.zeros((), int)
        here = Checkpoint.here(zero, place)
        room = here.room(layout.checkpoints)
        return cls(room.put(zero, here), zero + 1, zero, place.t)

    @property
    def room(self) -> int:
        return self.checkpoints.number.shape[0]

    def after(self, keep: Array, place: Place) -> "Record":
        """The record after a step that led to a place, if the step is kept."""
        count = self.count + keep.astype(self.count.dtype)
        due = keep & (count % self.stride == 0)
        # This checkpoint is due at twice the stride too, for the room is even.
        full = due & (count == self.room * self.stride)
        stride = jnp.where(full, 2 * self.stride, self.stride)
        slot = jnp.where(due, self.slot(count), self.room)  # beyond the last: nowhere
        checkpoints = self.checkpoints.put(slot, Checkpoint.here(count, place))
        return Record(checkpoints, stride, count, jnp.where(keep, place.t, self.end))

    def slot(self, number: Array) -> Array:
        """The slot of the checkpoint that has this many steps before it.

        The first K lie in order. At a stride of 2 h, number h K + 2 h i takes the place of h + 2 h i, which is given up
        then, and may itself have taken that of another.
        """

        def given_up(number):
            # h is the largest power of two with h K <= number.
            of, bits = number // self.room, jnp.iinfo(number.dtype).bits
            return number - (self.room - 1) * (1 << (bits - 1 - jax.lax.clz(of)))

        return jax.lax.while_loop(lambda number: number >= self.room, given_up, number)


def written(record: Record | None) -> Checkpoint | None:
    """The arrays of a record that are written to in one place at a time, which spares a loop over a batch copies."""
    return None if record is None else record.checkpoints


def _is_written_to(x: object) -> bool:
    # Within a loop that writes to an array, the wrapper of equinox around it would be taken for a tree.
    return hasattr(x, "at")


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
    start = where(nearer, fine, coarse)
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

    def near(t: Array, t_next: Array) -> Array:
        return jnp.where(end - t_next < 1e-3 * (t_next - t), end, t_next)

    def enough(notes: _Notes) -> Array:
        return ~segment.known & (notes.number >= segment.following)

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
    _, notes, *_ = step_until(
        stepper, at, end, problem.max_steps, lambda at, *_: near(at.t, at.t_next), note, notes, _written, enough
    )
    # Where rounding has made one more step of it than there is room for, the last one goes on to the end.
    last = jnp.minimum(notes.number - segment.number, room - 1)
    ended = jnp.where(segment.known, end, notes.times[last])
    return notes._replace(times=notes.times.at[last].set(ended))


def _smooth(problem: IntegrationProblem, tried: Attempt, y: Array) -> Array:
    """The state after a step, if it is kept, as a differentiable function of the state before it."""
    return jax.lax.cond(tried.keep, lambda y: step(problem, *tried.span, y, problem.flow)[0], lambda y: y, y)


def _written(notes: _Notes) -> PyTree:
    return notes.times, notes.states, notes.finer


def _constant(tree: T) -> T:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
