"""Frames on bodies, and their poses, twists and wrenches.

R: rotation matrix from the frame's axes to those of the frame it is seen from; p: its origin [m]; twist: (linear,
angular) velocity of the frame, seen from itself; wrench: (force, torque) about the frame's origin, seen from itself.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .. import _check
from .._result import is_traced
from ._rotation import Quaternion, Rotation, Vector3, cross, from_matrix, matrix, quaternion


class Twist(NamedTuple):
    """Velocity, or acceleration, or a small displacement, of a frame, seen from itself."""

    linear: Vector3
    angular: Vector3

    def __add__(self, other: "Twist") -> "Twist":  # pyright: ignore
        return Twist(self.linear + other.linear, self.angular + other.angular)

    def cross(self, other: "Twist") -> "Twist":
        """The rate of `other`, a twist that is constant in the frame, as the frame moves with this twist."""
        linear = cross(self.angular, other.linear) + cross(self.linear, other.angular)
        return Twist(linear, cross(self.angular, other.angular))


class Wrench(NamedTuple):
    """Force [N] and torque [N m] about a frame's origin, or momentum, seen from the frame."""

    force: Vector3
    torque: Vector3

    def __add__(self, other: "Wrench") -> "Wrench":  # pyright: ignore
        return Wrench(self.force + other.force, self.torque + other.torque)

    def __neg__(self) -> "Wrench":
        return Wrench(-self.force, -self.torque)

    def along(self, twist: Twist) -> Array:
        """The power of the wrench at a twist."""
        return self.force @ twist.linear + self.torque @ twist.angular

    def carried(self, twist: Twist) -> "Wrench":
        """The rate of a momentum that is constant in the frame, as the frame moves."""
        torque = cross(twist.angular, self.torque) + cross(twist.linear, self.force)
        return Wrench(cross(twist.angular, self.force), torque)


class Pose(NamedTuple):
    """The pose of a frame, seen from another frame."""

    R: Rotation
    p: Vector3

    def __matmul__(self, inner: "Pose") -> "Pose":
        """The pose, seen from the outer frame, of a frame whose pose seen from this frame is `inner`."""
        return Pose(self.R @ inner.R, self.p + self.R @ inner.p)

    @property
    def inverse(self) -> "Pose":
        return Pose(self.R.T, -(self.R.T @ self.p))

    def point(self, u: Vector3) -> Vector3:
        """A point u of this frame, seen from the outer frame."""
        return self.p + self.R @ u

    def inwards(self, twist: Twist) -> Twist:
        """The twist of the outer frame, seen from this frame, which moves with the outer one."""
        return Twist(self.R.T @ (twist.linear + cross(twist.angular, self.p)), self.R.T @ twist.angular)

    def outwards(self, wrench: Wrench) -> Wrench:
        """A wrench on this frame, about the origin of the outer frame and seen from there."""
        force = self.R @ wrench.force
        return Wrench(force, self.R @ wrench.torque + cross(self.p, force))

    def twist_outwards(self, twist: Twist) -> Twist:
        """The twist of this frame, about the origin of the outer frame and seen from there."""
        angular = self.R @ twist.angular
        return Twist(self.R @ twist.linear + cross(self.p, angular), angular)


class Frame(eqx.Module):
    """A frame that is fixed on a body.

    Args:
        position: Position of its origin, seen from the body (3,) [m].
        rotation: Rotation of its axes: a rotation vector (3,) [rad], a quaternion (4,) with the scalar part first, of
            any length, or a rotation matrix (3, 3); the axes of the body if omitted.

    Raises:
        ValueError: If a shape is wrong, a number not finite, a quaternion zero, or a matrix no rotation.

    Gradients: position and quaternion are leaves; the length of the quaternion does not matter.
    """

    position: Vector3
    quaternion: Quaternion | None

    def __init__(self, position: Any = (0.0, 0.0, 0.0), rotation: Any = None):
        self.position = vector(position, "position")
        self.quaternion = None if rotation is None else _quaternion(rotation)

    @property
    def pose(self) -> Pose:
        """The pose of the frame, seen from the body."""
        if self.quaternion is None:
            return Pose(jnp.eye(3, dtype=self.position.dtype), self.position)
        return Pose(matrix(self.quaternion), self.position)


def vector(value: Any, name: str, shape: tuple[int, ...] = (3,)) -> Array:
    """`value` as an array of finite numbers with `shape`; raises ValueError if it is not one."""
    array = _check.floating(value, name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, but has shape {array.shape}.")
    _check.finite(array, name)
    return array


def _quaternion(rotation: Any) -> Quaternion:
    array = _check.floating(rotation, "rotation")
    if array.shape not in ((3,), (4,), (3, 3)):
        raise ValueError(
            "rotation must be a rotation vector (3,), a quaternion (4,), the scalar part first, or a matrix (3, 3), "
            f"but has shape {array.shape}."
        )
    _check.finite(array, "rotation")
    if array.shape == (3,):
        return quaternion(array)
    if is_traced(array):
        return array if array.ndim == 1 else from_matrix(array)
    numbers = np.asarray(array)
    if array.ndim == 1:
        if not np.any(numbers):
            raise ValueError("rotation must not be a quaternion of zeros, which turns nothing anywhere.")
        return array
    if not np.allclose(numbers @ numbers.T, np.eye(3), atol=1e-5) or np.linalg.det(numbers) < 0:
        raise ValueError(f"rotation must be a rotation matrix, orthogonal and of determinant 1, but is {numbers}.")
    return from_matrix(array)
