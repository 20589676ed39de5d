"""Dynamics of large trees, all nodes at a time, seen from the ground.

`_tree` goes from node to node, in few operations, each of which has to be compiled. Here sums over what lies on the
way to the ground, or beyond a node, are products with matrices of zeros and ones: more arithmetic, in a program whose
length hardly grows with the tree.

N: nodes; n: speeds; A (N, n): whether a speed moves a node; S: what each speed does, seen from the ground and about its
origin; V: twists of the nodes; f: wrenches.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, 4.1 and 6.2, in the coordinates of the ground.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._frame import Pose, Twist, Wrench
from ._inertia import SpatialInertia
from ._layout import Layout
from ._tree import Posture, poses_in_world


def mass_matrix(tree: Posture, dtype: Any) -> Array:
    """M (n, n)."""
    poses = _stacked(poses_in_world(tree))
    moved, of = _reach(tree.layout)
    S = _axes(tree, poses)
    beyond = _each(jnp.asarray(moved.T, dtype), _inertias(tree, poses, dtype))
    momentum = jax.vmap(SpatialInertia.times)(beyond, S)
    products = S.linear @ momentum.force.T + S.angular @ momentum.torque.T  # row: the speed nearer to the ground
    nearer = moved[of].T  # (n, n): whether the first speed moves the node of the second
    return jnp.where(nearer, products, jnp.where(nearer.T, products.T, 0))


def bias(tree: Posture, v: Array, base: Twist, external: Mapping[int, Wrench]) -> Array:
    """What forces (n,) it takes for no speed to change, less those of the wrenches on nodes, each seen from there."""
    poses = _stacked(poses_in_world(tree))
    moved, of = _reach(tree.layout)
    onto, S = jnp.asarray(moved, v.dtype), _axes(tree, poses)
    own = Twist(v[:, None] * S.linear, v[:, None] * S.angular)
    V = _each(onto, own)
    change = jax.vmap(Twist.cross)(Twist(*(x[of] for x in V)), own)
    A = _each(onto, change) + Twist(*(x[None] for x in base))
    drifting = [(i, move.drift) for i, move in enumerate(tree.moves) if move.drift is not None]
    for i, drift in drifting:
        seen, below = (
            Pose(poses.R[i], poses.p[i]).twist_outwards(drift),
            jnp.asarray(_below(tree.layout, i), v.dtype)[:, None],
        )
        A = A + Twist(below * seen.linear[None], below * seen.angular[None])
    spread = _inertias(tree, poses, v.dtype)
    f = jax.vmap(lambda I, A, V: I.times(A) + I.times(V).carried(V))(spread, A, V)
    for i, wrench in external.items():
        seen = Pose(poses.R[i], poses.p[i]).outwards(wrench)
        f = Wrench(f.force.at[i].add(-seen.force), f.torque.at[i].add(-seen.torque))
    beyond = _each(onto.T, f)
    return jnp.sum(S.linear * beyond.force + S.angular * beyond.torque, axis=1)


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


def _axes(tree: Posture, poses: Pose) -> Twist:
    """S, (n, 3) each."""
    _, of = _reach(tree.layout)
    own = _stacked([s for move in tree.moves for s in move.S])
    return jax.vmap(Pose.twist_outwards)(Pose(poses.R[of], poses.p[of]), own)


def _inertias(tree: Posture, poses: Pose, dtype: Any) -> SpatialInertia:
    """Of all nodes, seen from the ground."""
    none = SpatialInertia(jnp.zeros((), dtype), jnp.zeros(3, dtype), jnp.zeros((3, 3), dtype))
    each = _stacked([none if one is None else one for one in tree.inertias])
    return jax.vmap(SpatialInertia.outwards)(each, poses)


def _stacked(parts: Sequence[Any]) -> Any:
    return jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *parts)


def _each(weights: Array, values: Any) -> Any:
    """Sums of values along their first axis, by the rows of a matrix."""
    return jax.tree_util.tree_map(lambda x: jnp.tensordot(weights, x, axes=1), values)
