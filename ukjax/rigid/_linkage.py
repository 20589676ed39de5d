"""The parts of a robot, and its joints, frames and efforts in the form that recursions take.

`AbstractRobot` is what the functions here and in other files compute with. `Robot`, which calls them, is its class: so
they cannot import it.

q: coordinates (n_q,); v: speeds (n,); P: pose of a joint's child frame seen from its parent frame; X: pose of a node
seen from its parent node.
"""

import abc
from collections.abc import Callable, Hashable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .._constraint import Baumgarte
from .._mechanism import AbstractLinkedSystem, AbstractRecursiveSystem
from .._system import AbstractKinematicSystem, AbstractNamedSystem
from ._body import Body, frame_at
from ._effort import Drag, Effort, Gear, Motor
from ._force import AbstractForce, Placement
from ._frame import Axis, Frame, Inertia, Pose, Twist, Wrench, about_z, matrix
from ._joint import AbstractDrivenJoint, AbstractJoint, Free, Planar
from ._layout import GROUND, Layout, Node, body_of
from ._motion import AbstractMotion, Turn, Weld
from ._tree_scan import TreeArrays
from ._tree_unrolled import Move, TreeState, poses_in_world, twists


class AbstractRobot(AbstractKinematicSystem, AbstractNamedSystem, AbstractLinkedSystem, AbstractRecursiveSystem):
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


def place(robot: AbstractRobot, end: str) -> tuple[int, Pose | None]:
    """The node of "body.frame", -1 for the ground, and the frame's pose seen from there (None for the body's own)."""
    return robot.layout.node_of(body_of(end)), frame(robot, end)


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
        motion = _about_z(motion)
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


def armature(robot: AbstractRobot, dtype: DTypeLike) -> Array:
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


def falling(robot: AbstractRobot, q: Array) -> Twist:
    """The acceleration of the ground that is equivalent to gravity."""
    return Twist(-robot.gravity.astype(q.dtype), jnp.zeros(3, q.dtype))


def acting(robot: AbstractRobot, q: Array, v: Array, tree: TreeState | None = None) -> dict[int, Wrench]:
    """The wrenches of the robot's forces on the nodes, by the number of the node; `tree`: its posture, where known."""
    external: dict[int, Wrench] = {}
    if robot.forces:
        at = placement(robot, posture(robot, q, v) if tree is None else tree, v)
        for force in robot.forces.values():
            for end, wrench in force.wrenches(at):
                add_wrench(robot, external, end, wrench)
    return external


def add_wrench(robot: AbstractRobot, external: dict[int, Wrench], end: str, wrench: Wrench) -> None:
    """Adds a wrench on a frame to those on its node; a wrench on the ground is dropped."""
    node, at = place(robot, end)
    if node >= 0:
        on_body = wrench if at is None else at.outwards(wrench)
        external[node] = external[node] + on_body if node in external else on_body


def stacked(robot: AbstractRobot, q: Array, v: Array | None = None) -> TreeArrays:
    """The tree at q as a `TreeArrays`; its `drift` is given only with speeds v."""
    nodes = robot.layout.nodes
    joints = [moving(robot, node.joint) for node in nodes]
    motions = [joint.motion or Weld() for joint in joints]
    axes = [getattr(motion, "axis", None) for motion in motions]
    about = [m if a is None else _about_z(m) for m, a in zip(motions, axes, strict=True)]
    leaves, afters = ([fixed(robot, end) for end in ends] for ends in zip(*((j.parent, j.child) for j in joints)))
    inertias = [robot.bodies[node.body].inertia for node in nodes]
    stack = _tree_at(nodes, about, axes, leaves, afters, inertias, q)
    if v is None or stack.S is None:
        return stack
    return eqx.tree_at(lambda s: s.drift, stack, _drifts(nodes, about, q, v), is_leaf=lambda x: x is None)


