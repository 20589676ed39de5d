"""Kinematics and dynamics of a tree, from node to node: in a number of operations linear in the number of joints, the
mass matrix in that times their depth.

Everything of a node is seen from the node, which moves with its body: i: node; λ: its parent; X: pose of i seen from λ;
S: what its speeds do; V: twist; f: wrench that λ exerts on i.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, tables 5.1 and 6.2, and section 7.3, with rotation and
position apart.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ._frame import Pose, Twist, Wrench
from ._inertia import SpatialInertia
from ._layout import Layout


@dataclasses.dataclass(frozen=True)
class Move:
    """A node: the frame that its joint leaves, how the one moves that it moves, and the node seen from that.

    `twists`: what its speeds do, and `change`: how that changes as it moves (None if it does not), seen from the frame
    that it moves; None for a frame that is the node's own.
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
        """What its speeds do, seen from the node."""
        return list(self.twists) if self.after is None else [self.after.twist_outwards(s) for s in self.twists]

    @functools.cached_property
    def drift(self) -> Twist | None:
        """How that changes, seen from there."""
        if self.after is None or self.change is None:
            return self.change
        return self.after.twist_outwards(self.change)


class Posture(NamedTuple):
    """A tree at one state: its nodes, how each is placed and moves, and its inertia, None where it has none."""

    layout: Layout
    moves: Sequence[Move]
    inertias: Sequence[SpatialInertia | None]

    @property
    def at_joints(self) -> "Posture":
        """The same with the frame that its joint moves in place of each body's.

        There a joint about z turns x and y only, and what leads from joint to joint is constant: for generalised
        forces, which do not tell from where they are seen, much less is to be computed.
        """
        backs = [None if move.after is None else move.after.inverse for move in self.moves]
        moves, inertias = [], []
        for node, move, back, inertia in zip(self.layout.nodes, self.moves, backs, self.inertias, strict=True):
            ahead = None if node.parent < 0 else backs[node.parent]
            before = move.before if ahead is None else ahead if move.before is None else ahead @ move.before
            moves.append(Move(before, move.own, None, move.twists, move.change))
            inertias.append(inertia if inertia is None or back is None else inertia.outwards(back))
        return Posture(self.layout, moves, inertias)


def poses_in_world(tree: Posture) -> list[Pose]:
    """Of every node."""
    found: list[Pose] = []
    for node, move in zip(tree.layout.nodes, tree.moves, strict=True):
        found.append(move.X if node.parent < 0 else found[node.parent] @ move.X)
    return found


def moved_by(S: Sequence[Twist], v: Array) -> Twist:
    """What the speeds v of a node do."""
    zero = jnp.zeros(3, v.dtype)
    linear = sum((s.linear * v[k] for k, s in enumerate(S)), zero)
    return Twist(linear, sum((s.angular * v[k] for k, s in enumerate(S)), zero))


def twists(tree: Posture, v: Array) -> list[Twist]:
    """V of every node."""
    found: list[Twist] = []
    for node, move in zip(tree.layout.nodes, tree.moves, strict=True):
        own = moved_by(move.S, v[slice(*node.v)])
        found.append(own if node.parent < 0 else move.X.inwards(found[node.parent]) + own)
    return found


def accelerations(
    tree: Posture, V: Sequence[Twist], v: Array, base: Twist | None = None, rates: Array | None = None
) -> list[Twist]:
    """How V of every node changes, seen from it, for these speeds and their rates (none: zero).

    `base`: acceleration of the ground, if it has one.
    """
    found: list[Twist] = []
    for node, move, twist in zip(tree.layout.nodes, tree.moves, V, strict=True):
        change = twist.cross(moved_by(move.S, v[slice(*node.v)]))
        change = change if move.drift is None else change + move.drift
        if rates is not None:
            change = change + moved_by(move.S, rates[slice(*node.v)])
        before = base if node.parent < 0 else found[node.parent]
        found.append(change if before is None else move.X.inwards(before) + change)
    return found


def wrenches(
    tree: Posture, v: Array, base: Twist, external: Mapping[int, Wrench], rates: Array | None = None
) -> list[Wrench]:
    """f of every node (recursive Newton-Euler): what its joint takes, for these speeds and their rates (none: zero).

    `base`: acceleration of the ground, which for gravity is upwards; `external`: further wrenches on nodes.
    """
    V, none = twists(tree, v), Wrench(jnp.zeros(3, v.dtype), jnp.zeros(3, v.dtype))
    pairs = zip(tree.inertias, V, accelerations(tree, V, v, base, rates), strict=True)
    f = [None if inertia is None else inertia.times(a) + inertia.times(V).carried(V) for inertia, V, a in pairs]
    for i, wrench in external.items():
        f[i] = _sum(f[i], -wrench)
    return _inwards(tree.layout, f, lambda i, total: tree.moves[i].X.outwards(total), none)


def bias(tree: Posture, v: Array, base: Twist, external: Mapping[int, Wrench]) -> Array:
    """What forces (n,) it takes for no speed to change, less those of the wrenches on nodes, each seen from there."""
    joints, seen = tree.at_joints, [move.after for move in tree.moves]
    there = {i: w if (back := seen[i]) is None else back.inverse.outwards(w) for i, w in external.items()}
    f = wrenches(joints, v, base, there)
    values = [f[i].along(s) for i, move in enumerate(joints.moves) for s in move.S]
    return jnp.stack(values) if values else jnp.zeros(0, v.dtype)


def mass_matrix(tree: Posture, dtype: Any) -> Array:
    """M (n, n), by composite rigid bodies."""
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


def _inwards(layout: Layout, own: list[Any], outwards: Callable[[int, Any], Any], none: Any) -> list[Any]:
    """Of each node its own and that of all that hangs on it."""
    total = list(own)
    for i in range(len(layout.nodes) - 1, -1, -1):
        total[i] = none if total[i] is None else total[i]
        parent = layout.nodes[i].parent
        if parent >= 0:
            total[parent] = _sum(total[parent], outwards(i, total[i]))
    return total


def _sum(first: Any, second: Any) -> Any:
    return second if first is None else first + second
