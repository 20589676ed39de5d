r"""The constraints of a robot: its loops, its rolling links, and its gears; and the actuation by its motors.

q: coordinates; v: speeds; P: pose of a joint's child frame seen from its parent frame; c: coordinate of a joint that
has a single coordinate.

The rows of a loop are computed in two ways. `Gap` and `Slip` are constraints of their own, whose rows follow by
differentiation along the path from the ground to the ends of the loop. `own_rows` gives the same rows for all
loops from one pass over the tree, so that the paths which loops share, and their derivatives, are computed once. Loops
whose joints are alike are computed side by side, so that a program of many legs is traced once:

.. math:: P(s) = P\,(1 + s\,\hat x + s^2 / 2\,(\hat x^2 + \hat{\dot x})),\quad
    \frac{d^2}{dt^2} g(P) = \frac{\partial g}{\partial x} S\,\dot v + \frac{d^2}{ds^2} g(P(s))

with x' for constant speeds; x = (u, w): twist of the child frame against the parent frame, seen from the child frame;
S: twist per unit of each speed, seen from the ground and about its origin.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, 8.1 to 8.3.
"""

import dataclasses
import functools as ft
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._constraint import AbstractConstraint, AbstractGap, Baumgarte, Holonomic, Nonholonomic, stabilized
from .._mechanism import OwnRows
from .._types import Coordinates, RowValues, Vector
from . import _linkage, _tree_scan, _turns
from ._effort import Gear, Motor
from ._frame import Pose, Twist, Wrench, cross, skew
from ._joint import AbstractJoint, AbstractRollingLink, Free, KnifeEdge, slip_of
from ._layout import body_of
from ._linkage import AbstractRobot
from ._tree_scan import TreeArrays, pose_of, twist_of


class Geared(eqx.Module):
    """The residual of a gear of a robot, a function of (q, t)."""

    robot: AbstractRobot
    gear: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Array) -> RowValues:
        return self.robot.gears[self.gear].row(lambda name: _turns.coordinate(self.robot, q, name))[None]


class _GearRow(NamedTuple):
    """The row of a gear between different joints of the tree, without the zeros.

    Attributes:
        speeds: The speeds of its joints (k,).
        slopes: Slopes of its residual by their coordinates (k,).
        position, velocity, second: The residual and its first two rates (1,), the last at constant speeds.
    """

    speeds: np.ndarray
    slopes: Array
    position: Array
    velocity: Array
    second: Array

    @classmethod
    def of(cls, robot: AbstractRobot, gear: Gear, q: Array, v: Array) -> "_GearRow":
        nodes = [robot.layout.node(joint) for joint in gear.joints]
        speeds = np.array([node.v[0] for node in nodes])
        c, rate = q[np.array([node.q[0] for node in nodes])], v[speeds]

        def moving(c: Array) -> tuple[Array, Array]:
            return jax.jvp(gear.of, (c,), (rate,))

        (position, velocity), (_, second) = jax.jvp(moving, (c,), (rate,))
        return cls(speeds, jax.jacrev(gear.of)(c)[0], position, velocity, second)

    def b(self, gains: Baumgarte | None) -> Array:
        return stabilized(gains, -self.second, self.position, self.velocity)


def _gears(robot: AbstractRobot, q: Array, v: Array) -> dict[str, _GearRow]:
    """The gears between different joints of the tree; others are constraints like any other."""
    own = {k: x for k, x in robot.gears.items() if len(set(x.joints)) == len(x.joints)}
    of_tree = {k: x for k, x in own.items() if all(joint in robot.layout.tree for joint in x.joints)}
    return {name: _GearRow.of(robot, gear, q, v) for name, gear in of_tree.items()}


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
    """A frame of a body: its pose seen from the ground, its twist, and the rate of the twist.

    `place`: its pose seen from the frame that the body's joint moves.
    """

    pose: Pose
    twist: Twist
    change: Twist
    place: Pose


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
    def of(cls, S: Array, v: Array, parent: Pose, child: Pose) -> "Sizes":
        """The sizes for the twists S (k, 6) of the speeds v (k,) that move one end."""
        far = _size(child.p)
        turns = jnp.sum(jnp.abs(S[:, 3:]), axis=1)
        ways = jnp.sum(jnp.abs(S[:, :3]), axis=1) + far * turns
        speed, spin = jnp.sum(ways * jnp.abs(v)), jnp.sum(turns * jnp.abs(v))
        place = _spread(_size(parent.p) + far, jnp.ones((), v.dtype))
        lever = _spread(jnp.sum(ways), jnp.sum(turns))
        return cls(lever, _spread(speed, spin), _spread(2 * spin * speed, spin * spin), place)

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


