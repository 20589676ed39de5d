"""A batch as one differentiable operation.

The value is computed in lanes. Its derivative, a linear map, runs the trajectories again, in tiles of as many as there
are lanes. Its memory is that of a tile. Trajectories in a tile are about equally long, so that none waits for a much
longer one.

D: devices; B: trajectories; d: tangent; c: cotangent.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.interpreters import ad
from jaxtyping import Array, Int, PyTree

from .._integrate import linear_in_all, rows
from .._result import RESULTS
from ._devices import on_each
from ._outcome import Outcome, smooth_of
from ._plan import BatchProgram


def batch_outcome(plan: BatchProgram, samples: PyTree, total: Int[Array, " D"], devices: Sequence[Any]) -> Outcome:
    """The outcome of all trajectories (B, ...), of which each device does the first `total` of its share."""
    return _outcome(plan, samples, total, devices=devices)


@eqx.filter_custom_jvp
def _outcome(plan, samples, total, *, devices):
    return _compiled(plan, samples, total, tuple(devices))


@eqx.filter_jit
def _compiled(plan, samples, total, devices):
    return on_each(_value, devices, plan, samples, total)


def _value(plan: BatchProgram, samples: PyTree, total: Int[Array, " 1"]) -> Outcome:
    """The outcomes of the share of one device."""
    return plan.run(samples, total[0])


@_outcome.def_jvp
def _outcome_jvp(primals, tangents, *, devices):
    plan, samples, total = primals
    outcome = _outcome(plan, samples, total, devices=devices)
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
    slope = lambda at, directions: _on_each(_along, devices, (at[0], directions[0]), at[1], directions[1], *at[2:])
    return eqx.filter_jvp(slope, (at, directions), (d_at, d_directions))


@eqxi.filter_primitive_transpose  # pyright: ignore
def _transpose(arguments, cotangent):
    at, directions, devices = arguments
    plan, samples, steps, okay = at
    wanted = jax.tree_util.tree_map(lambda x: _is_undefined(x) or None, directions, is_leaf=_is_undefined)
    of_plan, of_samples = _on_each(_back, devices, (plan, wanted), samples, cotangent, steps, okay)
    nothing = lambda tree: jax.tree_util.tree_map(lambda _: None, tree)
    return nothing(at), (jax.tree_util.tree_map(lambda x: jnp.sum(x, 0), of_plan), of_samples), nothing(devices)


def _is_undefined(x: Any) -> bool:
    return isinstance(x, ad.UndefinedPrimal)


_slope_p = eqxi.create_vprim("batch_tangent", _slope, _slope_shapes, _slope_jvp, _transpose)


@eqx.filter_jit
def _on_each(function: Any, devices: Sequence[Any], shared: PyTree, *split: PyTree) -> Any:
    return on_each(function, devices, shared, *split)


def _along(shared: Any, samples: PyTree, d_samples: PyTree, steps: Array, okay: Array) -> Outcome:
    """The derivative along directions, for the share of one device."""
    plan, d_plan = shared

    def along(sample, d_sample, okay):
        smooth = lambda plan, sample: smooth_of(plan.one(sample))
        outcome, slopes = eqx.filter_jvp(smooth, (plan, sample), (d_plan, d_sample))
        # A leaf without a derivative has slope None, which becomes 0; a failed trajectory has slope NaN.
        slope = lambda x, d: jnp.zeros_like(x) if d is None else jnp.where(okay, d, jnp.nan)
        return jax.tree_util.tree_map(slope, outcome, slopes)

    order = jnp.argsort(-steps)
    found = plan.in_tiles(jax.vmap(along), *rows((samples, d_samples, okay), order))
    return rows(plan.joined(found), jnp.argsort(order))


def _back(shared: Any, samples: PyTree, cotangent: Outcome, steps: Array, okay: Array) -> Any:
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


def _flags(wanted: Any, tree: Any) -> Any:
    """A tree of booleans like `tree`: True where `wanted` is, which is None elsewhere."""
    return jax.tree_util.tree_map(lambda _, w: w is True, tree, wanted, is_leaf=lambda x: x is None)
