"""Links, which hold frames of two bodies together without coordinates: a link always closes a loop.

P: pose of the child's frame, seen from the parent's.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._result import is_traced
from ._effort import number
from ._joint import AbstractJoint


class AbstractLink(AbstractJoint):
    """A joint without coordinates, which always closes a loop."""


class Distance(AbstractLink):
    """A massless rod with a ball at either end, which keeps the origins at a distance: one row, always of a loop.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        length: Length of the rod, positive [m].
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    length: Array

    def __init__(self, parent: str, child: str, length: Any):
        self.parent, self.child, self.length = parent, child, _length(length)

    @property
    def motion(self):
        return None

    def gap(self, P, planar):
        return ((P.p @ P.p - self.length**2) / (2 * self.length))[None]


class PointOn(AbstractLink):
    """A link that keeps the origin of the child's frame on a surface or a curve; it always closes a loop.

    Args:
        parent: "body" or "body.frame", from which the surface is seen.
        child: Likewise.
        surface: `surface(p)`, zero where a point p (3,) [m] lies on it: a scalar, or (2,) for a curve.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    surface: Callable

    def __init__(self, parent: str, child: str, surface: Callable):
        self.parent, self.child = parent, child
        self.surface = _check.function(surface, "surface", "surface(p) -> scalar, or (2,) for a curve")

    @property
    def motion(self):
        return None

    def gap(self, P, planar):
        value = jnp.atleast_1d(jnp.asarray(self.surface(P.p)))
        return _check.output(value, ("m",), P.p.dtype, "surface(p)", "A scalar, or (2,) for a curve.")


def _length(value: Any) -> Array:
    length = number(value, "length")
    if not is_traced(length) and length <= 0:
        raise ValueError(f"length must be positive, but is {length} m.")
    return length
