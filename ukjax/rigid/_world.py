"""Dynamics of large trees, all nodes at a time, seen from the ground.

`_tree` goes from node to node, in few operations, each of which has to be compiled. Here sums over what lies on the
way to the ground, or beyond a node, are products with matrices of zeros and ones: more arithmetic, in a program whose
length hardly grows with the tree. Only places and directions are found node after node.

Products of small matrices are written entry by entry: XLA's compiler for the CPU fuses these, and takes those of
matrices one after the other, three times as long for all of it.

N: nodes; n: speeds; A (N, n): whether a speed moves a node; S: what each speed does, seen from the ground and about its
origin; V: twists of the nodes; f: wrenches. Twists and wrenches (n, 3) each.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, 4.1 and 6.2, in the coordinates of the ground.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._frame import Pose, Twist, Wrench
from ._inertia import SpatialInertia
from ._layout import Layout
from ._tree import Posture


class World(NamedTuple):
    """Everything seen from the ground: the frames that the joints move (N, ...), S, and inertias about its origin."""

    poses: Pose
    S: Twist
    inertias: SpatialInertia


def mass_matrix(tree: Posture, dtype: Any) -> Array:
    """M (n, n)."""
    world, (moved, of) = _world(tree, dtype), _reach(tree.layout)
    S, beyond = world.S, _each(jnp.asarray(moved.T, dtype), world.inertias)
    momentum = _times(beyond, S)
    entry = lambda s, p, k: s[:, None, k] * p[None, :, k]
    products = sum(entry(S.linear, momentum.force, k) + entry(S.angular, momentum.torque, k) for k in range(3))
    nearer = moved[of].T  # (n, n): whether the first speed, which is nearer to the ground, moves the node of the second
    return jnp.where(nearer, products, jnp.where(nearer.T, jnp.swapaxes(products, 0, 1), 0))


def bias(tree: Posture, v: Array, base: Twist, external: Mapping[int, Wrench]) -> Array:
    """What forces (n,) it takes for no speed to change, less those of the wrenches on nodes, each seen from there."""
    world, (moved, of) = _world(tree, v.dtype), _reach(tree.layout)
    onto, S = jnp.asarray(moved, v.dtype), world.S
    own = Twist(v[:, None] * S.linear, v[:, None] * S.angular)
    V = _each(onto, own)
    A = _each(onto, _cross(Twist(V.linear[of], V.angular[of]), own)) + Twist(*(x[None] for x in base))
    at = lambda i: Pose(world.poses.R[i], world.poses.p[i])
    for i, move in enumerate(tree.moves):
        if move.change is not None:
            seen = at(i).twist_outwards(move.change)
            below = jnp.asarray(_below(tree.layout, i), v.dtype)[:, None]
            A = A + Twist(below * seen.linear[None], below * seen.angular[None])
    momentum, f = _times(world.inertias, V), _times(world.inertias, A)
    torque = _crossed(V.angular, momentum.torque) + _crossed(V.linear, momentum.force)
    f = f + Wrench(_crossed(V.angular, momentum.force), torque)
    for i, wrench in external.items():
        after = tree.moves[i].after
        seen = at(i).outwards(wrench if after is None else after.inverse.outwards(wrench))
        f = Wrench(f.force.at[i].add(-seen.force), f.torque.at[i].add(-seen.torque))
    beyond = _each(onto.T, f)
    return jnp.sum(S.linear * beyond.force + S.angular * beyond.torque, axis=1)


def _world(tree: Posture, dtype: Any) -> World:
    of = _reach(tree.layout)[1]
    back = _back(tree, dtype)
    poses = _poses(tree, back, dtype)
    raw = _stacked([s for move in tree.moves for s in move.twists])
    R, p = poses.R[of], poses.p[of]
    angular = _turned(R, raw.angular)
    S = Twist(_turned(R, raw.linear) + _crossed(p, angular), angular)
    none = SpatialInertia(jnp.zeros((), dtype), jnp.zeros(3, dtype), jnp.zeros((3, 3), dtype))
    own = _stacked([none if one is None else one for one in tree.inertias])
    return World(poses, S, _outwards(own if back is None else _outwards(own, back), poses))


def _back(tree: Posture, dtype: Any) -> Pose | None:
    """The bodies' frames seen from those that their joints move; None if all are the same. Not of the state."""
    if all(move.after is None for move in tree.moves):
        return None
    after = _frames([move.after for move in tree.moves], dtype)
    R = jnp.swapaxes(after.R, 1, 2)
    return Pose(R, -_turned(R, after.p))


