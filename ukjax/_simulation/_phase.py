"""What is integrated: coordinates and speeds side by side, and what a controller stores.

y = (q, v, store): q (n_q,), v (n,).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._mechanism import Mechanism


class Phase(eqx.Module):
    """A mechanism, and how many of the numbers of its state are coordinates, and how many are speeds."""

    mechanism: Mechanism
    coordinates: int = eqx.field(static=True)
    speeds: int = eqx.field(static=True)

    @classmethod
    def of(cls, mechanism: Mechanism, start: tuple[Array, Array]) -> "Phase":
        """That of a run from q and v."""
        q0, v0 = start
        return cls(mechanism, q0.shape[0], v0.shape[0])

    def split(self, y: Array) -> tuple[Array, Array]:
        """q and v of one state or, along the last axis, of many."""
        q, v, *_ = jnp.split(y, [self.coordinates, self.size], axis=-1)
        return q, v

    def stored(self, y: Array) -> Array:
        """What the controller stores."""
        return y[..., self.size :]

    @property
    def size(self) -> int:
        """How many numbers are those of the mechanism."""
        return self.coordinates + self.speeds

    def rates(self, t: Array, y: Array) -> Array:
        """q' (n_q,)."""
        return self.mechanism.rates(*self.split(y), t)
