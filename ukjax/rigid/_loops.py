r"""The constraints of a robot: its loops, its rolling links, and its gears; and the actuation by its motors.

q: coordinates; v: speeds; P: pose of a joint's child frame seen from its parent frame; c: coordinate of a joint that
has a single coordinate.

The rows of a loop are computed in two ways. `Gap` and `Slip` are constraints of their own, whose rows follow by
differentiation along the path from the ground to the ends of the loop. `rows_of_loops` gives the same rows for all
loops from one pass over the tree, so that the paths which loops share, and their derivatives, are computed once:

.. math:: P(s) = P\,(1 + s\,\hat x + s^2 / 2\,(\hat x^2 + \hat{\dot x})),\quad
    \frac{d^2}{dt^2} g(P) = \frac{\partial g}{\partial x} S\,\dot v + \frac{d^2}{ds^2} g(P(s))

with x' for constant speeds; x = (u, w): twist of the child frame against the parent frame, seen from the child frame;
S: twist per unit of each speed, seen from the ground and about its origin.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, 8.1 to 8.3.
"""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._constraint import AbstractConstraint, AbstractGap, Baumgarte, Holonomic, Nonholonomic, stabilized
from .._mechanism import OwnRows
from .._types import Coordinates, RowValues, Vector
from . import _linkage, _tree_unrolled, _turns
from ._effort import Motor
from ._frame import Pose, Twist, cross, skew
from ._joint import AbstractJoint, AbstractRollingLink, Free, KnifeEdge, slip_of
from ._layout import body_of
from ._linkage import AbstractRobot
from ._tree_unrolled import TreeState


class Geared(eqx.Module):
    """The residual of a gear of a robot, a function of (q, t)."""

    robot: AbstractRobot
    gear: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Array) -> RowValues:
        return self.robot.gears[self.gear].row(lambda name: _turns.coordinate(self.robot, q, name))[None]


class Motors(eqx.Module):
    """The actuation matrix G (n, p) of motors on joints of a robot, a function of (q, t)."""

    robot: AbstractRobot
    motors: tuple[Motor, ...]

    def __call__(self, q: Coordinates, t: Array) -> Array:
        rest = jnp.zeros(self.robot.layout.n, q.dtype)
        columns = [m.gear * _turns.rows(self.robot, m.joint, q, rest, t)[0] for m in self.motors]
        return jnp.stack(columns, axis=1)


def motor_of(robot: AbstractRobot, name: str, what: str = "names") -> Motor:
    """A motor by name, or a unit motor by the name of its joint; raises ValueError or TypeError for other names."""
    if not isinstance(name, str):
        raise TypeError(f'{what} must be of motors or joints, as in actuation("hip", "knee"), but one is {name!r}.')
    if name not in robot.motors and name not in robot.joints:
        has = f"motors, {robot.motor_names}, nor of the joints, {robot.joint_names}"
        raise ValueError(f"{what} must be of motors or joints, but {name!r} is none of the {has}.")
    motor = robot.motors.get(name, Motor(name))
    _linkage.driven(robot, motor.joint)
    return motor


def actuation(robot: AbstractRobot, names: tuple[str, ...]) -> Array | Motors:
    """The actuation matrix G (n, p) of `motor_of` each name; a function of (q, t) if a joint is a constraint."""
    if not names:
        raise ValueError(f"names must hold motors or joints: the robot has no motors, and joints {robot.joint_names}.")
    motors = tuple(motor_of(robot, name) for name in names)
    if any(motor.joint not in robot.layout.tree for motor in motors):
        return Motors(robot, motors)
    G = jnp.zeros((robot.layout.n, len(motors)), robot.gravity.dtype)
    for k, motor in enumerate(motors):
        G = G.at[robot.layout.node(motor.joint).v[0], k].set(motor.gear)
    return G


def constraints_of(robot: AbstractRobot) -> dict[str, AbstractConstraint]:
    """The robot's own constraints by the names of joints and gears; that against slipping is named "<joint> slip"."""
    found: dict[str, AbstractConstraint] = {}
    for name in robot.layout.loops:
        joint = robot.joints[name]
        if not isinstance(joint, Free | KnifeEdge):
            found[name] = Holonomic(Gap(robot, name), robot.stabilization)
        if isinstance(joint, AbstractRollingLink):
            found[slip_of(name)] = Nonholonomic(Slip(robot, name), _damped(robot.stabilization))
    return found | {name: Holonomic(Geared(robot, name), robot.stabilization) for name in sorted(robot.gears)}