@eqx.filter_jit
def _tree_at(
    nodes: Sequence[Node],
    motions: Sequence[AbstractMotion],
    axes: Sequence[Axis | None],
    leaves: Sequence[Frame | None],
    afters: Sequence[Frame | None],
    inertias: Sequence[Inertia | None],
    q: Array,
) -> TreeArrays:
    """The tree at q, as one call in the traced program, which several callers make for the same state.

    `motions`: those of the joints about z; `axes`: their true axes; `leaves`, `afters`: the frames of the joints.
    """
    dtype = q.dtype
    turned = _turned(axes, dtype)
    leave, after = (product_of(poses_of(frames, dtype), turned) for frames in (leaves, afters))
    parents = tuple(node.parent if node.parent >= 0 else len(nodes) for node in nodes)
    back = jax.vmap(lambda pose: pose.inverse)(after)
    still = Pose(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype))
    whole = Pose(*(jnp.concatenate([x, y[None]]) for x, y in zip(back, still, strict=True)))
    before = product_of(Pose(*(x[np.array(parents)] for x in whole)), leave)
    none = Inertia(jnp.zeros((), dtype))
    one = jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *(none if x is None else x for x in inertias))
    one = jax.vmap(lambda inertia: inertia.spatial)(one)
    # The recursions read one half of symmetric matrices; the mean of both halves shares the gradient between them.
    one = one._replace(J=(one.J + jnp.swapaxes(one.J, 1, 2)) / 2)
    one = jax.vmap(lambda inertia, pose: inertia.outwards(pose))(one, back)
    counts = tuple(len(motion.speeds) for motion in motions)
    if all(isinstance(motion, Turn) for motion in motions):
        angles = q[np.array([node.q[0] for node in nodes])]
        own, S = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1), None
    else:
        own, S = _of_motions(lambda m, q: _placed(m, q, max(counts)), motions, (q, [node.q for node in nodes]))
    return TreeArrays(before, own, S, whole, one, None, parents, counts)


@eqx.filter_jit
def _drifts(nodes: Sequence[Node], motions: Sequence[AbstractMotion], q: Array, v: Array) -> Array:
    """The rate S' v of the twists of all nodes (N, 6)."""

    def drift(motion: AbstractMotion, q: Array, v: Array) -> Array:
        found = motion.drift(q, v)
        return jnp.zeros(6, q.dtype) if found is None else jnp.concatenate(found)

    return _of_motions(drift, motions, (q, [node.q for node in nodes]), (v, [node.v for node in nodes]))


def _about_z(motion: AbstractMotion) -> AbstractMotion:
    """The motion about, or along, z in place of its axis."""
    return eqx.tree_at(lambda m: m.axis, motion, Axis("z"))


def _turned(axes: Sequence[Axis | None], dtype: DTypeLike) -> Pose:
    """Frames whose z is along the axis of each motion; not turned for a motion without an axis."""
    z = Axis("z").of(dtype)
    direction = jnp.stack([z if axis is None else axis.of(dtype) for axis in axes])
    return Pose(jax.vmap(lambda d: about_z(Axis(d), dtype))(direction), jnp.zeros_like(direction))


def poses_of(frames: Sequence[Frame | None], dtype: DTypeLike) -> Pose:
    """The poses of frames, seen from their bodies; None for those of the bodies."""
    zero, none = jnp.zeros(3, dtype), jnp.asarray((1, 0, 0, 0)).astype(dtype)
    turns = [None if f is None else f.quaternion for f in frames]
    R = jax.vmap(matrix)(jnp.stack([none if x is None else x.astype(dtype) for x in turns]))
    # Known to be the identity where a frame is not turned.
    R = jnp.where(np.array([x is None for x in turns])[:, None, None], jnp.eye(3, dtype=dtype)[None], R)
    return Pose(R, jnp.stack([zero if f is None else f.position.astype(dtype) for f in frames]))


def product_of(outer: Pose, inner: Pose) -> Pose:
    """The poses, seen from the outer frames, of frames whose poses seen from these are `inner`."""
    return jax.vmap(lambda a, b: a @ b)(outer, inner)


def _of_motions(
    function: Callable, motions: Sequence[AbstractMotion], *values: tuple[Array, Sequence[tuple[int, int]]]
) -> PyTree:
    """A function of each motion and of its part of some arrays, in one batch for each kind of motion.

    `values`: each array, with the range in it of each motion.
    """
    kinds: dict[Hashable, list[int]] = {}
    for i, motion in enumerate(motions):
        kinds.setdefault(jax.tree_util.tree_structure(motion), []).append(i)
    parts, order = [], []
    for members in kinds.values():
        one = jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *(motions[i] for i in members))
        places = ([np.arange(*ranges[i]) for i in members] for _, ranges in values)
        given = [x[np.reshape(place, (len(members), -1))] for (x, _), place in zip(values, places, strict=True)]
        parts.append(jax.vmap(function)(one, *given))
        order += members
    back = np.argsort(order)
    return jax.tree_util.tree_map(lambda *xs: jnp.concatenate(xs)[back], *parts)


def _placed(motion: AbstractMotion, q: Array, count: int) -> tuple[Array, Array]:
    """The entries of a motion in `own` and in `S`."""
    pose, zero = motion.pose(q), jnp.zeros(6, q.dtype)
    S = [jnp.concatenate(s) for s in motion.twists(q)]
    S = jnp.stack([*S, *[zero] * (count - len(S))]) if count else jnp.zeros((0, 6), q.dtype)
    return jnp.concatenate([pose.R.ravel(), pose.p]), S
