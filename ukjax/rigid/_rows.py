r"""Rows of all loops of a robot from one pass over its tree.

Each loop could be differentiated on its own, and is, where a constraint is asked alone; but then the way from the
ground to its ends is gone over again for every one of them, and with its derivatives.

P: pose of a joint's child frame seen from its parent frame; x = (u, w): twist of the one against the other, seen from
the child frame; S: what each speed does, seen from the ground and about its origin.

.. math:: P(s) = P\,(1 + s\,\hat x + s^2 / 2\,(\hat x^2 + \hat{\dot x})),\quad
    \frac{d^2}{dt^2} g(P) = \frac{\partial g}{\partial x} S\,\dot v + \frac{d^2}{ds^2} g(P(s))

with x' for constant speeds. Source: Featherstone (2008), Rigid Body Dynamics Algorithms, 8.1 to 8.3.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._constraint import stabilized
from . import _linkage, _tree
from ._frame import Pose, Twist
from ._joint import AbstractJoint, Free
from ._layout import body_of
from ._rolling import AbstractRollingLink, KnifeEdge, slip_of
from ._rotation import cross, skew
from ._tree import Posture


if TYPE_CHECKING:
    from ._robot import Robot


class End(NamedTuple):
    """A frame of a body: its pose seen from the ground, its twist, and how that changes if no speed does."""

    pose: Pose
    twist: Twist
    change: Twist


def rows_of_loops(robot: "Robot", q: Array, v: Array) -> dict[str, tuple[Array, Array]]:
    """A (m, n) and b (m,) by the name of the constraint."""
    layout, found = robot.layout, {}
    if not layout.loops:
        return found
    tree = _linkage.posture(robot, q, v)
    poses, twists = _tree.poses_in_world(tree), _tree.twists(tree, v)
    changes = _tree.accelerations(tree, twists, v)
    S = _axes(tree, poses, v.dtype)

    def end(name: str) -> End:
        node, frame = layout.node_of(body_of(name)), _linkage.frame(robot, name)
        zero = jnp.zeros(3, q.dtype)
        if node < 0:
            pose = Pose(jnp.eye(3, dtype=q.dtype), zero) if frame is None else frame
            return End(pose, Twist(zero, zero), Twist(zero, zero))
        if frame is None:
            return End(poses[node], twists[node], changes[node])
        return End(poses[node] @ frame, frame.inwards(twists[node]), frame.inwards(changes[node]))

    for name in layout.loops:
        joint = robot.joints[name]
        if isinstance(joint, Free):
            continue
        ends = end(joint.parent), end(joint.child)
        found |= _rows(robot, name, joint, *ends, _between(robot, joint, S, ends[1].pose))
    return found


def _rows(
    robot: "Robot", name: str, joint: AbstractJoint, parent: End, child: End, columns: Array
) -> dict[str, tuple[Array, Array]]:
    """`columns` (6, n): what the speeds make of x."""
    P = parent.pose.inverse @ child.pose
    seen, seen_change = P.inwards(parent.twist), P.inwards(parent.change)
    x = Twist(child.twist.linear - seen.linear, child.twist.angular - seen.angular)
    less = x.cross(seen)
    change = Twist(*(a - b + c for a, b, c in zip(child.change, seen_change, less, strict=True)))
    K, turning = skew(x.angular), skew(change.angular)
    rate = Pose(P.R @ K, P.R @ x.linear)
    second = Pose(P.R @ (K @ K + turning), P.R @ (cross(x.angular, x.linear) + change.linear))
    moved = lambda s: Pose(*(a + s * b + s**2 / 2 * c for a, b, c in zip(P, rate, second, strict=True)))
    zero, one = jnp.zeros((), P.p.dtype), jnp.ones((), P.p.dtype)
    still = jnp.zeros(6, P.p.dtype)
    at_twist = lambda y: Pose(P.R @ skew(y[3:]), P.R @ y[:3])
    found: dict[str, tuple[Array, Array]] = {}
    if not isinstance(joint, KnifeEdge):
        gap = lambda P: joint.gap(P, robot.planar)
        along = lambda s: gap(moved(s))
        (position, velocity), (_, curvature) = jax.jvp(lambda s: jax.jvp(along, (s,), (one,)), (zero,), (one,))
        D = jax.jacfwd(lambda y: gap(Pose(*(a + b for a, b in zip(P, at_twist(y), strict=True)))))(still)
        found[name] = D @ columns, stabilized(robot.stabilization, -curvature, position, velocity)
    if isinstance(joint, AbstractRollingLink):
        faster = lambda s: Pose(*(b + s * c for b, c in zip(rate, second, strict=True)))
        slip = lambda s: joint.slip(moved(s), faster(s), robot.planar)
        velocity, acceleration = jax.jvp(slip, (zero,), (one,))
        E = jax.jacfwd(lambda y: joint.slip(P, at_twist(y), robot.planar))(still)
        found[slip_of(name)] = E @ columns, stabilized(robot.stabilization, -acceleration, None, velocity)
    return found


def _axes(tree: Posture, poses: list[Pose], dtype: Any) -> list[Twist]:
    """S, of all speeds."""
    pairs = zip(tree.moves, poses, strict=True)
    return [pose.twist_outwards(s) for move, pose in pairs for s in move.S]


def _between(robot: "Robot", joint: AbstractJoint, S: list[Twist], child: Pose) -> Array:
    """What each speed makes of x (6, n): of those that move both ends nothing, as of those that move neither."""
    layout = robot.layout
    moved = np.zeros(layout.n)
    for end, sign in ((joint.child, 1.0), (joint.parent, -1.0)):
        for i in layout.path(layout.node_of(body_of(end))):
            moved[slice(*layout.nodes[i].v)] += sign
    zero = jnp.zeros(6, child.p.dtype)
    # Seen from the child: the ground's frame is that of which it has the inverse pose.
    columns = [zero if not sign else sign * jnp.concatenate(child.inwards(s)) for sign, s in zip(moved, S, strict=True)]
    return jnp.stack(columns, axis=1)
