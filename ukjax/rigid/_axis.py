"""Directions of axes."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from .._result import is_traced
from ._frame import vector
from ._rotation import Rotation, Vector3, unit


class Axis(eqx.Module):
    """A direction: "x", "y" or "z", which is static, or any nonzero vector (3,).

    Gradients: through a vector; its length does not matter.
    """

    named: str | None = eqx.field(static=True)
    direction: Vector3 | None

    def __init__(self, axis: Any, name: str = "axis"):
        self.named, self.direction = None, None
        if isinstance(axis, Axis):
            self.named, self.direction = axis.named, axis.direction
        elif isinstance(axis, str):
            if axis not in NAMED:
                raise ValueError(f'{name} must be "x", "y", "z" or a vector (3,), but is {axis!r}.')
            self.named = axis
        else:
            self.direction = vector(axis, name)

    @property
    def is_zero(self) -> bool:
        """Whether the axis is a vector of zeros; False if its numbers are traced."""
        known = self.direction is not None and not is_traced(self.direction)
        return known and not np.any(np.asarray(self.direction))

    def of(self, dtype: Any) -> Vector3:
        """The unit vector of the axis (3,)."""
        if self.direction is None:
            return jnp.asarray(NAMED[self.named or "z"], dtype)
        return unit(self.direction.astype(dtype))

    def across(self, dtype: Any) -> tuple[Vector3, Vector3]:
        """Two unit vectors at right angles to the axis and to each other."""
        if self.named is not None:
            first, second = {"x": "yz", "y": "zx", "z": "xy"}[self.named]
            return jnp.asarray(NAMED[first], dtype), jnp.asarray(NAMED[second], dtype)
        x, y, z = self.of(dtype)
        # Duff et al. (2017), Building an orthonormal basis, revisited: smooth on either half.
        sign = jnp.where(z >= 0, 1.0, -1.0).astype(dtype)
        p = -1 / (sign + z)
        s = x * y * p
        return jnp.stack([1 + sign * x * x * p, sign * s, -sign * x]), jnp.stack([s, sign + y * y * p, -y])


def about_z(axis: Axis, dtype: Any) -> Rotation:
    """The rotation matrix (3, 3) whose last column is the axis."""
    return jnp.stack([*axis.across(dtype), axis.of(dtype)], axis=1)


NAMED = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
