r"""Derivatives of the acceleration of a tree, in closed form, where each joint has one speed or none; and M^-1.

All quantities are seen from the ground and about its origin. j is before i where j is on the way from the ground to i,
or i itself; V, A: twist of a node and its rate, those of the parent node with a dash; h = I V; I^C, B^C, f^C: sums over
a node and all beyond it.

.. math:: \dot\Psi_j = V_j' \times S_j,\quad \ddot\Psi_j = A_j' \times S_j + V_j' \times \dot\Psi_j,\quad
    B = V \times^* I - I\, V \times + (\cdot \times^* h)

.. math:: \frac{\partial \tau_i}{\partial q_j} &= S_i^\top (B^C_i \dot\Psi_j + I^C_i \ddot\Psi_j),\quad
    \frac{\partial \tau_i}{\partial v_j} = S_i^\top (B^C_i S_j + 2 I^C_i \dot\Psi_j)
    \quad\text{for j before i,} \\
    \frac{\partial \tau_i}{\partial q_j} &= S_i^\top (S_j \times^* f^C_j + B^C_j \dot\Psi_j + I^C_j \ddot\Psi_j),\quad
    \frac{\partial \tau_i}{\partial v_j} = S_i^\top (B^C_j S_j + 2 I^C_j \dot\Psi_j)
    \quad\text{for i before j.}

With P and H, force and torque of h, and V = (u, w), first moment m c and moments J of I, B maps a twist (l, r) to the
force -2 P x r and the torque (w x J - J w x - u x m c x - m c x u x - H x) r.

Source: Singh, Russell & Wensing (2022), Efficient analytical derivatives of rigid-body dynamics using spatial vector
algebra.

M couples two joints only if one is before the other, and `Branches` solves linear equations with it:

.. math:: M = L^\top D L

With elimination from the ends to the ground, L has entries only where M has: row i at the joints before i. So the cost
of a solve depends on the lengths of the branches, and is not n for each of n rows.

Source: Featherstone (2005), Efficient factorization of the joint-space inertia matrix for branched kinematic trees.
"""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._expand import expand
from ._frame import Pose, SpatialInertia, Twist, Wrench, cross, skew
from ._layout import Layout
from ._tree_scan import TreeArrays, flat, inertia_of, packed, pose_of, twist_of


# Most steps of the elimination, each of one entry. With more it compiles longer than a dense factorisation.
MOST = 700


class Branches:
    """The order of a tree's joints: `before` lists for each joint the joints before it, the nearest first."""

    def __init__(self, before: list[list[int]]):
        n = len(before)
        self.before = before
        # From the ends to the ground; the diagonal is last.
        self.beside = [(i, j) for i in reversed(range(n)) for j in before[i]]
        self.entries = [*self.beside, *((i, i) for i in range(n))]

    @classmethod
    def of(cls, layout: Layout) -> "Branches":
        """The branches of a layout whose joints have one speed, or none; joints without a speed are left out."""
        moving = [i for i, node in enumerate(layout.nodes) if node.v[0] < node.v[1]]
        ways = [set(layout.path(i)) for i in moving]
        return cls([[j for j in reversed(range(k)) if moving[j] in way] for k, way in enumerate(ways)])

    @property
    def are_short(self) -> bool:
        """Whether the elimination takes at most `MOST` steps, so that it is better than a dense factorisation."""
        return sum(len(x) * (len(x) + 1) // 2 for x in self.before) <= MOST

    def solve(self, M: Array, y: Array) -> Array:
        """M^-1 y (n, k), for a definite M (n, n)."""
        return jax.lax.custom_linear_solve(lambda x: M @ x, y, lambda _, y: self._solved(M, y), symmetric=True)

    def _solved(self, M: Array, y: Array) -> Array:
        rows, columns = np.array(self.entries).T
        factors = expand(self._factors)(stop_gradient(M)[rows, columns])
        count = len(self.beside)
        if not count:
            return factors[:, None] * y
        L, inverses = factors[:count], factors[count:]
        i, j = jnp.asarray(rows[:count]), jnp.asarray(columns[:count])

        def to_ground(p: Array, y: Array) -> Array:
            return y.at[j[p]].add(-L[p] * y[i[p]])

        def outwards(p: Array, y: Array) -> Array:
            return y.at[i[count - 1 - p]].add(-L[count - 1 - p] * y[j[count - 1 - p]])

        y = inverses[:, None] * jax.lax.fori_loop(0, count, to_ground, y)
        return jax.lax.fori_loop(0, count, outwards, y)

    def _factors(self, entries: Array) -> Array:
        """The entries of L beside its diagonal, and the inverses of D, from the entries of M."""
        left = {at: entries[k] for k, at in enumerate(self.entries)}
        for k in reversed(range(len(self.before))):
            inverse = 1 / left[k, k]
            for i in self.before[k]:
                factor = left[k, i] * inverse
                for j in (i, *self.before[i]):
                    left[i, j] = left[i, j] - factor * left[k, j]
                left[k, i] = factor
            left[k, k] = inverse
        return jnp.stack([left[at] for at in self.entries])


class Slopes(NamedTuple):
    """Derivatives of inverse dynamics, of tau (n,) by q and by v, and M, (n, n) each, without armature."""

    by_q: Array
    by_v: Array
    mass: Array


def slopes(stack: TreeArrays, tree: Branches, v: Array, a: Array, base: Twist, short: bool) -> Slopes:
    """The `Slopes` of a tree on whose bodies only gravity acts; `base`: acceleration of the ground that equals gravity.

    `short`: whether the whole function becomes scalar code, and not only each step from a node to the next. The loops
    over the nodes carry only what depends on other nodes; the rest is computed for all nodes at once.
    """
    scalar = (lambda function: function) if short else expand
    N, dtype, index = len(stack.parents), v.dtype, np.arange(len(stack.parents))

    def outwards(found, step):
        parent, i, one = step
        return found.at[i].set(scalar(ft.partial(_seen, stack))(found[parent], *one)), None

    ground = flat(Pose(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype)))
    start = jnp.zeros((N + 1, 24), dtype).at[N].set(jnp.concatenate([ground, jnp.zeros(6, dtype), *base]))
    S = None if stack.S is None else stack.S[:, 0]
    speeds = [jnp.where(stack.real[:, 0], x[stack.speeds[:, 0]], 0) for x in (v, a)]
    steps = (stack.before, stack.own, S, *speeds)
    found, _ = jax.lax.scan(outwards, start, (stack.parents, index, steps))
    axes, own = jax.vmap(scalar(_made))(found[stack.parents, 12:], found[:N], S, stack.inertias)

    def inwards(total, step):
        parent, i = step
        return total.at[parent].add(total[i]), None

    start = jnp.concatenate([own, jnp.zeros_like(own[:1])])
    total, _ = jax.lax.scan(inwards, start, (stack.parents, index), reverse=True)
    at = np.flatnonzero(stack.real[:, 0])
    return _products(tree, axes[at], jax.vmap(scalar(_sides))(total[:N], axes)[at], scalar)


