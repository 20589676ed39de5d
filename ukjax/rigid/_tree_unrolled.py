"""Kinematics and dynamics of a tree, unrolled from node to node.

The number of operations is linear in the number of joints; that of the mass matrix is this times their depth.

All quantities of a node are seen from the node, which moves with its body: i: node; λ: its parent; X: pose of i seen
from λ; S: twist per unit of each of its speeds; V: twist; f: wrench that λ exerts on i.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, tables 5.1 and 6.2, and section 7.3, with rotation and
position kept separate.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from ._frame import Pose, SpatialInertia, Twist, Wrench
from ._layout import Layout


T = TypeVar("T", Wrench, SpatialInertia)


@dataclasses.dataclass(frozen=True)
class Move:
    """The joint of a node: the pose of its parent frame, its motion `own`, and the pose of its child frame.

    `before`: parent frame seen from the parent node; `after`: child frame seen from the node; None for the node itself.
    `twists`: S, and `change`: S' v (None where S is constant), both seen from the child frame.
    """

    before: Pose | None
    own: Pose
    after: Pose | None
    twists: Sequence[Twist]
    change: Twist | None

    @functools.cached_property
    def X(self) -> Pose:
        pose = self.own if self.before is None else self.before @ self.own
        return pose if self.after is None else pose @ self.after.inverse

    @functools.cached_property
    def S(self) -> list[Twist]:
        """The twists S per unit of each speed, seen from the node."""
        return list(self.twists) if self.after is None else [self.after.twist_outwards(s) for s in self.twists]

    @functools.cached_property
    def drift(self) -> Twist | None:
        """The rate S' v of the twists, seen from the node; None where S is constant."""
        if self.after is None or self.change is None:
            return self.change
        return self.after.twist_outwards(self.change)


class TreeState(NamedTuple):
    """A tree at one state: its layout, the `Move` of each node, and the inertia of each, None for a massless body."""

    layout: Layout
    moves: Sequence[Move]
    inertias: Sequence[SpatialInertia | None]

    @property
    def at_joints(self) -> "TreeState":
        """The tree with the frame that a joint moves in place of the frame of each body.

        In these frames a joint about z turns x and y only, and the poses between joints are constant. Generalised
        forces are the same in any frames, and take fewer operations in these.
        """
        backs = [None if move.after is None else move.after.inverse for move in self.moves]
        moves, inertias = [], []
        for node, move, back, inertia in zip(self.layout.nodes, self.moves, backs, self.inertias, strict=True):
            ahead = None if node.parent < 0 else backs[node.parent]
            before = move.before if ahead is None else ahead if move.before is None else ahead @ move.before
            moves.append(Move(before, move.own, None, move.twists, move.change))
            inertias.append(inertia if inertia is None or back is None else inertia.outwards(back))
        return TreeState(self.layout, moves, inertias)


def poses_in_world(tree: TreeState) -> list[Pose]:
    """The pose of every node, seen from the ground."""
    found: list[Pose] = []
    for node, move in zip(tree.layout.nodes, tree.moves, strict=True):
        found.append(move.X if node.parent < 0 else found[node.parent] @ move.X)
    return found


def moved_by(S: Sequence[Twist], v: Array) -> Twist:
    """The twist S v of a node from its speeds v."""
    zero = jnp.zeros(3, v.dtype)
    linear = sum((s.linear * v[k] for k, s in enumerate(S)), zero)
    return Twist(linear, sum((s.angular * v[k] for k, s in enumerate(S)), zero))


def twists(tree: TreeState, v: Array) -> list[Twist]:
    """The twist V of every node, seen from the node."""
    found: list[Twist] = []
    for node, move in zip(tree.layout.nodes, tree.moves, strict=True):
        own = moved_by(move.S, v[slice(*node.v)])
        found.append(own if node.parent < 0 else move.X.inwards(found[node.parent]) + own)
    return found


