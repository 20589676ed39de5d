"""How the trajectories of a batch are made: one by one, or many in lanes.

B: trajectories, a multiple of the number of lanes; T: saved times; n: numbers of a state.
"""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int, PyTree

from .._formulation import AbstractFormulation
from .._integrate import Common, Ends, Flow, Integrator, Kinked, Place, Queue, Sampled, in_order, rows, starts_of
from .._manifold import Projection
from .._program import Traced, traced
from .._result import RESULTS
from .._simulation import Method, Phase, begin, derivative, judge, margins_at, motion_at, with_store
from ._devices import meet
from ._outcome import Outcome, outcome_of
from ._parts import Parts


# How much a device does, about, between two times at which it waits for the others: trajectories of a lane, and states
# that are looked at in the end. (Of the SCARA a tile of those takes 1.4 ms, and waiting after it took 0.4 of them.)
MEETING, STATES = 16, 2**16


class Recipe(eqx.Module):
    """All that the trajectories of a batch have in common, as a person wrote it down."""

    parts: Parts
    ts: Float[Array, " T"]
    formulation: AbstractFormulation
    solver: diffrax.AbstractSolver
    method: Method
    projection: Projection | None
    integrator: Integrator
    reduce: Callable | None
    kept: tuple[str, ...] = eqx.field(static=True)
    width: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)

    def plan(self, samples: PyTree) -> "Plan":
        """The functions that it takes, traced, each with what it closes over; for samples like these (B, ...)."""
        sample = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), samples)
        t, y = jax.eval_shape(lambda sample: (self.ts[0], self._first(sample)), sample)

        def motion(t, y, sample):
            mechanism, acting, start = self.parts(sample)
            return motion_at(Phase.of(mechanism, start), acting, self.formulation, t, y)

        moving = traced(motion, t, y, sample)

        def run(sample):
            mechanism, acting, start = self.parts(sample)
            of = _Of(moving, sample)
            return begin(mechanism, acting, start, self.ts, self.formulation, self.method, self.projection, of)

        def told(sample, integrated):
            make: Any = self.reduce
            reduce = None if make is None else lambda trajectory: make(trajectory, self.parts.whole(sample)["samples"])
            return outcome_of(*judge(run(sample), self.ts, integrated, self.kept), reduce)

        def project(t, y, sample):
            back: Any = run(sample).flow.project
            return back(t, y)

        def kinks(t, y, sample):
            mechanism, acting, start = self.parts(sample)
            return margins_at(Phase.of(mechanism, start), acting, t, y)

        return Plan(
            traced(lambda sample: run(sample).y0, sample),
            moving,
            traced(project, t, y, sample) if self._returns else None,
            traced(told, sample, jax.eval_shape(_integrated, self.ts, y)),
            self.ts,
            self.solver,
            self.method,
            self.integrator,
            self.width,
            self.whole_steps,
            0 if self.projection is None else jax.eval_shape(lambda sample: self.parts(sample)[2][0], sample).shape[0],
            traced(kinks, t, y, sample) if isinstance(self.method.controller, Kinked) else None,
        )

    def _first(self, sample: PyTree) -> Array:
        """A state, but for a projection."""
        mechanism, acting, start = self.parts(sample)
        return with_store(Phase.of(mechanism, start), acting, self.ts[0], jnp.concatenate(start))

    @property
    def _returns(self) -> bool:
        """Whether something happens at the end of a step."""
        return self.projection is not None or isinstance(self.method.controller, Sampled)


def _integrated(ts: Array, y: Array) -> Any:
    """Of the form of what an `Integrator` returns."""
    counts = dict.fromkeys(("num_steps", "num_accepted_steps", "num_rejected_steps"), jnp.zeros((), int))
    result = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    return jnp.zeros((*ts.shape, *y.shape), y.dtype), (ts[0], y), counts, result


class _Of(eqx.Module):
    """A function of (t, y) and a sample, for one sample."""

    function: Traced
    sample: PyTree

    def __call__(self, t: Array, y: Array) -> Any:
        return self.function(t, y, self.sample)