@eqx.filter_jit
def own_rows(robot: AbstractRobot, q: Array, v: Array, afar: bool = False) -> dict[str, OwnRows]:
    """The rows of all loops, and of gears of the tree, by the name of the constraint; `afar`: see `own_errors`.

    They are one call in the traced program, as are the errors: a run needs them several times, and traces them once.
    """
    n = robot.layout.n
    found = {
        name: OwnRows(
            jnp.zeros((1, n), q.dtype).at[0, gear.speeds].set(gear.slopes),
            gear.b(robot.stabilization),
            gear.position,
            gear.velocity,
        )
        for name, gear in _gears(robot, q, v).items()
    }
    if not robot.layout.loops:
        return found
    stack = _linkage.stacked(robot, q, v)
    nodes = _Nodes.of(stack, v, changing=True)
    S = jax.vmap(lambda pose, s: jnp.concatenate(pose_of(pose).twist_outwards(twist_of(s))))(
        nodes.poses[stack.nodes_of_speeds], stack.all_S
    )
    for loops in _alike(robot):
        ends = loops.ends(robot, nodes)
        own = loops.speeds
        rows = jax.vmap(ft.partial(_rows, robot, loops, afar))(
            loops.arrays, *ends, S[own], v[own], jnp.asarray(loops.signs).astype(q.dtype)
        )
        # The column of each speed among those that move a loop, or one of zeros.
        column = np.full((len(own), n), own.shape[1])
        np.put_along_axis(column, own, np.arange(own.shape[1])[None], axis=1)
        for row, names in zip(rows, loops.names_of_rows, strict=True):
            A = jnp.take_along_axis(jnp.pad(row.A, ((0, 0), (0, 0), (0, 1))), column[:, None], axis=2)
            found |= {name: OwnRows(*(x[k] for x in row._replace(A=A))) for k, name in enumerate(names)}
    return found


@eqx.filter_jit
def own_errors(robot: AbstractRobot, q: Array, v: Array, afar: bool) -> dict[str, tuple[Array, Array]]:
    """The errors of these constraints in position and in velocity.

    `afar`: as of `Gap`; and an error that nothing can close counts as zero if it is as small as in `own_rows`.
    """
    if afar:
        return {name: (row.position, row.velocity) for name, row in own_rows(robot, q, v, True).items()}
    gears = _gears(robot, q, v).items()
    found = {name: (gear.position, gear.velocity) for name, gear in gears}
    if not robot.layout.loops:
        return found
    nodes = _Nodes.of(_linkage.stacked(robot, q), v)
    for loops in _alike(robot):

        def errors(arrays: PyTree, parent: End, child: End, loops: _Alike = loops) -> list[tuple[Array, Array]]:
            joint, some = loops.joint(arrays), []
            P, _, x = _relative(parent, child)
            rate = _rate_of(P, x)
            if not isinstance(joint, KnifeEdge):
                some.append(jax.jvp(lambda P: joint.gap(P, robot.planar), (P,), (rate,)))
            if isinstance(joint, AbstractRollingLink):
                some.append((jnp.zeros(0, q.dtype), joint.slip(P, rate, robot.planar)))
            return some

        several = jax.vmap(errors)(loops.arrays, *loops.ends(robot, nodes))
        for (position, velocity), names in zip(several, loops.names_of_rows, strict=True):
            found |= {name: (position[k], velocity[k]) for k, name in enumerate(names)}
    return found


