"""Actuators: the generalised forces of a unit of each control, and the limits of the control.

G: actuation (n, p).
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._result import is_traced
from .._types import Coordinates, Scalar


def actuation_of(value: Any) -> Any:
    """Returns the argument `actuation` as a matrix or a function; raises ValueError if it is neither."""
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
    """Returns G(q, t) from the result of `actuation_of`."""
    value = actuation(q, t) if callable(actuation) else actuation
    hint = f"One row per coordinate, of which there are {n}, and one column per actuator."
    what = "actuation(q, t)" if callable(actuation) else "actuation"
    G = _check.output(value, (n, "p"), q.dtype, what, hint)
    if G.shape[1] == 0:
        raise ValueError("actuation must have at least one column, one per actuator, but has none.")
    return G


def limits_of(value: Any) -> tuple[Array, Array]:
    """Returns the argument `limits` as a lower and an upper limit; raises ValueError if it is invalid."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"limits must be a pair (lower, upper), each a scalar or one entry per actuator, not {value!r}."
        )
    low, high = (_check.floating(x, f"limits[{i}]") for i, x in enumerate(value))
    for i, limit in enumerate((low, high)):
        if limit.ndim > 1:
            raise ValueError(f"limits[{i}] must be a scalar or have shape (p,), but has shape {limit.shape}.")
    if not is_traced(low, high) and not np.all(np.asarray(low) <= np.asarray(high)):
        raise ValueError(f"limits must be (lower, upper) with lower <= upper, but are {low} and {high}.")
    return low, high


def limits_at(limits: tuple[Array, Array] | None, p: int, dtype: Any) -> tuple[Array, Array]:
    """Returns lower and upper limits (p,), infinite if there are none."""
    if limits is None:
        return jnp.full(p, -jnp.inf, dtype), jnp.full(p, jnp.inf, dtype)
    hint = f"A scalar, or one entry per actuator, of which there are {p}."
    fit = lambda x: _check.output(jnp.full(p, x) if x.ndim == 0 else x, (p,), dtype, "limits", hint)
    return fit(limits[0]), fit(limits[1])
