"""The parts of a robot, and its joints, frames and efforts in the form that recursions take.

`AbstractRobot` is what the functions here and in other files compute with. `Robot`, which calls them, is its class: so
they cannot import it.

q: coordinates (n_q,); v: speeds (n,); P: pose of a joint's child frame seen from its parent frame; X: pose of a node
seen from its parent node.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._constraint import Baumgarte
from .._mechanism import AbstractLinkedSystem, AbstractRecursiveSystem
from .._system import AbstractKinematicSystem
from ._body import Body, frame_at
from ._effort import Drag, Effort, Gear, Motor
from ._force import AbstractForce, Placement
from ._frame import Axis, Frame, Pose, about_z
from ._joint import AbstractDrivenJoint, AbstractJoint, Free, Planar
from ._layout import GROUND, Layout, Node, body_of
from ._motion import AbstractMotion, Weld
from ._tree_unrolled import Move, TreeState, poses_in_world, twists


class AbstractRobot(AbstractKinematicSystem, AbstractLinkedSystem, AbstractRecursiveSystem):
    """A system of bodies, joints and forces, with the tree that its coordinates are of: see `Robot`."""

    bodies: eqx.AbstractVar[dict[str, Body]]
    joints: eqx.AbstractVar[dict[str, AbstractJoint]]
    gravity: eqx.AbstractVar[Array]
    frames: eqx.AbstractVar[dict[str, Frame]]
    gears: eqx.AbstractVar[dict[str, Gear]]
    motors: eqx.AbstractVar[dict[str, Motor]]
    forces: eqx.AbstractVar[dict[str, AbstractForce]]
    stabilization: eqx.AbstractVar[Baumgarte | None]
    home: eqx.AbstractVar[dict[str, Array]]
    home_rates: eqx.AbstractVar[dict[str, Array]]
    layout: eqx.AbstractVar[Layout]
    joint_names: eqx.AbstractVar[tuple[str, ...]]
    motor_names: eqx.AbstractVar[tuple[str, ...]]
    tree: eqx.AbstractVar[Layout]
    planar: eqx.AbstractVar[bool]
    turns: eqx.AbstractVar[tuple[str, ...]]

    @abc.abstractmethod
    def in_joints(self) -> "AbstractRobot":
        """Returns the robot in the coordinates of its joints."""


# Prefix of the names of the joints by which bodies float in absolute coordinates.
BODY = "body "


def floating(body: str, planar: bool) -> AbstractJoint:
    """The joint by which a body moves freely against the ground."""
    return Planar(GROUND, body) if planar else Free(GROUND, body)


def moving(robot: AbstractRobot, joint: str) -> AbstractJoint:
    """The joint of the layout with a name, which may be that of a floating body."""
    return floating(joint.removeprefix(BODY), robot.planar) if joint.startswith(BODY) else robot.joints[joint]


def motions(robot: AbstractRobot) -> tuple[AbstractMotion, ...]:
    """The motions of all nodes."""
    found = (moving(robot, node.joint).motion for node in robot.layout.nodes)
    return tuple(motion for motion in found if motion is not None)


def fixed(robot: AbstractRobot, end: str) -> Frame | None:
    """Returns the frame "body.frame"; None for the body's own."""
    return frame_at(robot.bodies, robot.frames, end)


def frame(robot: AbstractRobot, end: str) -> Pose | None:
    """The pose of "body.frame", seen from the body; None for "body", the body's own frame."""
    one = fixed(robot, end)
    return None if one is None else one.pose


def move(robot: AbstractRobot, q: Array, node: Node, v: Array | None = None) -> Move:
    """The `Move` of a node; its `change` is given only with speeds v."""
    joint = moving(robot, node.joint)
    motion, own = joint.motion or Weld(), q[slice(*node.q)]
    before, after = frame(robot, joint.parent), frame(robot, joint.child)
    axis = getattr(motion, "axis", None)
    if axis is not None and axis.named is None:
        # Turns the frames so that the axis is z, where most of the following entries are zero.
        turned = Pose(about_z(axis, q.dtype), jnp.zeros(3, q.dtype))
        before, after = (turned if end is None else end @ turned for end in (before, after))
        motion = eqx.tree_at(lambda m: m.axis, motion, Axis("z"))
    change = None if v is None else motion.drift(own, v[slice(*node.v)])
    return Move(before, motion.pose(own), after, motion.twists(own), change)