class _Nodes(NamedTuple):
    """The frames that the joints of a tree move, and the ground as the last of them: see `_tree_scan`.

    Attributes:
        back: The bodies, seen from these frames.
        poses: Their poses (N + 1, 12).
        twists, rates: Their twists, and the rates of these, (N + 1, 6) each; zero if not asked for.
    """

    back: Pose
    poses: Array
    twists: Array
    rates: Array

    @classmethod
    def of(cls, stack: TreeArrays, v: Array, changing: bool = False, a: Array | None = None) -> "_Nodes":
        """The motions for speeds v and, if `changing`, their rates `a` (None: zero)."""
        twists = _tree_scan.twists(stack, v)
        rates = _tree_scan.rates(stack, v, twists, a) if changing else jnp.zeros_like(twists)
        return cls(stack.back, _tree_scan.poses_in_world(stack), twists, rates)

    def ends(self, robot: AbstractRobot, names: Sequence[str]) -> End:
        """The motions of frames "body" or "body.frame", in one batch."""
        places = _places(robot, names)
        back, dtype = Pose(*(x[places] for x in self.back)), self.poses.dtype
        seen = _linkage.product_of(back, _linkage.poses_of([_linkage.fixed(robot, x) for x in names], dtype))

        def end(frame: Pose, pose: Array, twist: Array, rate: Array) -> End:
            return End(pose_of(pose) @ frame, frame.inwards(twist_of(twist)), frame.inwards(twist_of(rate)), frame)

        return jax.vmap(end)(seen, self.poses[places], self.twists[places], self.rates[places])


class _Alike(NamedTuple):
    """Loops that are computed side by side: their joints differ in numbers and in their ends only.

    Attributes:
        names: Their names.
        joints: Their joints.
        speeds: The speeds that move one end of each and not the other (L, k).
        signs: Whether these move the child (1) or the parent (-1), (L, k).
    """

    names: list[str]
    joints: list[AbstractJoint]
    speeds: np.ndarray
    signs: np.ndarray

    @property
    def arrays(self) -> PyTree:
        """The numbers of all joints, in one batch, in a tree of the form of the first of them."""
        form = jax.tree_util.tree_structure(eqx.filter(self.joints[0], eqx.is_array))
        leaves = (jax.tree_util.tree_leaves(eqx.filter(joint, eqx.is_array)) for joint in self.joints)
        return jax.tree_util.tree_unflatten(form, [jnp.stack(x) for x in zip(*leaves, strict=True)])

    def joint(self, arrays: PyTree) -> AbstractJoint:
        """A joint with these numbers."""
        return eqx.combine(arrays, self.joints[0])

    def ends(self, robot: AbstractRobot, nodes: _Nodes) -> tuple[End, End]:
        """The parent frames and the child frames."""
        return nodes.ends(robot, self.parents), nodes.ends(robot, self.children)

    @property
    def parents(self) -> list[str]:
        return [joint.parent for joint in self.joints]

    @property
    def children(self) -> list[str]:
        return [joint.child for joint in self.joints]

    @property
    def names_of_rows(self) -> list[list[str]]:
        """The names of the constraints of all loops, for each constraint that a joint is."""
        joint, found = self.joints[0], []
        if not isinstance(joint, KnifeEdge):
            found.append(self.names)
        if isinstance(joint, AbstractRollingLink):
            found.append([slip_of(name) for name in self.names])
        return found


def _places(robot: AbstractRobot, ends: Sequence[str]) -> np.ndarray:
    """The nodes of frames "body" or "body.frame"; -1 for the ground."""
    return np.array([robot.layout.node_of(body_of(end)) for end in ends])


def _alike(robot: AbstractRobot) -> list[_Alike]:
    """The joints that are constraints, in groups of those that are alike."""
    groups: dict[Hashable, list[str]] = {}
    for name in robot.layout.loops:
        joint = robot.joints[name]
        if not isinstance(joint, Free):
            key = _kind(joint), len(_moving(robot, joint)[0])
            groups.setdefault(key, []).append(name)
    found = []
    for names in groups.values():
        joints = [robot.joints[name] for name in names]
        speeds, signs = zip(*(_moving(robot, joint) for joint in joints), strict=True)
        found.append(_Alike(names, joints, np.array(speeds), np.array(signs)))
    return found


def _kind(joint: AbstractJoint) -> Hashable:
    """The kind of a joint, which its ends and its numbers do not change."""
    own = {f.name: getattr(joint, f.name) for f in dataclasses.fields(joint) if f.name not in ("parent", "child")}
    still = tuple(sorted(f.name for f in dataclasses.fields(joint) if f.metadata.get("static", False)))
    arrays, rest = eqx.partition({k: x for k, x in own.items() if k not in still}, eqx.is_array)
    shapes = tuple((x.shape, jnp.dtype(x.dtype)) for x in jax.tree_util.tree_leaves(arrays))
    leaves, form = jax.tree_util.tree_flatten(rest)
    return type(joint), shapes, tuple(leaves), form, tuple(own[k] for k in still if k in own)


