"""Actuators: the generalised forces of a unit of each control.

G: actuation (n, p).
"""

from typing import Any

from jaxtyping import Array, Float

from .. import _check
from .._types import Coordinates, Scalar


def actuation_of(value: Any) -> Any:
    """What a person gave for `actuation`: a matrix or a function; ValueError if it is none."""
    if callable(value):
        return _check.function(value, "actuation", "actuation(q, t) -> (n, p)")
    G = _check.floating(value, "actuation")
    if G.ndim != 2 or 0 in G.shape:
        raise ValueError(
            f"actuation must have shape (n, p), one row per coordinate and one column per actuator, but has shape "
            f"{G.shape}. A single actuator is a column: jnp.array([[1.0], [0.0]])."
        )
    _check.finite(G.ravel(), "actuation")
    return G


def actuation_at(actuation: Any, q: Coordinates, t: Scalar, n: int) -> Float[Array, "n p"]:
    """G(q, t) of what `actuation_of` returned."""
    value = actuation(q, t) if callable(actuation) else actuation
    hint = f"One row per coordinate, of which there are {n}, and one column per actuator."
    what = "actuation(q, t)" if callable(actuation) else "actuation"
    G = _check.output(value, (n, "p"), q.dtype, what, hint)
    if G.shape[1] == 0:
        raise ValueError("actuation must have at least one column, one per actuator, but has none.")
    return G
