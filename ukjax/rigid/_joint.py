"""Joints between frames of bodies, which move bodies in a tree or close loops.

P: pose of the child's frame, seen from the parent's; P': its rate; R, p: its rotation and origin; a: axis, or axle;
e1, e2: across it; n: normal of a plane.

Links hold frames of two bodies together without coordinates: a link always closes a loop. Links that roll or glide on
a plane hold part of a velocity at zero.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from .. import _check
from .._result import is_traced
from .._types import RowValues
from ._effort import Drag, Effort, number, pitch_of
from ._frame import SMALL, Axis, Direction, Pose, Rotation, Vector3, cross, rotation_vector
from ._motion import AbstractMotion, Ball, Cross, Cylinder, Float, Helix, Plane, Slide, Turn, Weld


class AbstractJoint(eqx.Module):
    """A joint between a frame of one body and a frame of another, which coincide where its coordinates are zero.

    Attributes:
        parent: "body" or "body.frame"; "ground" is what does not move.
        child: Likewise; the body that the joint moves, where it does not close a loop.
    """

    parent: eqx.AbstractVar[str]
    child: eqx.AbstractVar[str]

    def __check_init__(self):
        for name, value in vars(self).items():
            if isinstance(value, Axis) and value.is_zero:
                between = f"the {type(self).__name__} from {self.parent!r} to {self.child!r}"
                raise ValueError(
                    f'{name} of {between} has length zero. Pass "x", "y", "z" or a vector with a direction.'
                )

    @property
    @abc.abstractmethod
    def motion(self) -> AbstractMotion | None:
        """The motion of the child's frame against the parent's; None for a link, which has no coordinates."""

    @abc.abstractmethod
    def gap(self, P: Pose, planar: bool, angles: bool = False) -> RowValues:
        """The residual of the joint's rows (m,), zero where the frames are joined: lengths [m], and sines of angles.

        `planar`: whether bodies stay in the plane x, y, where fewer rows suffice. `angles`: whether angles take the
        place of their sines, which are zero half a turn off too. Where frames are joined, both have the same
        derivatives up to the second.
        """


class AbstractDrivenJoint(AbstractJoint):
    """A joint of one coordinate, which may have an effort and a motor."""

    effort: eqx.AbstractVar[Effort | None]

    @abc.abstractmethod
    def coordinate(self, P: Pose) -> Array:
        """The coordinate at a pose; an angle is between -pi and pi. `_turns` counts the turns."""


class Revolute(AbstractDrivenJoint):
    """A hinge, which turns about an axis; five rows in a loop, two for planar bodies.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        axis: "x", "y", "z" or a vector (3,), seen from either frame.
        effort: `Effort(stiffness, rest, damping, armature)`, or None for none.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    axis: Axis
    effort: Effort | None

    def __init__(self, parent: str, child: str, axis: Direction = "z", effort: Effort | None = None):
        self.parent, self.child, self.axis, self.effort = parent, child, Axis(axis), effort

    @property
    def motion(self):
        return Turn(self.axis)

    def gap(self, P, planar, angles=False):
        return P.p[:2] if planar else jnp.concatenate([P.p, _tilt(self.axis, P.R, angles)])

    def coordinate(self, P):
        return _angle(self.axis, P.R)


