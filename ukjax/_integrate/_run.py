"""A solve by an explicit method as one operation: its steps, the control of their size, and the states to save.

On a CPU it is a loop of machine code, in which the field is a routine (`ScalarLoop`). A step that is not certain there
is made the sure way.

T: saved times; n: numbers of a state.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jaxtyping import Array, Bool, Int, PyTree

from .. import _expand
from .._lowering import runs_machine_code
from ._flow import IntegrationProblem, vector_field
from ._march import Place, before_end
from ._record import Checkpoint, Pace, Record, layout_of
from ._solve import start_of, stepper_of
from ._steps import staged, written_out


class Member(eqx.Module):
    """A solve under way, or many.

    Attributes:
        place: Where it is.
        following: The index of the next time to save at.
        tries, accepted: The numbers of steps that were tried, and kept.
        most: The number of tries after which it stops.
        result: How the last step went.
        goes: Whether it goes on.
        waits: Whether a step waits for the sure way.
        pace: That of its record, if there is one.
    """

    place: Place
    following: Int[Array, "..."]
    tries: Int[Array, "..."]
    accepted: Int[Array, "..."]
    most: Int[Array, "..."]
    result: diffrax.RESULTS
    goes: Bool[Array, "..."]
    waits: Bool[Array, "..."]
    pace: Pace | None = None

    @classmethod
    def at(cls, place: Place, end: Array, most: int, pace: Pace | None = None) -> "Member":
        """The solve that begins at a place."""
        zero, no = jnp.zeros((), int), jnp.asarray(False)
        return cls(place, zero, zero, zero, zero + most, diffrax.RESULTS.successful, place.t < end, no, pace)

    def going(self, end: Array) -> Bool[Array, "..."]:
        """Whether a solve to `end` goes on."""
        return (self.place.t < end) & (self.result == diffrax.RESULTS.successful) & (self.tries < self.most)


# (whether the step was kept), ((its span), the data of its interpolant)
Findings = tuple[Array, tuple[tuple[Array, Array], PyTree]]


class Steps(eqx.Module):
    """The functions of a step of a solve, for a `ScalarLoop`; `static`: what of the problem is no array."""

    static: IntegrationProblem
    interpolant: Callable[..., diffrax.AbstractLocalInterpolation]

    @classmethod
    def of(cls, problem: IntegrationProblem) -> "tuple[PyTree, Steps]":
        """The arrays of a problem, and its steps; raises NotScalar if they cannot be machine code here."""
        if not isinstance(problem.solver, diffrax.AbstractERK) or not runs_machine_code():
            raise _expand.NotScalar("a method that is not explicit, or no machine code")
        arrays, static = eqx.partition(problem, eqx.is_array)
        return arrays, cls(static, problem.solver.interpolation_cls)

    def step(self, at: Member, arrays: PyTree, row: PyTree) -> tuple[PyTree, ...]:
        """Makes a step of a solve that goes on."""
        new, (kept, rest) = self._made(written_out(eqx.combine(arrays, self.static)), at)
        stays = eqx.tree_at(lambda x: (x.goes, x.waits), at, (jnp.zeros_like(at.goes), jnp.ones_like(at.waits)))
        # The first stage is not known where a solve has just begun.
        first = at.place.solver[0] if at.place.solver is not None else jnp.zeros_like(at.goes)
        return new, stays, kept, rest, first, jnp.asarray(True)

    def sure(self, at: Member, arrays: PyTree, row: PyTree) -> tuple[Member, Findings]:
        """Makes a step that waits."""
        return self._made(staged(eqx.combine(arrays, self.static)), at)

    def _made(self, problem: IntegrationProblem, at: Member) -> tuple[Member, Findings]:
        place, tried = stepper_of(problem).attempt(at.place)
        end = problem.ts[-1]
        t, t_next = jnp.minimum(place.t, end), before_end(place, tried, end)
        place = eqx.tree_at(lambda x: (x.t, x.t_next), place, (t, t_next))
        tries, accepted = at.tries + 1, at.accepted + tried.keep.astype(at.accepted.dtype)
        pace, no = None if at.pace is None else at.pace.after(tried.keep, t), jnp.zeros_like(at.waits)
        new = Member(place, at.following, tries, accepted, at.most, tried.result, no, no, pace)
        new = eqx.tree_at(lambda x: x.goes, new, new.going(end))
        return new, (tried.keep, (tried.span, tried.dense))

    def due(self, found: Findings, t: Array) -> Array:
        kept, (span, _) = found
        return kept & (t <= span[1])

    def look(self, found: Findings, t: Array) -> Array:
        _, (span, dense) = found
        return self.interpolant(t0=span[0], t1=span[1], **dense).evaluate(t)

    def loop(self, at: Member, arrays: PyTree, times: Array, recorded: bool = False) -> "_expand.ScalarLoop":
        """The loop; raises NotScalar or TooLong if a step is no scalar program."""
        saves = _expand.Saves(self.due, self.look, lambda x: x.following)
        marks = (_expand.Marks(_here, _is_due, _slot, at.pace.room),) if recorded and at.pace is not None else ()
        repeats = _expand.Repeats(
            self.step, self.sure, lambda x: x.goes, lambda x: x.waits, saves, marks=marks,
            cost=None if at.place.solver is None else lambda x: pace_of(x.place.solver[1], x.place.y),
        )  # fmt: skip
        return _expand.ScalarLoop(repeats, at, arrays, times=ShapedArray(times.shape, times.dtype))


def pace_of(field: Array, y: Array) -> Array:
    """The speed of a state, by the norm of a method with equal tolerances; it correlates with the number of steps."""
    return jnp.sqrt(jnp.mean((field / (1 + jnp.abs(y))) ** 2))


def _here(at: Member) -> tuple[PyTree, ...]:
    """The leaves of a checkpoint."""
    assert at.pace is not None
    return at.pace.count, at.place.t, at.place.t_next, at.place.y, at.place.controller


def _is_due(at: Member) -> Any:
    assert at.pace is not None
    return at.pace.due


def _slot(at: Member) -> Any:
    assert at.pace is not None
    return at.pace.slot


def with_first_stage(problem: IntegrationProblem, place: Place) -> Place:
    """The place where a solve begins, with the field there if the method hands on its last stage."""
    if not isinstance(problem.solver, diffrax.AbstractERK) or place.solver is None:
        return place
    first = vector_field(place.t, place.y, problem.flow)
    return eqx.tree_at(lambda p: p.solver, place, (jnp.asarray(False), first))


class Begun(eqx.Module):
    """The begin of a solve: its first place."""

    place: Place
    goes: Bool[Array, "..."]
    waits: Bool[Array, "..."]

    @classmethod
    def of(cls, problem: IntegrationProblem) -> "Begun":
        place, no = start_of(problem), jnp.asarray(False)
        return cls(with_first_stage(problem, place), no, no)


class Begins(eqx.Module):
    """The functions of a begin, for a `ScalarLoop`; `static`: what of the problem is no array."""

    static: IntegrationProblem

    def step(self, at: Begun, arrays: PyTree, row: PyTree) -> tuple[PyTree, ...]:
        waits = eqx.tree_at(lambda x: (x.goes, x.waits), at, (jnp.zeros_like(at.goes), jnp.ones_like(at.waits)))
        return self._made(arrays), waits, (), (), jnp.asarray(False), jnp.asarray(True)

    def sure(self, at: Begun, arrays: PyTree, row: PyTree) -> tuple[Begun, tuple[tuple[()], tuple[()]]]:
        return self._made(arrays), ((), ())

    def _made(self, arrays: PyTree) -> Begun:
        return Begun.of(eqx.combine(arrays, self.static))


def first_place(problem: IntegrationProblem) -> Place:
    """The place where a solve begins, with its first stage if a method hands on its last one.

    Where there is machine code it is a loop of one turn, so that one solve and many begin with the same bits.
    """
    ends = eqx.tree_at(lambda p: p.ts, problem, problem.ts[jnp.array([0, -1])])
    try:
        arrays, steps = Steps.of(ends)
        begins = Begins(steps.static)
        kinds = jax.eval_shape(lambda: Begun.of(ends))
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), kinds)
        at = eqx.tree_at(lambda x: x.goes, empty, jnp.asarray(True))
        repeats = _expand.Repeats(begins.step, begins.sure, lambda x: x.goes, lambda x: x.waits)
        return _expand.ScalarLoop(repeats, at, arrays)(at, arrays).state.place
    except (_expand.TooLong, _expand.NotScalar):
        return Begun.of(problem).place


# Steps between two looks at how far a solve is.
PORTION = 100


def run(
    problem: IntegrationProblem,
    recorded: bool = False,
    due: Array | bool = True,
    progress: diffrax.AbstractProgressMeter = diffrax.NoProgressMeter(),
) -> tuple[Array, Member, Record | None] | None:
    """The states (T, n) at the saved times, inf where it does not get, the end of a solve, and its record if wanted.

    None if it is not possible. `due`: whether any step is to be made.
    """
    ts = problem.ts
    try:
        arrays, steps = Steps.of(eqx.tree_at(lambda p: p.ts, problem, ts[-1:]))
        place = first_place(problem)
        record = Record.start(place, layout_of(problem), problem.max_steps)
        # A run that is not recorded has the same step, so that one program serves both.
        at = Member.at(place, ts[-1], problem.max_steps, record.pace)
        at = eqx.tree_at(lambda x: x.goes, at, at.goes & due)
        loop = steps.loop(at, arrays, ts, recorded)
    except (_expand.TooLong, _expand.NotScalar):
        return None
    rows = jnp.full((*ts.shape, *problem.y0.shape), jnp.inf, problem.y0.dtype)
    points = (record.checkpoints.parts,) if recorded else ()

    def made(at: Member, rows: Array, marked: tuple[PyTree, ...]) -> _Made:
        end = loop(at, arrays, saves=(ts, rows), marked=marked)
        assert end.rows is not None
        return end.state, end.rows, end.marked

    if isinstance(progress, diffrax.NoProgressMeter):
        at, rows, marked = made(at, rows, points)
    else:
        at, rows, marked = _watched(made, (at, rows, points), ts, progress)
    if not recorded:
        return rows, at, None
    assert at.pace is not None
    return rows, at, Record(Checkpoint(*marked[0]), at.pace)


# Where a solve is, the rows with what it has saved, and the checkpoints of its record if there is one.
_Made = tuple[Member, Array, tuple[PyTree, ...]]


def _watched(loop: Callable[..., _Made], start: _Made, ts: Array, progress: diffrax.AbstractProgressMeter) -> _Made:
    """The end of a loop that stops now and then to show its progress."""
    begin, end, most = ts[0], ts[-1], start[0].most

    def portion(carry: tuple[_Made, PyTree]) -> tuple[_Made, PyTree]:
        (at, rows, marked), meter = carry
        limited = eqx.tree_at(lambda x: x.most, at, jnp.minimum(at.tries + PORTION, most))
        at, rows, marked = loop(limited, rows, marked)
        at = eqx.tree_at(lambda x: x.most, at, most)
        at = eqx.tree_at(lambda x: x.goes, at, at.going(end))
        part = (at.place.t - begin) / jnp.where(end > begin, end - begin, 1)
        return (at, rows, marked), progress.step(meter, part)

    made, meter = jax.lax.while_loop(lambda carry: carry[0][0].goes, portion, (start, progress.init()))
    progress.close(meter)
    return made
