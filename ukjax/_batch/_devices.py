"""One program on every device, each with its share of a batch.

D: devices; B: trajectories, a multiple of D; trajectory i is done by device i mod D, so that where neighbours take
about as long no device has the slow ones.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from .. import _check
from .._program import Packed, as_one, packed, traced


AXIS = "trajectories"
# Trajectories that a device works on at a time. On a CPU their states and stages are to fit its cache, and there are to
# be some rounds of them, for the last ones to run with few beside them: a step of 32 of the SCARA takes a tenth longer
# for each than one of 64, and that a tenth longer than one of 128. Loops go by blocks of that many, and a rest that
# fills none takes as long as a block. A GPU hides what it waits for behind as many as there are.
LANES = {"cpu": 128}
BLOCK, ROUNDS = 32, 16
LANES_ELSEWHERE = 8192
# From so many trajectories on, of the batch and not of a device's share, it is worth the time to compile a step of all
# lanes as a whole. (Of 2,000 beads on a ring an H200 makes 3,361 a second so, and 396 if every stage asks it whether a
# lane needs more.)
WORTH = 256


# Whether what is traced becomes part of what each of several devices does, and whether these can wait for each other.
# `jax.jit` has another program for each.
_is_share, _together = jax.make_user_context(False), jax.make_user_context(False)


def devices_of(devices: Sequence[Any] | None) -> tuple[Any, ...]:
    """The devices to use: those given, or all that this process has. ValueError or TypeError."""
    if devices is None:
        here = tuple(jax.local_devices())
        # Within what already runs on each of several devices there is one.
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


def on_one_device() -> Any:
    """A context in which a batch has one device, whatever there are: for what shall be traced the same everywhere."""
    return _is_share(True)


def lanes_of(devices: Sequence[Any], share: int) -> int:
    """Trajectories that each of them works on at a time, if it has a share of so many."""
    most = LANES.get(devices[0].platform)
    return LANES_ELSEWHERE if most is None else min(most, max(BLOCK, share // ROUNDS // BLOCK * BLOCK))


def is_here(devices: Sequence[Any]) -> bool:
    """Whether all of them belong to this process."""
    return all(device.process_index == jax.process_index() for device in devices)


def share_out(tree: PyTree, count: int) -> Any:
    """Leaves (B, ...) in an order in which the share of each of `count` devices lies together."""
    return jax.tree_util.tree_map(lambda x: _swapped(x, (-1, count)), tree)


def gathered(tree: PyTree, count: int) -> Any:
    """The inverse."""
    return jax.tree_util.tree_map(lambda x: _swapped(x, (count, -1)), tree)


def _swapped(x: Any, form: tuple[int, int]) -> Any:
    return x if 1 in form or x.shape[0] == 0 else x.reshape(*form, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def placed(tree: PyTree, devices: Sequence[Any]) -> Any:
    """Arrays (B, ...) on the devices, of each leaf its share, as `on_each` wants them."""
    return _put(tree, devices, jax.P(AXIS))


def everywhere(tree: PyTree, devices: Sequence[Any]) -> Packed:
    """A tree with its arrays on every device, so that not every call has to bring them there."""
    found = packed(tree)
    arrays, others = eqx.partition(found.others, eqx.is_array)
    joined, arrays = _put((found.joined, arrays), devices, jax.P())
    return dataclasses.replace(found, joined=joined, others=eqx.combine(arrays, others))


def _put(tree: PyTree, devices: Sequence[Any], spec: Any) -> Any:
    here = devices[0] if len(devices) == 1 else jax.NamedSharding(Mesh(np.array(devices), (AXIS,)), spec)
    return jax.device_put(tree, here)


def on_each(
    function: Callable[..., PyTree], devices: Sequence[Any], shared: PyTree, *split: PyTree, alone: bool = False
) -> Any:
    """`function(shared, *split)`, a pytree of arrays with a leading axis, for the share of each device.

    What is `split` is arrays with a leading axis, and things that are none. `alone`: nothing else is in the program,
    so that no device has to wait for another time and again: see `meet`.
    """
    if len(devices) == 1:
        with _together(False):
            return function(shared, *split)
    arrays, static = eqx.partition(shared, eqx.is_array)
    parts, others = eqx.partition(split, eqx.is_array)
    call = lambda arrays, parts: function(eqx.combine(arrays, static), *eqx.combine(parts, others))
    # Traced outside of the `jax.shard_map`, and one operation of it: there JAX has the devices in the type of an array,
    # and lineax, and so optimistix, refuses its own operators, which have none.
    with _is_share(True), _together(not alone):
        of_share = traced(call, *map(_like, (arrays, parts), (1, len(devices))), axes=[(AXIS, len(devices))])
    closed, rest = eqx.partition(of_share, eqx.is_array)
    mesh = Mesh(np.array(devices), (AXIS,))
    same, each = jax.P(), jax.P(AXIS)
    run = lambda closed, arrays, parts: as_one(eqx.combine(closed, rest), arrays, parts)
    made = jax.shard_map(run, mesh=mesh, in_specs=(same, same, each), out_specs=each, check_vma=False)
    # Each with a dtype of its own: made so inside, a number that all share would no longer be the one that came in.
    return made(closed, *jax.tree_util.tree_map(lambda x: x.astype(x.dtype), (arrays, parts)))


def _like(tree: PyTree, count: int) -> Any:
    """The part that one of `count` devices has, as shapes."""
    shape = lambda x: (x.shape[0] // count, *x.shape[1:]) if count > 1 else x.shape
    part = lambda x: jax.ShapeDtypeStruct(shape(x), x.dtype, weak_type=getattr(x, "weak_type", False))
    return jax.tree_util.tree_map(part, tree)


def of_all(tree: PyTree, count: int) -> Any:
    """Arrays of which each of `count` devices has a share, as all of them have them whole."""
    whole = lambda x: jax.lax.all_gather(x, AXIS, tiled=True)
    return tree if count == 1 else jax.tree_util.tree_map(whole, tree)


def own_of(order: Int[Array, " B"], count: int) -> Int[Array, " _"]:
    """The trajectories of this one of `count` devices, of all in this order: as `share_out` deals them out."""
    return order if count == 1 else order.reshape(-1, count)[:, jax.lax.axis_index(AXIS)]


def meet(at: PyTree) -> Int[Array, ""]:
    """Zero, known when every device that does its share by `on_each` has got as far as what is `at`.

    The runtime of the CPU ends a process in which a device waits for another for 40 s. Those that meet now and then are
    never that far apart, however long it all takes. What is to come after takes this zero into account.
    """
    if not _together.value:
        return jnp.zeros((), int)
    first = next(x for x in jax.tree_util.tree_leaves(at) if eqx.is_array(x) and x.size)
    odd = jnp.isnan(jax.lax.stop_gradient(jnp.ravel(first)[0])).astype(int)
    return jnp.minimum(jax.lax.pmax(odd, AXIS), 0)
