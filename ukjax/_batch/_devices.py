"""A program that runs on every device, each with its share of a batch.

D: devices; B: trajectories, a multiple of D; device i mod D makes trajectory i, so that slow neighbours are spread over
all devices.
"""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from .. import _check
from .._program import Packed, as_single_op, packed, traced


Entries = TypeVar("Entries", Array, np.ndarray)

AXIS = "trajectories"
# Trajectories that a device works on at a time: fewer take longer each. On a CPU their states and stages are to fit its
# cache. A GPU hides its latency behind as many as there are.
LANES = {"cpu": 64}
LANES_ELSEWHERE = 8192


# Whether traced code becomes part of the program of each of several devices, and whether these can wait for each other.
# `jax.jit` keeps a program for each value.
_is_share, _together = jax.make_user_context(False), jax.make_user_context(False)


class Device(Protocol):
    """A device for computation: a `jax.Device`, which type checkers do not know."""

    @property
    def platform(self) -> str: ...

    @property
    def process_index(self) -> int: ...


def devices_of(devices: Sequence[Device] | None) -> tuple[Device, ...]:
    """The devices to use: those given, or all of this process; raises ValueError or TypeError for invalid ones."""
    if devices is None:
        here = tuple(jax.local_devices())
        # Code that already runs on each of several devices has one.
        return here[:1] if _is_share.value or jax.sharding.get_abstract_mesh().manual_axes else here
    _check.instance(devices, Sequence, "devices", "jax.devices()[:1], a list of devices")
    chosen = tuple(devices)
    if not chosen:
        raise ValueError("devices must name at least one device, such as jax.devices()[:1].")
    for device in chosen:
        _check.instance(device, jax.Device, "devices", "jax.devices()[:1], a list of devices")
    if len(set(chosen)) < len(chosen):
        raise ValueError("devices must name each device once.")
    return chosen


def on_one_device() -> AbstractContextManager:
    """A context in which a batch uses one device, so that a trace is the same on every machine."""
    return _is_share(True)


