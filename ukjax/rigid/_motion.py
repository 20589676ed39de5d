"""Motions of joints: those of a frame against another frame, with which it coincides at rest.

q: coordinates (n_q,); v: speeds (n,); d: small displacement (n,); a: unit vector of an axis (3,).
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from ._frame import NAMED, Axis, Pose, Twist, Vector3, about, cross, matrix, named, product, quaternion, unit


class AbstractMotion(eqx.Module):
    """The motion of a frame against the frame that it leaves.

    Attributes:
        coordinates: Names of the coordinates and their units.
        speeds: Names of the speeds and their units.
    """

    coordinates: ClassVar[tuple[tuple[str, str], ...]]
    speeds: ClassVar[tuple[tuple[str, str], ...]]

    @abc.abstractmethod
    def pose(self, q: Array) -> Pose:
        """The pose of the moving frame, seen from the frame that it leaves."""

    @abc.abstractmethod
    def twists(self, q: Array) -> tuple[Twist, ...]:
        """The twists S per unit of each speed, seen from the moving frame."""

    @abc.abstractmethod
    def drift(self, q: Array, v: Array) -> Twist | None:
        """The rate S' v of the twists, seen from the moving frame; None if S is constant."""

    @abc.abstractmethod
    def rates(self, q: Array, v: Array) -> Array:
        """The rates q' of the coordinates (n_q,)."""

    @abc.abstractmethod
    def retract(self, q: Array, d: Array) -> Array:
        """The coordinates (n_q,) to which a displacement d leads, with finite rotations exact."""

    @abc.abstractmethod
    def rest(self, dtype: DTypeLike) -> Array:
        """The coordinates at which the frames coincide (n_q,)."""


class AbstractPlainMotion(AbstractMotion):
    """A motion whose speeds are the rates of its coordinates, which are zero at rest."""

    def rates(self, q, v):
        return v

    def retract(self, q, d):
        return q + d

    def rest(self, dtype):
        return jnp.zeros(len(self.coordinates), dtype)


class Turn(AbstractPlainMotion):
    """A turn about an axis; the coordinate is the angle."""

    axis: Axis
    coordinates = (("", "rad"),)
    speeds = (("", "rad/s"),)

    def pose(self, q):
        return Pose(about(self.axis.of(q.dtype), q[0]), jnp.zeros(3, q.dtype))

    def twists(self, q):
        return (Twist(jnp.zeros(3, q.dtype), self.axis.of(q.dtype)),)

    def drift(self, q, v):
        return None


class Slide(AbstractPlainMotion):
    """A translation along an axis; the coordinate is the distance."""

    axis: Axis
    coordinates = (("", "m"),)
    speeds = (("", "m/s"),)

    def pose(self, q):
        return Pose(jnp.eye(3, dtype=q.dtype), q[0] * self.axis.of(q.dtype))

    def twists(self, q):
        return (Twist(self.axis.of(q.dtype), jnp.zeros(3, q.dtype)),)

    def drift(self, q, v):
        return None


class Helix(AbstractPlainMotion):
    """A turn about an axis, with a translation along it of `pitch` for each radian [m]; the coordinate is the angle."""

    axis: Axis
    pitch: Array
    coordinates = (("", "rad"),)
    speeds = (("", "rad/s"),)

    def pose(self, q):
        a = self.axis.of(q.dtype)
        return Pose(about(a, q[0]), self.pitch * q[0] * a)

    def twists(self, q):
        a = self.axis.of(q.dtype)
        return (Twist(self.pitch.astype(q.dtype) * a, a),)

    def drift(self, q, v):
        return None


class Cylinder(AbstractPlainMotion):
    """A translation along an axis, and a turn about the axis."""

    axis: Axis
    coordinates = (("way", "m"), ("angle", "rad"))
    speeds = (("way", "m/s"), ("angle", "rad/s"))

    def pose(self, q):
        a = self.axis.of(q.dtype)
        return Pose(about(a, q[1]), q[0] * a)

    def twists(self, q):
        a, zero = self.axis.of(q.dtype), jnp.zeros(3, q.dtype)
        return Twist(a, zero), Twist(zero, a)

    def drift(self, q, v):
        return None


