"""Rotations: unit quaternions, the scalar part first, and matrices from a body's axes to those of an outer frame.

u: vector (3,); p, q: quaternions (4,); R: rotation matrix (3, 3); w: rotation vector (3,) [rad].
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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


_SIGNS = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
