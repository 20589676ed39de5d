"""The steps between two checkpoints of a record, found again: segments.

A segment is the steps found at once: `Layout.steps` steps, or those from one checkpoint to the next if these are fewer.
Where every step has a checkpoint, segments are only looked up. Where there are more steps between two checkpoints of
the record, the run that finds a segment leaves finer checkpoints at the ends of the segments that it passes through:
each takes the place of an older one in its layer, of which the last few are kept. From the first segment to the last
every step is run again once; in the other order, once more for each layer.

F, L: room for finer checkpoints, and for the steps of a segment; number: accepted steps before a checkpoint.
"""

from typing import NamedTuple, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import stop_gradient
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _expand
from .._lowering import runs_machine_code
from ._march import Attempt, IntegrationProblem, Place, Stepper, step_until, vector_field, where
from ._record import Checkpoint, Record, layout_of
from ._run import attempted
from ._steps import solver_of, staged, step, written_out


T = TypeVar("T")


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
    return lax.div(record.count + longest - 1, longest) * lax.div(longest, length)


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
    index = jnp.clip(index, 0, lax.div(jnp.maximum(record.count - 1, 0), length))
    number = index * length
    slot = record.slot(number & -record.stride)  # the stride is a power of two
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
    notes = _Notes(times, states, finer, start.number, y)
    todo = wanted & ~every
    if smooth or not _may_be_one(problem):
        found = _run_again(problem, live[0] if smooth else None, todo, start, segment, notes)
    else:
        found = _run_again_as_one(problem, todo, start, segment, notes)
    count = jnp.minimum(jnp.where(todo, found.number - number, count), layout.steps)
    return Segment(slots, found.times, found.states, count), found.finer


def _segment(record: Record, finer: Checkpoint, before: Array, number: Array, length: Array) -> _Wanted:
    """The data of a segment, given the number of the record's checkpoint `before` it, and its own number."""
    next_recorded = jnp.minimum(before + record.stride, record.count)
    end = jnp.where(next_recorded < record.count, record.checkpoints.t[record.slot(next_recorded)], record.end)
    following = jnp.minimum(number + length, record.count)
    fine = _constant(finer[jnp.argmax(finer.number[:] == following)])
    found = (following < next_recorded) & (fine.number == following)
    return _Wanted(number, length, following, jnp.where(found, fine.t, end), found | (following == next_recorded))


def _near(end: Array, t: Array, t_next: Array) -> Array:
    """The end of a step, which is that of the segment if it is near enough to it.

    The stage that a method hands on to its next step is evaluated anew where steps are run again, which may change a
    digit of rounding in the step sizes.
    """
    return jnp.where(end - t_next < 1e-3 * (t_next - t), end, t_next)


def _ended(segment: _Wanted, notes: _Notes) -> _Notes:
    """The notes with the end of the segment, where rounding has made one more step of it than there is room for."""
    last = jnp.minimum(notes.number - segment.number, notes.times.shape[0] - 1)
    ended = jnp.where(segment.known, segment.end, notes.times[last])
    return notes._replace(times=notes.times.at[last].set(ended))


class _Slots(NamedTuple):
    """The places of notes after a step: of its end in the segment, and of a finer checkpoint; none beyond the last."""

    number: Array
    since: Array
    finer: Array

    @classmethod
    def after(cls, problem: IntegrationProblem, segment: _Wanted, number: Array, keep: Array) -> "_Slots":
        layout = layout_of(problem)
        number = number + keep.astype(number.dtype)
        since = number - segment.number
        # The length is a power of two.
        passed = keep & (number & (segment.length - 1) == 0)
        room = layout.steps + 1
        place = layout.place(lax.div(number, segment.length))
        return cls(number, jnp.where(keep & (since >= 0), since, room), jnp.where(passed, place, layout.finer + 1))


def _run_again(
    problem: IntegrationProblem,
    smooth: IntegrationProblem | None,
    wanted: Array,
    start: Checkpoint,
    segment: _Wanted,
    notes: _Notes,
) -> _Notes:
    """Runs the steps from a checkpoint to the end of the segment, if it is `wanted`, and notes where they end."""
    flow, term = problem.flow, diffrax.ODETerm(vector_field)
    solver = solver_of(problem, diffrax.ForwardMode())
    memory = solver.init(term, start.t, start.t_next, start.y, flow)
    end = segment.end

    def enough(notes: _Notes) -> Array:
        return ~segment.known & (notes.number >= segment.following)

    def note(notes: _Notes, at: Place, tried: Attempt) -> _Notes:
        y = at.y if smooth is None else _smooth(smooth, tried, notes.y)
        number, place, slot = _Slots.after(problem, segment, notes.number, tried.keep)
        times, states = notes.times.at[place].set(at.t, mode="drop"), notes.states.at[place].set(y, mode="drop")
        here = Checkpoint.here(number, Place(at.t, at.t_next, y, None, at.controller, at.jumped))
        return _Notes(times, states, notes.finer.put(slot, here), number, y)

    first = _near(end, start.t, start.t_next)
    at = Place(start.t, first, start.y, memory, start.controller, jnp.asarray(False))
    stepper, most = Stepper(term, solver, problem.method[0], flow), problem.max_steps

    def near(at: Place, *_: object) -> Array:
        return _near(end, at.t, at.t_next)

    # A loop of at most one pass: under jax.vmap a conditional runs both branches, but a loop can skip its body.
    def once(carry: tuple[Array, _Notes]) -> tuple[Array, _Notes]:
        _, notes = carry
        _, notes, *_ = step_until(stepper, at, end, most, near, note, notes, _written, enough)
        return jnp.asarray(False), _ended(segment, notes)

    carry = wanted, notes
    return eqxi.while_loop(lambda carry: carry[0], once, carry, kind="lax", buffers=lambda c: _written(c[1]))[1]


