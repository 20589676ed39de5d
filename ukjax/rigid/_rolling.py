"""What rolls or glides: it keeps a body on a plane, and part of its velocity at zero. It always closes a loop.

P: pose of the child's frame, seen from the parent's; P': its rate; n: normal of the plane; a: axle.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._result import is_traced
from .._types import RowValues
from ._axis import Axis
from ._effort import number
from ._frame import Pose
from ._link import AbstractLink
from ._rotation import Vector3, cross


class AbstractRollingLink(AbstractLink):
    """What restricts velocities too."""

    @abc.abstractmethod
    def slip(self, P: Pose, rate: Pose, planar: bool) -> RowValues:
        """What must be zero of the velocities (m,) [m/s], linear in `rate`, which is P'."""


class Rolling(AbstractRollingLink):
    r"""A wheel or a ball that rolls on a plane without slipping; three rows, of planar bodies two.

    One row keeps the lowest point, the contact, on the plane through the origin of the parent's frame; two keep the
    body's material there from gliding along it. The contact of a wheel is at

    .. math:: p - R\,\frac{n - (n \cdot a)\,a}{|n - (n \cdot a)\,a|} - r\,n .

    Args:
        parent: "body" or "body.frame", of the plane; "ground" or one of its frames, or a plate that moves.
        child: Likewise; its origin is the centre of the wheel, or of the ball.
        radius: R of a wheel, from its centre to the middle of its tyre; r of a ball [m].
        axis: a, "x", "y", "z" or a vector, seen from the child; None for a ball.
        normal: n, likewise, seen from the parent. Of planar bodies "y", or another one across "z".
        edge: r of a wheel with a round tyre [m]; zero for a sharp one.

    Raises:
        ValueError: If the radius is not positive, or the edge negative.

    Gradients: not where a wheel lies flat, its axle along the normal, where it has no lowest point.

    Source: Bloch (2003), Nonholonomic Mechanics and Control, 1.4 and 1.5; of a wheel with a round tyre Meijaard et al.
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
        # Of the material that is at the contact now, which is fixed in the child.
        velocity = rate.p + rate.R @ (P.R.T @ self._arm(P))
        return jnp.stack([along @ velocity for along in self._along(planar, P.p.dtype)])

    def _arm(self, P: Pose) -> Vector3:
        """From the centre to the contact."""
        n = self.normal.of(P.p.dtype)
        if self.axis is None:
            return -(self.radius + self.edge) * n
        a = P.R @ self.axis.of(P.p.dtype)
        up = n - (n @ a) * a
        return -self.radius * up / jnp.sqrt(up @ up) - self.edge * n

    def _along(self, planar: bool, dtype: Any) -> tuple[Vector3, ...]:
        """Directions in the plane; of planar bodies the one that they can move in."""
        n = self.normal.of(dtype)
        return (cross(n, jnp.asarray((0.0, 0.0, 1.0), dtype)),) if planar else self.normal.across(dtype)


class KnifeEdge(AbstractRollingLink):
    r"""A blade, a skate, or a wheel of no size: glides along its edge, and not across.

    One row, $(n \times d) \cdot p' = 0$. It says nothing of where the body is: a `Planar` joint may keep
    it on the plane.

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
    """What the constraint is called that keeps a joint from slipping."""
    return f"{joint} slip"
