"""The program of a batch: what makes its trajectories, as a differentiable operation.

The value is that of loops of machine code, or is computed in tiles of as many trajectories as there are lanes. Its
derivative, a linear map, runs the trajectories again, in tiles too, for its memory is that of a tile. Trajectories in a
tile are about equally long there, so that none waits for a much longer one.

D: devices; B: trajectories, a multiple of the number of lanes; T: saved times; n: numbers of a state; d: tangent;
c: cotangent.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import ad
from jaxtyping import Array, Bool, Float, Int, PyTree

from .._expand import NotScalar
from .._integrate import Dynamics, Integrator, linear_in_all
from .._manifold import ConstraintSizes
from .._program import Traced, traced
from .._result import RESULTS
from .._show import AbstractShown, Report, outcome, parameters, shortened
from .._simulation import (
    FailureEvidence,
    RunDiagnostics,
    Settings,
    StateLayout,
    assemble_trajectory,
    set_up,
)
from .._trajectory import OPTIONAL, Trajectory
from ._devices import Device, barrier, meets, on_each
from ._parts import BatchInputs


T = TypeVar("T")


class Reduction(AbstractShown):
    """The values that `reduce` made of the trajectories of a batch.

    Attributes:
        value: The results of `reduce(trajectory)`, with a leading axis (B,).
        result: `RESULTS` of each trajectory (B,); empty message where all went well.
        stats: As of `Trajectory` (B,).
    """

    value: PyTree
    result: RESULTS
    stats: dict[str, Array]

    def _report(self) -> Report:
        shown, more = shortened(parameters(self.value))
        return Report(f"Reduction of a batch: {outcome(self.result)}", shown, notes=more)


class Outcome(NamedTuple):
    """The result of a trajectory for the user, the errors of its start, and the data to explain a failure.

    Attributes:
        got: `Trajectory`, without its times, or `Reduction`.
        start: See `RunDiagnostics`.
        why: Start, outcome and states of `FailureEvidence`, if no reason of a failure was looked for.
    """

    got: Trajectory | Reduction
    start: tuple[Array, Array, Array] | None
    why: tuple[RESULTS, RESULTS, tuple[Array, Array]] | None

    @property
    def steps(self) -> Int[Array, " B"]:
        return self.got.stats["num_steps"]


def outcome_of(trajectory: Trajectory, notes: RunDiagnostics, reduce: Callable[[Trajectory], PyTree] | None) -> Outcome:
    """The outcome of one trajectory; `reduce` is a function of it, or None."""
    why = None
    if notes.unexplained is not None:
        why = notes.unexplained.started, notes.unexplained.outcome, notes.unexplained.states
    if reduce is None:
        got = eqx.tree_at(lambda t: t.t, trajectory, None)
    else:
        got = Reduction(_reduced(reduce, trajectory), trajectory.result, trajectory.stats)
    return Outcome(got, notes.start, why)


def _reduced(reduce: Callable[[Trajectory], PyTree], trajectory: Trajectory) -> PyTree:
    """Applies the user's `reduce` to a trajectory; raises TypeError if it does not return arrays."""
    try:
        value = reduce(trajectory)
    except (TypeError, AttributeError) as error:
        there = [name for name in OPTIONAL if getattr(trajectory, name) is not None]
        error.add_note(f"Of a trajectory there is here what `keep` names: {', '.join(there)}.")
        raise
    for leaf in jax.tree_util.tree_leaves(value):
        if not eqx.is_array_like(leaf):
            raise TypeError(f"reduce must return arrays or numbers, but returned a {type(leaf).__name__}: {leaf!r}.")
    return value


def smooth_of(outcome: Outcome) -> Outcome:
    """The leaves of an outcome that have a derivative; None elsewhere."""
    got, nothing = outcome.got, jax.tree_util.tree_map(lambda _: None, outcome)
    if isinstance(got, Reduction):
        values = eqx.tree_at(lambda g: g.value, nothing.got, eqx.filter(got.value, _is_smooth), is_leaf=_none)
    else:
        values = eqx.filter(got, _is_smooth)
        values = eqx.tree_at(lambda t: (t.result, t.stats), values, (nothing.got.result, nothing.got.stats))
    return nothing._replace(got=values)


