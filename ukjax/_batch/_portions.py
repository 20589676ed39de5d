"""A batch of any size, portion by portion: memory is that of a portion and of what is kept.

D: devices; B: trajectories of a portion, a multiple of D times the number of lanes.
"""

import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from tqdm.auto import tqdm

from .._integrate import Progress
from ._devices import gathered, on_each, share_out
from ._outcome import Outcome
from ._plan import Recipe


# Of what a portion holds at once.
BYTES = 2**29
# How often a progress bar moves, about [s].
TICK = 0.5


class Size:
    """Of a portion: how many trajectories it has on all devices, and how many lanes each device has."""

    def __init__(self, count: int, devices: int, lanes: int, bytes_each: int):
        most = max(1, BYTES // (devices * max(bytes_each, 1)))
        share = -(-count // devices)
        rounds = -(-min(share, most) // lanes)
        self.lanes = min(lanes, -(-min(share, most) // rounds))
        self.share = rounds * self.lanes
        self.whole = devices * self.share


def in_portions(recipe: Recipe, samples: PyTree, count: int, size: Size, devices: Sequence[Any], bar: tqdm) -> Outcome:
    """The outcomes of all trajectories, in memory of the host."""
    room: Any = None
    for begin in range(0, count, size.whole):
        end = min(begin + size.whole, count)
        portion = jax.tree_util.tree_map(lambda x: filled(np.asarray(x[begin:end]), size.whole), samples)  # noqa: B023
        outcome = _portion(recipe, share_out(portion, len(devices)), end - begin, size, devices, bar)
        outcome = gathered(jax.tree_util.tree_map(np.asarray, outcome), len(devices))
        if room is None:
            room = jax.tree_util.tree_map(lambda x: np.empty((count, *x.shape[1:]), x.dtype), outcome)
        for to, x in zip(*map(jax.tree_util.tree_leaves, (room, outcome)), strict=True):
            to[begin:end] = x[: end - begin]
    return room


def filled(x: Any, count: int) -> Any:
    """With the last one again, as often as there is room."""
    index = np.minimum(np.arange(count), len(x) - 1)
    return x if len(x) == count else x[index]


def _portion(recipe: Recipe, samples: PyTree, count: int, size: Size, devices: Sequence[Any], bar: tqdm) -> Outcome:
    total = np.array([-(-(count - i) // len(devices)) for i in range(len(devices))])
    order = np.tile(np.arange(size.share), len(devices))
    given = (tuple(devices), recipe, samples, order, total)
    progress, until, done = _start(*given), 2 * size.lanes, 0
    while True:
        begin = time.perf_counter()
        progress = _advance(given, progress, jnp.full(len(devices), until))
        taken = jax.block_until_ready(progress.taken)
        now = int(np.sum(np.minimum(taken, total)))
        bar.update(now - done)
        seconds, did, done = time.perf_counter() - begin, now - done, now
        if until >= total.max():
            return _finish(tuple(devices), recipe, samples, progress.ends)
        ahead = did / len(devices) * TICK / max(seconds, 1e-3)
        until += int(np.clip(ahead, size.lanes, 16 * size.lanes + until))


# The functions of a person are traced outside of what each device does, for what they close over to be seen there.


@eqx.filter_jit
def _start(devices: Any, recipe: Recipe, samples: PyTree, order: Any, total: Any) -> Progress:
    share = lambda plan, samples, order, total: _own(plan.start(samples, order, total[0]))
    return on_each(share, devices, recipe.plan(samples), samples, order, total)


@eqx.filter_jit(donate="all-except-first")
def _advance(given: Any, progress: Progress, until: Array) -> Progress:
    devices, recipe, samples, order, total = given

    def share(plan, samples, order, total, progress, until):
        at = eqx.tree_at(lambda p: p.taken, progress, progress.taken[0])
        return _own(plan.queue(samples, order, total[0]).run(at, until[0]))

    return on_each(share, devices, recipe.plan(samples), samples, order, total, progress, until)


@eqx.filter_jit
def _finish(devices: Any, recipe: Recipe, samples: PyTree, ends: Any) -> Outcome:
    share = lambda plan, samples, ends: plan.finish(samples, ends)
    return on_each(share, devices, recipe.plan(samples), samples, ends)


def _own(progress: Progress) -> Progress:
    """With a leading axis for the device."""
    return eqx.tree_at(lambda p: p.taken, progress, progress.taken[None])