def _moving(robot: AbstractRobot, joint: AbstractJoint) -> tuple[np.ndarray, np.ndarray]:
    """The speeds that move a joint's child (1), or its parent (-1), and not both; and which."""
    layout = robot.layout
    moved = np.zeros(layout.n, int)
    for end, sign in ((joint.child, 1), (joint.parent, -1)):
        for i in layout.path(layout.node_of(body_of(end))):
            moved[slice(*layout.nodes[i].v)] += sign
    (speeds,) = np.nonzero(moved)
    return speeds, moved[speeds]


class _Relative(NamedTuple):
    """The pose P of the child seen from the parent, its first two rates, and what parts of rows follow from them."""

    pose: Pose
    rate: Pose
    second: Pose

    @classmethod
    def of(cls, parent: End, child: End) -> "_Relative":
        P, seen, x = _relative(parent, child)
        seen_change, less = P.inwards(parent.change), x.cross(seen)
        change = Twist(*(a - b + c for a, b, c in zip(child.change, seen_change, less, strict=True)))
        K, turning = skew(x.angular), skew(change.angular)
        second = Pose(P.R @ (K @ K + turning), P.R @ (cross(x.angular, x.linear) + change.linear))
        return cls(P, _rate_of(P, x), second)

    def after(self, s: Array) -> tuple[Pose, Pose]:
        """The pose and its rate after a short time s."""
        moved = (a + s * b + s**2 / 2 * c for a, b, c in zip(*self, strict=True))
        return Pose(*moved), Pose(*(b + s * c for b, c in zip(self.rate, self.second, strict=True)))

    def gap(self, joint: AbstractJoint, planar: bool) -> tuple[Array, Array, Array]:
        """The gap of a joint and its first two rates."""
        zero, one = jnp.zeros((), self.pose.p.dtype), jnp.ones((), self.pose.p.dtype)

        def along(s: Array) -> Array:
            return joint.gap(self.after(s)[0], planar)

        (position, velocity), (_, second) = jax.jvp(lambda s: jax.jvp(along, (s,), (one,)), (zero,), (one,))
        return position, velocity, second

    def slip(self, joint: AbstractRollingLink, planar: bool) -> tuple[Array, Array]:
        """The slip of a joint and its rate."""
        zero, one = jnp.zeros((), self.pose.p.dtype), jnp.ones((), self.pose.p.dtype)
        return jax.jvp(lambda s: joint.slip(*self.after(s), planar), (zero,), (one,))

    def rate_by(self, y: Array) -> Pose:
        """The rate of P if the child moved with the twist y (6,) against the parent, seen from the parent frame."""
        return Pose(skew(y[3:]) @ self.pose.R, y[:3])

    def gap_by(self, y: Array, joint: AbstractJoint, planar: bool) -> Array:
        """The gap of a joint after a small displacement y (6,)."""
        return joint.gap(Pose(*(a + b for a, b in zip(self.pose, self.rate_by(y), strict=True))), planar)

    def slip_by(self, y: Array, joint: AbstractRollingLink, planar: bool) -> Array:
        """The slip of a joint if the child moved with the twist y (6,)."""
        return joint.slip(self.pose, self.rate_by(y), planar)


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
    loops: _Alike,
    afar: bool,
    arrays: PyTree,
    parent: End,
    child: End,
    S: Array,
    v: Array,
    signs: Array,
) -> list[OwnRows]:
    """The rows of one joint, for each constraint that it is, with a column for each of the speeds that move it.

    S (k, 6): twists of these speeds, seen from the ground and about its origin.
    """
    joint, planar, gains, found = loops.joint(arrays), robot.planar, robot.stabilization, list[OwnRows]()
    relative, still = _Relative.of(parent, child), jnp.zeros(6, v.dtype)
    # x per unit of each speed, seen from the parent frame, where a gap of points depends on its linear part alone.
    at = Pose(parent.pose.R, child.pose.p)
    columns = jax.vmap(lambda sign, s: sign * jnp.concatenate(at.inwards(twist_of(s))), out_axes=1)(signs, S)
    # Rows of freely moving bodies vanish in no direction, and planar bodies have no tilt.
    can_vanish = not planar and robot.layout == robot.tree

    def cleaned(D: Array, b: Array, position: Array, velocity: Array) -> OwnRows:
        rows = OwnRows(D @ columns, b, position, velocity)
        if not can_vanish:
            return rows
        return Sizes.of(S, v, parent.pose, child.pose).without_rounding(D, rows, gains)

    if not isinstance(joint, KnifeEdge):
        position, velocity, second = relative.gap(joint, planar)
        position = joint.gap(relative.pose, planar, angles=True) if afar else position
        D = jax.jacfwd(relative.gap_by)(still, joint, planar)
        found.append(cleaned(D, stabilized(gains, -second, position, velocity), position, velocity))
    if isinstance(joint, AbstractRollingLink):
        velocity, second = relative.slip(joint, planar)
        E = jax.jacfwd(relative.slip_by)(still, joint, planar)
        found.append(cleaned(E, stabilized(gains, -second, None, velocity), jnp.zeros(0, v.dtype), velocity))
    return found


