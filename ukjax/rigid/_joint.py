"""Joints between frames of bodies: what moves in a tree, and what closes a loop.

P: pose of the child's frame, seen from the parent's; R, p: its rotation and origin; a: axis; e1, e2: across it.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._types import RowValues
from ._axis import Axis
from ._effort import Drag, Effort, pitch_of
from ._frame import Pose
from ._motion import AbstractMotion, Ball, Cross, Cylinder, Float, Helix, Plane, Slide, Turn, Weld
from ._rotation import Rotation, Vector3


class AbstractJoint(eqx.Module):
    """A joint between a frame of one body and a frame of another, which coincide where its coordinates are zero.

    Attributes:
        parent: "body" or "body.frame"; "ground" is what does not move.
        child: Likewise; what it moves, where it does not close a loop.
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
        """Of the child's frame against the parent's; None if it leaves what has no coordinates."""

    @abc.abstractmethod
    def gap(self, P: Pose, planar: bool) -> RowValues:
        """What must be zero for the frames to be joined, (m,): lengths [m], and sines of angles.

        `planar`: for bodies that stay in the plane x, y, where fewer rows do.
        """


class AbstractDrivenJoint(AbstractJoint):
    """A joint of one coordinate, which may have an effort, and an actuator."""

    effort: eqx.AbstractVar[Effort | None]

    @abc.abstractmethod
    def coordinate(self, P: Pose) -> Array:
        """The coordinate that a pose tells; an angle between -pi and pi. `_turns` counts the turns."""


class Revolute(AbstractDrivenJoint):
    """A hinge: turns about an axis; five rows in a loop, two of planar bodies.

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

    def __init__(self, parent: str, child: str, axis: Any = "z", effort: Effort | None = None):
        self.parent, self.child, self.axis, self.effort = parent, child, Axis(axis), effort

    @property
    def motion(self):
        return Turn(self.axis)

    def gap(self, P, planar):
        return P.p[:2] if planar else jnp.concatenate([P.p, _tilt(self.axis, P.R)])

    def coordinate(self, P):
        return _angle(self.axis, P.R)


class Prismatic(AbstractDrivenJoint):
    """A slide along an axis; five rows in a loop, two of planar bodies. Arguments as for `Revolute`."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    axis: Axis
    effort: Effort | None

    def __init__(self, parent: str, child: str, axis: Any = "x", effort: Effort | None = None):
        self.parent, self.child, self.axis, self.effort = parent, child, Axis(axis), effort

    @property
    def motion(self):
        return Slide(self.axis)

    def gap(self, P, planar):
        if planar:
            x, y, _ = self.axis.of(P.p.dtype)
            return jnp.stack([x * P.p[1] - y * P.p[0], P.R[1, 0]])
        return jnp.concatenate([_off(self.axis, P.p), _turned(P.R)])

    def coordinate(self, P):
        return self.axis.of(P.p.dtype) @ P.p


class Screw(AbstractDrivenJoint):
    """Turns about an axis and slides along it, by `pitch` for each radian [m/rad]; five rows in a loop."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    pitch: Array
    axis: Axis
    effort: Effort | None

    def __init__(self, parent: str, child: str, pitch: Any, axis: Any = "z", effort: Effort | None = None):
        self.parent, self.child, self.pitch = parent, child, pitch_of(pitch)
        self.axis, self.effort = Axis(axis), effort

    @property
    def motion(self):
        return Helix(self.axis, self.pitch)

    def gap(self, P, planar):
        first, second = self.axis.across(P.p.dtype)
        turned, angle = P.R @ first, self.coordinate(P)
        ahead = (second @ turned) * jnp.cos(angle) - (first @ turned) * jnp.sin(angle)
        return jnp.concatenate([_off(self.axis, P.p), _tilt(self.axis, P.R), ahead[None]])

    def coordinate(self, P):
        return self.axis.of(P.p.dtype) @ P.p / self.pitch


class Cylindrical(AbstractJoint):
    """Slides along an axis, and turns about it; four rows in a loop."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    axis: Axis

    def __init__(self, parent: str, child: str, axis: Any = "z"):
        self.parent, self.child, self.axis = parent, child, Axis(axis)

    @property
    def motion(self):
        return Cylinder(self.axis)

    def gap(self, P, planar):
        return jnp.concatenate([_off(self.axis, P.p), _tilt(self.axis, P.R)])


class Universal(AbstractJoint):
    """Turns about an axis of the parent's frame, then about one of the child's; four rows in a loop.

    The two are at right angles to each other.

    Args:
        parent: "body" or "body.frame".
        child: Likewise.
        first: Of the parent's frame, "x", "y", "z" or a vector (3,).
        second: Of the child's frame, likewise.
    """

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)
    first: Axis
    second: Axis

    def __init__(self, parent: str, child: str, first: Any = "x", second: Any = "y"):
        self.parent, self.child, self.first, self.second = parent, child, Axis(first, "first"), Axis(second, "second")

    @property
    def motion(self):
        return Cross(self.first, self.second)

    def gap(self, P, planar):
        dtype = P.p.dtype
        cosine = self.first.of(dtype) @ (P.R @ self.second.of(dtype))
        return jnp.concatenate([P.p, cosine[None]])


class Planar(AbstractJoint):
    """Slides in a plane, and turns about its normal; three rows in a loop.

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

    def gap(self, P, planar):
        if planar:
            return jnp.zeros(0, P.p.dtype)
        axis = Axis(self.normal)
        return jnp.concatenate([(axis.of(P.p.dtype) @ P.p)[None], _tilt(axis, P.R)])


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

    def gap(self, P, planar):
        return P.p


class Free(AbstractJoint):
    """None: the child moves as it likes. Its coordinates are a position and a unit quaternion."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)

    @property
    def motion(self):
        return Float()

    def gap(self, P, planar):
        return jnp.zeros(0, P.p.dtype)


class Fixed(AbstractJoint):
    """Holds the frames together; six rows in a loop, three of planar bodies."""

    parent: str = eqx.field(static=True)
    child: str = eqx.field(static=True)

    @property
    def motion(self):
        return Weld()

    def gap(self, P, planar):
        return jnp.stack([*P.p[:2], P.R[1, 0]]) if planar else jnp.concatenate([P.p, _turned(P.R)])


def _angle(axis: Axis, R: Rotation) -> Array:
    """By how much R turns about the axis."""
    first, second = axis.across(R.dtype)
    turned = R @ first
    return jnp.arctan2(second @ turned, first @ turned)


def _off(axis: Axis, p: Vector3) -> Array:
    """How far a point is off the axis, in the two directions across it."""
    return jnp.stack([e @ p for e in axis.across(p.dtype)])


def _tilt(axis: Axis, R: Rotation) -> Array:
    """By how much the axis of the child is turned off that of the parent: sines, in the two directions across it."""
    turned = R @ axis.of(R.dtype)
    return jnp.stack([e @ turned for e in axis.across(R.dtype)])


def _turned(R: Rotation) -> Vector3:
    """sin(angle) times the axis of R: zero where it turns nothing (or, far off, by half a turn)."""
    return jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2