class Plan(eqx.Module):
    """What it takes to make trajectories from samples, none of it a person's function any more.

    Attributes:
        first: sample -> the first state.
        motion: (t, y, sample) -> what `motion_at` returns.
        project: (t, y, sample) -> y, or None.
        positions: As in `Flow`.
        kinks: (t, y, sample) -> as in `Flow`, or None.
        told: sample, what an `Integrator` returns -> `Outcome`.
    """

    first: Traced
    motion: Traced
    project: Traced | None
    told: Traced
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: Method
    integrator: Integrator
    width: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)
    positions: int = eqx.field(static=True, default=0)
    kinks: Traced | None = None

    def one(self, sample: PyTree) -> Outcome:
        """A trajectory by itself, which can be differentiated."""
        flow, y0 = self._begin(sample)
        return self.told(sample, self.integrator(flow, y0, self.ts, self.solver, self.method))

    def starts(self, samples: PyTree) -> tuple[Place, Float[Array, " B"]]:
        """Where they begin, and how fast."""
        return starts_of(self._begin, self._common, samples, self.width)

    def queue(self, samples: PyTree, starts: Place, total: Int[Array, ""]) -> Queue:
        """All trajectories, of which the first `total` are to be made."""
        return Queue(self._begin, self._common, samples, starts, total)

    def run(self, samples: PyTree, total: Array) -> Outcome:
        """What becomes of all of them."""
        count = jax.tree_util.tree_leaves(samples)[0].shape[0]
        starts, pace = self.starts(samples)
        order = in_order(pace, total)
        queue, ahead = self.queue(rows(samples, order), rows(starts, order), total), MEETING * self.width

        def on(i, carry):
            progress, met = carry
            progress = queue.run(progress, jnp.minimum((i + 1) * ahead, count) + met)
            return progress, meet(progress.lanes.place.t)

        start = queue.start(self.width), jnp.zeros((), int)
        ends = jax.lax.fori_loop(0, -(-count // ahead), on, start)[0].ends
        return self.finish(samples, rows(ends, jnp.argsort(order)))

    def finish(self, samples: PyTree, ends: Ends) -> Outcome:
        """What became of all of them."""
        outcome = lambda sample, end: self.told(sample, self.integrator.told(self.ts, self.first(sample), end))
        meeting = max(1, STATES // (self.width * self.ts.size))
        return self.joined(self.in_tiles(jax.vmap(outcome), samples, ends, meeting=meeting))

    def in_tiles(self, function: Callable[..., PyTree], *batch: PyTree, meeting: int = 1) -> Any:
        """`function` of as many trajectories at a time as there are lanes, and its results one after the other.

        The cache need not hold more than that. Devices wait for each other after `meeting` tiles.
        """
        tiles = jax.tree_util.tree_map(lambda x: x.reshape(-1, self.width, *x.shape[1:]), batch)

        def one(met, i):
            result = function(*jax.tree_util.tree_map(lambda x: x[i + met], tiles))
            if meeting == 1:
                return meet(result), result
            return jax.lax.cond((i + 1) % meeting == 0, meet, lambda _: met, result), result

        count = jax.tree_util.tree_leaves(tiles)[0].shape[0]
        return jax.lax.scan(one, jnp.zeros((), int), jnp.arange(count))[1]

    def joined(self, results: PyTree) -> Any:
        """Results of tiles, with an axis of their own for the trajectories in a tile, as those of a batch."""
        return jax.tree_util.tree_map(lambda x: x.reshape(-1, *x.shape[2:]), results)

    @property
    def _common(self) -> Common:
        return self.integrator.common(self.solver, self.method, self.ts, self.whole_steps)

    def _begin(self, sample: PyTree) -> tuple[Flow, Array]:
        of = lambda function: None if function is None else _Of(function, sample)
        field = Partial(derivative, _Of(self.motion, sample))
        return Flow(field, of(self.project), positions=self.positions, kinks=of(self.kinks)), self.first(sample)
