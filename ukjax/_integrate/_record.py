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

from ._flow import IntegrationProblem
from ._march import Place


# Up to this budget every step has its checkpoint, and none is run twice.
EVERY = 33
# The most steps of a segment, which are found at once.
STEPS = 32
# Each layer of finer checkpoints divides the steps between two of the coarser ones by this.
PARTS = 4


class Layout(NamedTuple):
    """Room for checkpoints, for layers of finer ones between them, and for the steps of a segment.

    All steps between two checkpoints fit, at the longest stride that `max_steps` allows. If that stride is 1, the
    checkpoints are `complete`: no step need be run again.
    """

    checkpoints: int
    layers: int
    steps: int
    complete: bool

    @classmethod
    def of(cls, max_steps: int, room: int) -> "Layout":
        if max_steps <= EVERY or max_steps < room:
            return cls(max_steps + 1, 0, min(max_steps, STEPS), True)
        between = 2 ** (max_steps // room).bit_length()
        layers = 0
        while between > STEPS * PARTS**layers:
            layers += 1
        return cls(room, layers, STEPS, False)

    @property
    def finer(self) -> int:
        """The number of places of finer checkpoints; a finer layer needs none where a coarser one has a checkpoint."""
        return (PARTS - 1) * self.layers

    def place(self, part: Array) -> Array:
        """The place of the checkpoint after this many of the finest parts; beyond the last place if it has none."""
        coarser = jnp.array([PARTS**i for i in range(1, self.layers)], part.dtype)
        layer = jnp.sum(part % coarser == 0, dtype=part.dtype)
        within = part // PARTS**layer % PARTS
        return jnp.where((within > 0) & (layer < self.layers), (PARTS - 1) * layer + within - 1, self.finer + 1)


def layout_of(problem: IntegrationProblem) -> Layout:
    return Layout.of(problem.max_steps, problem.room)


class Checkpoint(eqx.Module):
    """A checkpoint, or K of them: time, state, the planned end of the next step, and the memory of the controller."""

    number: Int[Array, "*K"]
    t: Float[Array, "*K"]
    t_next: Float[Array, "*K"]
    y: Float[Array, "*K n"]
    controller: PyTree

    @classmethod
    def here(cls, number: Array, place: Place) -> "Checkpoint":
        return cls(number, *jax.tree_util.tree_map(jnp.asarray, (place.t, place.t_next, place.y, place.controller)))

    def room(self, count: int) -> "Checkpoint":
        """Room for `count` checkpoints like this one, all empty."""
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros((count, *x.shape), x.dtype), self)
        return eqx.tree_at(lambda c: c.number, empty, jnp.full(count, -1, self.number.dtype))

    def put(self, slot: Array, one: "Checkpoint") -> "Checkpoint":
        """A copy with the checkpoint `one` in a slot; a write beyond the last slot is dropped."""
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
    def start(cls, place: Place, layout: Layout) -> "Record":
        zero = jnp.zeros((), int)
        here = Checkpoint.here(zero, place)
        room = here.room(layout.checkpoints)
        return cls(room.put(zero, here), zero + 1, zero, place.t)

    @property
    def room(self) -> int:
        return self.checkpoints.number.shape[0]

    def after(self, keep: Array, place: Place) -> "Record":
        """The record after a step that led to a place, if the step is kept."""
        count = self.count + keep.astype(self.count.dtype)
        due = keep & (count % self.stride == 0)
        # This checkpoint is due at twice the stride too, for the room is even.
        full = due & (count == self.room * self.stride)
        stride = jnp.where(full, 2 * self.stride, self.stride)
        slot = jnp.where(due, self.slot(count), self.room)  # beyond the last: nowhere
        checkpoints = self.checkpoints.put(slot, Checkpoint.here(count, place))
        return Record(checkpoints, stride, count, jnp.where(keep, place.t, self.end))

    def slot(self, number: Array) -> Array:
        """The slot of the checkpoint that has this many steps before it.

        The first K lie in order. At a stride of 2 h, number h K + 2 h i takes the place of h + 2 h i, which is given up
        then, and may itself have taken that of another.
        """

        def given_up(number):
            # h is the largest power of two with h K <= number.
            of, bits = number // self.room, jnp.iinfo(number.dtype).bits
            return number - (self.room - 1) * (1 << (bits - 1 - jax.lax.clz(of)))

        return jax.lax.while_loop(lambda number: number >= self.room, given_up, number)


def written(record: Record | None) -> Any:
    """The arrays of a record that are written to in one place at a time, which spares a loop over a batch copies."""
    return None if record is None else record.checkpoints


def _is_written_to(x: Any) -> bool:
    # Within a loop that writes to an array, the wrapper of equinox around it would be taken for a tree.
    return hasattr(x, "at")
