"""A tree as arrays with one entry per node, for recursions that are loops over the nodes.

N: nodes; k: most speeds of a node; every node is seen from the frame that its joint moves.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from . import _linkage
from ._frame import Axis, Pose, SpatialInertia, Twist, about_z, matrix
from ._linkage import AbstractRobot
from ._motion import AbstractMotion, Turn, Weld


class TreeArrays(NamedTuple):
    """A tree at one state.

    Attributes:
        parents: Numbers of the nodes' parents (N,); N for the ground.
        before: The frame that a node's joint leaves, seen from the frame that the parent's joint moves (N, ...);
            independent of the state.
        own: Pose of each joint's motion: cosine and sine (N, 2) if all are hinges, else rotation and origin (N, 12).
        S: Twist per unit of each speed (N, k, 6), zero for missing speeds; None if all are hinges, about z.
        drift: Rate S' v of the twists (N, 6), or None.
        after: The frame that the joint moves, seen from the body (N, ...); independent of the state.
        inertias: Spatial inertias of the bodies (N, ...); independent of the state.
        speeds: Index in v of each speed of each node (N, k).
        real: Whether a node has that speed (N, k).
    """

    parents: np.ndarray
    before: Pose
    own: Array
    S: Array | None
    drift: Array | None
    after: Pose
    inertias: SpatialInertia
    speeds: np.ndarray
    real: np.ndarray

    def pose(self, own: Array) -> Pose:
        """The pose of a joint's motion, from its entry in `own`."""
        if self.S is not None:
            return Pose(own[:9].reshape(3, 3), own[9:])
        (c, s), zero, one = own, jnp.zeros((), own.dtype), jnp.ones((), own.dtype)
        return Pose(jnp.stack([c, -s, zero, s, c, zero, zero, zero, one]).reshape(3, 3), jnp.zeros(3, own.dtype))

    def twist(self, moved: Array) -> Twist:
        """The twist of a node against its parent, from its entry in `of_nodes`."""
        if self.S is not None:
            return Twist(moved[:3], moved[3:])
        zero = jnp.zeros(3, moved.dtype)
        return Twist(zero, jnp.stack([*zero[:2], moved]))

    def of_nodes(self, v: Array) -> Array:
        """The twists of all nodes against their parents (N, 6); of hinges only their rates (N,)."""
        return v if self.S is None else jnp.sum(self.S * self.spread(v)[:, :, None], axis=1)

    def spread(self, v: Array) -> Array:
        """The speeds of each node (N, k), zero for missing speeds."""
        return jnp.where(self.real, v[self.speeds], 0)

    def gathered(self, values: Array) -> Array:
        """Values of all speeds (n, ...), from values of the speeds of each node (N, k, ...)."""
        return values[self.real]

    def of_wrenches(self, f: Array) -> Array:
        """The generalised forces (n,) of wrenches on the nodes (N, 6)."""
        return f[:, 5] if self.S is None else self.gathered(jnp.sum(self.S * f[:, None], axis=2))

    @property
    def all_S(self) -> Array:
        """The twist per unit of each speed (n, 6)."""
        if self.S is not None:
            return self.gathered(self.S)
        return jnp.broadcast_to(jnp.eye(6, dtype=self.own.dtype)[5], (len(self.parents), 6))


def stacked(robot: AbstractRobot, q: Array, v: Array | None = None) -> TreeArrays:
    """The tree at q as a `TreeArrays`; its `drift` is given only with speeds v."""
    nodes, dtype = robot.layout.nodes, q.dtype
    joints = [_linkage.moving(robot, node.joint) for node in nodes]
    motions = [joint.motion or Weld() for joint in joints]
    axes = [getattr(motion, "axis", None) for motion in motions]
    turned = _turned(axes, dtype)
    ends = lambda names: _product(_frames([_linkage.fixed(robot, end) for end in names], dtype), turned)
    leave, after = ends([joint.parent for joint in joints]), ends([joint.child for joint in joints])
    parents = np.array([node.parent if node.parent >= 0 else len(nodes) for node in nodes])
    back = jax.vmap(lambda pose: pose.inverse)(after)
    still = Pose(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype))
    whole = Pose(*(jnp.concatenate([x, y[None]]) for x, y in zip(back, still, strict=True)))
    before = _product(Pose(whole.R[parents], whole.p[parents]), leave)
    about = [m if a is None else eqx.tree_at(_axis_of, m, Axis("z")) for m, a in zip(motions, axes, strict=True)]
    count = max((len(motion.speeds) for motion in motions), default=0)
    speeds, real = np.zeros((len(nodes), count), int), np.zeros((len(nodes), count), bool)
    for i, node in enumerate(nodes):
        n = node.v[1] - node.v[0]
        speeds[i, :n], real[i, :n] = np.arange(*node.v), True
    moved = _moved(robot, about, q, v, count)
    return TreeArrays(parents, before, *moved, after, _inertias(robot, back, dtype), speeds, real)


