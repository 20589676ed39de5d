"""Drag of ball joints that are constraints, whose angular velocity is not a speed of the robot.

w: angular velocity of the child's frame against the parent's, seen from the child's (3,) [rad/s].
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from . import _linkage
from ._effort import Drag
from ._frame import Rotation, Vector3
from ._joint import AbstractJoint
from ._layout import body_of
from ._linkage import AbstractRobot
from ._tree_unrolled import poses_in_world, twists


def drags(robot: AbstractRobot) -> dict[str, Drag]:
    """The drags of the joints that are constraints, by name."""
    found = ((name, getattr(robot.joints[name], "drag", None)) for name in robot.layout.loops)
    return {name: drag for name, drag in found if drag is not None}


def spin(robot: AbstractRobot, joint: AbstractJoint, q: Array, v: Array) -> Vector3:
    """The angular velocity w of a joint's child frame against its parent frame (3,) [rad/s]."""
    tree = _linkage.posture(robot, q)
    poses, moving = poses_in_world(tree), twists(tree, v)

    def seen(end: str) -> tuple[Rotation | None, Vector3]:
        """The rotation of a frame (None for the identity), and its angular velocity, seen from the ground."""
        node, frame = robot.layout.node_of(body_of(end)), _linkage.frame(robot, end)
        if node < 0:
            return None if frame is None else frame.R, jnp.zeros(3, q.dtype)
        R = poses[node].R
        return R if frame is None else R @ frame.R, R @ moving[node].angular

    (R, own), (_, other) = seen(joint.child), seen(joint.parent)
    return own - other if R is None else R.T @ (own - other)


def rows(robot: AbstractRobot, name: str, q: Array, v: Array, t: Array) -> tuple[Float[Array, "3 n"], Vector3]:
    """J (3, n) and b (3,) of the rate of w: w' = J v' - b."""
    joint = robot.joints[name]
    rates = v if robot.kinematics is None else robot.kinematics.rates(q, v, t)
    J = jax.jacfwd(lambda v: spin(robot, joint, q, v))(v)
    return J, -jax.jvp(lambda q: spin(robot, joint, q, v), (q,), (rates,))[1]


def torque(drag: Drag, J: Array, b: Array, v: Array, acceleration: Array | None = None) -> Vector3:
    """The torque of a drag on the child, seen from the child; without the part of J v' if `acceleration` is None."""
    changing = -b if acceleration is None else J @ acceleration - b
    return -drag.damping * (J @ v) - drag.armature * changing
