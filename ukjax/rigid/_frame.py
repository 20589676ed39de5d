"""Frames on bodies; their poses, twists and wrenches; and inertias.

R: rotation matrix from the frame's axes to those of the frame it is seen from; p: its origin [m]; twist: (linear,
angular) velocity of the frame, seen from itself; wrench: (force, torque) about the frame's origin, seen from itself.

Rotations are unit quaternions, the scalar part first, and matrices from a body's axes to those of an outer frame.
u: vector (3,); p, q: quaternions (4,); R: rotation matrix (3, 3); w: rotation vector (3,) [rad].

m: mass [kg]; c: centre of mass [m]; J: moments of inertia [kg m^2]; h = m c.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Float

from .. import _check
from .._result import is_traced
from .._types import Numbers


Vector3 = Float[Array, "3"]
Quaternion = Float[Array, "4"]
Rotation = Float[Array, "3 3"]

# Below this squared angle the series of sine and cosine have all digits, and quotients by the angle do not.
SMALL = 1e-8

_SKEW = -np.moveaxis(np.cross(np.eye(3)[:, None], np.eye(3)[None]), -1, 0)


def skew(u: Vector3) -> Rotation:
    """The matrix (3, 3) of the cross product with u."""
    return jnp.asarray(_SKEW, u.dtype) @ u


def cross(u: Vector3, w: Vector3) -> Vector3:
    """The cross product u x w, in two operations; `jnp.cross` takes two dozen, which have to be compiled."""
    return skew(u) @ w


def product(p: Quaternion, q: Quaternion) -> Quaternion:
    """The product of two quaternions: the rotation q first, then p."""
    scalar = p[0] * q[0] - p[1:] @ q[1:]
    return jnp.concatenate([scalar[None], p[0] * q[1:] + q[0] * p[1:] + cross(p[1:], q[1:])])


def unit(q: Array) -> Array:
    """The unit vector q / |q|."""
    return q / jnp.sqrt(q @ q)


def matrix(q: Quaternion) -> Rotation:
    """The rotation matrix of a quaternion of any length, so that drift of the length has no effect."""
    K = skew(q[1:])
    return jnp.eye(3, dtype=q.dtype) + 2 / (q @ q) * (q[0] * K + K @ K)


def quaternion(w: Vector3) -> Quaternion:
    """The unit quaternion of a rotation vector; smooth at zero."""
    squared = w @ w
    small = squared < SMALL
    angle = jnp.sqrt(jnp.where(small, 1.0, squared))
    scalar = jnp.where(small, 1 - squared / 8, jnp.cos(angle / 2))
    return jnp.concatenate([scalar[None], jnp.where(small, 0.5 - squared / 48, jnp.sin(angle / 2) / angle) * w])


def about(axis: Vector3, angle: Array) -> Rotation:
    """The rotation matrix of a turn about a unit vector (Rodrigues)."""
    s, c = jnp.sin(angle), jnp.cos(angle)
    return c * jnp.eye(3, dtype=axis.dtype) + s * skew(axis) + (1 - c) * axis[:, None] * axis[None]


def from_matrix(R: Rotation) -> Quaternion:
    """The unit quaternion of R, by the largest of its four parts; not smooth where another part becomes the largest."""
    diagonal = jnp.diagonal(R)
    trace = jnp.sum(diagonal)
    sizes = jnp.concatenate([trace[None], diagonal])
    w, x, y, z = (1 + sign[0] * R[0, 0] + sign[1] * R[1, 1] + sign[2] * R[2, 2] for sign in _SIGNS)
    a, b, c = R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]
    d, e, f = R[1, 0] + R[0, 1], R[0, 2] + R[2, 0], R[2, 1] + R[1, 2]
    rows = jnp.stack([jnp.stack(row) for row in ((w, a, b, c), (a, x, d, e), (b, d, y, f), (c, e, f, z))])
    return unit(rows[jnp.argmax(sizes)])


def rotation_vector(R: Rotation) -> Vector3:
    """The rotation vector of R (3,) [rad], of length up to pi; smooth but at half a turn, where it changes its sign."""
    sines = jnp.stack([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1]]) / 2
    cosine, squared = (jnp.trace(R) - 1) / 2, sines @ sines
    small = squared < SMALL
    sine = jnp.sqrt(jnp.where(small, 1.0, squared))
    angle = jnp.arctan2(sine, cosine)
    near = jnp.where(small, 1 + squared / 6, angle / sine) * sines
    # Half a turn away the sines vanish: there R + R^T has the axis.
    axes = (R + R.T) / 2 - cosine * jnp.eye(3, dtype=R.dtype)
    axis = axes[jnp.argmax(jnp.diagonal(axes))]
    axis = axis / jnp.sqrt(jnp.where(cosine < -0.5, axis @ axis, 1.0))
    far = jnp.where(small, jnp.pi - jnp.abs(axis @ sines), angle) * jnp.where(axis @ sines < 0, -axis, axis)
    return jnp.where(cosine < -0.5, far, near)


_SIGNS = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))


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

    def __init__(self, position: Numbers = (0.0, 0.0, 0.0), rotation: Numbers | None = None):
        self.position = vector(position, "position")
        self.quaternion = None if rotation is None else _quaternion(rotation)

    @property
    def pose(self) -> Pose:
        """The pose of the frame, seen from the body."""
        if self.quaternion is None:
            return Pose(jnp.eye(3, dtype=self.position.dtype), self.position)
        return Pose(matrix(self.quaternion), self.position)


def vector(value: object, name: str, shape: tuple[int, ...] = (3,)) -> Array:
    """`value` as an array of finite numbers with `shape`; raises ValueError if it is not one."""
    array = _check.floating(value, name)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, but has shape {array.shape}.")
    _check.finite(array, name)
    return array


def _quaternion(rotation: object) -> Quaternion:
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


class Axis(eqx.Module):
    """A direction: "x", "y" or "z", which is static, or any nonzero vector (3,).

    Gradients: through a vector; its length does not matter.
    """

    named: str | None = eqx.field(static=True)
    direction: Vector3 | None

    def __init__(self, axis: "Axis | str | Numbers", name: str = "axis"):
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

    def of(self, dtype: DTypeLike) -> Vector3:
        """The unit vector of the axis (3,)."""
        if self.direction is None:
            return named(self.named or "z", dtype)
        return unit(self.direction.astype(dtype))

    def across(self, dtype: DTypeLike) -> tuple[Vector3, Vector3]:
        """Two unit vectors at right angles to the axis and to each other."""
        if self.named is not None:
            first, second = {"x": "yz", "y": "zx", "z": "xy"}[self.named]
            return named(first, dtype), named(second, dtype)
        x, y, z = self.of(dtype)
        # Duff et al. (2017), Building an orthonormal basis, revisited: smooth on either half.
        sign = jnp.where(z >= 0, 1.0, -1.0).astype(dtype)
        p = -1 / (sign + z)
        s = x * y * p
        return jnp.stack([1 + sign * x * x * p, sign * s, -sign * x]), jnp.stack([s, sign + y * y * p, -y])


# What `Axis` takes.
Direction = Axis | str | Numbers


def about_z(axis: Axis, dtype: DTypeLike) -> Rotation:
    """The rotation matrix (3, 3) whose last column is the axis."""
    return jnp.stack([*axis.across(dtype), axis.of(dtype)], axis=1)


NAMED = {"x": (1, 0, 0), "y": (0, 1, 0), "z": (0, 0, 1)}


def named(axis: str, dtype: DTypeLike) -> Vector3:
    """The unit vector of an axis with a name, of whole numbers, which a traced program knows."""
    return jnp.asarray(NAMED[axis]).astype(dtype)


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

    def __init__(self, mass: ArrayLike, moments: Numbers = 0.0, center: Numbers = (0.0, 0.0, 0.0)):
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
    def rod(cls, mass: ArrayLike, start: Numbers, end: Numbers) -> "Inertia":
        """The inertia of a slender, uniform rod between two points (3,) [m]."""
        start, end = vector(start, "start"), vector(end, "end")
        way = end - start
        mass = _check.floating(mass, "mass")
        moments = mass / 12 * (way @ way * jnp.eye(3, dtype=way.dtype) - way[:, None] * way[None])
        return cls(mass, moments, (start + end) / 2)

    @classmethod
    def box(cls, mass: ArrayLike, size: Numbers, center: Numbers = (0.0, 0.0, 0.0)) -> "Inertia":
        """The inertia of a uniform block with edges `size` (3,) along the axes of the body [m]."""
        mass, size = _check.floating(mass, "mass"), vector(size, "size")
        squared = size**2
        return cls(mass, mass / 12 * (jnp.sum(squared) - squared), center)

    @classmethod
    def sphere(cls, mass: ArrayLike, radius: ArrayLike, center: Numbers = (0.0, 0.0, 0.0)) -> "Inertia":
        """The inertia of a uniform ball with `radius` [m]."""
        mass, radius = _check.floating(mass, "mass"), _check.floating(radius, "radius")
        return cls(mass, 2 / 5 * mass * radius**2, center)

    @classmethod
    def cylinder(
        cls, mass: ArrayLike, radius: ArrayLike, length: ArrayLike, axis: str = "z", center: Numbers = (0.0, 0.0, 0.0)
    ) -> "Inertia":
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


def _moments(value: object) -> Rotation:
    moments = _check.floating(value, "moments")
    if moments.shape not in ((), (3,), (3, 3)):
        raise ValueError(f"moments must be a scalar or have shape (3,) or (3, 3), but have shape {moments.shape}.")
    _check.finite(moments, "moments")
    if moments.ndim == 2:
        return moments
    return moments * jnp.eye(3, dtype=moments.dtype) if moments.ndim == 0 else jnp.diag(moments)