def _axis_of(motion: Any) -> Axis:
    return motion.axis


def _turned(axes: Sequence[Axis | None], dtype: Any) -> Pose:
    """Frames whose z is along the axis of each motion; not turned for a motion without an axis."""
    z = Axis("z").of(dtype)
    direction = jnp.stack([z if axis is None else axis.of(dtype) for axis in axes])
    return Pose(jax.vmap(lambda d: about_z(Axis(d), dtype))(direction), jnp.zeros_like(direction))


def _frames(frames: Sequence[Any], dtype: Any) -> Pose:
    """Poses of `Frame`s, of which None is the body's own."""
    zero, none = jnp.zeros(3, dtype), jnp.array([1.0, 0.0, 0.0, 0.0], dtype)
    turns = [none if f is None or f.quaternion is None else f.quaternion.astype(dtype) for f in frames]
    places = [zero if f is None else f.position.astype(dtype) for f in frames]
    return Pose(jax.vmap(matrix)(jnp.stack(turns)), jnp.stack(places))


def _product(outer: Pose, inner: Pose) -> Pose:
    return jax.vmap(lambda a, b: a @ b)(outer, inner)


def _inertias(robot: AbstractRobot, back: Pose, dtype: Any) -> SpatialInertia:
    none = SpatialInertia(jnp.zeros((), dtype), jnp.zeros(3, dtype), jnp.zeros((3, 3), dtype))
    found = [robot.bodies[node.body].inertia for node in robot.layout.nodes]
    one = jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *(none if x is None else x.spatial for x in found))
    # The recursions read one half of symmetric matrices; the mean of both halves shares the gradient between them.
    one = one._replace(J=(one.J + jnp.swapaxes(one.J, 1, 2)) / 2)
    return jax.vmap(lambda inertia, pose: inertia.outwards(pose))(one, back)


def _moved(
    robot: AbstractRobot, motions: Sequence[AbstractMotion], q: Array, v: Array | None, count: int
) -> tuple[Array, Array | None, Array | None]:
    """`own`, `S` and `drift` of all nodes, in one batch for each kind of motion."""
    nodes, dtype = robot.layout.nodes, q.dtype
    if all(isinstance(motion, Turn) for motion in motions):
        angles = q[np.array([node.q[0] for node in nodes])]
        return jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1), None, None
    kinds: dict[Any, list[int]] = {}
    for i, motion in enumerate(motions):
        kinds.setdefault(jax.tree_util.tree_structure(motion), []).append(i)
    parts, order = [], []
    for members in kinds.values():
        one = jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *(motions[i] for i in members))
        places = np.array([np.arange(*nodes[i].q) for i in members]).reshape(len(members), -1)
        rates = np.array([np.arange(*nodes[i].v) for i in members]).reshape(len(members), -1)
        own_v = jnp.zeros(rates.shape, dtype) if v is None else v[rates]
        parts.append(jax.vmap(lambda m, q, v: _at(m, q, v, count))(one, q[places], own_v))
        order += members
    back = np.argsort(order)
    own, S, drift = (jnp.concatenate(x)[back] for x in zip(*parts, strict=True))
    return own, S, None if v is None else drift


def _at(motion: AbstractMotion, q: Array, v: Array, count: int) -> tuple[Array, Array, Array]:
    pose, drift = motion.pose(q), motion.drift(q, v)
    zero = jnp.zeros(6, q.dtype)
    S = [jnp.concatenate(s) for s in motion.twists(q)]
    S = jnp.stack([*S, *[zero] * (count - len(S))]) if count else jnp.zeros((0, 6), q.dtype)
    return jnp.concatenate([pose.R.ravel(), pose.p]), S, zero if drift is None else jnp.concatenate(drift)
