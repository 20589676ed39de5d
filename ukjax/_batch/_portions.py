"""Runs a batch of any size, portion by portion: memory is that of a portion and of the kept results.

D: devices; B: trajectories.
"""

import dataclasses
import functools as ft
import math
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import equinox as eqx
import equinox.internal as eqxi
import jax
import numpy as np
from jaxtyping import Array, PyTree
from tqdm.auto import tqdm

from .._lowering import runs_done, runs_machine_code, stopping
from .._program import Packed, packed
from ._devices import Device, Tiles, arranged, everywhere, on_each, placed
from ._plan import BatchProgram, BatchSettings, Outcome


Devices = tuple[Device, ...]
T = TypeVar("T")

# The most bytes of results that a portion holds at once.
BYTES = 2**29
# JAX need not copy memory at multiples of this address; results of up to so many bytes share one piece of memory.
ALIGNED, TOGETHER = 64, 2**25
# The time between two moves of a progress bar, about, and the shortest between two looks whether results are there [s].
TICK, SHORTEST = 0.2, 1e-4


def in_portions(
    recipe: BatchSettings, samples: PyTree, devices: Sequence[Device], count: int, lanes: int, memory: int, bar: tqdm
) -> Outcome:
    """Runs all trajectories and returns their outcomes in memory of the host.

    Each is a loop of machine code; where it cannot be one, a portion is what the devices work on at a time.

    Args:
        recipe: What the trajectories share.
        samples: Those of the trajectories (B, ...).
        devices: The devices to use.
        count: B.
        lanes: The number of trajectories that a device works on at a time.
        memory: About the most bytes that a trajectory needs on the way.
        bar: Shows how many are done.
    """
    most = max(1, BYTES // (len(devices) * max(memory, 1)))
    outcome = _all(recipe, samples, Tiles(count, devices, most), True, bar) if runs_machine_code() else None
    if outcome is None:
        outcome = _all(recipe, samples, Tiles(count, devices, min(lanes, most)), False, bar)
    assert outcome is not None
    return outcome


def _all(recipe: BatchSettings, samples: PyTree, tiles: Tiles, native: bool, bar: tqdm) -> Outcome | None:
    """The outcomes by portions of a tile on each device; None if they are to be `native`, and cannot be."""
    recipe = recipe if native else dataclasses.replace(recipe, width=tiles.width)
    devices = tiles.devices
    whole, room, shared = len(devices) * tiles.width, None, everywhere(recipe, devices)
    for begin in range(0, tiles.count, whole):
        here = min(whole, tiles.count - begin)
        portion = jax.tree_util.tree_map(lambda x: np.asarray(x[begin : begin + here]), samples)  # noqa: B023
        dealt = arranged(packed(portion, axes=1), here, whole, len(devices))
        outcome = _run(devices, native, shared, *placed(dealt, devices))
        if outcome is None:
            return None
        outcome = _awaited(outcome, here, bar)
        room = _allocate_like(outcome, tiles.count) if room is None else room
        _copy_back(outcome, jax.tree_util.tree_map(lambda x: x[begin : begin + here], room))  # noqa: B023
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


def _run(devices: Devices, native: bool, recipe: Packed, samples: Packed, due: Array) -> Packed | None:
    """The outcomes of a portion, which need not be there yet; None if they are to be `native`, and cannot be."""
    arrays, static = eqxi.hashable_partition((recipe, samples, due), eqx.is_array)
    return _run_of(devices, native, static, arrays)


# `eqx.filter_jit` would wait for the results. XLA runs a program of less than some thousand operations in the thread
# that calls it: that of a few trajectories of a simple mechanism can neither be watched nor interrupted.
@ft.partial(jax.jit, static_argnums=(0, 1, 2))
def _run_of(devices: Devices, native: bool, static: Hashable, arrays: Sequence[Array]) -> Packed | None:
    recipe, samples, due = eqxi.hashable_combine(arrays, static)

    def share(plan: BatchProgram, samples: Packed, due: Array) -> Packed | None:
        outcome = plan.run(samples.tree, due, native)
        return None if outcome is None else packed(outcome, axes=1, most=1)

    # The user's functions are traced outside of the program of each device, so that the arrays they close over become
    # arguments of it.
    return on_each(share, devices, recipe.tree.plan(samples.tree), samples, due, alone=True)


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


def _copy_back(outcome: PyTree, to: PyTree) -> None:
    """Copies the results of the devices to their places in `to`.

    Large results are copied by a thread for each device, for the system spends much of the time on finding memory.
    """
    leaves = [
        (sorted(x.addressable_shards, key=lambda share: share.index[0].start or 0), to)
        for x, to in zip(*map(jax.tree_util.tree_leaves, (outcome, to)), strict=True)
    ]
    devices = len(leaves[0][0])

    def share(i: int) -> None:
        for shares, to in leaves:
            places = to[i::devices]
            places[...] = np.asarray(shares[i].data)[: len(places)]

    if sum(to.nbytes for _, to in leaves) <= TOGETHER:
        list(map(share, range(devices)))
        return
    with ThreadPoolExecutor(devices) as threads:
        list(threads.map(share, range(devices)))
