"""The layout of the integrated state: coordinates, speeds, and the store of a controller.

y = (q, v, store): q (n_q,), v (n,).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._mechanism import Mechanism


class StateLayout(eqx.Module):
    """A mechanism, and the numbers of coordinates and of speeds in its state."""

    mechanism: Mechanism
    coordinates: int = eqx.field(static=True)
    speeds: int = eqx.field(static=True)

    @classmethod
    def of(cls, mechanism: Mechanism, start: tuple[Array, Array]) -> "StateLayout":
        """The phase of a run that starts from q and v."""
        q0, v0 = start
        return cls(mechanism, q0.shape[0], v0.shape[0])

    def split(self, y: Array) -> tuple[Array, Array]:
        """The coordinates q and speeds v of one state or, along the last axis, of many."""
        q, v, *_ = jnp.split(y, [self.coordinates, self.size], axis=-1)
        return q, v

    def stored(self, y: Array) -> Array:
        """The store of the controller, of one state or of many."""
        return y[..., self.size :]

    @property
    def size(self) -> int:
        """The number of coordinates and speeds together."""
        return self.coordinates + self.speeds

    def rates(self, t: Array, y: Array) -> Array:
        """The rates q' of the coordinates (n_q,)."""
        return self.mechanism.rates(*self.split(y), t)