def _products(
    tree: Branches, axes: Array, sides: Array, scalar: Callable[[Callable[..., Array]], Callable[..., Array]]
) -> Slopes:
    """The `Slopes` of `axes` (n, 18) and `sides` (n, 21), by pairs of speeds on one branch; other entries are zero."""
    i, j = np.array(tree.entries).T
    found = jax.vmap(scalar(_of_pair))(sides[i], axes[j])
    count, n = len(i), len(axes)
    every = jnp.concatenate([found.ravel(), jnp.zeros(1, found.dtype)])

    def spread(lower: int, upper: int) -> Array:
        places = np.full((n, n), 5 * count)
        places[j, i] = 5 * np.arange(count) + upper
        places[i, j] = 5 * np.arange(count) + lower
        return every[places]

    return Slopes(spread(0, 1), spread(2, 3), spread(4, 4))


def _of_pair(sides: Array, axes: Array) -> Array:
    """Derivatives of tau_i by q_j, tau_j by q_i, tau_i by v_j and tau_j by v_i, and M_ij (5,), where j is before i."""
    S, rate, second = jnp.split(axes, 3)
    r1, r2, by_q, by_v = jnp.split(sides, [3, 9, 15])
    of_q, of_v = r1 @ rate[3:] + r2 @ second, r1 @ S[3:] + 2 * (r2 @ rate)
    return jnp.stack([of_q, S @ by_q, of_v, S @ by_v, r2 @ S])


def _seen(stack: TreeArrays, outer: Array, before: Pose, own: Array, S: Array | None, v: Array, a: Array) -> Array:
    """Pose, V and A of a node (24,) from those of its parent."""
    pose = pose_of(outer[:12]) @ before @ stack.pose(own)
    axis = _axis(pose, S)
    move = Twist(axis.linear * v, axis.angular * v)
    V = Twist(outer[12:15], outer[15:18]) + move
    A = Twist(outer[18:21], outer[21:]) + Twist(axis.linear * a, axis.angular * a) + V.cross(move)
    return jnp.concatenate([flat(pose), *V, *A])


def _axis(pose: Pose, S: Array | None) -> Twist:
    unit = jnp.eye(6, dtype=pose.p.dtype)[5] if S is None else S
    return pose.twist_outwards(twist_of(unit))


def _made(outer: Array, here: Array, S: Array | None, inertia: SpatialInertia) -> tuple[Array, Array]:
    """S and its two rates (18,), by V and A of the parent (12,); I, f, P and B of the body (28,)."""
    pose, V, A = pose_of(here[:12]), Twist(outer[:3], outer[3:6]), Twist(outer[6:9], outer[9:])
    axis = _axis(pose, S)
    rate = V.cross(axis)
    second = A.cross(axis) + V.cross(rate)
    V, A = Twist(here[12:15], here[15:18]), Twist(here[18:21], here[21:])
    I = inertia.outwards(pose)
    h = I.times(V)
    f = I.times(A) + h.carried(V)
    W, U, first = skew(V.angular), skew(V.linear), skew(I.h)
    B = W @ I.J - I.J @ W - U @ first - first @ U - skew(h.torque)
    return jnp.concatenate([*axis, *rate, *second]), jnp.concatenate([packed(I), *f, h.force, B.ravel()])


def _sides(whole: Array, axes: Array) -> Array:
    """S^T B (its last three entries), S^T I, and the wrenches that earlier S project, by the sums I, f, P, B (21,)."""
    I, f, P, B = inertia_of(whole[:10]), Wrench(whole[10:13], whole[13:16]), whole[16:19], whole[19:].reshape(3, 3)
    S, rate, second = map(twist_of, jnp.split(axes, 3))
    twice = I.times(rate) + I.times(rate)
    by_q, by_v = f.carried(S) + _bias_of(P, B, rate) + I.times(second), _bias_of(P, B, S) + twice
    return jnp.concatenate([2 * cross(P, S.linear) + B.T @ S.angular, *I.times(S), *by_q, *by_v])


def _bias_of(P: Array, B: Array, twist: Twist) -> Wrench:
    """The wrench to which B^C maps a twist."""
    return Wrench(-2 * cross(P, twist.angular), B @ twist.angular)