class Cross(AbstractPlainMotion):
    """A turn about an axis of the frame that is left, then about an axis of the moving frame."""

    first: Axis
    second: Axis
    coordinates = (("1", "rad"), ("2", "rad"))
    speeds = (("1", "rad/s"), ("2", "rad/s"))

    def pose(self, q):
        R = about(self.first.of(q.dtype), q[0]) @ about(self.second.of(q.dtype), q[1])
        return Pose(R, jnp.zeros(3, q.dtype))

    def twists(self, q):
        zero, second = jnp.zeros(3, q.dtype), self.second.of(q.dtype)
        return Twist(zero, about(second, q[1]).T @ self.first.of(q.dtype)), Twist(zero, second)

    def drift(self, q, v):
        (_, first), (_, second) = self.twists(q)
        return Twist(jnp.zeros(3, q.dtype), -v[0] * v[1] * cross(second, first))


class Plane(AbstractPlainMotion):
    """A translation across an axis, along two directions of the frame that is left, and a turn about the axis."""

    normal: str = eqx.field(static=True)
    coordinates = (("1", "m"), ("2", "m"), ("angle", "rad"))
    speeds = (("1", "m/s"), ("2", "m/s"), ("angle", "rad/s"))

    def pose(self, q):
        first, second, normal = self._directions(q.dtype)
        return Pose(about(normal, q[2]), q[0] * first + q[1] * second)

    def twists(self, q):
        first, second, normal = self._directions(q.dtype)
        R, zero = about(normal, q[2]), jnp.zeros(3, q.dtype)
        return Twist(R.T @ first, zero), Twist(R.T @ second, zero), Twist(zero, normal)

    def drift(self, q, v):
        (first, _), (second, _), (_, normal) = self.twists(q)
        return Twist(-v[2] * cross(normal, v[0] * first + v[1] * second), jnp.zeros(3, q.dtype))

    def _directions(self, dtype: DTypeLike) -> tuple[Vector3, Vector3, Vector3]:
        axis = Axis(self.normal)
        return *axis.across(dtype), axis.of(dtype)


class Ball(AbstractMotion):
    """A turn about a point: a unit quaternion, and the angular velocity seen from the moving frame."""

    coordinates = tuple((k, "") for k in ("w", "x", "y", "z"))
    speeds = tuple((f"ω{k}", "rad/s") for k in "xyz")

    def pose(self, q):
        return Pose(matrix(q), jnp.zeros(3, q.dtype))

    def twists(self, q):
        return tuple(Twist(jnp.zeros(3, q.dtype), named(a, q.dtype)) for a in NAMED)

    def drift(self, q, v):
        return None

    def rates(self, q, v):
        return product(q, jnp.concatenate([jnp.zeros(1, v.dtype), v])) / 2

    def retract(self, q, d):
        return unit(product(q, quaternion(d)))

    def rest(self, dtype):
        return jnp.array([1.0, 0.0, 0.0, 0.0], dtype)


class Float(AbstractMotion):
    """A free motion: a position and a unit quaternion; velocity and angular velocity seen from the moving frame."""

    coordinates = (*((k, "m") for k in "xyz"), *((f"q{k}", "") for k in "wxyz"))
    speeds = (*((f"v{k}", "m/s") for k in "xyz"), *((f"ω{k}", "rad/s") for k in "xyz"))

    def pose(self, q):
        return Pose(matrix(q[3:]), q[:3])

    def twists(self, q):
        zero, axes = jnp.zeros(3, q.dtype), [named(a, q.dtype) for a in NAMED]
        return (*(Twist(a, zero) for a in axes), *(Twist(zero, a) for a in axes))

    def drift(self, q, v):
        return None

    def rates(self, q, v):
        return jnp.concatenate([matrix(q[3:]) @ v[:3], Ball().rates(q[3:], v[3:])])

    def retract(self, q, d):
        return jnp.concatenate([q[:3] + matrix(q[3:]) @ d[:3], Ball().retract(q[3:], d[3:])])

    def rest(self, dtype):
        return jnp.concatenate([jnp.zeros(3, dtype), Ball().rest(dtype)])


class Weld(AbstractMotion):
    """The absence of relative motion."""

    coordinates = ()
    speeds = ()

    def pose(self, q):
        return Pose(jnp.eye(3, dtype=q.dtype), jnp.zeros(3, q.dtype))

    def twists(self, q):
        return ()

    def drift(self, q, v):
        return None

    def rates(self, q, v):
        return v

    def retract(self, q, d):
        return q

    def rest(self, dtype):
        return jnp.zeros(0, dtype)