class _Again(eqx.Module):
    """The steps of a segment under way; `going` and `waits` as of `Member`."""

    place: Place
    slots: _Slots
    tries: Int[Array, ""]
    kept: Bool[Array, ""]
    goes: Bool[Array, ""]
    waits: Bool[Array, ""]

    def checkpoint(self) -> tuple[PyTree, ...]:
        return self.slots.number, self.place.t, self.place.t_next, self.place.y, self.place.controller


class _StepsAgain(eqx.Module):
    """The functions of a step that is run again, for a `ScalarLoop`; `static`: what of the problem is no array."""

    static: IntegrationProblem

    def step(self, at: _Again, given: PyTree, row: PyTree) -> tuple[PyTree, ...]:
        new = self._made(written_out(eqx.combine(given[0], self.static)), given[1], at)
        stays = eqx.tree_at(lambda x: (x.goes, x.waits), at, (jnp.zeros_like(at.goes), jnp.ones_like(at.waits)))
        return new, stays, (), (), jnp.asarray(False), jnp.asarray(True)

    def sure(self, at: _Again, given: PyTree, row: PyTree) -> tuple[_Again, tuple[tuple[()], tuple[()]]]:
        return self._made(staged(eqx.combine(given[0], self.static)), given[1], at), ((), ())

    def _made(self, problem: IntegrationProblem, segment: _Wanted, at: _Again) -> _Again:
        place, tried, begun = attempted(problem, at.place)
        end = segment.end
        t, t_next = jnp.minimum(place.t, end), _near(end, place.t, place.t_next)
        place = eqx.tree_at(lambda x: (x.t, x.t_next), place, (t, t_next))
        slots, tries = _Slots.after(problem, segment, at.slots.number, tried.keep), at.tries + 1
        enough = ~segment.known & (slots.number >= segment.following)
        goes = (t < end) & (tried.result == diffrax.RESULTS.successful) & (tries < problem.max_steps) & ~enough
        return begun.instead_of(_Again(place, slots, tries, tried.keep, goes, jnp.zeros_like(at.waits)), at)


def _may_be_one(problem: IntegrationProblem) -> bool:
    """Whether steps that are run again may be one operation."""
    return isinstance(problem.solver, diffrax.AbstractERK) and problem.flow.leap is None and runs_machine_code()


def _run_again_as_one(
    problem: IntegrationProblem, wanted: Array, start: Checkpoint, segment: _Wanted, notes: _Notes
) -> _Notes:
    """The notes of `_run_again` by one operation, which few runs of a single system are so long that they need."""
    arrays, static = eqx.partition(eqx.tree_at(lambda p: p.ts, problem, problem.ts[-1:]), eqx.is_array)

    def again(wanted: Array, given: PyTree, notes: _Notes) -> _Notes:
        arrays, start, segment = given
        try:
            return _by_loop(static, arrays, wanted, start, segment, notes)
        except (_expand.TooLong, _expand.NotScalar):
            return _run_again(eqx.combine(arrays, static), None, wanted, start, segment, notes)

    given = notes._replace(finer=notes.finer.whole())
    found = _expand.deferred(again, wanted, (arrays, start, segment), given)
    return found._replace(finer=notes.finer.with_all(found.finer))


def _by_loop(
    static: IntegrationProblem, arrays: PyTree, wanted: Array, start: Checkpoint, segment: _Wanted, notes: _Notes
) -> _Notes:
    """The notes of `_run_again` by a loop of machine code; raises NotScalar or TooLong if a step is no program."""
    problem: IntegrationProblem = eqx.combine(arrays, static)
    solver = solver_of(problem, diffrax.ForwardMode())
    memory = solver.init(diffrax.ODETerm(vector_field), start.t, start.t_next, start.y, problem.flow)
    first, no = _near(segment.end, start.t, start.t_next), jnp.asarray(False)
    place = Place(start.t, first, start.y, memory, start.controller, no)
    zero, layout = jnp.zeros((), int), layout_of(problem)
    goes = wanted & (start.t < segment.end) & ~(~segment.known & (start.number >= segment.following))
    at = _Again(place, _Slots(start.number, zero, zero), zero, no, goes, no)
    steps = _StepsAgain(static)
    marks = (
        _expand.Marks(lambda x: (x.place.t, x.place.y), lambda x: x.kept, lambda x: x.slots.since, layout.steps + 1),
        _expand.Marks(_Again.checkpoint, lambda x: x.kept, lambda x: x.slots.finer, notes.finer.number.shape[0]),
    )
    repeats = _expand.Repeats(steps.step, steps.sure, lambda x: x.goes, lambda x: x.waits, marks=marks)
    loop = _expand.ScalarLoop(repeats, at, (arrays, segment))
    end = loop(at, (arrays, segment), marked=((notes.times, notes.states), notes.finer.parts))
    (times, states), points = end.marked
    made = _Notes(times, states, Checkpoint(*points), end.state.slots.number, end.state.place.y)
    ended = _ended(segment, made)
    return ended._replace(times=jnp.where(wanted, ended.times, times))


def _smooth(problem: IntegrationProblem, tried: Attempt, y: Array) -> Array:
    """The state after a step, if it is kept, as a differentiable function of the state before it."""
    return jax.lax.cond(tried.keep, lambda y: step(problem, *tried.span, y, problem.flow)[0], lambda y: y, y)


def _written(notes: _Notes) -> PyTree:
    return notes.times, notes.states, notes.finer


def _constant(tree: T) -> T:
    return jax.tree_util.tree_map(lambda x: stop_gradient(x) if eqx.is_inexact_array(x) else x, tree)
