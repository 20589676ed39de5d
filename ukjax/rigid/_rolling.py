"""Links that roll or glide on a plane and hold part of a velocity at zero. Such a link always closes a loop.

P: pose of the child's frame, seen from the parent's; P': its rate; n: normal of the plane; a: axle.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._result import is_traced
from .._types import RowValues
from ._effort import number
from ._frame import Axis, Pose, Vector3, cross
from ._joint import AbstractLink


class AbstractRollingLink(AbstractLink):
    """A link that restricts velocities too."""

    @abc.abstractmethod
    def slip(self, P: Pose, rate: Pose, planar: bool) -> RowValues:
        """The velocities that must be zero (m,) [m/s], linear in `rate`, which is P'."""


class Rolling(AbstractRollingLink):
    r"""A wheel or a ball that rolls on a plane without slipping; three rows, two for planar bodies.

    One row keeps the lowest point, the contact, on the plane through the origin of the parent's frame; two keep the
    body's material there from gliding along it. The contact of a wheel is at

    .. math:: p - R\,\frac{n - (n \cdot a)\,a}{|n - (n \cdot a)\,a|} - r\,n .

    Args:
        parent: "body" or "body.frame", of the plane; "ground" or one of its frames, or a plate that moves.
        child: Likewise; its origin is the centre of the wheel, or of the ball.
        radius: R of a wheel, from its centre to the middle of its tyre; r of a ball [m].
        axis: a, "x", "y", "z" or a vector, seen from the child; None for a ball.
        normal: n, likewise, seen from the parent. For planar bodies "y", or another axis across "z".
        edge: r of a wheel with a round tyre [m]; zero for a sharp one.

    Raises:
        ValueError: If the radius is not positive, or the edge negative.

    Gradients: not where a wheel lies flat, with its axle along the normal: it has no lowest point there.

    Source: Bloch (2003), Nonholonomic Mechanics and Control, 1.4 and 1.5; for a wheel with a round tyre Meijaard et al.
    (2007), Proc. R. Soc. A 463, 1955-1982.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    radius: Array
    axis: Axis | None
    normal: Axis
    edge: Array

    def __init__(self, parent: str, child: str, radius: Any, axis: Any = "y", normal: Any = "z", edge: Any = 0.0):
        self.parent, self.child = parent, child
        self.radius, self.edge = number(radius, "radius"), number(edge, "edge")
        if not is_traced(self.radius) and self.radius <= 0:
            raise ValueError(f"radius must be positive, but is {self.radius} m.")
        if not is_traced(self.edge) and self.edge < 0:
            raise ValueError(f"edge must not be negative, but is {self.edge} m.")
        self.axis, self.normal = None if axis is None else Axis(axis), Axis(normal, "normal")

    @property
    def motion(self):
        return None

    def gap(self, P, planar):
        n = self.normal.of(P.p.dtype)
        return (n @ (P.p + self._arm(P)))[None]

    def slip(self, P, rate, planar):
        # The velocity of the material that is at the contact now, which is fixed in the child.
        velocity = rate.p + rate.R @ (P.R.T @ self._arm(P))
        return jnp.stack([along @ velocity for along in self._along(planar, P.p.dtype)])

    def _arm(self, P: Pose) -> Vector3:
        """The vector from the centre to the contact (3,) [m]."""
        n = self.normal.of(P.p.dtype)
        if self.axis is None:
            return -(self.radius + self.edge) * n
        a = P.R @ self.axis.of(P.p.dtype)
        up = n - (n @ a) * a
        return -self.radius * up / jnp.sqrt(up @ up) - self.edge * n

    def _along(self, planar: bool, dtype: Any) -> tuple[Vector3, ...]:
        """The directions in the plane; for planar bodies the single direction of their motion."""
        n = self.normal.of(dtype)
        return (cross(n, jnp.asarray((0.0, 0.0, 1.0), dtype)),) if planar else self.normal.across(dtype)


class KnifeEdge(AbstractRollingLink):
    r"""A blade, a skate, or a wheel of no size, which glides along its edge, and not across.

    One row, $(n \times d) \cdot p' = 0$. The row does not restrict positions: a `Planar` joint may keep the body on
    the plane.

    Args:
        parent: "body" or "body.frame", of the plane.
        child: Likewise; its origin is where the edge touches.
        direction: d of the edge, "x", "y", "z" or a vector, seen from the child.
        normal: n of the plane, likewise, seen from the parent.

    Source: Bloch (2003), Nonholonomic Mechanics and Control, 1.6.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    direction: Axis
    normal: Axis

    def __init__(self, parent: str, child: str, direction: Any = "x", normal: Any = "z"):
        self.parent, self.child = parent, child
        self.direction, self.normal = Axis(direction, "direction"), Axis(normal, "normal")

    @property
    def motion(self):
        return None

    def gap(self, P, planar):
        return jnp.zeros(0, P.p.dtype)

    def slip(self, P, rate, planar):
        dtype = P.p.dtype
        return (cross(self.normal.of(dtype), P.R @ self.direction.of(dtype)) @ rate.p)[None]


def slip_of(joint: str) -> str:
    """The name of the constraint that keeps a joint from slipping."""
    return f"{joint} slip"
