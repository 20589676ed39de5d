"""Kinematics: q' = N(q, t) v + n(q, t) where the speeds v are not the rates of the coordinates q.

q: coordinates (n_q,); v: speeds (n,); d: a small displacement (n,), a speed times a time.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from . import _check
from ._types import Coordinates, Scalar, Vector


class AbstractKinematics(eqx.Module):
    r"""The kinematic differential equations $\dot q = N(q, t)\,v + n(q, t)$, affine in the speeds v.

    There may be more coordinates than speeds: a unit quaternion has four, and three angular speeds. The columns of N
    are then tangent to the set of admissible coordinates.
    """

    @abc.abstractmethod
    def rates(self, q: Coordinates, v: Vector, t: Scalar) -> Coordinates:
        """Returns q', shape (n_q,)."""

    @abc.abstractmethod
    def retract(self, q: Coordinates, d: Vector, t: Scalar) -> Coordinates:
        """Returns the coordinates after a displacement d (n,) from q, (n_q,): q + N(q, t) d up to second order in d.

        A retraction also returns to the set of admissible coordinates, for example from a quaternion of not quite unit
        length to one of unit length.
        """


class Kinematics(AbstractKinematics):
    r"""Kinematic differential equations from a function: $\dot q = $ `rates(q, v, t)`.

    Args:
        rates: `rates(q, v, t)`, shape (n_q,), affine in v.
        retract: `retract(q, d, t)`, shape (n_q,), the coordinates after a displacement d (n,); q + N(q, t) d if
            omitted. Pass a function if the coordinates depend on each other, so that its result is admissible.

    Raises:
        TypeError: If `rates` or `retract` is not callable.
        ValueError: While tracing, if a shape is not that of q.

    Gradients: through the arrays that the functions hold or close over.

    Source: Kane & Levinson (1985), Dynamics: Theory and Applications, 2.12.
    """

    rates_function: Callable
    retract_function: Callable | None

    def __init__(self, rates: Callable, retract: Callable | None = None):
        self.rates_function = _check.function(rates, "rates", "rates(q, v, t) -> (n_q,)")
        retract = retract and _check.function(retract, "retract", "retract(q, d, t) -> (n_q,)")
        self.retract_function = retract

    def through(self, change: Callable[[Callable], Callable]) -> "Kinematics":
        """Returns these kinematics with each function replaced by `change(function)`."""
        return Kinematics(change(self.rates_function), self.retract_function and change(self.retract_function))

    def rates(self, q, v, t):
        return _like(self.rates_function(q, v, t), q, "rates(q, v, t)")

    def retract(self, q, d, t):
        if self.retract_function is None:
            return q + self.rates(q, d, t) - self.rates(q, jnp.zeros_like(d), t)
        return _like(self.retract_function(q, d, t), q, "retract(q, d, t)")


def _like(value: Any, q: Coordinates, what: str) -> Coordinates:
    return _check.output(value, q.shape, q.dtype, what, f"q has {q.shape[0]} coordinates.")


def kinematics_of(value: Any) -> AbstractKinematics | None:
    """Returns the argument `kinematics` of a system, None, a function or an object, as an object or None."""
    if value is None or isinstance(value, AbstractKinematics):
        return value
    if not callable(value):
        raise TypeError(
            "kinematics must be a function kinematics(q, v, t) -> q', a ukjax.Kinematics or None, but is a "
            f"{type(value).__name__}."
        )
    return Kinematics(value)
