"""Many solves at a time: lanes, each of which takes up the next solve when its own is done.

A loop over a batch waits for the slowest of it. Here a batch of any size goes through a few lanes, as many as the cache
holds the states of, and a lane that is done does not wait for its neighbours.

B: solves; L: lanes; T: saved times; n: numbers of a state.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import _expand
from ._flow import Flow, Problem, call
from ._march import Attempt, Place, Stepper, before_end
from ._solve import solved
from ._unchecked import Starting
from ._variants import solver_of, staged


# Lanes that are done before the others are interrupted for them to take up the next solves, as a part of all lanes.
IDLE = 1 / 8
# From so many solves on it is worth the time to compile a step as a whole, of no more operations than these.
WORTH = 256
MOST_OPERATIONS = 8000


class Ends(eqx.Module):
    """What became of B solves: the states at the saved times, and where, when and how they ended."""

    ys: Float[Array, "B T n"]
    t: Float[Array, " B"]
    y: Float[Array, "B n"]
    tries: Int[Array, " B"]
    accepted: Int[Array, " B"]
    result: Any

    @classmethod
    def room(cls, count: int, states: Array, ts: Array) -> "Ends":
        """Room for as many solves with such states (L, n)."""
        n, dtype = states.shape[1], states.dtype
        zeros = jnp.zeros(count, int)
        nan = lambda *shape: jnp.full(shape, jnp.nan, dtype)
        ys = nan(count, *ts.shape, n)
        return cls(ys, jnp.full(count, ts[0]), nan(count, n), zeros, zeros, _okay((count,)))


class _Lanes(eqx.Module):
    """L solves under way: which ones (B or more: none), where they stand, and which of the saved times is next."""

    solve: Int[Array, " L"]
    place: Place
    following: Int[Array, " L"]
    tries: Int[Array, " L"]
    accepted: Int[Array, " L"]
    result: Any


class Common(eqx.Module):
    """What all solves have in common: see `Problem`."""

    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    max_steps: int = eqx.field(static=True)


class Progress(eqx.Module):
    """How far a queue is: how many solves were taken up, those under way, and those that are done."""

    taken: Int[Array, ""]
    lanes: _Lanes
    ends: Ends


class Queue(eqx.Module):
    """B solves to be done in lanes.

    Attributes:
        begin: The flow and the first state of a solve, from its sample.
        common: What is the same for all.
        samples: Arrays with a leading axis (B,).
        order: In which order to do them (B,).
        total: How many of that order to do; the others are left as NaN.
    """

    begin: Callable[[PyTree], tuple[Flow, Array]]
    common: Common
    samples: PyTree
    order: Int[Array, " B"]
    total: Int[Array, ""]

    def start(self, width: int) -> Progress:
        """Nothing done yet, and so many lanes, or fewer if there are fewer solves."""
        lanes = self._empty(min(width, self.count))
        return Progress(jnp.zeros((), int), lanes, Ends.room(self.count, lanes.place.y, self.common.ts))

    def run(self, progress: Progress, until: Array) -> Progress:
        """Goes on until so many solves were taken up; if those are all there are, until they are done."""
        everything = until >= self.total

        def going(at):
            return (at.taken < jnp.minimum(until, self.total)) | (everything & jnp.any(at.lanes.solve < self.count))

        def body(at):
            taken, lanes = self._refilled(at.taken, at.lanes)
            lanes, ys = self._advanced(lanes, at.ends.ys, taken < self.total)
            ends = eqx.tree_at(lambda e: e.ys, at.ends, ys)
            return Progress(taken, *_handed_over(self._active(lanes), lanes, ends))

        return jax.lax.while_loop(going, body, progress)

    @property
    def count(self) -> int:
        return jax.tree_util.tree_leaves(self.samples)[0].shape[0]

    def _problem(self, sample: PyTree) -> Problem:
        common = self.common
        return Problem(*self.begin(sample), common.ts, common.solver, common.method, common.max_steps)

    def _of(self, lanes: _Lanes) -> PyTree:
        """The samples in the lanes; of a lane with nothing to do the last one there is."""
        return _at(self.samples, jnp.minimum(lanes.solve, self.count - 1))

    def _empty(self, width: int) -> _Lanes:
        start = lambda sample: start_of(self._problem(sample))
        place = jax.tree_util.tree_map(
            lambda x: jnp.zeros((width, *x.shape), x.dtype), eqx.filter_eval_shape(start, _at(self.samples, 0))
        )
        zeros = jnp.zeros(width, int)
        return _Lanes(jnp.full(width, self.count, int), place, zeros, zeros, zeros, _okay((width,)))

    def _refilled(self, taken: Array, lanes: _Lanes) -> tuple[Array, _Lanes]:
        """The lanes with as many new solves as there are lanes without one, and as the queue has."""
        free = lanes.solve >= self.count
        number = taken + jnp.cumsum(free) - 1
        new = free & (number < self.total)
        lanes = eqx.tree_at(lambda x: x.solve, lanes, jnp.where(new, _at(self.order, number), lanes.solve))
        place = jax.vmap(lambda sample: start_of(self._problem(sample)))(self._of(lanes))
        zero = lambda x: jnp.where(new, 0, x)
        others = zero(lanes.following), zero(lanes.tries), zero(lanes.accepted)
        result = _where(new, _okay(new.shape), lanes.result)
        return taken + jnp.sum(new), _Lanes(lanes.solve, _where(new, place, lanes.place), *others, result)

    def _attempt(self, sample: PyTree, at: Place, t: Array) -> tuple[Place, Attempt, Array]:
        """A step, where the next one is to end, and the state at t if it lies within: of many solves as scalar code."""
        slow = lambda sample, at, t: _attempt(staged(self._problem(sample)), at, t)

        def fast(sample, at, t):
            # The first stage is not known at the start, nor after a jump.
            fresh = at.jumped if at.solver is None else at.jumped | at.solver[0]
            return _attempt(staged(self._problem(sample), written=True), at, t), fresh

        if self.count < WORTH or not isinstance(self.common.solver, diffrax.AbstractERK):
            return slow(sample, at, t)
        return _expand.written_or(slow, fast, MOST_OPERATIONS, (sample, at, t))

    def _active(self, lanes: _Lanes) -> Array:
        """Which lanes have a solve that is not done."""
        going = (lanes.place.t < self.common.ts[-1]) & (lanes.result == diffrax.RESULTS.successful)
        return going & (lanes.tries < self.common.max_steps) & (lanes.solve < self.count)

    def _advanced(self, lanes: _Lanes, ys: Array, more: Array) -> tuple[_Lanes, Array]:
        """Steps in all lanes, until enough of them are done for new solves, if there are `more`."""
        samples, start = self._of(lanes), jnp.sum(self._active(lanes))
        enough = max(1, int(IDLE * lanes.solve.shape[0]))
        attempt = eqx.filter_vmap(self._attempt)

        def going(carry):
            count = jnp.sum(self._active(carry[0]))
            return (count > 0) & ~(more & (start - count >= enough))

        def body(carry):
            lanes, ys = carry
            active = self._active(lanes)
            place, tried, value = attempt(samples, lanes.place, _at(self.common.ts, lanes.following))
            kept = active & tried.keep
            place = _where(active, place, lanes.place)
            result = _where(active, tried.result, lanes.result)
            following, ys = self._saved(lanes, kept, tried, value, ys)
            tries, accepted = lanes.tries + active.astype(int), lanes.accepted + kept.astype(int)
            return _Lanes(lanes.solve, place, following, tries, accepted, result), ys

        return jax.lax.while_loop(going, body, (lanes, ys))

    def _saved(self, lanes: _Lanes, kept: Array, tried: Attempt, value: Array, ys: Array) -> tuple[Array, Array]:
        """The next saved time of each lane, and the states at those that lie in the steps just made.

        `value`: at the first of them, which most often is the only one.
        """
        ts, (begin, end) = self.common.ts, tried.span
        due = lambda j: kept & (j < ts.shape[0]) & (_at(ts, j) <= end)
        interpolant = self.common.solver.interpolation_cls
        state = lambda begin, end, dense, t: _within(interpolant, (begin, end), dense, t)

        def put(j, ys, values):
            row = jnp.where(due(j), lanes.solve, ys.shape[0])  # beyond the last: nowhere
            return j + due(j).astype(int), ys.at[row, j].set(values, mode="drop")

        def save(carry):
            j, ys = carry
            return put(j, ys, jax.vmap(state)(begin, end, tried.dense, _at(ts, j)))

        start = put(lanes.following, ys, value)
        return jax.lax.while_loop(lambda carry: jnp.any(due(carry[0])), save, start)


def _within(interpolant: Any, span: tuple[Array, Array], dense: PyTree, t: Array) -> Array:
    """The state at t within a step."""
    return interpolant(t0=span[0], t1=span[1], **dense).evaluate(t)


def _handed_over(active: Array, lanes: _Lanes, ends: Ends) -> tuple[_Lanes, Ends]:
    """The lanes that are done without their solves, whose ends are written down."""
    nowhere = ends.t.shape[0]
    row = jnp.where(active, nowhere, lanes.solve)
    values = (lanes.place.t, lanes.place.y, lanes.tries, lanes.accepted, lanes.result)
    old = (ends.t, ends.y, ends.tries, ends.accepted, ends.result)
    new = jax.tree_util.tree_map(lambda to, x: to.at[row].set(x.astype(to.dtype), mode="drop"), old, values)
    lanes = eqx.tree_at(lambda lanes: lanes.solve, lanes, jnp.where(active, lanes.solve, nowhere))
    return lanes, Ends(ends.ys, *new)


class _Beginning(diffrax.AbstractAdjoint):
    """Makes no steps: the place that diffrax prepares for them takes that of the controller's state in its solution."""

    def loop(self, *, init_state: Any, **others: Any) -> Any:
        at = init_state
        place = Place(at.tprev, at.tnext, at.y, at.solver_state, at.controller_state, jnp.asarray(at.made_jump))
        place = jax.tree_util.tree_map(jnp.asarray, place)
        return dataclasses.replace(at, controller_state=place), {}


