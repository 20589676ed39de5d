"""Mass, centre of mass and moments of inertia of bodies.

m: mass [kg]; c: centre of mass [m]; J: moments of inertia [kg m^2]; h = m c.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._result import is_traced
from ._frame import Pose, Rotation, Twist, Vector3, Wrench, cross, vector


class Inertia(eqx.Module):
    r"""Mass, centre of mass and moments of inertia of a rigid body.

    Args:
        mass: m [kg], not negative.
        moments: About the centre of mass, in the axes of the body: a symmetric matrix (3, 3), its diagonal (3,), or one
            number for all three [kg m^2]; zero if omitted, a point.
        center: Centre of mass, seen from the body (3,) [m].

    Raises:
        ValueError: If a shape is wrong, a number is not finite, the mass or a principal moment is negative, or one
            moment exceeds the sum of the two others, which no mass has.

    Gradients: mass, moments and center are leaves.
    """

    mass: Float[Array, ""]
    moments: Rotation
    center: Vector3

    def __init__(self, mass: Any, moments: Any = 0.0, center: Any = (0.0, 0.0, 0.0)):
        self.mass = _check.floating(mass, "mass")
        if self.mass.ndim:
            raise ValueError(f"mass must be a scalar, but has shape {self.mass.shape}.")
        self.moments, self.center = _moments(moments), vector(center, "center")
        _check.finite(self.mass, "mass")
        if is_traced(self.mass, self.moments):
            return
        if self.mass < 0:
            raise ValueError(f"mass must not be negative, but is {self.mass} kg.")
        J = np.asarray(self.moments, float)
        if not np.allclose(J, J.T, rtol=1e-6, atol=0):
            raise ValueError(f"moments must be symmetric, but are {J.tolist()}.")
        principal = np.linalg.eigvalsh(J)
        slack = 1e-6 * np.max(np.abs(principal))
        if principal[0] < -slack:
            raise ValueError(f"moments must not be negative in any direction, but the least is {principal[0]} kg m^2.")
        if principal[2] > principal[0] + principal[1] + slack:
            raise ValueError(
                f"moments are impossible: of the principal ones, {principal.tolist()} kg m^2, the largest exceeds the "
                "sum of the others."
            )

    @classmethod
    def rod(cls, mass: Any, start: Any, end: Any) -> "Inertia":
        """The inertia of a slender, uniform rod between two points (3,) [m]."""
        start, end = vector(start, "start"), vector(end, "end")
        way = end - start
        mass = _check.floating(mass, "mass")
        moments = mass / 12 * (way @ way * jnp.eye(3, dtype=way.dtype) - way[:, None] * way[None])
        return cls(mass, moments, (start + end) / 2)

    @classmethod
    def box(cls, mass: Any, size: Any, center: Any = (0.0, 0.0, 0.0)) -> "Inertia":
        """The inertia of a uniform block with edges `size` (3,) along the axes of the body [m]."""
        mass, size = _check.floating(mass, "mass"), vector(size, "size")
        squared = size**2
        return cls(mass, mass / 12 * (jnp.sum(squared) - squared), center)

    @classmethod
    def sphere(cls, mass: Any, radius: Any, center: Any = (0.0, 0.0, 0.0)) -> "Inertia":
        """The inertia of a uniform ball with `radius` [m]."""
        mass, radius = _check.floating(mass, "mass"), _check.floating(radius, "radius")
        return cls(mass, 2 / 5 * mass * radius**2, center)

    @classmethod
    def cylinder(cls, mass: Any, radius: Any, length: Any, axis: str = "z", center: Any = (0.0, 0.0, 0.0)) -> "Inertia":
        """The inertia of a uniform cylinder, or disc, about an axis "x", "y" or "z" of the body [m]."""
        if axis not in ("x", "y", "z"):
            raise ValueError(f'axis must be "x", "y" or "z", but is {axis!r}.')
        mass, radius, length = (
            _check.floating(x, k) for x, k in ((mass, "mass"), (radius, "radius"), (length, "length"))
        )
        across, along = mass * (radius**2 / 4 + length**2 / 12), mass * radius**2 / 2
        return cls(mass, jnp.stack([along if k == axis else across for k in "xyz"]), center)

    @property
    def spatial(self) -> "SpatialInertia":
        """The spatial inertia about the origin of the body."""
        m, c = self.mass, self.center
        J = self.moments + m * (c @ c * jnp.eye(3, dtype=c.dtype) - c[:, None] * c[None])
        return SpatialInertia(m, m * c, J)


class SpatialInertia(NamedTuple):
    """Mass, first moment m c and moments about the origin of a frame, of one body or several that move as one."""

    m: Array
    h: Vector3
    J: Rotation

    def __add__(self, other: "SpatialInertia") -> "SpatialInertia":  # pyright: ignore
        return SpatialInertia(self.m + other.m, self.h + other.h, self.J + other.J)

    def times(self, twist: Twist) -> Wrench:
        """The momentum of a twist, or the wrench that an acceleration takes."""
        force = self.m * twist.linear + cross(twist.angular, self.h)
        return Wrench(force, self.J @ twist.angular + cross(self.h, twist.linear))

    def outwards(self, pose: Pose) -> "SpatialInertia":
        """The spatial inertia seen from an outer frame, from which this frame has `pose`."""
        (R, p), h = pose, pose.R @ self.h
        mixed = p[:, None] * h[None]
        spread = (2 * p @ h + self.m * (p @ p)) * jnp.eye(3, dtype=p.dtype)
        J = R @ self.J @ R.T + spread - mixed - mixed.T - self.m * p[:, None] * p[None]
        return SpatialInertia(self.m, h + self.m * p, J)


def _moments(value: Any) -> Rotation:
    moments = _check.floating(value, "moments")
    if moments.shape not in ((), (3,), (3, 3)):
        raise ValueError(f"moments must be a scalar or have shape (3,) or (3, 3), but have shape {moments.shape}.")
    _check.finite(moments, "moments")
    if moments.ndim == 2:
        return moments
    return moments * jnp.eye(3, dtype=moments.dtype) if moments.ndim == 0 else jnp.diag(moments)
