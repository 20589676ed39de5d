"""The steps of a solve, remembered in little memory: checkpoints, from which the steps between can be run again.

A checkpoint is all that the solve needs to go on from there. There is one after every `stride` accepted steps; when
there is no room for another, the stride doubles, and every other one gives up its place. So no length need be known.
A budget of steps that is never used up costs little: four times as many steps need room for three checkpoints more.

K: room for checkpoints; number: accepted steps before a checkpoint, -1 for none.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ._march import Place


# Up to this budget of steps every one has its checkpoint, and none is run twice.
EVERY = 33
# Even, for every other one to be given up.
CAPACITY = 18
# Steps that are found at once.
STEPS = 32
# Each layer of finer checkpoints divides what lies between two of the coarser ones by this.
PARTS = 4


class Layout(NamedTuple):
    """Room for checkpoints, for layers of finer ones between them, and for the steps between two of the finest.

    All that lies between two checkpoints fits, at the longest stride that `max_steps` lets happen.
    """

    checkpoints: int
    layers: int
    steps: int

    @classmethod
    def of(cls, max_steps: int) -> "Layout":
        if max_steps <= EVERY:
            return cls(EVERY + 1, 0, 1)
        between = 2 ** (max_steps // CAPACITY).bit_length()
        steps = min(between, STEPS)
        layers = 0
        while between > steps * PARTS**layers:
            layers += 1
        return cls(CAPACITY, layers, steps)

    @property
    def finer(self) -> int:
        """Places of the finer checkpoints: where one of a coarser layer lies, a finer one needs none."""
        return (PARTS - 1) * self.layers

    def place(self, part: Array) -> Array:
        """Where a checkpoint after this many of the finest parts has its place; beyond the last if it has none."""
        coarser = jnp.array([PARTS**i for i in range(1, self.layers)], part.dtype)
        layer = jnp.sum(part % coarser == 0, dtype=part.dtype)
        within = part // PARTS**layer % PARTS
        return jnp.where((within > 0) & (layer < self.layers), (PARTS - 1) * layer + within - 1, self.finer + 1)


class Checkpoint(eqx.Module):
    """A place to go on from, or K of them: time, state, where the next step was to end, and the controller's memory."""

    number: Int[Array, "*K"]
    t: Float[Array, "*K"]
    t_next: Float[Array, "*K"]
    y: Float[Array, "*K n"]
    controller: PyTree

    @classmethod
    def here(cls, number: Array, place: Place) -> "Checkpoint":
        return cls(number, *jax.tree_util.tree_map(jnp.asarray, (place.t, place.t_next, place.y, place.controller)))

    def room(self, count: int) -> "Checkpoint":
        """Room for this many like this one, and nothing in it."""
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros((count, *x.shape), x.dtype), self)
        return eqx.tree_at(lambda c: c.number, empty, jnp.full(count, -1, self.number.dtype))

    def put(self, slot: Array, one: "Checkpoint") -> "Checkpoint":
        """With one of them in a slot; beyond the last there is nothing to put it in."""
        put = lambda all, x: all.at[slot].set(x.astype(all.dtype), mode="drop")
        return jax.tree_util.tree_map(put, self, one, is_leaf=_is_written_to)

    def __getitem__(self, slot: Array) -> "Checkpoint":
        return jax.tree_util.tree_map(lambda x: x[slot], self, is_leaf=_is_written_to)


class Record(eqx.Module):
    """K checkpoints of a solve, after every `stride` of `count` accepted steps, the last of which ended at `end`."""

    checkpoints: Checkpoint
    stride: Int[Array, ""]
    count: Int[Array, ""]
    end: Float[Array, ""]

    @classmethod
    def start(cls, place: Place, max_steps: int) -> "Record":
        zero = jnp.zeros((), int)
        here = Checkpoint.here(zero, place)
        room = here.room(Layout.of(max_steps).checkpoints)
        return cls(room.put(zero, here), zero + 1, zero, place.t)

    def after(self, keep: Array, place: Place) -> "Record":
        """The record after a step that led to a place, if it is one to keep."""
        count = self.count + keep.astype(self.count.dtype)
        number = self.checkpoints.number[:]
        in_use = lambda stride: (number >= 0) & (number % stride == 0)
        due = lambda stride: keep & (count % stride == 0)
        full = due(self.stride) & jnp.all(in_use(self.stride))
        stride = jnp.where(full, 2 * self.stride, self.stride)
        slot = jnp.where(due(stride), jnp.argmin(in_use(stride)), number.shape[0])  # beyond the last: nowhere
        checkpoints = self.checkpoints.put(slot, Checkpoint.here(count, place))
        return Record(checkpoints, stride, count, jnp.where(keep, place.t, self.end))

    def slot(self, number: Array) -> Array:
        """Where the checkpoint lies that has this many steps before it."""
        return jnp.argmax(self.checkpoints.number == number)


def written(record: Record | None) -> Any:
    """The arrays of a record that are written to in one place at a time, which spares a loop over a batch copies."""
    return None if record is None else record.checkpoints


def _is_written_to(x: Any) -> bool:
    # What equinox wraps an array in, within a loop that writes to it, would be taken for a tree.
    return hasattr(x, "at")
