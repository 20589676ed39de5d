r"""Angles of hinges that are constraints, continuous over any number of turns; and the spin of such balls.

A pose determines such an angle up to whole turns only. Where all joints between the two ends turn about parallel axes,
known to be so when the robot is built, the angle is the signed sum of their coordinates; in the plane this always
holds. Elsewhere the turns are counted: q has one further entry theta, which changes with the relative angular velocity,
theta' = a (omega_child - omega_parent). The angle is then that of the pose, up to whole turns, nearest to theta. So
theta only has to be right to half a turn, and errors of integration do not reach the angle.

q: coordinates (n_q,); v: speeds (n,); a: axis; Theta: angle of a body about the ground's axis [rad]; w:
angular velocity of a ball's child frame against its parent frame, seen from the child's (3,) [rad/s].
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from .._constraint import Holonomic
from . import _linkage, _tree_unrolled
from ._effort import Drag
from ._frame import Axis, Rotation, Vector3
from ._joint import AbstractJoint, Revolute
from ._layout import Node, body_of
from ._linkage import AbstractRobot
from ._motion import AbstractMotion, Plane, Slide, Turn, Weld


TURN = 2 * jnp.pi


def nearest(angle: Array, to: Array) -> Array:
    """The angle that differs from `angle` by whole turns and is nearest to `to`; its derivative is that of `angle`."""
    return angle + TURN * stop_gradient(jnp.floor((to - angle) / TURN + 0.5))


def counted(robot: AbstractRobot, turns: Sequence[str], absolute: bool) -> tuple[str, ...]:
    """Names of hinges with an entry in q, whose angle is no sum: in absolute coordinates all, else those in use."""
    turns = [turns] if isinstance(turns, str) else turns
    for name in turns:
        if not isinstance(robot.joints.get(name), Revolute):
            hinges = [name for name in robot.joint_names if isinstance(robot.joints[name], Revolute)]
            raise ValueError(f"turns must name joints that are a Revolute, of {hinges}, but names {name!r}.")
    geared = [name for gear in robot.gears.values() for name in gear.joints]
    found = []
    for name in robot.layout.loops:
        joint = robot.joints[name]
        if isinstance(joint, Revolute) and not is_summed(robot, joint):
            used = joint.effort is not None or name in geared or name in turns
            found += [name] if absolute or used else []
    return tuple(found)


def is_summed(robot: AbstractRobot, hinge: Revolute) -> bool:
    """Whether the angle of a hinge is the sum of the coordinates between its ends, whatever the state."""
    if robot.planar:
        return True
    if hinge.axis.named is None:
        return False
    ends = [hinge.parent, hinge.child]
    for i, _ in _between(robot, hinge):
        joint = _linkage.moving(robot, robot.layout.nodes[i].joint)
        ends += [joint.parent, joint.child]
        motion = joint.motion or Weld()
        if not isinstance(motion, Slide | Weld) and not _is_about(motion, hinge.axis):
            return False
    frames = [_linkage.fixed(robot, end) for end in ends]
    return all(frame is None or frame.quaternion is None for frame in frames)


def _is_about(motion: AbstractMotion, axis: Axis) -> bool:
    """Whether a motion turns about an axis of the same name."""
    return isinstance(motion, Turn) and motion.axis.named == axis.named


def coordinate(robot: AbstractRobot, q: Array, name: str) -> Array:
    """The coordinate of a joint with a single coordinate; raises ValueError if it needs turns that are not counted."""
    joint = _linkage.driven(robot, name)
    if name in robot.layout.tree:
        return q[robot.layout.node(name).q[0]]
    if not isinstance(joint, Revolute):
        return of_pose(robot, q, name)
    if is_summed(robot, joint):
        return _summed(robot, q, joint)
    if name in robot.layout.counted:
        return nearest(of_pose(robot, q, name), q[_place(robot, name)])
    raise ValueError(
        f"The turns of the hinge {name!r}, which closes a loop, are not counted: a pose tells its angle up to whole "
        f"turns only. Build the robot with turns=[{name!r}], which gives it an entry in q."
    )


def of_pose(robot: AbstractRobot, q: Array, name: str) -> Array:
    """The coordinate of a constraint joint at its pose, an angle between -pi and pi; derivatives are exact."""
    joint = _linkage.driven(robot, name)
    if isinstance(joint, Revolute) and is_summed(robot, joint):
        return nearest(_summed(robot, q, joint), jnp.zeros((), q.dtype))
    return joint.coordinate(_linkage.between(robot, q, joint))


def rows(robot: AbstractRobot, name: str, q: Array, v: Array, t: Array) -> tuple[Array, Array]:
    """J (n,) and b of a joint's single coordinate c: c'' = J v' - b."""
    own = coordinate if name in robot.layout.tree else of_pose
    of = Holonomic(lambda q, t: own(robot, q, name)[None])
    J, b = of.rows(q, v, t) if robot.kinematics is None else of.rows(q, v, t, robot.kinematics)
    return J[0], b[0]


def changes(robot: AbstractRobot, q: Array, v: Array) -> Array:
    """The rates theta' of all counted hinges (k,)."""
    V = _tree_unrolled.twists(_linkage.posture(robot, q), v)

    def about(end: str, axis: Axis) -> Array:
        node, frame = _linkage.place(robot, end)
        if node < 0:
            return jnp.zeros((), v.dtype)
        angular = V[node].angular if frame is None else frame.R.T @ V[node].angular
        return axis.of(v.dtype) @ angular

    # Where the hinge is closed, both frames see the same axis.
    return jnp.stack([about(one.child, one.axis) - about(one.parent, one.axis) for one in _hinges(robot)])


