"""Steps that end where a sampled controller takes its samples."""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array


def next_sample(t: Array, start: Array, period: float) -> Array:
    """The number of the first sample after t; one that is due at t, up to rounding, does not count."""
    return jnp.floor((t - start) / period + _early(t, start, period)) + 1


def is_due(t: Array, number: Array, start: Array, period: float) -> Array:
    """Whether a sample is due at t, or was before."""
    return (t - start) / period + _early(t, start, period) >= number


def _early(t: Array, start: Array, period: float) -> Array:
    """The part of a period by which rounding may make a sample come too early."""
    return 1e-9 + 8 * float(jnp.finfo(t.dtype).eps) * (jnp.abs(t) + jnp.abs(start)) / period


class Sampled(diffrax.AbstractStepSizeController):
    """A step size controller none of whose steps goes beyond a sample, at start + k period."""

    controller: diffrax.AbstractStepSizeController
    start: Array
    period: float = eqx.field(static=True)

    def from_zero(self) -> "Sampled":
        """The controller with time counted from the first sample.

        Later samples follow the first one. A run whose first sample is later is then the same run with everything else
        earlier, so that it has a derivative with respect to that time.
        """
        return eqx.tree_at(lambda c: c.start, self, jnp.zeros_like(self.start))

    def wrap(self, direction):
        return Sampled(self.controller.wrap(direction), self.start, self.period)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t1, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self._clipped(t0, t1), state

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        keep, begin, end, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        return keep, begin, self._clipped(begin, end), jumped, state, result

    def _clipped(self, t: Any, t_next: Any) -> Array:
        start = stop_gradient(self.start)
        number = next_sample(t, start, self.period)
        due = start + number * self.period
        return jnp.where(is_due(t_next, number, start, self.period), due, t_next)
