"""Controllers written by the user: functions of the state, with or without memory, sampled or not.

u: control (p,); x: memory (s,); h: period; k: samples taken. A sampled controller holds its control of the last sample:
the numbers that a run carries beside q and v, its store, are (x, u, k); without a period only x.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .. import _check
from .._formulation import motion_by
from .._integrate import is_due
from .._result import is_traced
from .._types import Coordinates, Numbers, Scalar, Vector
from ._controller import AbstractController, Driven
from ._servo import ActuationLike, actuation_at, actuation_of, limits_at, limits_of


class Feedback(AbstractController):
    r"""A controller as a function of the state, u = law(q, v, t), for `simulate(..., servo=)`.

    With a `memory` x the controller has states of its own, which obey x' = rates(q, v, t, x) (an observer, an
    integrator) or change at every sample, x <- update(q, v, t, x) (a delay, a digital filter). With a `period` it
    samples the state at ts[0], ts[0] + period, ... only, and holds its control in between.

    Args:
        law: `law(q, v, t)` -> u (p,) [N or N m, by the actuation], or with a memory `law(q, v, t, x)`.
        actuation: G (n, p), a matrix or `actuation(q, t)`: the generalised force of a unit of each control.
        limits: (lower, upper), each a scalar or (p,), at which u saturates; None for none.
        memory: x at the start (s,), or None.
        rates: `rates(q, v, t, x)` -> x' (s,).
        update: `update(q, v, t, x)` -> x (s,), from one sample to the next. It is applied after `law`, which therefore
            gets the memory of the sample before. Needs a `period`.
        period: Time between two samples [s]; None for a controller that acts all the time.

    Raises:
        TypeError: If a function is not callable.
        ValueError: If a shape does not fit, `period` is not positive, `memory` comes without `rates` or `update` or
            they without it, or `update` without a `period`.

    Gradients: with respect to every array leaf of its functions, to `memory`, `actuation` and `limits`; not to
    `period`, which is static. Where u meets a limit the motion has a kink. Adaptive steps come ever nearer to the kink,
    so that first derivatives are as exact as elsewhere. Steps of constant length cross the kink, and derivatives have
    an error that grows with the step. A second derivative lacks the contribution of the kink, whose time moves.
    """

    law: Callable
    actuation: Array | Callable
    limits: tuple[Array, Array] | None
    memory: Float[Array, " s"] | None
    rates: Callable | None
    update: Callable | None
    period: float | None = eqx.field(static=True)

    def __init__(
        self,
        law: Callable,
        actuation: ActuationLike,
        *,
        limits: tuple[Numbers, Numbers] | None = None,
        memory: Numbers | None = None,
        rates: Callable | None = None,
        update: Callable | None = None,
        period: float | None = None,
    ):
        self.actuation = actuation_of(actuation)
        self.limits = None if limits is None else limits_of(limits)
        self.memory = None if memory is None else _memory(memory)
        self.rates = None if rates is None else _check.function(rates, "rates", "rates(q, v, t, x) -> (s,)")
        self.update = None if update is None else _check.function(update, "update", "update(q, v, t, x) -> (s,)")
        self.period = None if period is None else _check.positive(period, "period")
        given = [name for name, f in (("rates", rates), ("update", update)) if f is not None]
        if memory is None and given:
            raise ValueError(f"{given[0]} has nothing to change without a memory. Pass memory=x0, of shape (s,).")
        if memory is not None and not given:
            raise ValueError("memory never changes. Pass rates(q, v, t, x), or update(q, v, t, x) with a period.")
        if update is not None and period is None:
            raise ValueError("update needs a sampling period. Pass period=..., or rates in its place.")
        more = "" if memory is None else ", x"
        self.law = _check.function(law, "law", f"law(q, v, t{more}) -> (p,)")

    @property
    def fields(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset({"control"} if self.memory is None else {"control", "memory"})

    def matrix(self, q, t, n):
        return actuation_at(self.actuation, q, t, n)

    def drive(self, mechanism, formulation, q, v, t, store, applied=None):
        u = self.control(q, v, t, store)
        own = self.matrix(q, t, v.shape[0]) @ u
        change = None if store is None else self.change(q, v, t, store)
        force = own if applied is None else applied + own
        return Driven(motion_by(formulation, mechanism.terms_of(force), q, v, t), u, None, change)

    def force(self, mechanism, formulation, q, v, t, store, applied=None):
        return self.matrix(q, t, v.shape[0]) @ self.control(q, v, t, store)

    def start(self, q, v, t):
        x = self._x0(q.dtype)
        if self.period is None:
            return x
        # The store holds the control of this sample and the memory for the next one.
        u, x = self.sample(q, v, t, x)
        return jnp.concatenate([x, u, jnp.ones(1, q.dtype)])

    def sample(self, q: Coordinates, v: Vector, t: Scalar, x: Array) -> tuple[Array, Array]:
        """Returns the control at a sample (p,), and the memory for the next one (s,)."""
        return self._decide(q, v, t, x), self._updated(q, v, t, x)

    def control(self, q: Coordinates, v: Vector, t: Scalar, store: Array | None) -> Array:
        """Returns u (p,)."""
        if store is None or self.period is None:
            return self._decide(q, v, t, store)
        return store[self._s : -1]

    def margins(self, q, v, t, store):
        u = self._asked(q, v, t, store)
        lower, upper = limits_at(self.limits, u.shape[0], q.dtype)
        return jnp.concatenate([u - lower, upper - u])

    def change(self, q: Coordinates, v: Vector, t: Scalar, store: Array) -> Array:
        """Returns the rate of the store between samples."""
        if self.rates is None:
            return jnp.zeros_like(store)
        x = store[: self._s]
        hint = f"The memory has {self._s} numbers."
        d = _check.output(self.rates(q, v, t, x), (self._s,), q.dtype, "rates(q, v, t, x)", hint)
        return jnp.concatenate([d, jnp.zeros(store.shape[0] - self._s, q.dtype)])

    def sampled(self, q, v, t, start, store):
        if self.period is None:
            return store
        x, k = store[: self._s], store[-1]
        due = stop_gradient(is_due(t, k, start, self.period))
        u, x = self.sample(q, v, t, x)
        new = jnp.concatenate([x, u, k[None] + 1])
        return jnp.where(due, new, store)

    def seen(self, store):
        return store[..., : self._s]

    def residuals(self, mechanism, q, v, t):
        return {}

    @property
    def _s(self) -> int:
        return 0 if self.memory is None else self.memory.shape[0]

    def _x0(self, dtype: DTypeLike) -> Array:
        return jnp.zeros(0, dtype) if self.memory is None else self.memory.astype(dtype)

    def _updated(self, q: Coordinates, v: Vector, t: Scalar, x: Array) -> Array:
        if self.update is None:
            return x
        hint = f"The memory has {self._s} numbers."
        return _check.output(self.update(q, v, t, x), (self._s,), q.dtype, "update(q, v, t, x)", hint)

    def _decide(self, q: Coordinates, v: Vector, t: Scalar, x: Array | None) -> Array:
        u = self._asked(q, v, t, x)
        return u if self.limits is None else jnp.clip(u, *limits_at(self.limits, u.shape[0], q.dtype))

    def _asked(self, q: Coordinates, v: Vector, t: Scalar, x: Array | None) -> Array:
        """Returns the control of the law before the limits (p,)."""
        p = self.actuators(q, t, v.shape[0])
        value = self.law(q, v, t) if self.memory is None else self.law(q, v, t, x)
        what = "law(q, v, t)" if self.memory is None else "law(q, v, t, x)"
        return _check.output(
            value, (p,), q.dtype, what, f"One entry per column of the actuation, of which there are {p}."
        )


def _memory(value: object) -> Array:
    x = _check.floating(value, "memory")
    if x.ndim != 1 or not x.shape[0]:
        raise ValueError(f"memory must have shape (s,), one number per state of the controller, but has {x.shape}.")
    if not is_traced(x):
        _check.finite(x, "memory")
    return x
