"""Forces between bodies.

q: coordinates; v: speeds; l: distance [m]; u: unit vector from one end to the other.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from .._types import Numbers, Scalar
from ._body import Body, frame_at
from ._effort import damping_of, number
from ._frame import Frame, Pose, Twist, Vector3, Wrench, cross, vector
from ._layout import Layout, body_of


class Placement(eqx.Module):
    """The poses and the twists of the bodies of a robot.

    Attributes:
        bodies: Bodies, by name; frames: those of the ground.
        poses: Pose of each node of `layout`, seen from the ground; twists: seen from the node.
        dtype: That of a pose on the ground.
    """

    bodies: dict[str, Body]
    frames: dict[str, Frame]
    poses: list[Pose]
    twists: list[Twist]
    layout: Layout = eqx.field(static=True)
    dtype: DTypeLike = eqx.field(static=True)

    def pose(self, end: str) -> Pose:
        """Returns the pose of "body" or "body.frame", seen from the ground."""
        node, frame = self._at(end)
        if node < 0:
            return Pose(jnp.eye(3, dtype=self.dtype), jnp.zeros(3, self.dtype)) if frame is None else frame
        return self.poses[node] if frame is None else self.poses[node] @ frame

    def velocity(self, end: str) -> Vector3:
        """Returns the velocity of the origin of "body" or "body.frame", seen from the ground (3,) [m/s]."""
        node, frame = self._at(end)
        if node < 0:
            return jnp.zeros(3, self.dtype)
        twist = self.twists[node]
        arm = jnp.zeros_like(twist.linear) if frame is None else frame.p
        return self.poses[node].R @ (twist.linear + cross(twist.angular, arm))

    def _at(self, end: str) -> tuple[int, Pose | None]:
        """Returns the node of "body.frame" (negative for the ground), and its pose seen from the body or the ground."""
        found = frame_at(self.bodies, self.frames, end)
        return self.layout.node_of(body_of(end)), None if found is None else found.pose


class AbstractForce(eqx.Module):
    """A force that acts on frames of bodies."""

    @property
    @abc.abstractmethod
    def ends(self) -> tuple[str, ...]:
        """The frames that the force acts on, "body" or "body.frame"."""

    @abc.abstractmethod
    def wrenches(self, at: Placement) -> list[tuple[str, Wrench]]:
        """Returns (end, wrench) for each frame of `ends`; the wrench is seen from that frame."""

    @abc.abstractmethod
    def potential(self, at: Placement) -> Scalar:
        """The potential energy of the force [J]; zero if the force has none."""


class Spring(AbstractForce):
    """A spring and a damper between two points: pulls with `stiffness` (l - `length`) + `damping` l'.

    Args:
        first: "body" or "body.frame", at whose origin the spring is attached.
        second: Likewise.
        stiffness: [N/m].
        length: Length of the relaxed spring [m]; with zero the ends may meet.
        damping: [N s/m].

    Raises:
        ValueError: If a number is no scalar, or not finite.

    Gradients: not where the ends meet, unless length and damping are zero.
    """

    first: str = eqx.field(static=True)
    second: str = eqx.field(static=True)
    stiffness: Array
    length: Array
    damping: Array

    def __init__(
        self, first: str, second: str, stiffness: ArrayLike, length: ArrayLike = 0.0, damping: ArrayLike = 0.0
    ):
        self.first, self.second, self.stiffness = first, second, number(stiffness, "stiffness")
        self.length, self.damping = number(length, "length"), damping_of(damping)

    @property
    def ends(self):
        return self.first, self.second

    def wrenches(self, at):
        one, other = at.pose(self.first), at.pose(self.second)
        way, length, apart = self._stretched(at)
        u = jnp.where(apart, way / length, 0.0)
        rate = u @ (at.velocity(self.second) - at.velocity(self.first))
        # Since k l u = k way, a spring of length zero is smooth even where its ends meet.
        pull = self.stiffness * way + (self.damping * rate - self.stiffness * self.length) * u
        zero = jnp.zeros_like(pull)
        return [(self.first, Wrench(one.R.T @ pull, zero)), (self.second, Wrench(-(other.R.T @ pull), zero))]

    def potential(self, at):
        way, length, apart = self._stretched(at)
        rest = jnp.where(apart, length, 0.0) * self.length
        return self.stiffness * (way @ way / 2 - rest + self.length**2 / 2)

    def _stretched(self, at: Placement) -> tuple[Vector3, Array, Array]:
        """The vector from the first end to the second, its length (1 in place of zero), and whether that is nonzero."""
        way = at.pose(self.second).p - at.pose(self.first).p
        squared = way @ way
        apart = squared > 0
        return way, jnp.sqrt(jnp.where(apart, squared, 1.0)), apart


class Load(AbstractForce):
    """A force and a torque on a frame, seen from the ground or from the frame.

    Args:
        end: "body" or "body.frame".
        force: (3,) [N], at the origin of the frame.
        torque: (3,) [N m].
        follows: Whether force and torque turn with the frame.
    """

    end: str = eqx.field(static=True)
    force: Vector3
    torque: Vector3
    follows: bool = eqx.field(static=True)

    def __init__(
        self, end: str, force: Numbers = (0.0, 0.0, 0.0), torque: Numbers = (0.0, 0.0, 0.0), *, follows: bool = False
    ):
        self.end, self.follows = end, follows
        self.force, self.torque = vector(force, "force"), vector(torque, "torque")

    @property
    def ends(self):
        return (self.end,)

    def wrenches(self, at):
        R = at.pose(self.end).R
        seen = (lambda x: x) if self.follows else (lambda x: R.T @ x)
        return [(self.end, Wrench(seen(self.force), seen(self.torque)))]

    def potential(self, at):
        return jnp.zeros((), self.force.dtype)