def own_imbalance(
    robot: AbstractRobot, stack: TreeArrays, q: Array, v: Array, a: Array, multipliers: Mapping[str, Array]
) -> tuple[dict[str, Array], Array, Array]:
    """The errors b - A a by the name of the constraint; the forces A^T l (n,) of gears; the wrenches of loops (N, 6).

    These act on the nodes, and are seen from there, as their twists are: no row of A is formed.
    """
    found, count, force = dict[str, Array](), len(stack.parents), jnp.zeros_like(a)
    for name, gear in _gears(robot, q, v).items():
        found[name] = gear.b(robot.stabilization) - gear.slopes @ a[gear.speeds]
        force = force.at[gear.speeds].add(gear.slopes * multipliers[name])
    held = jnp.zeros((count + 1, 6), v.dtype)
    nodes = _Nodes.of(stack, v, True, a)
    for loops in _alike(robot):
        ends, one = loops.ends(robot, nodes), ft.partial(_imbalance, robot, loops)
        given = [jnp.stack([multipliers[name] for name in names]) for names in loops.names_of_rows]
        errors, on_parents, on_children = jax.vmap(one)(loops.arrays, *ends, given)
        for error, names in zip(errors, loops.names_of_rows, strict=True):
            found |= {name: error[k] for k, name in enumerate(names)}
        for names, wrenches in ((loops.parents, on_parents), (loops.children, on_children)):
            held = held.at[_places(robot, names)].add(wrenches)  # the ground is last
    return found, force, held[:count]


def _imbalance(
    robot: AbstractRobot, loops: _Alike, arrays: PyTree, parent: End, child: End, multipliers: Sequence[Array]
) -> tuple[list[Array], Array, Array]:
    """The errors b - A a of a joint, for each constraint that it is; the wrenches (6,) on its parent and its child."""
    joint, planar, gains, errors = loops.joint(arrays), robot.planar, robot.stabilization, list[Array]()
    relative, still = _Relative.of(parent, child), jnp.zeros(6, parent.pose.p.dtype)
    parts = []  # rows as functions of the twist of the child against the parent
    if not isinstance(joint, KnifeEdge):
        position, velocity, second = relative.gap(joint, planar)
        errors.append(stabilized(gains, -second, position, velocity))
        parts.append(ft.partial(relative.gap_by, joint=joint, planar=planar))
    if isinstance(joint, AbstractRollingLink):
        velocity, second = relative.slip(joint, planar)
        errors.append(stabilized(gains, -second, None, velocity))
        parts.append(ft.partial(relative.slip_by, joint=joint, planar=planar))
    (y,) = jax.vjp(lambda y: [part(y) for part in parts], still)[1](list(multipliers))
    # About the child's origin, seen from the parent frame.
    push, P = Wrench(y[:3], y[3:]), relative.pose
    on_parent = -Wrench(push.force, push.torque + cross(P.p, push.force))
    on_child = Wrench(P.R.T @ push.force, P.R.T @ push.torque)
    on_parent, on_child = parent.place.outwards(on_parent), child.place.outwards(on_child)
    return errors, jnp.concatenate(on_parent), jnp.concatenate(on_child)
