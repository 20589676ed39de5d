"""The traced functions that make the trajectories of a batch, one by one or many in lanes.

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

from .._integrate import Common, Dynamics, Ends, Integrator, Kinked, Place, Queue, Sampled, in_order, rows, starts_of
from .._manifold import ConstraintSizes
from .._program import Traced, traced
from .._result import RESULTS
from .._simulation import (
    Settings,
    StateLayout,
    assemble_trajectory,
    derivative,
    margins_at,
    motion_at,
    set_up,
    with_store,
)
from ._devices import barrier
from ._outcome import Outcome, outcome_of
from ._parts import BatchInputs


# Devices meet at a barrier after about MEETING trajectories of each lane, and after the report on STATES saved states.
# A barrier after every tile of states would take a large part of the time.
MEETING, STATES = 16, 2**16


class BatchSettings(eqx.Module):
    """The settings that all trajectories of a batch share, with the functions of the user."""

    parts: BatchInputs
    ts: Float[Array, " T"]
    settings: Settings
    reduce: Callable | None
    width: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)

    def plan(self, samples: PyTree) -> "BatchProgram":
        """Traces the functions of a batch, each with the arrays it closes over, for samples like these (B, ...)."""
        sample = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), samples)
        t, y = jax.eval_shape(lambda sample: (self.ts[0], self._first(sample)), sample)
        settings = self.settings

        def motion(t, y, sample):
            mechanism, controller, start = self.parts(sample)
            return motion_at(StateLayout.of(mechanism, start), controller, settings.formulation, t, y)

        moving = traced(motion, t, y, sample)

        def measure(sample):
            mechanism, _, (q0, v0) = self.parts(sample)
            return ConstraintSizes.of(mechanism, q0, v0, self.ts[0])

        def run(sample, sizes):
            return set_up(*self.parts(sample), self.ts, settings, motion=_Of(moving, sample), sizes=sizes)

        def to_result(measured, integrated):
            sample, _ = measured
            make: Any = self.reduce
            reduce = None if make is None else lambda trajectory: make(trajectory, self.parts.whole(sample)["samples"])
            return outcome_of(*assemble_trajectory(run(*measured), self.ts, integrated, settings.keep), reduce)

        def project(t, y, measured):
            back: Any = run(*measured).flow.project
            return back(t, y)

        def kinks(t, y, sample):
            mechanism, controller, start = self.parts(sample)
            return margins_at(StateLayout.of(mechanism, start), controller, t, y)

        sizes = None if settings.projection is None else traced(measure, sample)
        measured = sample, None if sizes is None else jax.eval_shape(sizes, sample)
        return BatchProgram(
            traced(lambda measured: run(*measured).y0, measured),
            moving,
            sizes,
            traced(project, t, y, measured) if self._returns else None,
            traced(to_result, measured, jax.eval_shape(_integrated, self.ts, y)),
            self.ts,
            settings.solver,
            settings.method,
            settings.integrator,
            self.width,
            self.whole_steps,
            traced(kinks, t, y, sample) if isinstance(settings.method.controller, Kinked) else None,
        )

    def _first(self, sample: PyTree) -> Array:
        """The first state of a trajectory, before any projection."""
        mechanism, controller, start = self.parts(sample)
        return with_store(StateLayout.of(mechanism, start), controller, self.ts[0], jnp.concatenate(start))

    @property
    def _returns(self) -> bool:
        """Whether a projection or a sample changes the state at the end of a step."""
        return self.settings.projection is not None or isinstance(self.settings.method.controller, Sampled)


def _integrated(ts: Array, y: Array) -> Any:
    """Zeros in the structure of the results of an `Integrator`."""
    counts = dict.fromkeys(("num_steps", "num_accepted_steps", "num_rejected_steps"), jnp.zeros((), int))
    result = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    return jnp.zeros((*ts.shape, *y.shape), y.dtype), (ts[0], y), counts, result


class _Of(eqx.Module):
    """The function of (t, y) that a function of (t, y, sample) is for one sample."""

    function: Traced
    sample: PyTree

    def __call__(self, t: Array, y: Array) -> Any:
        return self.function(t, y, self.sample)


class BatchProgram(eqx.Module):
    """The traced functions that make trajectories from samples; none calls a function of the user any more.

    Attributes:
        first: (sample, its sizes) -> the first state.
        motion: (t, y, sample) -> what `motion_at` returns.
        sizes: sample -> `ConstraintSizes`, or None.
        project: (t, y, (sample, its sizes)) -> y, or None.
        kinks: (t, y, sample) -> as in `Dynamics`, or None.
        told: (sample, its sizes), results of an `Integrator` -> `Outcome`.
    """

    first: Traced
    motion: Traced
    sizes: Traced | None
    project: Traced | None
    to_result: Traced
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    integrator: Integrator
    width: int = eqx.field(static=True)
    whole_steps: bool = eqx.field(static=True)
    kinks: Traced | None = None

    def one(self, sample: PyTree) -> Outcome:
        """The outcome of one trajectory, which can be differentiated."""
        sizes = None if self.sizes is None else self.sizes(sample)
        flow, y0 = self._begin((sample, sizes))
        return self.to_result((sample, sizes), self.integrator(flow, y0, self.ts, self.solver, self.method))

    def starts(self, samples: PyTree) -> tuple[tuple[ConstraintSizes | None, Place], Float[Array, " B"]]:
        """The sizes of the rows and the first place of each trajectory, and the pace of each: see `starts_of`."""
        sizes = None if self.sizes is None else jax.lax.map(self.sizes, samples, batch_size=self.width)
        places, pace = starts_of(self._begin, self._common, (samples, sizes), self.width)
        return (sizes, places), pace

    def queue(self, samples: PyTree, starts: tuple[ConstraintSizes | None, Place], total: Int[Array, ""]) -> Queue:
        """The queue of all trajectories, of which the first `total` are to be made."""
        sizes, places = starts
        return Queue(self._begin, self._common, (samples, sizes), places, total)

    def run(self, samples: PyTree, total: Array) -> Outcome:
        """Runs the first `total` trajectories and returns the outcomes of all."""
        count = jax.tree_util.tree_leaves(samples)[0].shape[0]
        starts, pace = self.starts(samples)
        order = in_order(pace, total)
        queue, ahead = self.queue(rows(samples, order), rows(starts, order), total), MEETING * self.width

        def on(i, carry):
            progress, met = carry
            progress = queue.run(progress, jnp.minimum((i + 1) * ahead, count) + met)
            return progress, barrier(progress.lanes.place.t)

        start = queue.start(self.width), jnp.zeros((), int)
        ends = jax.lax.fori_loop(0, -(-count // ahead), on, start)[0].ends
        return self.finish(samples, starts, rows(ends, jnp.argsort(order)))

    def finish(self, samples: PyTree, starts: tuple[ConstraintSizes | None, Place], ends: Ends) -> Outcome:
        """The outcomes of all trajectories, from the ends of their integrations."""

        def outcome(measured, end):
            return self.to_result(measured, self.integrator.to_result(self.ts, self.first(measured), end))

        meeting = max(1, STATES // (self.width * self.ts.size))
        return self.joined(self.in_tiles(jax.vmap(outcome), (samples, starts[0]), ends, meeting=meeting))

    def in_tiles(self, function: Callable[..., PyTree], *batch: PyTree, meeting: int = 1) -> Any:
        """Calls `function` on tiles of as many trajectories as there are lanes; results have a leading axis of tiles.

        The cache then need not hold more than a tile. Devices wait for each other after `meeting` tiles.
        """
        tiles = jax.tree_util.tree_map(lambda x: x.reshape(-1, self.width, *x.shape[1:]), batch)

        def one(met, i):
            result = function(*jax.tree_util.tree_map(lambda x: x[i + met], tiles))
            if meeting == 1:
                return barrier(result), result
            return jax.lax.cond((i + 1) % meeting == 0, barrier, lambda _: met, result), result

        count = jax.tree_util.tree_leaves(tiles)[0].shape[0]
        return jax.lax.scan(one, jnp.zeros((), int), jnp.arange(count))[1]

    def joined(self, results: PyTree) -> Any:
        """Merges the axes of tiles, and of trajectories in a tile, into one axis of trajectories."""
        return jax.tree_util.tree_map(lambda x: x.reshape(-1, *x.shape[2:]), results)

    @property
    def _common(self) -> Common:
        return self.integrator.common(self.solver, self.method, self.ts, self.whole_steps)

    def _begin(self, measured: tuple[PyTree, ConstraintSizes | None]) -> tuple[Dynamics, Array]:
        sample, sizes = measured
        of = lambda function: None if function is None else _Of(function, sample)
        field = Partial(derivative, _Of(self.motion, sample))
        project = None if self.project is None else _Of(self.project, measured)
        scales = None if sizes is None else sizes.scales
        return Dynamics(field, project, scales=scales, kinks=of(self.kinks)), self.first(measured)