def met(robot: AbstractRobot, q: Array) -> Array:
    """q with the entries of the counted hinges, right to half a turn, corrected to the angles of the poses."""
    counted = robot.layout.counted
    exact = [nearest(of_pose(robot, q, name), q[_place(robot, name)]) for name in counted]
    return jnp.concatenate([q[: robot.layout.n_q - len(counted)], jnp.stack(exact)])


def started(robot: AbstractRobot, q: Array, coordinates: Mapping[str, object]) -> Array:
    """q with entries for the counted hinges appended: their angles nearest to `coordinates`, or to zero."""
    if not robot.layout.counted:
        return q
    said = [jnp.asarray(coordinates.get(name, 0.0), q.dtype).reshape(()) for name in robot.layout.counted]
    return met(robot, jnp.concatenate([q, jnp.stack(said)]))


def of_bodies(twin: AbstractRobot, q: Array) -> dict[str, Array]:
    """The angle Theta of every body of a planar robot in joint coordinates, right to half a turn.

    Across each hinge of the tree Theta grows by exactly the coordinate of that hinge.
    """
    found: dict[str, Array] = {}
    zero = jnp.zeros((), q.dtype)
    for node in twin.layout.nodes:
        joint = _linkage.moving(twin, node.joint)
        before = found.get(body_of(joint.parent), zero)
        parent, child = _linkage.frame(twin, joint.parent), _linkage.frame(twin, joint.child)
        still = jnp.eye(3, dtype=q.dtype)
        R = (still if parent is None else parent.R) @ (still if child is None else child.R).T
        turned = jnp.arctan2(R[1, 0], R[0, 0])
        angle = _angle_of(node, joint.motion, q)
        if isinstance(joint, Revolute) and angle is not None:
            sign = _sign(twin, joint.parent, joint.axis, q.dtype)
            turned = sign * (angle - _constant(twin, joint, q.dtype))
        elif angle is not None:
            turned = turned + angle
        found[node.body] = before + turned
    return found


def _hinges(robot: AbstractRobot) -> list[Revolute]:
    """The hinges whose turns are counted."""
    return [robot.joints[name] for name in robot.layout.counted]  # pyright: ignore[reportReturnType]


def _place(robot: AbstractRobot, name: str) -> int:
    """The index in q of the entry of a counted hinge."""
    layout = robot.layout
    return layout.n_q - len(layout.counted) + layout.counted.index(name)


def _between(robot: AbstractRobot, joint: Revolute) -> list[tuple[int, float]]:
    """The nodes between the ends of a joint, each with 1 if it turns the joint's child, or -1 if its parent."""
    layout = robot.layout
    to_child, to_parent = (layout.path(layout.node_of(body_of(end))) for end in (joint.child, joint.parent))
    return [(i, 1.0) for i in to_child if i not in to_parent] + [(i, -1.0) for i in to_parent if i not in to_child]


def _angle_of(node: Node, motion: AbstractMotion | None, q: Array) -> Array | None:
    """The coordinate that turns a node in the plane; None if the node does not turn."""
    if isinstance(motion, Turn):
        return q[node.q[0]]
    return q[node.q[0] + 2] if isinstance(motion, Plane) else None