def posture(robot: AbstractRobot, q: Array, v: Array | None = None) -> TreeState:
    """The tree at q as a `TreeState`; the `change` of its moves is given only with speeds v."""
    nodes = robot.layout.nodes
    inertias = [robot.bodies[node.body].inertia for node in nodes]
    spatial = [None if one is None else one.spatial for one in inertias]
    return TreeState(robot.layout, [move(robot, q, node, v) for node in nodes], spatial)


def placement(robot: AbstractRobot, tree: TreeState, v: Array) -> Placement:
    """Returns the poses and twists of the bodies for forces between them."""
    dtype = robot.gravity.dtype
    return Placement(robot.bodies, robot.frames, poses_in_world(tree), twists(tree, v), robot.layout, dtype)


def pose(robot: AbstractRobot, q: Array, end: str) -> Pose:
    """The pose of "body" or "body.frame", seen from the ground."""
    found = frame(robot, end)
    for i in robot.layout.path(robot.layout.node_of(body_of(end))):
        X = move(robot, q, robot.layout.nodes[i]).X
        found = X if found is None else X @ found
    return Pose(jnp.eye(3, dtype=q.dtype), jnp.zeros(3, q.dtype)) if found is None else found


def between(robot: AbstractRobot, q: Array, joint: AbstractJoint) -> Pose:
    """The pose P of a joint's child frame, seen from its parent frame."""
    return pose(robot, q, joint.parent).inverse @ pose(robot, q, joint.child)


def driven(robot: AbstractRobot, joint: str, what: str = "joint") -> AbstractDrivenJoint:
    """The joint with a name; raises ValueError unless it has a single coordinate."""
    one = robot.joints.get(joint)
    if not isinstance(one, AbstractDrivenJoint):
        has = [name for name in robot.joint_names if isinstance(robot.joints[name], AbstractDrivenJoint)]
        raise ValueError(f"{what} must name one with a single coordinate, of {has}, but names {joint!r}.")
    return one


def efforts(robot: AbstractRobot, of_loops: bool) -> dict[str, Effort]:
    """The efforts by joint: of the joints that are constraints if `of_loops`, else of those of the tree."""
    names = [name for name in robot.joint_names if (name in robot.layout.tree) != of_loops]
    found = ((name, getattr(robot.joints[name], "effort", None)) for name in names)
    return {name: effort for name, effort in found if effort is not None}


def armature(robot: AbstractRobot, dtype: Any) -> Array:
    """The armature of each speed of the tree (n,), an addition to the diagonal of M."""
    found = [jnp.zeros((), dtype)] * robot.layout.n
    for name, effort in efforts(robot, of_loops=False).items():
        found[robot.layout.node(name).v[0]] = effort.armature.astype(dtype)
    for node, drag in drags(robot):
        for k in range(*node.v):
            found[k] = drag.armature.astype(dtype)
    return jnp.stack(found) if found else jnp.zeros(0, dtype)


def own_forces(robot: AbstractRobot, q: Array, v: Array) -> Array:
    """The generalised forces (n,) of efforts and drags of the joints of the tree."""
    found = [jnp.zeros((), q.dtype)] * robot.layout.n
    for name, effort in efforts(robot, of_loops=False).items():
        node = robot.layout.node(name)
        found[node.v[0]] = effort.of(q[node.q[0]], v[node.v[0]])
    for node, drag in drags(robot):
        for k in range(*node.v):
            found[k] = -drag.damping * v[k]
    return jnp.stack(found) if found else jnp.zeros(0, q.dtype)


def drags(robot: AbstractRobot) -> list[tuple[Node, Drag]]:
    """The ball joints of the tree that have a drag, as nodes, each with its drag."""
    found = [(node, getattr(moving(robot, node.joint), "drag", None)) for node in robot.layout.nodes]
    return [(node, drag) for node, drag in found if drag is not None]
