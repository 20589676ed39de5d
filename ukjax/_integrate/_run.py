"""A solve by an explicit method as one operation: its steps, the control of their size, and the states to save.

On a CPU it is a loop of machine code, in which the field is a routine (`ScalarLoop`). A step that is not certain there
is made the sure way.

T: saved times; n: numbers of a state.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jaxtyping import Array, Bool, Int, PyTree

from .. import _expand
from .._lowering import runs_machine_code
from ._march import Attempt, IntegrationProblem, Place, before_end, vector_field, where
from ._record import Checkpoint, Pace, Record, layout_of
from ._solve import start_of, stepper_of
from ._steps import begins_anew, staged, written_out


# A member of a batch under way: its place, whether it goes on, and whether a step waits for the sure way.
M = TypeVar("M", bound=Any)


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
        return new, stays, kept, rest, jnp.asarray(False), jnp.asarray(True)

    def sure(self, at: Member, arrays: PyTree, row: PyTree) -> tuple[Member, Findings]:
        """Makes a step that waits."""
        return self._made(staged(eqx.combine(arrays, self.static)), at)

    def _made(self, problem: IntegrationProblem, at: Member) -> tuple[Member, Findings]:
        place, tried, begun = attempted(problem, at.place)
        end = problem.ts[-1]
        t, t_next = jnp.minimum(place.t, end), before_end(place, tried, end)
        place = eqx.tree_at(lambda x: (x.t, x.t_next), place, (t, t_next))
        tries, accepted = at.tries + 1, at.accepted + tried.keep.astype(at.accepted.dtype)
        pace, no = None if at.pace is None else at.pace.after(tried.keep, t), jnp.zeros_like(at.waits)
        new = Member(place, at.following, tries, accepted, at.most, tried.result, no, no, pace)
        new = eqx.tree_at(lambda x: x.goes, new, new.going(end))
        return begun.instead_of(new, at), (begun.kept(tried), (tried.span, tried.dense))

    def cost(self, at: Member, arrays: PyTree) -> Array:
        """The speed of a state, by the norm of a method with equal tolerances; it correlates with the steps to go."""
        field = vector_field(at.place.t, at.place.y, eqx.combine(arrays, self.static).flow)
        return jnp.sqrt(jnp.mean((field / (1 + jnp.abs(at.place.y))) ** 2))

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
            self.step, self.sure, lambda x: x.goes, lambda x: x.waits, saves, marks=marks, cost=self.cost
        )
        return _expand.ScalarLoop(repeats, at, arrays, times=ShapedArray(times.shape, times.dtype))


class Begun(NamedTuple):
    """The place of a solve after an attempt that only found its first stage, and whether it was one."""

    place: Place
    here: Array | None  # None: it never is

    def kept(self, tried: Attempt) -> Array:
        """Whether a step was made and kept."""
        return tried.keep if self.here is None else tried.keep & ~self.here

    def instead_of(self, new: M, at: M) -> M:
        """The member after a step, or, if it has just begun, as it was but for its place."""
        if self.here is None:
            return new
        goes, no = jnp.ones_like(new.goes), jnp.zeros_like(new.waits)
        return where(self.here, eqx.tree_at(lambda x: (x.place, x.goes, x.waits), at, (self.place, goes, no)), new)


def attempted(problem: IntegrationProblem, at: Place) -> tuple[Place, Attempt, Begun]:
    """Tries a step.

    If a method hands on its last stage, the first attempt finds it: that has no length and does not count. So a program
    of the steps holds the field once, and none is needed for the begin.
    """
    stepper = stepper_of(problem)
    if at.solver is None or begins_anew(problem):
        return *stepper.attempt(at), Begun(at, None)
    first, _ = at.solver
    start = eqx.tree_at(lambda x: x.t_next, at, jnp.where(first, at.t, at.t_next))
    place, tried = stepper.attempt(start, first)
    return place, tried, Begun(eqx.tree_at(lambda x: x.solver, at, place.solver), first)


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
        place = start_of(problem)
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
