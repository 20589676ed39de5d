"""Many solves at a time: lanes, each of which takes up the next solve when its own is done.

A loop over a batch waits for the slowest of it. Here a batch of any size goes through a few lanes, as many as the cache
holds the states of, and a lane that is done does not wait for its neighbours.

A step of many lanes is one scalar program. A lane for which that program is in doubt waits for an ordinary step, which
is made when some lanes wait, or no other goes on.

B: solves; L: lanes; T: saved times; n: numbers of a state.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PyTree

from .. import _expand
from .._result import is_traced
from ._flow import Dynamics, IntegrationProblem
from ._march import Attempt, Place, before_end
from ._run import Member, Steps, first_place, pace_of
from ._solve import stepper_of
from ._steps import staged


# The part of the lanes that is done, or waits, when the others are interrupted for them.
IDLE = 1 / 8
# For fewer lanes compiling a step as a whole takes longer than what is saved.
MANY = 32
# The most operations of a step that is compiled as a whole.
MOST_OPERATIONS = 8000

T = TypeVar("T")


class Common(eqx.Module):
    """The settings that all solves share (`IntegrationProblem`), and whether a step of many lanes is one program."""

    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    max_steps: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)


def within(
    interpolant: Callable[..., diffrax.AbstractLocalInterpolation], span: tuple[Array, Array], dense: PyTree, t: Array
) -> Array:
    """The state at t within a step over `span`."""
    return interpolant(t0=span[0], t1=span[1], **dense).evaluate(t)


def problem_of(begin: Callable[[PyTree], tuple[Dynamics, Array]], common: Common, sample: PyTree) -> IntegrationProblem:
    return IntegrationProblem(*begin(sample), common.ts, common.solver, common.method, common.max_steps)


def starts_of(
    begin: Callable[[PyTree], tuple[Dynamics, Array]], common: Common, samples: PyTree, width: int
) -> tuple[Place, Float[Array, " B"]]:
    """The places where solves begin (B, ...), `width` at a time, and their paces: fast solves tend to take more steps.

    A place has the first stage if a method hands on its last one. The first step size is no measure of pace: without
    dt0 diffrax begins with the same one always.
    """

    def start(sample):
        problem = problem_of(begin, common, sample)
        place, first = first_place(problem)
        return place, pace_of(first, place.y)

    return mapped(start, samples, width)


def mapped(function: Callable[[PyTree], T], tree: PyTree, width: int) -> T:
    """The results of a function for all entries of arrays (B, ...), `width` at a time.

    `jax.lax.map` divides by the number of entries of an array, and here some have none.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    given = [bool(x.size) for x in leaves]
    (size,) = {x.shape[0] for x in leaves}
    kinds, form = jax.tree_util.tree_flatten(
        jax.eval_shape(function, jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), tree))
    )

    def of_some(some: list[Array]) -> list[Array]:
        rest = iter(some)
        every = [next(rest) if has else jnp.zeros(x.shape[1:], x.dtype) for x, has in zip(leaves, given, strict=True)]
        return [
            x for x in jax.tree_util.tree_leaves(function(jax.tree_util.tree_unflatten(structure, every))) if x.size
        ]

    some = [x for x, has in zip(leaves, given, strict=True) if has]
    found = iter(jax.lax.map(of_some, some, batch_size=width))
    filled = [next(found) if x.size else jnp.zeros((size, *x.shape), x.dtype) for x in kinds]
    return jax.tree_util.tree_unflatten(form, filled)


def in_order(pace: Float[Array, " B"] | Float[np.ndarray, " B"], total: ArrayLike) -> Any:  # of JAX or of NumPy too
    """The order in which solves are best begun: fast ones first; those from `total` on are last and not to be done.

    Then no solve of many steps begins when the others are done.
    """
    xp = jnp if is_traced(pace, total) else np
    index = xp.arange(pace.shape[0])
    fast = xp.where(xp.isfinite(pace), pace, 0.0)  # a solve whose pace is not finite ends at once
    return xp.argsort(xp.where(index < total, -fast, xp.inf), stable=True)


def attempt(problem: IntegrationProblem, at: Place, t: Array) -> tuple[Place, Attempt, Array]:
    """Makes a step: returns the place after it, the attempt, and the state at t if that lies within the step."""
    at, tried = stepper_of(problem).attempt(at)
    t1 = problem.ts[-1]
    t_next = before_end(at, tried, t1)
    value = within(problem.solver.interpolation_cls, tried.span, tried.dense, t)
    return eqx.tree_at(lambda at: (at.t, at.t_next), at, (jnp.minimum(at.t, t1), t_next)), tried, value


