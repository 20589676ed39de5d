"""A batch of any size, portion by portion: memory is that of a portion and of what is kept.

D: devices; B: trajectories of a portion, a multiple of D times the number of lanes.
"""

import functools as ft
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from tqdm.auto import tqdm

from .._integrate import Progress, in_order, rows
from .._program import Packed, packed, widely_compiled
from ._devices import BLOCK, ROUNDS, everywhere, gathered, of_all, on_each, own_of, placed, share_out
from ._outcome import Outcome
from ._plan import Recipe


# Of what a portion holds at once.
BYTES = 2**29
# Where JAX need not copy what is in memory, and results of how many bytes share one piece of it.
ALIGNED, TOGETHER = 64, 2**25
# How often a progress bar moves, about [s].
TICK = 0.5


class Size:
    """Of a portion: how many trajectories it has on all devices, and how many lanes each device has."""

    def __init__(self, count: int, devices: int, lanes: int, bytes_each: int):
        most = max(1, BYTES // (devices * max(bytes_each, 1)))
        share = -(-count // devices)
        # Rounded up, for lanes without a trajectory do no harm; down where memory is short.
        divided = (lambda x, size: max(1, x // size)) if share > most else (lambda x, size: -(-x // size))
        share = min(share, most)
        rounds = divided(share, lanes)
        each = divided(share, rounds)
        self.lanes = min(lanes, each if share < BLOCK else divided(each, BLOCK) * BLOCK)
        self.share = rounds * self.lanes
        self.whole = devices * self.share


def in_portions(recipe: Recipe, samples: PyTree, count: int, size: Size, devices: Sequence[Any], bar: tqdm) -> Outcome:
    """The outcomes of all trajectories, in memory of the host."""
    room: Any = None
    shared = everywhere(recipe, devices)
    for begin in range(0, count, size.whole):
        end = min(begin + size.whole, count)
        portion = jax.tree_util.tree_map(lambda x: filled(np.asarray(x[begin:end]), size.whole), samples)  # noqa: B023
        outcome, order = _portion(shared, packed(portion, axes=1), end - begin, size, devices, bar)
        if room is None:
            room = _room(outcome, count)
        _take_down(outcome, order, jax.tree_util.tree_map(lambda x: x[begin:end], room))  # noqa: B023
    return room.tree


def _room(portion: PyTree, count: int) -> Any:
    """Empty arrays like those of a portion for so many, where JAX need not copy them: at multiples of 64 bytes.

    All in one piece of memory if that is not much: small ones of their own go back to the system when they are let go,
    and the system has to find every page of the next ones anew. Of 512 trajectories of the SCARA that was a tenth of
    the time.
    """
    leaves, structure = jax.tree_util.tree_flatten(portion)
    shapes = [(count, *x.shape[1:]) for x in leaves]
    lengths = [math.prod(shape) * x.dtype.itemsize for shape, x in zip(shapes, leaves, strict=True)]
    whole = sum(-(-length // ALIGNED) * ALIGNED for length in lengths)
    pieces = [lengths] if whole <= TOGETHER else [[length] for length in lengths]
    memory = [part for piece in pieces for part in _aligned(piece)]
    found = [m.view(x.dtype).reshape(shape) for m, x, shape in zip(memory, leaves, shapes, strict=True)]
    return jax.tree_util.tree_unflatten(structure, found)


def _aligned(lengths: Sequence[int]) -> list[np.ndarray]:
    """Bytes, so many each, one after the other in a piece of memory."""
    begins = np.cumsum([0, *(-(-length // ALIGNED) * ALIGNED for length in lengths)])
    memory = np.empty(begins[-1] + ALIGNED, np.uint8)
    begins += -memory.ctypes.data % ALIGNED
    return [memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=False)]


def _take_down(outcome: Any, order: np.ndarray, to: Any) -> None:
    """Writes what the devices have made of trajectories in this order to where they belong.

    If it is much, what each device has made by a thread of its own: half of the time the system finds memory.
    """
    leaves = [
        (sorted(x.addressable_shards, key=lambda share: share.index[0].start or 0), to)
        for x, to in zip(*map(jax.tree_util.tree_leaves, (outcome, to)), strict=True)
    ]
    devices = len(leaves[0][0])

    def share(i):
        places = order[i::devices]
        for shares, to in leaves:
            there, made = places < len(to), np.asarray(shares[i].data)
            to[places[there]] = made[there] if not np.all(there) else made

    if sum(to.nbytes for _, to in leaves) <= TOGETHER:
        list(map(share, range(devices)))
        return
    with ThreadPoolExecutor(devices) as threads:
        list(threads.map(share, range(devices)))


def filled(x: Any, count: int) -> Any:
    """With the last one again, as often as there is room."""
    index = np.minimum(np.arange(count), len(x) - 1)
    return x if len(x) == count else x[index]


def _portion(
    recipe: Packed, samples: Packed, count: int, size: Size, devices: Sequence[Any], bar: tqdm
) -> tuple[Packed, np.ndarray]:
    """The outcome of each trajectory, and the order in which they are dealt out to the devices."""
    most = np.array([-(-(count - i) // len(devices)) for i in range(len(devices))])
    copies = len(devices) * sum(x.nbytes for x in jax.tree_util.tree_leaves(samples))
    if bar.disable and size.share <= ROUNDS * size.lanes and copies <= BYTES:
        outcome, own = _at_once(tuple(devices), recipe, *placed((samples, most), devices))
        return outcome, gathered(np.asarray(own), len(devices))
    (starts, pace), progress = _begin(tuple(devices), recipe, placed(samples, devices))
    order = in_order(np.asarray(pace), count)
    dealt = share_out(jax.tree_util.tree_map(lambda x: np.asarray(x)[order], (samples, starts)), len(devices))
    given = (tuple(devices), recipe, *placed(dealt, devices))
    until, done = 2 * size.lanes, 0
    while True:
        begin = time.perf_counter()
        progress = _advance(given, progress, placed(np.stack([most, np.full_like(most, until)], 1), devices))
        taken = jax.block_until_ready(progress.taken)
        now = int(np.sum(np.minimum(taken, most)))
        bar.update(now - done)
        seconds, did, done = time.perf_counter() - begin, now - done, now
        if until >= most.max():
            return _finish(*given, progress.ends), order
        ahead = did / len(devices) * TICK / max(seconds, 1e-3)
        until += int(np.clip(ahead, size.lanes, 16 * size.lanes + until))


# A device that is the only one may well use other cores where operations are large, which those of a step are not.
_of_devices = ft.partial(widely_compiled, by_itself=lambda devices, *_: len(devices) > 1)

# The functions of a person are traced outside of what each device does, for what they close over to be seen there.


@_of_devices
def _at_once(devices: Any, recipe: Packed, samples: Packed, most: Array) -> tuple[Packed, Array]:
    """All of a batch that is not much, where nobody watches; and which trajectories each device has made.

    For each call a device is woken, and waits until the others are done: a twentieth of the time of 512 trajectories of
    the SCARA.
    """

    def share(plan, samples, most):
        starts, pace = plan.starts(samples.tree)
        samples, starts, pace, counts = of_all((samples, packed(starts, axes=1), pace, most), len(devices))
        own = own_of(in_order(pace, jnp.sum(counts)), len(devices))
        samples, starts = (rows(x, own).tree for x in (samples, starts))
        queue = plan.queue(samples, starts, most[0])
        ends = queue.run(queue.start(plan.width), most[0]).ends
        return packed(plan.finish(samples, starts, ends), axes=1, most=1), own

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, most, alone=True)


@_of_devices
def _begin(devices: Any, recipe: Packed, samples: Packed) -> tuple[tuple[Packed, Array], Progress]:
    """Where trajectories begin, and how fast, in any order, and none of them begun."""

    def share(plan, samples):
        starts, pace = plan.starts(samples.tree)
        nothing = plan.queue(samples.tree, starts, jnp.zeros((), int)).start(plan.width)
        return (packed(starts, axes=1), pace), _own(nothing)

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, alone=True)


@ft.partial(widely_compiled, by_itself=lambda *_: True, donate="all-except-first")
def _advance(given: Any, progress: Progress, upto: Array) -> Progress:
    """Goes on until so many were begun: `upto` (D, 2), how many there are for each device, and how many of those."""
    devices, recipe, samples, starts = given

    def share(plan, samples, starts, progress, upto):
        at = eqx.tree_at(lambda p: p.taken, progress, progress.taken[0])
        ((total, until),) = upto
        return _own(plan.queue(samples.tree, starts.tree, total).run(at, until))

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, starts, progress, upto, alone=True)


@_of_devices
def _finish(devices: Any, recipe: Packed, samples: Packed, starts: Packed, ends: Any) -> Packed:
    share = lambda plan, samples, starts, ends: packed(plan.finish(samples.tree, starts.tree, ends), axes=1, most=1)
    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, starts, ends, alone=True)


def _own(progress: Progress) -> Progress:
    """With a leading axis for the device."""
    return eqx.tree_at(lambda p: p.taken, progress, progress.taken[None])
