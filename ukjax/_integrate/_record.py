"""The steps of a solve, remembered in little memory: checkpoints, from which the steps between can be run again.

A checkpoint is all that the solve needs to go on from there. There is one after every `stride` accepted steps; when
there is no room for another, the stride doubles, and every other one gives up its place. So no length need be known.
A budget of steps that is never used up costs little: four times as many steps need room for three checkpoints more.

K: room for checkpoints; number: accepted steps before a checkpoint, -1 for none.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from ._march import IntegrationProblem, Place


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
        # A power of two, as every stride.
        steps, layers = 1 << max(STEPS, room).bit_length() - 1, 0
        while between > steps * PARTS**layers:
            layers += 1
        return cls(room, layers, steps, False)

    @property
    def finer(self) -> int:
        """The number of places of finer checkpoints; a finer layer needs none where a coarser one has a checkpoint."""
        return (PARTS - 1) * self.layers

    def place(self, part: Array) -> Array:
        """The place of the checkpoint after this many of the finest parts; beyond the last place if it has none."""
        place = jnp.full_like(part, self.finer + 1)
        for layer in range(self.layers):
            # Its last digit that is not zero tells the layer, and where in it.
            digit, below = lax.div(part, PARTS**layer) & (PARTS - 1), part & (PARTS**layer - 1)
            place = jnp.where((below == 0) & (digit > 0), (PARTS - 1) * layer + digit - 1, place)
        return place


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

    @property
    def parts(self) -> tuple[PyTree, ...]:
        return self.number, self.t, self.t_next, self.y, self.controller

    def room(self, count: int) -> "Checkpoint":
        """Room for `count` checkpoints like this one, all empty."""
        empty = jax.tree_util.tree_map(lambda x: jnp.zeros((count, *x.shape), x.dtype), self)
        return eqx.tree_at(lambda c: c.number, empty, jnp.full(count, -1, self.number.dtype))

    def put(self, slot: Array, one: "Checkpoint") -> "Checkpoint":
        """A copy with the checkpoint `one` in a slot; a write beyond the last slot is dropped."""

        def put(all, x):
            return all.at[slot].set(x.astype(all.dtype), mode="drop")

        return jax.tree_util.tree_map(put, self, one, is_leaf=_is_written_to)

    def whole(self) -> "Checkpoint":
        """All checkpoints as arrays, within a loop that writes to them."""
        return jax.tree_util.tree_map(lambda x: x[:], self, is_leaf=_is_written_to)

    def with_all(self, others: "Checkpoint") -> "Checkpoint":
        """A copy with all `others`."""
        return jax.tree_util.tree_map(lambda x, y: x.at[:].set(y), self, others, is_leaf=_is_written_to)

    def __getitem__(self, slot: Array) -> "Checkpoint":
        return jax.tree_util.tree_map(lambda x: x[slot], self, is_leaf=_is_written_to)


class Pace(eqx.Module):
    """The pace of a record: a checkpoint is `due` after every `stride` of `count` accepted steps, and goes to a `slot`.

    The last step ended at `end`. `room`: K, even unless `most`, the most steps, is less.
    """

    stride: Int[Array, ""]
    count: Int[Array, ""]
    end: Float[Array, ""]
    due: Bool[Array, ""]
    slot: Int[Array, ""]
    room: int = eqx.field(static=True)
    most: int = eqx.field(static=True)

    @classmethod
    def start(cls, t: Array, room: int, most: int) -> "Pace":
        zero = jnp.zeros((), int)
        return cls(zero + 1, zero, t, jnp.asarray(False), zero + room, room, most)

    def after(self, keep: Array, t: Array) -> "Pace":
        """The pace after a step that ended at t, if the step is kept."""
        count = self.count + keep.astype(self.count.dtype)
        due = keep & (count & (self.stride - 1) == 0)  # the stride is a power of two
        # This checkpoint is due at twice the stride too, for the room is even.
        full = due & (count == self.room * self.stride)
        stride = jnp.where(full, 2 * self.stride, self.stride)
        slot = jnp.where(due, self.slot_of(count), self.room)  # beyond the last: nowhere
        return Pace(stride, count, jnp.where(keep, t, self.end), due, slot, self.room, self.most)

    def slot_of(self, number: Array) -> Array:
        """The slot of the checkpoint that has this many steps before it.

        The first K lie in order. At a stride of 2 h, number h K + 2 h i takes the place of h + 2 h i, which is given up
        then, and may itself have taken that of another.
        """
        for k in reversed(range((self.most // self.room).bit_length())):
            h = 1 << k
            number = jnp.where(number >= h * self.room, number - (self.room - 1) * h, number)
        return number


class Record(eqx.Module):
    """K checkpoints of a solve, and their pace."""

    checkpoints: Checkpoint
    pace: Pace

    @classmethod
    def start(cls, place: Place, layout: Layout, most: int) -> "Record":
        zero = jnp.zeros((), int)
        here = Checkpoint.here(zero, place)
        room = here.room(layout.checkpoints)
        return cls(room.put(zero, here), Pace.start(place.t, layout.checkpoints, most))

    @property
    def room(self) -> int:
        return self.pace.room

    @property
    def stride(self) -> Int[Array, ""]:
        return self.pace.stride

    @property
    def count(self) -> Int[Array, ""]:
        return self.pace.count

    @property
    def end(self) -> Float[Array, ""]:
        return self.pace.end

    def after(self, keep: Array, place: Place) -> "Record":
        """The record after a step that led to a place, if the step is kept."""
        pace = self.pace.after(keep, place.t)
        return Record(self.checkpoints.put(pace.slot, Checkpoint.here(pace.count, place)), pace)

    def slot(self, number: Array) -> Array:
        """The slot of the checkpoint that has this many steps before it."""
        return self.pace.slot_of(number)


def written(record: Record | None) -> Checkpoint | None:
    """The arrays of a record that are written to in one place at a time, which spares a loop over a batch copies."""
    return None if record is None else record.checkpoints


def _is_written_to(x: object) -> bool:
    # Within a loop that writes to an array, the wrapper of equinox around it would be taken for a tree.
    return hasattr(x, "at")