class Tiles:
    """The arrangement of `count` entries as (D, rounds, width, ...), padded with the last entry.

    `most`: the most entries of a tile; as many as a device works on at a time if None.
    """

    def __init__(self, count: int, devices: Sequence[Device], most: int | None = None):
        self.count, self.devices = count, tuple(devices[:count])
        share = -(-count // len(self.devices))
        self.rounds = -(-share // (most or LANES.get(devices[0].platform, LANES_ELSEWHERE)))
        self.width = -(-share // self.rounds)

    def arranged(self, batch: PyTree) -> tuple[PyTree, Array | np.ndarray]:
        """Fills up entries (B, ...), and puts those of a device together; also returns which of them do not pad."""
        return arranged(batch, self.count, len(self.devices) * self.rounds * self.width, len(self.devices))

    def gathered(self, each: PyTree) -> PyTree:
        """The entries (B, ...) in their order, of those that were arranged."""
        each = jax.tree_util.tree_map(lambda x: _swapped(x, (len(self.devices), -1)), each)
        return jax.tree_util.tree_map(lambda x: x[: self.count], each)

    def apart(self, tree: PyTree) -> PyTree:
        """The share of a device (rounds * width, ...) as tiles (rounds, width, ...)."""
        return jax.tree_util.tree_map(lambda x: x.reshape(self.rounds, self.width, *x.shape[1:]), tree)


def arranged(tree: PyTree, count: int, whole: int, devices: int) -> tuple[PyTree, Array | np.ndarray]:
    """Fills up `count` entries to the `whole`, and puts those of a device together; also which of them do not pad."""
    both = jax.tree_util.tree_map(lambda x: filled(x, whole), tree), np.arange(whole) < count
    return jax.tree_util.tree_map(lambda x: _swapped(x, (-1, devices)), both)


def filled(x: Entries, count: int) -> Entries:
    """Pads x to `count` entries by repeating the last one."""
    index = np.minimum(np.arange(count), len(x) - 1)
    return x if len(x) == count else x[index]


def is_here(devices: Sequence[Device]) -> bool:
    """Whether all devices belong to this process."""
    return all(device.process_index == jax.process_index() for device in devices)


def _swapped(x: Entries, form: tuple[int, int]) -> Entries:
    return x if 1 in form or x.shape[0] == 0 else x.reshape(*form, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def placed(tree: PyTree, devices: Sequence[Device]) -> PyTree:
    """Puts arrays (B, ...) on the devices, on each its share, as `on_each` expects them."""
    return _put(tree, devices, jax.P(AXIS))


def everywhere(tree: PyTree, devices: Sequence[Device]) -> Packed:
    """Puts the arrays of a tree on every device once, so that not every call has to transfer them."""
    found = packed(tree)
    arrays, others = eqx.partition(found.others, eqx.is_array)
    joined, arrays = _put((found.joined, arrays), devices, jax.P())
    return dataclasses.replace(found, joined=joined, others=eqx.combine(arrays, others))


def _put(tree: PyTree, devices: Sequence[Device], spec: jax.P) -> PyTree:
    here = devices[0] if len(devices) == 1 else jax.NamedSharding(Mesh(np.array(devices), (AXIS,)), spec)
    return jax.device_put(tree, here)


def on_each(
    function: Callable[..., PyTree], devices: Sequence[Device], shared: PyTree, *split: PyTree, alone: bool = False
) -> PyTree:
    """Calls `function(shared, *split)` on each device for its share; the results are arrays with a leading axis.

    `split` holds arrays with a leading axis, and objects that are no arrays. `alone`: nothing else is in the program,
    so that devices need not meet on the way: see `barrier`.
    """
    if len(devices) == 1:
        with _together(False):
            return function(shared, *split)
    arrays, static = eqx.partition(shared, eqx.is_array)
    parts, others = eqx.partition(split, eqx.is_array)

    def call(arrays: PyTree, parts: PyTree) -> PyTree:
        return function(eqx.combine(arrays, static), *eqx.combine(parts, others))

    # Traced outside of the `jax.shard_map`, and one operation of it: inside, the type of an array names the devices, so
    # that lineax, and so optimistix, refuses its own operators, whose types do not.
    with _is_share(True), _together(not alone):
        of_share = traced(call, *map(_like, (arrays, parts), (1, len(devices))), axes=[(AXIS, len(devices))])
    closed, rest = eqx.partition(of_share, eqx.is_array)
    mesh = Mesh(np.array(devices), (AXIS,))
    same, each = jax.P(), jax.P(AXIS)

    def run(closed: PyTree, arrays: PyTree, parts: PyTree) -> PyTree:
        return as_single_op(eqx.combine(closed, rest), arrays, parts)

    made = jax.shard_map(run, mesh=mesh, in_specs=(same, same, each), out_specs=each, check_vma=False)
    # Converted to their own dtypes, without weak types: converted inside, a number that all share would become another.
    return made(closed, *jax.tree_util.tree_map(lambda x: x.astype(x.dtype), (arrays, parts)))


def _like(tree: PyTree, count: int) -> PyTree:
    """The shapes of the share of one of `count` devices."""

    def part(x: Array) -> jax.ShapeDtypeStruct:
        shape = (x.shape[0] // count, *x.shape[1:]) if count > 1 else x.shape
        return jax.ShapeDtypeStruct(shape, x.dtype, weak_type=getattr(x, "weak_type", False))

    return jax.tree_util.tree_map(part, tree)


def meets() -> bool:
    """Whether the program here is that of one of several devices, which wait for each other: see `barrier`."""
    return bool(_together.value)


def barrier(at: PyTree) -> Int[Array, ""]:
    """A barrier: returns 0, known once every device inside `on_each` has computed `at`.

    The runtime of the CPU ends a process in which a device waits for another for 40 s. Devices that meet now and then
    are never that far apart, however long the whole takes. Code that is to run after the barrier uses this zero.
    """
    if not meets():
        return jnp.zeros((), int)
    first = next(x for x in jax.tree_util.tree_leaves(at) if eqx.is_array(x) and x.size)
    odd = jnp.isnan(jax.lax.stop_gradient(jnp.ravel(first)[0])).astype(int)
    return jnp.minimum(jax.lax.pmax(odd, AXIS), 0)