def _damped(stabilization: Baumgarte | None) -> Baumgarte | None:
    """The stabilization without stiffness, since a velocity constraint has no position to return to."""
    return None if stabilization is None else Baumgarte(stabilization.damping)


class Gap(AbstractGap):
    """The gap of a joint of a robot, zero where the joint is closed; a function of (q, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)

    def __call__(self, q, t):
        joint = self.robot.joints[self.joint]
        return joint.gap(_linkage.between(self.robot, q, joint), self.robot.planar)

    def from_afar(self, q, t):
        joint = self.robot.joints[self.joint]
        return joint.gap(_linkage.between(self.robot, q, joint), self.robot.planar, angles=True)


class Slip(eqx.Module):
    """The slip of a joint of a robot, zero where the joint does not slip; a function of (q, v, t)."""

    robot: AbstractRobot
    joint: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, v: Vector, t: Array) -> RowValues:
        joint = self.robot.joints[self.joint]
        assert isinstance(joint, AbstractRollingLink)
        kinematics = self.robot.kinematics
        rates = v if kinematics is None else kinematics.rates(q, v, t)
        P, rate = jax.jvp(lambda q: tuple(_linkage.between(self.robot, q, joint)), (q,), (rates,))
        return joint.slip(Pose(*P), Pose(*rate), self.robot.planar)


class End(NamedTuple):
    """A frame of a body: its pose seen from the ground, its twist, and the rate of the twist at constant speeds."""

    pose: Pose
    twist: Twist
    change: Twist


# A row counts as zero up to this times eps times its terms, which are products of some dozens of rotations.
ROUNDING = 256.0


class Sizes(NamedTuple):
    """The sizes of the terms of x, translations before turns, added up over all speeds, (6,) each.

    Attributes:
        lever: Sizes of x for a unit of the speeds [m and 1 per speed].
        rate: Sizes of x [m/s, rad/s].
        change: Sizes of x' [m/s^2, rad/s^2].
        place: Sizes of the pose [m, 1].
    """

    lever: Array
    rate: Array
    change: Array
    place: Array

    @classmethod
    def of(cls, moved: Sequence[float], S: Sequence[Twist], v: Array, parent: Pose, child: Pose) -> "Sizes":
        far = _size(child.p)
        levers = [(_size(s.linear) + far * _size(s.angular), _size(s.angular), jnp.abs(v[i]))
                  for i, (sign, s) in enumerate(zip(moved, S, strict=True)) if sign]  # fmt: skip
        zero = jnp.zeros((), v.dtype)
        lever, turn = (sum((x[k] for x in levers), zero) for k in (0, 1))
        speed, spin = (sum((x[k] * x[2] for x in levers), zero) for k in (0, 1))
        place = _spread(_size(parent.p) + far, jnp.ones((), v.dtype))
        return cls(_spread(lever, turn), _spread(speed, spin), _spread(2 * spin * speed, spin * spin), place)

    def without_rounding(self, D: Array, rows: OwnRows, gains: Baumgarte | None) -> OwnRows:
        """The rows, each zero if it is only rounding errors.

        D: derivatives of the rows by x (m, 6), which tell the sizes of their terms.

        Three rows of a hinge are such rows where the axes of a loop in space are parallel. A gap that cannot be closed
        counts as zero up to sqrt(eps) times its terms, as in `assemble`.
        """
        D, (A, b, position, velocity) = jnp.abs(D), rows
        eps = float(jnp.finfo(A.dtype).eps)
        none = jnp.sum(jnp.abs(A), axis=1) <= ROUNDING * eps * (D @ self.lever)
        place, rate, change = D @ self.place, D @ self.rate, ROUNDING * eps * (D @ self.change)
        if gains is not None:
            sizes = jax.tree_util.tree_map(jnp.abs, gains)
            change = change + eps**0.5 * sizes.correction(place, rate)

        def cleaned(x: Array, allowed: Array) -> Array:
            return jnp.where(none & (jnp.abs(x) <= allowed), 0, x) if x.size else x

        position, velocity = cleaned(position, eps**0.5 * place), cleaned(velocity, eps**0.5 * rate)
        return OwnRows(jnp.where(none[:, None], 0, A), cleaned(b, change), position, velocity)


def _spread(linear: Array, angular: Array) -> Array:
    return jnp.stack([linear] * 3 + [angular] * 3)


def _size(x: Array) -> Array:
    return jnp.sum(jnp.abs(x))


def rows_of_loops(robot: AbstractRobot, q: Array, v: Array) -> dict[str, OwnRows]:
    """The rows of all loops, by the name of the constraint."""
    found = dict[str, OwnRows]()
    if not robot.layout.loops:
        return found
    ends = _Ends.of(robot, q, v)
    changes = _tree_unrolled.accelerations(ends.tree, ends.twists, v)
    S = _axes(ends.tree, ends.poses)
    for name, joint in _closed(robot):
        parent, child = ends.motion(joint.parent, changes), ends.motion(joint.child, changes)
        moved = _moved(robot, joint)
        # Rows of freely moving bodies vanish in no direction, and planar bodies have no tilt.
        can_vanish = not robot.planar and robot.layout == robot.tree
        sizes = Sizes.of(moved, S, v, parent.pose, child.pose) if can_vanish else None
        found |= _rows(robot, name, joint, parent, child, _between(moved, S, parent.pose, child.pose), sizes)
    return found


def errors_of_loops(robot: AbstractRobot, q: Array, v: Array, afar: bool) -> dict[str, tuple[Array, Array]]:
    """The errors of all loops in position and in velocity, by the name of the constraint; `afar`: see `Gap`."""
    found = dict[str, tuple[Array, Array]]()
    if not robot.layout.loops:
        return found
    ends = _Ends.of(robot, q, v)
    for name, joint in _closed(robot):
        P, _, x = _relative(ends.motion(joint.parent), ends.motion(joint.child))
        rate = _rate_of(P, x)
        if not isinstance(joint, KnifeEdge):
            found[name] = _gap_and_rate(joint, P, rate, robot.planar, afar)
        if isinstance(joint, AbstractRollingLink):
            found[slip_of(name)] = jnp.zeros(0, q.dtype), joint.slip(P, rate, robot.planar)
    return found


def _gap_and_rate(joint: AbstractJoint, P: Pose, rate: Pose, planar: bool, angles: bool) -> tuple[Array, Array]:
    return jax.jvp(lambda P: joint.gap(P, planar, angles), (P,), (rate,))


def _closed(robot: AbstractRobot) -> list[tuple[str, AbstractJoint]]:
    """The joints that are constraints, by name."""
    pairs = ((name, robot.joints[name]) for name in robot.layout.loops)
    return [(name, joint) for name, joint in pairs if not isinstance(joint, Free)]


class _Ends(NamedTuple):
    """The bodies of a robot, between frames of which loops are closed."""

    robot: AbstractRobot
    tree: TreeState
    poses: list[Pose]
    twists: list[Twist]
    zero: Array

    @classmethod
    def of(cls, robot: AbstractRobot, q: Array, v: Array) -> "_Ends":
        tree = _linkage.posture(robot, q, v)
        poses, twists = _tree_unrolled.poses_in_world(tree), _tree_unrolled.twists(tree, v)
        return cls(robot, tree, poses, twists, jnp.zeros(3, q.dtype))

    def motion(self, name: str, changes: Sequence[Twist] | None = None) -> End:
        """The motion of "body" or "body.frame"; without `changes` of the bodies, the rates of the twists are zero."""
        node, frame = _linkage.place(self.robot, name)
        still = Twist(self.zero, self.zero)
        if node < 0:
            ground = Pose(jnp.eye(3, dtype=self.zero.dtype), self.zero)
            return End(ground if frame is None else frame, still, still)
        change = still if changes is None else changes[node]
        if frame is None:
            return End(self.poses[node], self.twists[node], change)
        return End(self.poses[node] @ frame, frame.inwards(self.twists[node]), frame.inwards(change))


def _relative(parent: End, child: End) -> tuple[Pose, Twist, Twist]:
    """The pose of the child seen from the parent, the parent's twist seen from the child, and the child's less that."""
    P = parent.pose.inverse @ child.pose
    seen = P.inwards(parent.twist)
    return P, seen, Twist(child.twist.linear - seen.linear, child.twist.angular - seen.angular)


def _rate_of(P: Pose, x: Twist) -> Pose:
    """The rate of a pose for a twist seen from its own frame."""
    return Pose(P.R @ skew(x.angular), P.R @ x.linear)


def _rows(
    robot: AbstractRobot,
    name: str,
    joint: AbstractJoint,
    parent: End,
    child: End,
    columns: Array,
    sizes: Sizes | None,
) -> dict[str, OwnRows]:
    """The rows of one joint, by the name of the constraint; `columns` (6, n): those of `_between`."""
    P, seen, x = _relative(parent, child)
    seen_change, less = P.inwards(parent.change), x.cross(seen)
    change = Twist(*(a - b + c for a, b, c in zip(child.change, seen_change, less, strict=True)))
    K, turning = skew(x.angular), skew(change.angular)
    rate = _rate_of(P, x)
    second = Pose(P.R @ (K @ K + turning), P.R @ (cross(x.angular, x.linear) + change.linear))
    zero, one = jnp.zeros((), P.p.dtype), jnp.ones((), P.p.dtype)
    still = jnp.zeros(6, P.p.dtype)

    def moved(s: Array) -> Pose:
        return Pose(*(a + s * b + s**2 / 2 * c for a, b, c in zip(P, rate, second, strict=True)))

    def rate_of(y: Array) -> Pose:
        """The rate of P if the child moved with the twist y (6,) against the parent, seen from the parent frame."""
        return Pose(skew(y[3:]) @ P.R, y[:3])

    def nearby(y: Array) -> Pose:
        return Pose(*(a + b for a, b in zip(P, rate_of(y), strict=True)))

    def gap(s: Array) -> Array:
        return joint.gap(moved(s), robot.planar)

    def cleaned(D: Array, rows: OwnRows) -> OwnRows:
        return rows if sizes is None else sizes.without_rounding(D, rows, robot.stabilization)

    found: dict[str, OwnRows] = {}
    if not isinstance(joint, KnifeEdge):
        (position, velocity), (_, curvature) = jax.jvp(lambda s: jax.jvp(gap, (s,), (one,)), (zero,), (one,))
        D = jax.jacfwd(lambda y: joint.gap(nearby(y), robot.planar))(still)
        b = stabilized(robot.stabilization, -curvature, position, velocity)
        found[name] = cleaned(D, OwnRows(D @ columns, b, position, velocity))
    if isinstance(joint, AbstractRollingLink):

        def slip(s: Array) -> Array:
            here = moved(s)
            return joint.slip(here, Pose(*(b + s * c for b, c in zip(rate, second, strict=True))), robot.planar)

        velocity, acceleration = jax.jvp(slip, (zero,), (one,))
        E = jax.jacfwd(lambda y: joint.slip(P, rate_of(y), robot.planar))(still)
        b = stabilized(robot.stabilization, -acceleration, None, velocity)
        found[slip_of(name)] = cleaned(E, OwnRows(E @ columns, b, jnp.zeros(0, P.p.dtype), velocity))
    return found


def _axes(tree: TreeState, poses: list[Pose]) -> list[Twist]:
    """The twists S of all speeds."""
    pairs = zip(tree.moves, poses, strict=True)
    return [pose.twist_outwards(s) for move, pose in pairs for s in move.S]


def _moved(robot: AbstractRobot, joint: AbstractJoint) -> list[float]:
    """Whether each speed moves a joint's child (1), its parent (-1), both or neither (0)."""
    layout = robot.layout
    moved = np.zeros(layout.n)
    for end, sign in ((joint.child, 1.0), (joint.parent, -1.0)):
        for i in layout.path(layout.node_of(body_of(end))):
            moved[slice(*layout.nodes[i].v)] += sign
    return moved.tolist()


def _between(moved: Sequence[float], S: Sequence[Twist], parent: Pose, child: Pose) -> Array:
    """x per unit of each speed (6, n), seen from the parent frame; zero for speeds that move both ends, or neither.

    There a gap of points depends on its linear part alone, and on no rotation.
    """
    zero = jnp.zeros(6, child.p.dtype)
    # S is seen from the ground, about its origin; x is about that of the child frame.
    at = Pose(parent.R, child.p)
    columns = [zero if not sign else sign * jnp.concatenate(at.inwards(s)) for sign, s in zip(moved, S, strict=True)]
    return jnp.stack(columns, axis=1)