def _is_smooth(x: PyTree) -> bool:
    """Whether an array, or its shape and dtype, is one of inexact numbers."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def _none(x: object) -> bool:
    return x is None


def unexplained(why: tuple[RESULTS, RESULTS, tuple[Array, Array]], layout: StateLayout) -> FailureEvidence:
    """The data to explain the failure of a trajectory: see `explain`."""
    started, ended, states = why
    return FailureEvidence(started, ended, layout, states)


class BatchSettings(eqx.Module):
    """The settings that all trajectories of a batch share, with the functions of the user."""

    parts: BatchInputs
    ts: Float[Array, " T"]
    settings: Settings
    reduce: Callable[[Trajectory, PyTree], PyTree] | None
    width: int = eqx.field(static=True)

    def plan(self, samples: PyTree) -> "BatchProgram":
        """Traces the functions of a batch, each with the arrays it closes over, for samples like these (B, ...)."""
        sample = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), samples)
        settings, static = self.settings, []

        def measure(sample):
            mechanism, _, (q0, v0) = self.parts(sample)
            return ConstraintSizes.of(mechanism, q0, v0, self.ts[0])

        def begun(measured):
            sample, sizes = measured
            run = set_up(*self.parts(sample), self.ts, settings, sizes=sizes)
            arrays, rest = eqx.partition(Begin(run.flow, run.y0, run.motion), eqx.is_array)
            static[:] = [rest]
            return arrays

        def to_result(measured, integrated):
            (sample, sizes), make = measured, self.reduce
            motion = eqx.combine(begin(measured), static[0]).motion
            run = set_up(*self.parts(sample), self.ts, settings, motion=motion, sizes=sizes)
            reduce = None if make is None else lambda trajectory: make(trajectory, self.parts.whole(sample)["samples"])
            return outcome_of(*assemble_trajectory(run, self.ts, integrated, settings.keep), reduce)

        sizes = None if settings.projection is None else traced(measure, sample)
        measured = sample, None if sizes is None else jax.eval_shape(sizes, sample)
        begin = traced(begun, measured)
        return BatchProgram(
            begin,
            static[0],
            sizes,
            traced(to_result, measured, jax.eval_shape(_integrated, self.ts, begin.shapes.y0)),
            self.ts,
            settings.solver,
            settings.method,
            settings.integrator,
            self.width,
        )


def _integrated(ts: Array, y: Array) -> tuple[Array, tuple[Array, Array], dict[str, Array], RESULTS]:
    """Zeros in the structure of the results of an `Integrator`."""
    names, zero = ("num_steps", "num_accepted_steps", "num_rejected_steps"), jnp.zeros((), int)
    result = jax.tree_util.tree_map(jnp.asarray, RESULTS.successful)
    return jnp.zeros((*ts.shape, *y.shape), y.dtype), (ts[0], y), dict.fromkeys(names, zero), result


class Begin(eqx.Module):
    """The begin of a trajectory: its dynamics, its first state, and (t, y) -> `motion_at`; no functions of the user."""

    flow: Dynamics
    y0: Array
    motion: Callable


class BatchProgram(eqx.Module):
    """The traced functions that make trajectories from samples; none calls a function of the user any more.

    Attributes:
        begin: (sample, its sizes) -> the arrays of its `Begin`.
        static: The rest of it, the same for all.
        sizes: sample -> `ConstraintSizes`, or None.
        to_result: (sample, its sizes), results of an `Integrator` -> `Outcome`.
    """

    begin: Traced
    static: Begin
    sizes: Traced | None
    to_result: Traced
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    integrator: Integrator
    width: int = eqx.field(static=True)

    def one(self, sample: PyTree) -> Outcome:
        """The outcome of one trajectory, which can be differentiated."""
        measured, solve = self._begun(sample)
        return self.to_result(measured, self.integrator(*solve))

    def value(self, sample: PyTree, due: Array, native: bool) -> Outcome:
        """The outcome of one trajectory, if it is `due`, which cannot be differentiated.

        Raises NotScalar if it is to be a loop of machine code, and cannot be. The bits are then those of `one`.
        """
        measured, solve = self._begun(sample)
        found = self.integrator.value(*solve, due=due, native=native)
        if found is None:
            raise NotScalar("a trajectory that is no loop of machine code")
        return self.to_result(measured, found)

    def run(self, samples: PyTree, due: Array, native: bool) -> Outcome | None:
        """Runs the trajectories that are `due` (B,) and returns the outcomes of all.

        They are loops of machine code if `native`, or None if they cannot be; else tiles of a batch.
        """
        one = jax.vmap(ft.partial(self.value, native=native))
        try:
            # Devices that are to meet do so after every few trajectories.
            return one(samples, due) if native and not meets() else self.joined(self.in_tiles(one, samples, due))
        except NotScalar:
            return None

    def in_tiles(self, function: Callable[..., PyTree], *batch: PyTree) -> PyTree:
        """Calls `function` on tiles of as many trajectories as there are lanes; results have a leading axis of tiles.

        The cache then need not hold more than a tile. Devices wait for each other after every tile.
        """
        tiles = jax.tree_util.tree_map(lambda x: x.reshape(x.shape[0] // self.width, self.width, *x.shape[1:]), batch)

        def one(met, i):
            result = function(*jax.tree_util.tree_map(lambda x: x[i + met], tiles))
            return barrier(result), result

        count = jax.tree_util.tree_leaves(tiles)[0].shape[0]
        return jax.lax.scan(one, jnp.zeros((), int), jnp.arange(count))[1]

    def joined(self, results: PyTree) -> PyTree:
        """Merges the axes of tiles, and of trajectories in a tile, into one axis of trajectories."""
        return jax.tree_util.tree_map(lambda x: x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), results)

    def _begun(self, sample: PyTree) -> tuple[tuple[PyTree, ConstraintSizes | None], tuple[PyTree, ...]]:
        """A sample with its sizes, and the arguments of the integrator."""
        measured = sample, None if self.sizes is None else self.sizes(sample)
        found = eqx.combine(self.begin(measured), self.static)
        return measured, (found.flow, found.y0, self.ts, self.solver, self.method)


def rows(tree: T, index: Array) -> T:
    """The entries of arrays (B, ...) with these numbers."""
    return jax.tree_util.tree_map(lambda x: x[index], tree)


def batch_outcome(plan: BatchProgram, samples: PyTree, due: Bool[Array, " B"], devices: Sequence[Device]) -> Outcome:
    """The outcome of all trajectories (B, ...), of which those that are `due` run."""
    return _outcome(plan, samples, due, devices=devices)


@eqx.filter_custom_jvp
def _outcome(plan, samples, due, *, devices):
    return _compiled(plan, samples, due, tuple(devices))


@eqx.filter_jit
def _compiled(plan, samples, due, devices):
    return on_each(_value, devices, plan, samples, due)


def _value(plan: BatchProgram, samples: PyTree, due: Bool[Array, " B"]) -> Outcome:
    """The outcomes of the share of one device."""
    ran = plan.run(samples, due, native=True)
    ran = plan.run(samples, due, native=False) if ran is None else ran
    assert ran is not None
    return ran


@_outcome.def_jvp
def _outcome_jvp(primals, tangents, *, devices):
    plan, samples, due = primals
    outcome = _outcome(plan, samples, due, devices=devices)
    okay = outcome.got.result == RESULTS.successful
    at = plan, samples, outcome.got.stats["num_steps"], okay
    # Each direction is made linear in all: then the cotangent of what a jax.vmap shares is a sum over the batch.
    directions = linear_in_all((tangents[0], tangents[1]))
    return outcome, eqxi.filter_primitive_bind(_slope_p, at, directions, devices)


@eqxi.filter_primitive_def
def _slope(at, directions, devices):
    plan, samples, steps, okay = at
    return _on_each(_along, devices, (plan, directions[0]), samples, directions[1], steps, okay)


@eqxi.filter_primitive_def
def _slope_shapes(at, directions, devices):
    plan, samples, *_ = at
    count = jax.tree_util.tree_leaves(samples)[0].shape[0]
    smooth = smooth_of(plan.to_result.shapes)
    return jax.tree_util.tree_map(lambda x: ShapedArray((count, *x.shape), x.dtype), smooth)


@eqxi.filter_primitive_jvp
def _slope_jvp(primals, tangents):
    at, directions, devices = primals
    d_at, d_directions, _ = tangents

    # Second order in forward mode: the function inside differentiates like any other.
    def slope(at, directions):
        return _on_each(_along, devices, (at[0], directions[0]), at[1], directions[1], *at[2:])

    return eqx.filter_jvp(slope, (at, directions), (d_at, d_directions))


@eqxi.filter_primitive_transpose  # pyright: ignore
def _transpose(arguments, cotangent):
    at, directions, devices = arguments
    plan, samples, steps, okay = at
    wanted = jax.tree_util.tree_map(lambda x: _is_undefined(x) or None, directions, is_leaf=_is_undefined)
    of_plan, of_samples = _on_each(_back, devices, (plan, wanted), samples, cotangent, steps, okay)
    nothing = jax.tree_util.tree_map(lambda _: None, (at, devices))
    return nothing[0], (jax.tree_util.tree_map(lambda x: jnp.sum(x, 0), of_plan), of_samples), nothing[1]


def _is_undefined(x: object) -> bool:
    return isinstance(x, ad.UndefinedPrimal)


_slope_p = eqxi.create_vprim("batch_tangent", _slope, _slope_shapes, _slope_jvp, _transpose)


@eqx.filter_jit
def _on_each(function: Callable[..., PyTree], devices: Sequence[Device], shared: PyTree, *split: PyTree) -> PyTree:
    return on_each(function, devices, shared, *split)


def _along(
    shared: tuple[BatchProgram, PyTree], samples: PyTree, d_samples: PyTree, steps: Array, okay: Array
) -> Outcome:
    """The derivative along directions, for the share of one device."""
    plan, d_plan = shared

    def along(sample, d_sample, okay):
        outcome, slopes = eqx.filter_jvp(
            lambda plan, sample: smooth_of(plan.one(sample)), (plan, sample), (d_plan, d_sample)
        )
        # A leaf without a derivative has slope None, which becomes 0; a failed trajectory has slope NaN.
        return jax.tree_util.tree_map(
            lambda x, d: jnp.zeros_like(x) if d is None else jnp.where(okay, d, jnp.nan), outcome, slopes
        )

    order = jnp.argsort(-steps)
    found = plan.in_tiles(jax.vmap(along), *rows((samples, d_samples, okay), order))
    return rows(plan.joined(found), jnp.argsort(order))


def _back(
    shared: tuple[BatchProgram, tuple[PyTree, PyTree]], samples: PyTree, cotangent: Outcome, steps: Array, okay: Array
) -> tuple[PyTree, PyTree]:
    """The cotangents of the plan (1, ...) and of the samples, for the share of one device: the transpose of `_along`.

    `cotangent` is None for fields that the loss does not use: a loss of q alone then needs no derivative of fields that
    take another acceleration of each state.
    """
    plan, (plan_wanted, sample_wanted) = shared
    smooth_plan, fixed = eqx.partition(plan, _flags(plan_wanted, plan))

    def back(sample, cotangent, okay):
        smooth_sample, others = eqx.partition(sample, _flags(sample_wanted, sample))

        def function(a, b):
            outcome = smooth_of(eqx.combine(a, fixed).one(eqx.combine(b, others)))
            return jax.tree_util.tree_map(lambda x, c: None if c is None else x, outcome, cotangent)

        _, pullback = jax.vjp(function, smooth_plan, smooth_sample)
        # A failed trajectory has no derivative, and must not change those of the others.
        return jax.tree_util.tree_map(lambda x: jnp.where(okay, x, 0), pullback(cotangent))

    def tile(samples, cotangent, okay):
        of_plan, of_samples = jax.vmap(back)(samples, cotangent, okay)
        return jax.tree_util.tree_map(lambda x: jnp.sum(x, 0), of_plan), of_samples

    order = jnp.argsort(-steps)
    of_plan, of_samples = plan.in_tiles(tile, *rows((samples, cotangent, okay), order))
    of_samples = rows(plan.joined(of_samples), jnp.argsort(order))
    return jax.tree_util.tree_map(lambda x: jnp.sum(x, 0)[None], of_plan), of_samples


def _flags(wanted: PyTree, tree: PyTree) -> PyTree:
    """A tree of booleans like `tree`: True where `wanted` is, which is None elsewhere."""
    return jax.tree_util.tree_map(lambda _, w: w is True, tree, wanted, is_leaf=lambda x: x is None)