def _poses(tree: Posture, back: Pose | None, dtype: Any) -> Pose:
    """Of the frames that the joints move."""
    X = Pose(*_stacked([tuple(move.own) for move in tree.moves]))
    if back is not None or any(move.before is not None for move in tree.moves):
        between = _frames([move.before for move in tree.moves], dtype)
        if back is not None:
            # From the frame before, which its joint moves.
            still = _frames([None], dtype)
            whole = Pose(*(jnp.concatenate([x, y]) for x, y in zip(back, still, strict=True)))
            before = np.array([node.parent for node in tree.layout.nodes])  # -1, the last, is the ground
            between = _product(Pose(whole.R[before], whole.p[before]), between)
        X = _product(between, X)
    found: list[Pose] = []
    for i, node in enumerate(tree.layout.nodes):
        own = Pose(X.R[i], X.p[i])
        found.append(own if node.parent < 0 else _product(found[node.parent], own))
    return Pose(*_stacked([tuple(pose) for pose in found]))


def _frames(poses: Sequence[Pose | None], dtype: Any) -> Pose:
    """One after the other (k, ...), None being no motion."""
    still = Pose(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype))
    return Pose(*_stacked([tuple(still if pose is None else pose) for pose in poses]))


def _reach(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """A, and the node of each speed (n,)."""
    moved, of = np.zeros((len(layout.nodes), layout.n), bool), np.zeros(layout.n, int)
    for i, node in enumerate(layout.nodes):
        of[slice(*node.v)] = i
        for k in layout.path(i):
            moved[i, slice(*layout.nodes[k].v)] = True
    return moved, of


def _below(layout: Layout, i: int) -> np.ndarray:
    """Which nodes move with a node, itself among them (N,)."""
    return np.array([i in layout.path(k) for k in range(len(layout.nodes))])


# Entry by entry, of stacks of vectors (..., 3) and matrices (..., 3, 3).


def _turned(R: Array, u: Array) -> Array:
    """R u"""
    return sum((R[..., k] * u[..., k, None] for k in range(1, 3)), R[..., 0] * u[..., 0, None])


def _multiplied(R: Array, S: Array) -> Array:
    """R S"""
    column = lambda k: R[..., :, k, None] * S[..., k, None, :]
    return column(0) + column(1) + column(2)


def _crossed(u: Array, w: Array) -> Array:
    """u x w"""
    part = lambda i, j: u[..., i] * w[..., j] - u[..., j] * w[..., i]
    return jnp.stack([part(1, 2), part(2, 0), part(0, 1)], axis=-1)


def _product(outer: Pose, inner: Pose) -> Pose:
    return Pose(_multiplied(outer.R, inner.R), outer.p + _turned(outer.R, inner.p))


def _cross(first: Twist, second: Twist) -> Twist:
    """How the second, constant in the frame, changes as the frame moves by the first."""
    linear = _crossed(first.angular, second.linear) + _crossed(first.linear, second.angular)
    return Twist(linear, _crossed(first.angular, second.angular))


def _times(inertia: SpatialInertia, twist: Twist) -> Wrench:
    """Momentum."""
    force = inertia.m[:, None] * twist.linear + _crossed(twist.angular, inertia.h)
    return Wrench(force, _turned(inertia.J, twist.angular) + _crossed(inertia.h, twist.linear))


def _outwards(own: SpatialInertia, poses: Pose) -> SpatialInertia:
    """Seen from the ground."""
    (R, p), m = poses, own.m[:, None]
    h = _turned(R, own.h)
    outer = lambda u, w: u[:, :, None] * w[:, None, :]
    mixed = outer(p, h)
    size = jnp.sum(p * (2 * h + m * p), axis=1)[:, None, None] * jnp.eye(3, dtype=p.dtype)[None]
    J = _multiplied(_multiplied(R, own.J), jnp.swapaxes(R, 1, 2))
    J = J + size - mixed - jnp.swapaxes(mixed, 1, 2) - outer(m * p, p)
    return SpatialInertia(own.m, h + m * p, J)


def _stacked(parts: Sequence[Any]) -> Any:
    return jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *parts)


def _each(weights: Array, values: Any) -> Any:
    """Sums of values along their first axis, by the rows of a matrix."""
    leaves, structure = jax.tree_util.tree_flatten(values)
    sizes = np.cumsum([int(np.prod(x.shape[1:])) for x in leaves])
    flat = weights @ jnp.concatenate([x.reshape(x.shape[0], -1) for x in leaves], axis=1)
    parts = jnp.split(flat, sizes[:-1], axis=1)
    shaped = [part.reshape(flat.shape[0], *x.shape[1:]) for part, x in zip(parts, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, shaped)
