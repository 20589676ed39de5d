"""What is integrated: coordinates and speeds side by side.

y = (q, v): q (n_q,), v (n,).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._mechanism import Mechanism


class Phase(eqx.Module):
    """A mechanism, and how many of the numbers of its state are coordinates."""

    mechanism: Mechanism
    coordinates: int = eqx.field(static=True)

    def split(self, y: Array) -> tuple[Array, Array]:
        """q and v of one state or, along the last axis, of many."""
        q, v = jnp.split(y, [self.coordinates], axis=-1)
        return q, v

    def rates(self, t: Array, y: Array) -> Array:
        """q' (n_q,)."""
        return self.mechanism.rates(*self.split(y), t)