class Prismatic(AbstractDrivenJoint):
    """A slide along an axis; five rows in a loop, two for planar bodies. Arguments as for `Revolute`."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    axis: Axis
    effort: Effort | None

    def __init__(self, parent: str, child: str, axis: Direction = "x", effort: Effort | None = None):
        self.parent, self.child, self.axis, self.effort = parent, child, Axis(axis), effort

    @property
    def motion(self):
        return Slide(self.axis)

    def gap(self, P, planar, angles=False):
        if planar:
            x, y, _ = self.axis.of(P.p.dtype)
            return jnp.stack([x * P.p[1] - y * P.p[0], _turned_in_plane(P.R, angles)])
        return jnp.concatenate([_off(self.axis, P.p), _turned(P.R, angles)])

    def coordinate(self, P):
        return self.axis.of(P.p.dtype) @ P.p


class Screw(AbstractDrivenJoint):
    """A screw, which turns about an axis and slides along it, `pitch` for each radian [m/rad]; five rows in a loop."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    pitch: Array
    axis: Axis
    effort: Effort | None

    def __init__(self, parent: str, child: str, pitch: ArrayLike, axis: Direction = "z", effort: Effort | None = None):
        self.parent, self.child, self.pitch = parent, child, pitch_of(pitch)
        self.axis, self.effort = Axis(axis), effort

    @property
    def motion(self):
        return Helix(self.axis, self.pitch)

    def gap(self, P, planar, angles=False):
        first, second = self.axis.across(P.p.dtype)
        turned, angle = P.R @ first, self.coordinate(P)
        ahead = (second @ turned) * jnp.cos(angle) - (first @ turned) * jnp.sin(angle)
        if angles:
            ahead = jnp.arctan2(ahead, (first @ turned) * jnp.cos(angle) + (second @ turned) * jnp.sin(angle))
        return jnp.concatenate([_off(self.axis, P.p), _tilt(self.axis, P.R, angles), ahead[None]])

    def coordinate(self, P):
        return self.axis.of(P.p.dtype) @ P.p / self.pitch


class Cylindrical(AbstractJoint):
    """A cylindrical joint, which slides along an axis and turns about it; four rows in a loop."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    axis: Axis

    def __init__(self, parent: str, child: str, axis: Direction = "z"):
        self.parent, self.child, self.axis = parent, child, Axis(axis)

    @property
    def motion(self):
        return Cylinder(self.axis)

    def gap(self, P, planar, angles=False):
        return jnp.concatenate([_off(self.axis, P.p), _tilt(self.axis, P.R, angles)])


class Universal(AbstractJoint):
    """A universal joint, which turns about an axis of the parent's frame, then about an axis of the child's frame.

    The two axes are at right angles to each other. Four rows in a loop.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        first: Axis of the parent's frame, "x", "y", "z" or a vector (3,).
        second: Axis of the child's frame, likewise.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    first: Axis
    second: Axis

    def __init__(self, parent: str, child: str, first: Direction = "x", second: Direction = "y"):
        self.parent, self.child, self.first, self.second = parent, child, Axis(first, "first"), Axis(second, "second")

    @property
    def motion(self):
        return Cross(self.first, self.second)

    def gap(self, P, planar, angles=False):
        dtype = P.p.dtype
        cosine = self.first.of(dtype) @ (P.R @ self.second.of(dtype))
        return jnp.concatenate([P.p, cosine[None]])


class Planar(AbstractJoint):
    """A planar joint, which slides in a plane and turns about its normal; three rows in a loop.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        normal: "x", "y" or "z".
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    normal: str = eqx.field(default="z", static=True)

    def __check_init__(self):
        if self.normal not in ("x", "y", "z"):
            raise ValueError(f'normal must be "x", "y" or "z", but is {self.normal!r}.')

    @property
    def motion(self):
        return Plane(self.normal)

    def gap(self, P, planar, angles=False):
        if planar:
            return jnp.zeros(0, P.p.dtype)
        axis = Axis(self.normal)
        return jnp.concatenate([(axis.of(P.p.dtype) @ P.p)[None], _tilt(axis, P.R, angles)])


class Spherical(AbstractJoint):
    """A ball in a socket; three rows in a loop. Its coordinates are a unit quaternion.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        drag: `Drag(damping, armature)`, or None for none.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    drag: Drag | None = None

    @property
    def motion(self):
        return Ball()

    def gap(self, P, planar, angles=False):
        return P.p


