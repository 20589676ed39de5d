"""What all modes of a simulation have in common."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._integrate import Kinked


# Of the whole time: what counts as no time at all between an event and the next.
AT_ONCE = 1e-8


class Choices(NamedTuple):
    """What all modes have in common."""

    ts: Array
    formulation: Any
    solver: Any
    method: Any
    projection: Any
    integrator: Any

    @property
    def whole(self) -> Array:
        """The whole time, without a derivative."""
        return stop_gradient(self.ts[-1] - self.ts[0])

    @property
    def accuracy(self) -> Array:
        """How exact states are, relative to what they are made of."""
        controller = self.method.controller
        controller = controller.controller if isinstance(controller, Kinked) else controller
        rtol = getattr(controller, "rtol", 1e-8)
        return stop_gradient(jnp.clip(10 * jnp.asarray(rtol, self.ts.dtype), 1e-10, 1e-3))


class Came(NamedTuple):
    """How a mode came to begin.

    Attributes:
        mode: The mode before; -1 at the start.
        event: The event that ended it.
        pending: Which of its events were met at the same time, and have not happened yet (K,).
    """

    mode: Array
    event: Array
    pending: Array