def okay(shape: tuple[int, ...]) -> diffrax.RESULTS:
    return jax.tree_util.tree_map(lambda x: jnp.full(shape, x), diffrax.RESULTS.successful)


def chosen(which: Array, new: T, old: T) -> T:
    def choose(a, b):
        return jnp.where(which.reshape(which.shape + (1,) * (jnp.ndim(a) - 1)), a, b)

    return jax.tree_util.tree_map(choose, new, old)


def rows(tree: T, index: ArrayLike) -> T:
    return jax.tree_util.tree_map(lambda x: jnp.take(x, index, axis=0, mode="clip"), tree)


class Ends(eqx.Module):
    """The ends of B solves: the states at the saved times, and where, when and how each solve ended."""

    ys: Float[Array, "B T n"]
    t: Float[Array, " B"]
    y: Float[Array, "B n"]
    tries: Int[Array, " B"]
    accepted: Int[Array, " B"]
    result: diffrax.RESULTS

    @classmethod
    def room(cls, count: int, states: Array, ts: Array) -> "Ends":
        """Room for the ends of `count` solves with states like these (L, n)."""
        n, dtype = states.shape[1], states.dtype
        zeros = jnp.zeros(count, int)
        ys, t = jnp.full((count, *ts.shape, n), jnp.nan, dtype), jnp.full(count, ts[0])
        return cls(ys, t, jnp.full((count, n), jnp.nan, dtype), zeros, zeros, okay((count,)))


class _Lanes(eqx.Module):
    """L solves under way: their numbers (B or more: none), their places, and the indices of their next saved times."""

    solve: Int[Array, " L"]
    place: Place
    following: Int[Array, " L"]
    tries: Int[Array, " L"]
    accepted: Int[Array, " L"]
    result: diffrax.RESULTS


class Progress(eqx.Module):
    """The progress of a queue: the number of solves taken up, those under way, and those that are done."""

    taken: Int[Array, ""]
    lanes: _Lanes
    ends: Ends