def _summed(robot: AbstractRobot, q: Array, joint: Revolute) -> Array:
    """The angle of a hinge: s_hinge (sum of s_i q_i), plus the constant angle of its frames."""
    total = jnp.zeros((), q.dtype)
    for i, way in _between(robot, joint):
        node = robot.layout.nodes[i]
        own = _linkage.moving(robot, node.joint)
        angle = _angle_of(node, own.motion, q)
        if angle is not None:
            axis = own.motion.axis if isinstance(own.motion, Turn) else Axis("z")
            total = total + way * _sign(robot, own.parent, axis, q.dtype) * angle
    return _sign(robot, joint.parent, joint.axis, q.dtype) * total + _constant(robot, joint, q.dtype)


def _sign(robot: AbstractRobot, end: str, axis: Axis, dtype: DTypeLike) -> Array | float:
    """1, or -1 if an axis in a frame points against the z of the ground."""
    R = _rest(robot, end)
    if R is None and axis.named is not None:
        return 1.0
    direction = axis.of(dtype) if R is None else R @ axis.of(dtype)
    return stop_gradient(jnp.where(direction[2] < 0, -1.0, 1.0)).astype(dtype)


def _constant(robot: AbstractRobot, joint: Revolute, dtype: DTypeLike) -> Array:
    """The angle of a hinge where all angles of its sum are zero."""
    still = jnp.eye(3, dtype=dtype)
    parent, child = (_rest(robot, end) for end in (joint.parent, joint.child))
    if parent is None and child is None:
        return jnp.zeros((), dtype)
    R = (still if parent is None else parent).T @ (still if child is None else child)
    first, second = joint.axis.across(dtype)
    turned = R @ first
    return jnp.arctan2(second @ turned, first @ turned)


def _rest(robot: AbstractRobot, end: str) -> Rotation | None:
    """The rotation of a frame against the ground at zero angles; None if no frame on the way is turned."""
    nodes = robot.layout.nodes
    found: Rotation | None = None
    ends = [end]
    for i in robot.layout.path(robot.layout.node_of(body_of(end))):
        own = _linkage.moving(robot, nodes[i].joint)
        ends += [own.child, own.parent]
    # From the frame to the ground: out of a joint's parent's frame, against its child's.
    for k, one in enumerate(ends):
        frame = _linkage.fixed(robot, one)
        if frame is None or frame.quaternion is None:
            continue
        R = frame.pose.R if k % 2 == 0 else frame.pose.R.T
        found = R if found is None else R @ found
    return found


def drags_of_loops(robot: AbstractRobot) -> dict[str, Drag]:
    """The drags of the joints that are constraints, by name."""
    found = ((name, getattr(robot.joints[name], "drag", None)) for name in robot.layout.loops)
    return {name: drag for name, drag in found if drag is not None}


def spin(robot: AbstractRobot, joint: AbstractJoint, q: Array, v: Array) -> Vector3:
    """The angular velocity w of a joint's child frame against its parent frame (3,) [rad/s]."""
    tree = _linkage.posture(robot, q)
    poses, V = _tree_unrolled.poses_in_world(tree), _tree_unrolled.twists(tree, v)

    def seen(end: str) -> tuple[Rotation | None, Vector3]:
        """The rotation of a frame (None for the identity), and its angular velocity, seen from the ground."""
        node, frame = _linkage.place(robot, end)
        if node < 0:
            return None if frame is None else frame.R, jnp.zeros(3, q.dtype)
        R = poses[node].R
        return R if frame is None else R @ frame.R, R @ V[node].angular

    (R, own), (_, other) = seen(joint.child), seen(joint.parent)
    return own - other if R is None else R.T @ (own - other)


def spin_rows(robot: AbstractRobot, name: str, q: Array, v: Array, t: Array) -> tuple[Float[Array, "3 n"], Vector3]:
    """J (3, n) and b (3,) of the rate of w: w' = J v' - b."""
    joint = robot.joints[name]
    rates = v if robot.kinematics is None else robot.kinematics.rates(q, v, t)
    J = jax.jacfwd(lambda v: spin(robot, joint, q, v))(v)
    return J, -jax.jvp(lambda q: spin(robot, joint, q, v), (q,), (rates,))[1]


def drag_torque(drag: Drag, J: Array, b: Array, v: Array, acceleration: Array | None = None) -> Vector3:
    """The torque of a drag on the child, seen from the child; without the part of J v' if `acceleration` is None."""
    changing = -b if acceleration is None else J @ acceleration - b
    return -drag.damping * (J @ v) - drag.armature * changing
