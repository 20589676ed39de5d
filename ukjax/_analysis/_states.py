"""Quantities that determine a consistent state among its neighbours.

They are some coordinates and speeds, or functions chosen by the user.
"""

import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .. import _check
from .._linalg import rank_tolerance
from .._mechanism import Mechanism
from .._program import jit_fast_compile
from .._result import is_traced
from .._types import Coordinates, Scalar, Vector
from ._tangents import Tangents, tangents


# A coordinate with a higher index is chosen only if those with lower ones leave it this much more freedom.
PREFERENCE = 0.5


class Independent(eqx.Module):
    """Indices of coordinates and of speeds that together determine a state on its constraints."""

    q: tuple[int, ...] = eqx.field(static=True, converter=lambda x: _indices(x, "q"))
    v: tuple[int, ...] = eqx.field(static=True, converter=lambda x: _indices(x, "v"))

    def __call__(self, q: Coordinates, v: Vector, t: Scalar) -> Array:
        """Returns the independent coordinates and speeds, (k,)."""
        return jnp.concatenate([q[np.array(self.q, int)], v[np.array(self.v, int)]])


def _indices(value: Any, name: str) -> tuple[int, ...]:
    try:
        return tuple(operator.index(i) for i in value)
    except TypeError as error:
        raise TypeError(f"{name} must be a sequence of indices, such as (0, 2), but is {value!r}.") from error


def independent(mechanism: Mechanism, q: Any, v: Any, t: ArrayLike = 0.0) -> Independent:
    """Chooses coordinates and speeds that are independent of each other on the constraints, at a state.

    Coordinates are chosen one after the other. Each is the one to which the constraints and those before leave the
    largest part of its unconstrained freedom, in the metric of the mass matrix; among about equal ones, the first. The
    units of coordinates do not matter.

    Args:
        mechanism: System and constraints.
        q: Coordinates, shape (n,) [m or rad], consistent.
        v: Rates of q, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].

    Returns:
        `Independent`: `q` and `v`, tuples of indices, as many as there are degrees of freedom in positions and in
        velocities.

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If a shape does not fit, or a number is traced: their number decides about shapes.

    Source: coordinate partitioning, Wehage & Haug (1982), by a QR factorisation with pivoting.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t, kinematics=mechanism.kinematics)
    found = _tangents(mechanism, q, v, t)
    if is_traced(found):
        raise ValueError(
            "states must be given where the mechanism or its state is traced, since their number decides about shapes: "
            "pass states=ukjax.analysis.independent(mechanism, q, v, t) of a state outside of jit, vmap and grad."
        )
    _check.finite(q, "q")
    _check.finite(v, "v")
    n = v.shape[0]
    return Independent(
        _chosen(np.asarray(found.q)[:, :n], np.asarray(found.free_q)),
        _chosen(np.asarray(found.v)[:, n:], np.asarray(found.free_v)),
    )


@jit_fast_compile
def _tangents(mechanism: Mechanism, q: Array, v: Array, t: Array) -> Tangents:
    return tangents(mechanism, q, v, t)


def _chosen(rows: np.ndarray, free: np.ndarray) -> tuple[int, ...]:
    """Returns indices of independent rows, in order, by Gram-Schmidt with pivoting."""
    rest = rows / np.where(free > 0, free, 1.0)[:, None]
    tolerance, chosen = rank_tolerance(None, rows.dtype), []
    for _ in range(len(rest)):
        lengths = np.linalg.norm(rest, axis=1)
        longest = lengths.max(initial=0.0)
        if longest <= tolerance:
            break
        pivot = int(np.argmax(lengths >= PREFERENCE * longest))
        chosen.append(pivot)
        direction = rest[pivot] / lengths[pivot]
        rest = rest - np.outer(rest @ direction, direction)
        rest[pivot] = 0.0
    return tuple(sorted(chosen))


def states_of(value: Any, mechanism: Mechanism, q: Array, v: Array, t: Array) -> Callable:
    """Returns the argument `states` as a function of (q, v, t); raises TypeError or ValueError if it is invalid."""
    if value is None:
        return independent(mechanism, q, v, t)
    if isinstance(value, Independent):
        for name, indices, size in (("q", value.q, q.shape[0]), ("v", value.v, v.shape[0])):
            outside = [i for i in indices if not 0 <= i < size]
            if outside:
                raise ValueError(f"states.{name} must hold indices below {size}, but holds {outside[0]}.")
        return value
    if isinstance(value, tuple | list):
        raise TypeError(
            "states must be a function states(q, v, t) -> (k,), or ukjax.analysis.Independent(q, v) with indices of "
            f"coordinates and speeds, but is a {type(value).__name__}."
        )
    return _check.function(value, "states", "states(q, v, t) -> (k,)")
