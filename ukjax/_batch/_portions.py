"""Runs a batch of any size, portion by portion: memory is that of a portion and of the kept results.

D: devices; B: trajectories of a portion, a multiple of D times the number of lanes.
"""

import functools as ft
import math
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from tqdm.auto import tqdm

from .._integrate import Ends, Progress, in_order
from .._lowering import runs_done, runs_machine_code, stopping
from .._program import Packed, packed
from ._devices import BLOCK, Device, everywhere, on_each, placed, share_out
from ._plan import BatchProgram, BatchSettings, Outcome


Devices = tuple[Device, ...]
T = TypeVar("T")
Entries = TypeVar("Entries", Array, np.ndarray)

# The most bytes of results that a portion holds at once.
BYTES = 2**29
# JAX need not copy memory at multiples of this address; results of up to so many bytes share one piece of memory.
ALIGNED, TOGETHER = 64, 2**25
# The time between two moves of a progress bar, about, and the shortest between two looks whether results are there [s].
TICK, SHORTEST = 0.2, 1e-4


class Size:
    """The size of a portion: its trajectories on all devices and on each, and the lanes of each device."""

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


def in_runs(
    recipe: BatchSettings, samples: PyTree, count: int, devices: Sequence[Device], bytes_each: int, bar: tqdm
) -> Outcome | None:
    """Runs all trajectories as loops of machine code; None where they cannot be such loops.

    `bytes_each`: about the most that a trajectory needs on the way.
    """
    if not runs_machine_code():
        return None
    most = max(1, BYTES // (len(devices) * max(bytes_each, 1)))
    share = -(-count // len(devices))
    share = -(-share // -(-share // most))  # portions of about the same size
    whole, room, shared = len(devices) * share, None, everywhere(recipe, devices)
    for begin in range(0, count, whole):
        here = min(whole, count - begin)
        portion = jax.tree_util.tree_map(lambda x: filled(np.asarray(x[begin : begin + here]), whole), samples)  # noqa: B023
        dealt = share_out(packed(portion, axes=1), len(devices))
        totals = np.array([-(-(here - i) // len(devices)) for i in range(len(devices))])
        outcome = _runs(tuple(devices), shared, *placed((dealt, totals), devices))
        if outcome is None:
            return None
        outcome = _awaited(outcome, here, bar)
        room = _allocate_like(outcome, count) if room is None else room
        _copy_back(outcome, np.arange(whole), jax.tree_util.tree_map(lambda x: x[begin : begin + here], room))  # noqa: B023
    assert room is not None
    return room.tree


def _awaited(outcome: T, count: int, bar: tqdm) -> T:
    """The outcome of `count` runs, when it is there; a bar shows how many are done. An interruption stops them."""
    before, start, begin = runs_done(), bar.n, time.perf_counter()
    leaves = jax.tree_util.tree_leaves(outcome)
    try:
        while not all(x.is_ready() for x in leaves):
            time.sleep(min(SHORTEST + (time.perf_counter() - begin) / 50, TICK))
            bar.update(start + min(runs_done() - before, count) - bar.n)
    except BaseException:
        with stopping():
            while not all(x.is_ready() for x in leaves):  # on every device
                time.sleep(SHORTEST)
        raise
    bar.update(start + count - bar.n)
    return jax.block_until_ready(outcome)


def _runs(devices: Devices, recipe: Packed, samples: Packed, most: Array) -> Packed | None:
    """The outcomes of a portion, which need not be there yet; None if trajectories cannot be loops of machine code."""
    arrays, static = eqxi.hashable_partition((recipe, samples, most), eqx.is_array)
    return _runs_of(devices, static, arrays)


# `eqx.filter_jit` would wait for the results. XLA runs a program of less than some thousand operations in the thread
# that calls it: that of a few trajectories of a simple mechanism can neither be watched nor interrupted.
@ft.partial(jax.jit, static_argnums=(0, 1))
def _runs_of(devices: Devices, static: Hashable, arrays: Sequence[Array]) -> Packed | None:
    recipe, samples, most = eqxi.hashable_combine(arrays, static)

    def share(plan: BatchProgram, samples: Packed, most: Array) -> Packed | None:
        outcome = plan.in_runs(samples.tree, most[0])
        return None if outcome is None else packed(outcome, axes=1, most=1)

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, most, alone=True)


def in_portions(
    recipe: BatchSettings, samples: PyTree, count: int, size: Size, devices: Sequence[Device], bar: tqdm
) -> Outcome:
    """Runs all trajectories and returns their outcomes in memory of the host."""
    room: PyTree = None
    shared = everywhere(recipe, devices)
    for begin in range(0, count, size.whole):
        end = min(begin + size.whole, count)
        portion = jax.tree_util.tree_map(lambda x: filled(np.asarray(x[begin:end]), size.whole), samples)  # noqa: B023
        outcome, order = _portion(shared, packed(portion, axes=1), end - begin, size, devices, bar)
        if room is None:
            room = _allocate_like(outcome, count)
        _copy_back(outcome, order, jax.tree_util.tree_map(lambda x: x[begin:end], room))  # noqa: B023
    return room.tree


def _allocate_like(portion: PyTree, count: int) -> PyTree:
    """Empty arrays like those of a portion, for `count` trajectories, at multiples of 64 bytes: JAX need not copy them.

    Small ones share one piece of memory: pieces of their own would go back to the system when freed, which then has to
    find every page of the next ones anew.
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
    """Arrays of bytes of these lengths, aligned, one after the other in a piece of memory."""
    begins = np.cumsum([0, *(-(-length // ALIGNED) * ALIGNED for length in lengths)])
    memory = np.empty(begins[-1] + ALIGNED, np.uint8)
    begins += -memory.ctypes.data % ALIGNED
    return [memory[begin : begin + length] for begin, length in zip(begins, lengths, strict=False)]


def _copy_back(outcome: PyTree, order: np.ndarray, to: PyTree) -> None:
    """Copies the results of the devices, for trajectories in this order, to their places in `to`.

    Large results are copied by a thread for each device, for the system spends much of the time on finding memory.
    """
    leaves = [
        (sorted(x.addressable_shards, key=lambda share: share.index[0].start or 0), to)
        for x, to in zip(*map(jax.tree_util.tree_leaves, (outcome, to)), strict=True)
    ]
    devices = len(leaves[0][0])

    def share(i: int) -> None:
        places = order[i::devices]
        for shares, to in leaves:
            there, made = places < len(to), np.asarray(shares[i].data)
            to[places[there]] = made[there] if not np.all(there) else made

    if sum(to.nbytes for _, to in leaves) <= TOGETHER:
        list(map(share, range(devices)))
        return
    with ThreadPoolExecutor(devices) as threads:
        list(threads.map(share, range(devices)))


def filled(x: Entries, count: int) -> Entries:
    """Pads x to `count` entries by repeating the last one."""
    index = np.minimum(np.arange(count), len(x) - 1)
    return x if len(x) == count else x[index]


def _portion(
    recipe: Packed, samples: Packed, count: int, size: Size, devices: Sequence[Device], bar: tqdm
) -> tuple[Packed, np.ndarray]:
    """Runs a portion and returns its outcomes, and the order in which its trajectories were dealt to the devices."""
    most = np.array([-(-(count - i) // len(devices)) for i in range(len(devices))])
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
            return _finish(given, progress.ends), order
        ahead = did / len(devices) * TICK / max(seconds, 1e-3)
        until += int(np.clip(ahead, size.lanes, 16 * size.lanes + until))


# The user's functions are traced outside of the program of each device, so that the arrays they close over become
# arguments of it.


@eqx.filter_jit
def _begin(devices: Devices, recipe: Packed, samples: Packed) -> tuple[tuple[Packed, Array], Progress]:
    """The first places of all trajectories with their paces, and the progress of a queue that has begun none."""

    def share(plan, samples):
        starts, pace = plan.starts(samples.tree)
        nothing = plan.queue(samples.tree, starts, jnp.zeros((), int)).start(plan.width)
        return (packed(starts, axes=1), pace), _own(nothing)

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, alone=True)


@ft.partial(eqx.filter_jit, donate="all-except-first")
def _advance(given: tuple[Devices, Packed, Packed, Packed], progress: Progress, upto: Array) -> Progress:
    """Continues until enough trajectories have begun: `upto` (D, 2) holds the total of each device, and that number."""
    devices, recipe, samples, starts = given

    def share(plan, samples, starts, progress, upto):
        at = eqx.tree_at(lambda p: p.taken, progress, progress.taken[0])
        ((total, until),) = upto
        return _own(plan.queue(samples.tree, starts.tree, total).run(at, until))

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, starts, progress, upto, alone=True)


@eqx.filter_jit
def _finish(given: tuple[Devices, Packed, Packed, Packed], ends: Ends) -> Packed:
    devices, recipe, samples, starts = given

    def share(plan, samples, starts, ends):
        return packed(plan.finish(samples.tree, starts.tree, ends), axes=1, most=1)

    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, starts, ends, alone=True)


def _own(progress: Progress) -> Progress:
    """Adds a leading axis for the device to the count of trajectories taken up."""
    return eqx.tree_at(lambda p: p.taken, progress, progress.taken[None])