def start_of(problem: Problem) -> Place:
    """Where a solve begins."""
    saveat = diffrax.SaveAt(t1=True, controller_state=True)
    solution: Any = solved(problem, Starting(*problem.method), saveat, _Beginning())
    return solution.controller_state


def stepper_of(problem: Problem) -> Stepper:
    controller = Starting(*problem.method).wrap(1).controller
    return Stepper(diffrax.ODETerm(call), solver_of(problem, diffrax.ForwardMode()), controller, problem.flow)


def _attempt(problem: Problem, at: Place, t: Array) -> tuple[Place, Attempt, Array]:
    """A step, where the next one is to end, and the state at t if that lies within."""
    at, tried = stepper_of(problem).attempt(at)
    t1 = problem.ts[-1]
    t_next = before_end(at, tried, t1)
    value = _within(problem.solver.interpolation_cls, tried.span, tried.dense, t)
    return eqx.tree_at(lambda at: (at.t, at.t_next), at, (jnp.minimum(at.t, t1), t_next)), tried, value


def _okay(shape: tuple[int, ...]) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.full(shape, x), diffrax.RESULTS.successful)


def _where(which: Array, new: PyTree, old: PyTree) -> Any:
    choose = lambda a, b: jnp.where(which.reshape(which.shape + (1,) * (jnp.ndim(a) - 1)), a, b)
    return jax.tree_util.tree_map(choose, new, old)


def _at(tree: PyTree, index: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: jnp.take(x, index, axis=0, mode="clip"), tree)