class Free(AbstractJoint):
    """A free joint, of six degrees of freedom, without rows. Its coordinates are a position and a unit quaternion."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)

    @property
    def motion(self):
        return Float()

    def gap(self, P, planar, angles=False):
        return jnp.zeros(0, P.p.dtype)


class Fixed(AbstractJoint):
    """A rigid connection of two frames; six rows in a loop, three for planar bodies."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)

    @property
    def motion(self):
        return Weld()

    def gap(self, P, planar, angles=False):
        return (
            jnp.stack([*P.p[:2], _turned_in_plane(P.R, angles)])
            if planar
            else jnp.concatenate([P.p, _turned(P.R, angles)])
        )


def _angle(axis: Axis, R: Rotation) -> Array:
    """The angle by which R turns about the axis, between -pi and pi."""
    first, second = axis.across(R.dtype)
    turned = R @ first
    return jnp.arctan2(second @ turned, first @ turned)


def _off(axis: Axis, p: Vector3) -> Array:
    """The offset of a point from the axis, in the two directions across the axis (2,)."""
    return jnp.stack([e @ p for e in axis.across(p.dtype)])


def _tilt(axis: Axis, R: Rotation, angles: bool) -> Array:
    """The tilt of the child's axis against the parent's (2,): sines, or angles, in two directions across the axis."""
    turned = R @ axis.of(R.dtype)
    sines = jnp.stack([e @ turned for e in axis.across(R.dtype)])
    if not angles:
        return sines
    cosine, squared = axis.of(R.dtype) @ turned, sines @ sines
    small = squared < SMALL
    sine = jnp.sqrt(jnp.where(small, 1.0, squared))
    found = jnp.where(small, 1 + squared / 6, jnp.arctan2(sine, cosine) / sine) * sines
    # Where the axes are opposite, any direction across them leads back.
    return jnp.where(small & (cosine < 0), jnp.pi * jnp.asarray([1.0, 0.0], R.dtype) - sines, found)


def _turned(R: Rotation, angles: bool) -> Vector3:
    """The axis of R times sin(angle) (3,), which is zero where R is the identity or a half turn; or times the angle."""
    if angles:
        return rotation_vector(R)
    return jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2


def _turned_in_plane(R: Rotation, angles: bool) -> Array:
    """The sine of the angle about z, or the angle."""
    return jnp.arctan2(R[1, 0], R[0, 0]) if angles else R[1, 0]


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

    def __init__(self, parent: str, child: str, length: ArrayLike):
        self.parent, self.child, self.length = parent, child, _length(length)

    @property
    def motion(self):
        return None

    def gap(self, P, planar, angles=False):
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

    def gap(self, P, planar, angles=False):
        value = jnp.atleast_1d(jnp.asarray(self.surface(P.p)))
        return _check.output(value, ("m",), P.p.dtype, "surface(p)", "A scalar, or (2,) for a curve.")


def _length(value: object) -> Array:
    length = number(value, "length")
    if not is_traced(length) and length <= 0:
        raise ValueError(f"length must be positive, but is {length} m.")
    return length


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

    def __init__(
        self,
        parent: str,
        child: str,
        radius: ArrayLike,
        axis: Direction | None = "y",
        normal: Direction = "z",
        edge: ArrayLike = 0.0,
    ):
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

    def gap(self, P, planar, angles=False):
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

    def _along(self, planar: bool, dtype: DTypeLike) -> tuple[Vector3, ...]:
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

    def __init__(self, parent: str, child: str, direction: Direction = "x", normal: Direction = "z"):
        self.parent, self.child = parent, child
        self.direction, self.normal = Axis(direction, "direction"), Axis(normal, "normal")

    @property
    def motion(self):
        return None

    def gap(self, P, planar, angles=False):
        return jnp.zeros(0, P.p.dtype)

    def slip(self, P, rate, planar):
        dtype = P.p.dtype
        return (cross(self.normal.of(dtype), P.R @ self.direction.of(dtype)) @ rate.p)[None]


def slip_of(joint: str) -> str:
    """The name of the constraint that keeps a joint from slipping."""
    return f"{joint} slip"
