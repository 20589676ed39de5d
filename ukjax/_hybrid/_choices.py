"""Settings common to all modes of a hybrid simulation."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._integrate import Kinked


# Part of the whole time that counts as no time between an event and the next.
AT_ONCE = 1e-8


class Choices(NamedTuple):
    """Settings common to all modes."""

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
        """The accuracy of states, relative to the terms that they are made of."""
        controller = self.method.controller
        controller = controller.controller if isinstance(controller, Kinked) else controller
        rtol = getattr(controller, "rtol", 1e-8)
        return stop_gradient(jnp.clip(10 * jnp.asarray(rtol, self.ts.dtype), 1e-10, 1e-3))


class Came(NamedTuple):
    """The event by which a mode began.

    Attributes:
        mode: The mode before; -1 at the start.
        event: The event that ended it.
        pending: Whether each event of that mode was met at the same time, and has not happened yet (K,).
    """

    mode: Array
    event: Array
    pending: Array