def accelerations(
    tree: TreeState, V: Sequence[Twist], v: Array, base: Twist, rates: Array | None = None
) -> list[Twist]:
    """The rate of V of every node, seen from the node, for speeds and their rates (None: zero).

    `base`: acceleration of the ground.
    """
    found: list[Twist] = []
    for node, move, twist in zip(tree.layout.nodes, tree.moves, V, strict=True):
        change = twist.cross(moved_by(move.S, v[slice(*node.v)]))
        change = change if move.drift is None else change + move.drift
        if rates is not None:
            change = change + moved_by(move.S, rates[slice(*node.v)])
        before = base if node.parent < 0 else found[node.parent]
        found.append(move.X.inwards(before) + change)
    return found


def wrenches(
    tree: TreeState, v: Array, base: Twist, external: Mapping[int, Wrench], rates: Array | None = None
) -> list[Wrench]:
    """The wrench f of every node, by recursive Newton-Euler, for speeds and their rates (None: zero).

    `base`: acceleration of the ground, which for gravity is upwards; `external`: further wrenches on nodes.
    """
    V, none = twists(tree, v), Wrench(jnp.zeros(3, v.dtype), jnp.zeros(3, v.dtype))
    pairs = zip(tree.inertias, V, accelerations(tree, V, v, base, rates), strict=True)
    f = [None if inertia is None else inertia.times(a) + inertia.times(V).carried(V) for inertia, V, a in pairs]
    for i, wrench in external.items():
        f[i] = _sum(f[i], -wrench)
    return _inwards(tree.layout, f, lambda i, total: tree.moves[i].X.outwards(total), none)


def bias(tree: TreeState, v: Array, base: Twist, external: Mapping[int, Wrench]) -> Array:
    """The generalised forces (n,) that keep all speeds constant, less those of `external`, wrenches seen from nodes."""
    joints, seen = tree.at_joints, [move.after for move in tree.moves]
    there = {i: w if (back := seen[i]) is None else back.inverse.outwards(w) for i, w in external.items()}
    f = wrenches(joints, v, base, there)
    values = [f[i].along(s) for i, move in enumerate(joints.moves) for s in move.S]
    return jnp.stack(values) if values else jnp.zeros(0, v.dtype)


def mass_matrix(tree: TreeState, dtype: DTypeLike) -> Array:
    """The mass matrix M (n, n), by composite rigid bodies, without armature."""
    (layout, moves, inertias), zero = tree.at_joints, jnp.zeros((), dtype)
    none = SpatialInertia(zero, jnp.zeros(3, dtype), jnp.zeros((3, 3), dtype))
    whole = _inwards(layout, list(inertias), lambda i, total: total.outwards(moves[i].X), none)
    n = layout.n
    entries = [[zero] * n for _ in range(n)]
    for i, node in enumerate(layout.nodes):
        for k, s in enumerate(moves[i].S):
            column, momentum, at = node.v[0] + k, whole[i].times(s), i
            for j in layout.path(i):
                momentum = momentum if j == i else moves[at].X.outwards(momentum)
                at = j
                for l, other in enumerate(moves[j].S):
                    row = layout.nodes[j].v[0] + l
                    if row <= column:
                        entries[row][column] = entries[column][row] = momentum.along(other)
    return jnp.stack([entry for row in entries for entry in row]).reshape(n, n) if n else jnp.zeros((0, 0), dtype)


def _inwards(layout: Layout, own: Sequence[T | None], outwards: Callable[[int, T], T], none: T) -> list[T]:
    """The sum, for each node, of its own value and the values of all nodes that hang on it."""
    total, found = list(own), [none] * len(own)
    for i in range(len(layout.nodes) - 1, -1, -1):
        here, parent = total[i], layout.nodes[i].parent
        found[i] = none if here is None else here
        if parent >= 0:
            total[parent] = _sum(total[parent], outwards(i, found[i]))
    return found


def _sum(first: T | None, second: T) -> T:
    return second if first is None else first + second