class Queue(eqx.Module):
    """B solves to be done in lanes.

    Attributes:
        begin: The flow and the first state of a solve, from its sample.
        common: The settings of all solves.
        samples: Arrays with a leading axis (B,).
        starts: The places where the solves begin, likewise: see `starts_of`.
        total: The number of solves to do, from the first on; the others are left as NaN.
    """

    begin: Callable[[PyTree], tuple[Dynamics, Array]]
    common: Common
    samples: PyTree
    starts: Place
    total: Int[Array, ""]

    def start(self, width: int) -> Progress:
        """The progress before anything is done, with `width` lanes, or fewer if there are fewer solves."""
        lanes = self._empty(min(width, self.count))
        return Progress(jnp.zeros((), int), lanes, Ends.room(self.count, lanes.place.y, self.common.ts))

    def run(self, progress: Progress, until: Array) -> Progress:
        """Continues until this many solves were taken up; if these are all, until they are done."""
        everything = until >= self.total

        def going(at):
            return (at.taken < jnp.minimum(until, self.total)) | (everything & jnp.any(at.lanes.solve < self.count))

        turn = self._turn(progress.lanes)

        def body(at):
            taken, lanes = self._refilled(at.taken, at.lanes)
            if turn is None:
                lanes, ys = self._advanced(lanes, at.ends.ys, taken < self.total)
            else:
                lanes, ys = self._turned(turn, lanes, at.ends.ys)
            ends = eqx.tree_at(lambda e: e.ys, at.ends, ys)
            return Progress(taken, *_handed_over(self._active(lanes), lanes, ends))

        return jax.lax.while_loop(going, body, progress)

    @property
    def count(self) -> int:
        return jax.tree_util.tree_leaves(self.samples)[0].shape[0]

    def _problem(self, sample: PyTree) -> IntegrationProblem:
        return problem_of(self.begin, self.common, sample)

    def _inside(self, span: tuple[Array, Array], dense: PyTree, t: Array) -> Array:
        """The states of the lanes at times within their steps."""
        return jax.vmap(ft.partial(within, self.common.solver.interpolation_cls))(span, dense, t)

    def _of(self, lanes: _Lanes) -> PyTree:
        """The samples of the lanes; a lane with nothing to do has the last sample."""
        return rows(self.samples, jnp.minimum(lanes.solve, self.count - 1))

    def _empty(self, width: int) -> _Lanes:
        place = jax.tree_util.tree_map(lambda x: jnp.zeros((width, *x.shape[1:]), x.dtype), self.starts)
        zeros = jnp.zeros(width, int)
        return _Lanes(jnp.full(width, self.count, int), place, zeros, zeros, zeros, okay((width,)))

    def _refilled(self, taken: Array, lanes: _Lanes) -> tuple[Array, _Lanes]:
        """Puts new solves into the lanes without one, as many as the queue has; also returns the number taken up."""
        free = lanes.solve >= self.count
        number = taken + jnp.cumsum(free) - 1
        new = free & (number < self.total)
        lanes = eqx.tree_at(lambda x: x.solve, lanes, jnp.where(new, number, lanes.solve))
        following, tries, accepted = (jnp.where(new, 0, x) for x in (lanes.following, lanes.tries, lanes.accepted))
        result = chosen(new, okay(new.shape), lanes.result)
        place = chosen(new, rows(self.starts, number), lanes.place)
        return taken + jnp.sum(new), _Lanes(lanes.solve, place, following, tries, accepted, result)

    def _active(self, lanes: _Lanes) -> Array:
        """Whether each lane has a solve that is not done."""
        return self._going(lanes) & (lanes.solve < self.count)

    def _going(self, at: _Lanes) -> Array:
        going = (at.place.t < self.common.ts[-1]) & (at.result == diffrax.RESULTS.successful)
        return going & (at.tries < self.common.max_steps)

    def _advanced(self, lanes: _Lanes, ys: Array, more: Array) -> tuple[_Lanes, Array]:
        """Steps all lanes until enough of them are done for new solves, if there are `more`, or all are done."""
        samples, start = self._of(lanes), jnp.sum(self._active(lanes))
        enough = _enough(lanes)

        def going(carry):
            count = jnp.sum(self._active(carry[0]))
            return (count > 0) & ~(more & (start - count >= enough))

        def body(carry):
            lanes, ys = carry
            return self._stepped(samples, lanes, self._active(lanes), ys)

        return jax.lax.while_loop(going, body, (lanes, ys))

    def _stepped(self, samples: PyTree, lanes: _Lanes, active: Array, ys: Array) -> tuple[_Lanes, Array]:
        """Makes a step in the lanes that are active."""

        def step(sample: PyTree, at: Place, t: Array) -> tuple[Place, Attempt, Array]:
            return attempt(staged(self._problem(sample)), at, t)

        place, tried, value = eqx.filter_vmap(step)(samples, lanes.place, rows(self.common.ts, lanes.following))
        kept = active & tried.keep
        place = chosen(active, place, lanes.place)
        result = chosen(active, tried.result, lanes.result)
        following, ys = self._saved(lanes, kept, tried, value, ys)
        tries, accepted = lanes.tries + active.astype(int), lanes.accepted + kept.astype(int)
        return _Lanes(lanes.solve, place, following, tries, accepted, result), ys

    def _turn(self, lanes: _Lanes) -> _expand.ScalarLaneStep | None:
        """The step of a lane as a scalar program, or None where that is not wanted or not possible."""
        common = self.common
        wanted = common.whole_steps and lanes.solve.shape[0] >= MANY
        if not wanted or not isinstance(common.solver, diffrax.AbstractERK):
            return None

        def turn(at: Member, sample: PyTree, t: Array) -> tuple[PyTree, ...]:
            arrays, static = eqx.partition(self._problem(sample), eqx.is_array)
            steps = Steps(static, common.solver.interpolation_cls)
            new, waits, kept, (span, dense), doubt, _ = steps.step(at, arrays, ())
            new, kept = chosen(at.goes, new, at), at.goes & kept
            due = kept & (at.following < common.ts.shape[0]) & steps.due((kept, (span, dense)), t)
            new = eqx.tree_at(lambda x: x.following, new, at.following + due.astype(at.following.dtype))
            value = steps.look((kept, (span, dense)), t)
            return new, waits, (kept, due), (value, span, dense), doubt, at.goes

        one = jax.tree_util.tree_map(lambda x: x[0], (lanes, self._of(lanes)))
        try:
            at = self._turning(one[0], jnp.asarray(True))
            return _expand.ScalarLaneStep(turn, at, one[1], common.ts[0], most=MOST_OPERATIONS)
        except (_expand.TooLong, _expand.NotScalar):
            return None

    @staticmethod
    def _turning(lanes: _Lanes, goes: Array) -> Member:
        counts = lanes.following, lanes.tries, lanes.accepted
        return Member(lanes.place, *counts, lanes.result, goes, jnp.zeros_like(goes))

    def _turned(self, turn: _expand.ScalarLaneStep, lanes: _Lanes, ys: Array) -> tuple[_Lanes, Array]:
        """Steps all lanes by a scalar program until enough are done or wait; then steps the waiting ones ordinarily."""
        ts, samples = self.common.ts, self._of(lanes)
        start, enough = jnp.sum(self._active(lanes)), _enough(lanes)

        def row(which: Array) -> Array:
            return jnp.where(which, lanes.solve, ys.shape[0])  # beyond the last: nowhere

        def going(carry):
            return (carry[-1] > 0) & (start - carry[-1] < enough)

        def body(carry):
            at, t, ys, _ = carry
            before = at.following
            at, (kept, due), (value, span, dense) = turn(at, samples, t)
            ys = ys.at[row(due), before].set(value, mode="drop")
            j, end = at.following, span[1]

            def more(j: Array, t: Array) -> Array:
                return kept & (j < ts.shape[0]) & (t <= end)

            def save(carry):
                j, t, ys = carry
                which = more(j, t)
                ys = ys.at[row(which), j].set(self._inside(span, dense, t), mode="drop")
                j = j + which.astype(j.dtype)
                return j, rows(ts, j), ys

            j, t, ys = jax.lax.while_loop(lambda carry: jnp.any(more(*carry[:2])), save, (j, rows(ts, j), ys))
            return eqx.tree_at(lambda x: x.following, at, j), t, ys, jnp.sum(at.goes)

        at = self._turning(lanes, self._active(lanes))
        found, _, ys, _ = jax.lax.while_loop(going, body, (at, rows(ts, lanes.following), ys, start))
        lanes = _Lanes(lanes.solve, found.place, found.following, found.tries, found.accepted, found.result)

        def step(lanes: _Lanes, ys: Array) -> tuple[_Lanes, Array]:
            return self._stepped(samples, lanes, found.waits, ys)

        return jax.lax.cond(jnp.any(found.waits), step, lambda *same: same, lanes, ys)

    def _saved(self, lanes: _Lanes, kept: Array, tried: Attempt, value: Array, ys: Array) -> tuple[Array, Array]:
        """Saves the states at times within the steps just made; also returns the index of the next time of each lane.

        `value`: the state at the first of these times, which most often is the only one.
        """
        ts = self.common.ts

        def due(j: Array) -> Array:
            return kept & (j < ts.shape[0]) & (rows(ts, j) <= tried.span[1])

        def put(j, ys, values):
            row = jnp.where(due(j), lanes.solve, ys.shape[0])  # beyond the last: nowhere
            return j + due(j).astype(int), ys.at[row, j].set(values, mode="drop")

        def save(carry):
            j, ys = carry
            return put(j, ys, self._inside(tried.span, tried.dense, rows(ts, j)))

        start = put(lanes.following, ys, value)
        return jax.lax.while_loop(lambda carry: jnp.any(due(carry[0])), save, start)


def _handed_over(active: Array, lanes: _Lanes, ends: Ends) -> tuple[_Lanes, Ends]:
    """Takes finished solves out of their lanes, and writes down their ends."""
    nowhere = ends.t.shape[0]
    row = jnp.where(active, nowhere, lanes.solve)
    values = (lanes.place.t, lanes.place.y, lanes.tries, lanes.accepted, lanes.result)
    old = (ends.t, ends.y, ends.tries, ends.accepted, ends.result)
    new = jax.tree_util.tree_map(lambda to, x: to.at[row].set(x.astype(to.dtype), mode="drop"), old, values)
    lanes = eqx.tree_at(lambda lanes: lanes.solve, lanes, jnp.where(active, lanes.solve, nowhere))
    return lanes, Ends(ends.ys, *new)


def _enough(lanes: _Lanes) -> int:
    return max(1, int(IDLE * lanes.solve.shape[0]))
