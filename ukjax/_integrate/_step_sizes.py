"""Step sizes that end where a sampled controller takes its samples, or become short where a control meets a limit.

The motion has a kink at a limit. The derivative of a step across it has an error that grows with the length of the
step, however small the error of the state is. So steps approach the kink, and a very short one goes across.

g: functions of the state that change their signs at kinks (k,), as `Dynamics.kinks(t, y)`.
"""

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from ._march import where


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

    def _clipped(self, t: ArrayLike, t_next: ArrayLike) -> Array:
        t, t_next, start = jnp.asarray(t), jnp.asarray(t_next), stop_gradient(self.start)
        number = next_sample(t, start, self.period)
        due = start + number * self.period
        return jnp.where(is_due(t_next, number, start, self.period), due, t_next)


NEARER = 0.9  # the part of the estimated way to a kink that a step goes


class Kinked(diffrax.AbstractStepSizeController):
    """A step size controller whose steps across a kink are no longer than `shortest`."""

    controller: diffrax.AbstractStepSizeController
    shortest: Array

    @classmethod
    def around(cls, controller: diffrax.AbstractStepSizeController, ts: Array) -> "Kinked":
        """Makes steps across a kink so short that the error of their derivatives is the root of rounding."""
        eps = float(jnp.finfo(ts.dtype).eps)
        return cls(controller, jnp.maximum(eps**0.5 * (ts[-1] - ts[0]), 1e3 * eps * jnp.max(jnp.abs(ts))))

    def wrap(self, direction):
        return Kinked(self.controller.wrap(direction), self.shortest)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t1, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return t1, (state, stop_gradient(args.kinks(t0, y0)))

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        before, g0 = controller_state
        keep, begin, end, jumped, after, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, before
        )
        g1 = stop_gradient(args.kinks(t1, y1_candidate))
        h, change = t1 - t0, jnp.where(g1 == g0, 1.0, g1 - g0)
        over = jnp.where(g0 * g1 < 0, -g0 / change, jnp.inf)
        ahead = jnp.where((g1 != g0) & (g1 / change < 0), -g1 / change, jnp.inf)
        again = jnp.asarray(keep) & jnp.any(g0 * g1 < 0) & (h > 1.5 * self.shortest)
        # Extrapolated from the step that is kept.
        end = jnp.where(keep, jnp.minimum(end, begin + self._towards(h, ahead)), end)
        state = (where(again, before, after), jnp.where(keep & ~again, g1, g0))
        keep = keep & ~again
        begin, end = jnp.where(again, t0, begin), jnp.where(again, t0 + self._towards(h, over), end)
        return keep, begin, end, jumped, state, result

    def _towards(self, h: ArrayLike, parts: Array) -> Array:
        """The way to the nearest of the kinks after these parts of a step of length h."""
        way = h * jnp.min(jnp.where(jnp.isfinite(parts), parts, jnp.inf), initial=jnp.inf)
        return jnp.maximum(NEARER * way, self.shortest)
