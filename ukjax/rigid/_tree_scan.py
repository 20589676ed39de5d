"""Dynamics of large trees, and kinematics of the ends of loops, as loops over the nodes.

`_tree_unrolled` unrolls the recursions from node to node, which makes too long a program for a large tree. Here only
the step from a node to the next is scalar code, and a loop takes it for all nodes. The compiled program does not grow
with the tree, and the work is linear in the number of joints except for M.

I: inertia of a body; I^A: articulated inertia; p: wrench at zero acceleration; U = I^A S; D = S^T U.

N: nodes; k: most speeds of a node; every node is seen from the frame that its joint moves.

Source: Featherstone (2008), Rigid Body Dynamics Algorithms, tables 5.1, 6.2 and 7.1.
"""

import functools as ft
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .._expand import expand
from ._frame import Pose, SpatialInertia, Twist, Wrench, skew


# Entries of a symmetric matrix.
UPPER = np.triu_indices(3)
PLACES = np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])


class TreeArrays(eqx.Module):
    """A tree at one state.

    Attributes:
        before: The frame that a node's joint leaves, seen from the frame that the parent's joint moves (N, ...);
            independent of the state.
        own: Pose of each joint's motion: cosine and sine (N, 2) if all are hinges, else rotation and origin (N, 12).
        S: Twist per unit of each speed (N, k, 6), zero for missing speeds; None if all are hinges, about z.
        back: The body, seen from the frame that the joint moves; the ground comes last (N + 1, ...); independent of
            the state.
        inertias: Spatial inertias of the bodies (N, ...); independent of the state.
        drift: Rate S' v of the twists (N, 6), or None.
        outer: Numbers of the nodes' parents; N for the ground.
        counts: Numbers of the nodes' speeds.
    """

    before: Pose
    own: Array
    S: Array | None
    back: Pose
    inertias: SpatialInertia
    drift: Array | None
    outer: tuple[int, ...] = eqx.field(static=True)
    counts: tuple[int, ...] = eqx.field(static=True)

    @property
    def parents(self) -> np.ndarray:
        """Numbers of the nodes' parents (N,); N for the ground."""
        return np.array(self.outer)

    @property
    def real(self) -> np.ndarray:
        """Whether a node has that speed (N, k)."""
        return np.arange(max(self.counts)) < np.array(self.counts)[:, None]

    @property
    def speeds(self) -> np.ndarray:
        """Index in v of each speed of each node (N, k)."""
        first = np.cumsum(self.counts) - self.counts
        return np.where(self.real, first[:, None] + np.arange(max(self.counts)), 0)

    def pose(self, own: Array) -> Pose:
        """The pose of a joint's motion, from its entry in `own`."""
        if self.S is not None:
            return Pose(own[:9].reshape(3, 3), own[9:])
        (c, s), zero, one = own, jnp.zeros((), own.dtype), jnp.ones((), own.dtype)
        return Pose(jnp.stack([c, -s, zero, s, c, zero, zero, zero, one]).reshape(3, 3), jnp.zeros(3, own.dtype))

    def twist(self, moved: Array) -> Twist:
        """The twist of a node against its parent, from its entry in `of_nodes`."""
        if self.S is not None:
            return twist_of(moved)
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
    def nodes_of_speeds(self) -> np.ndarray:
        """The node of each speed (n,)."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def all_S(self) -> Array:
        """The twist per unit of each speed (n, 6)."""
        if self.S is not None:
            return self.gathered(self.S)
        return jnp.broadcast_to(jnp.eye(6, dtype=self.own.dtype)[5], (len(self.parents), 6))


def forces(
    stack: TreeArrays,
    v: Array,
    a: Array | None,
    base: Twist,
    external: Mapping[int, Wrench],
    held: Array | None = None,
) -> Array:
    """The generalised forces (n,) for rates `a` of the speeds (None: zero), less those of the wrenches on nodes.

    `base`: acceleration of the ground, which for gravity is upwards; `external`: wrenches, each seen from its body;
    `held`: further wrenches on all nodes (N, 6), seen from these.
    """
    f = _wrenches(stack, stack.of_nodes(v), _more(stack, a), base, external)
    return stack.of_wrenches(_handed_inwards(stack, f if held is None else f - held))


def loads(stack: TreeArrays, v: Array, base: Twist, external: Mapping[int, Wrench]) -> Array:
    """The wrench that each node itself takes (N, 6) at constant speeds."""
    return _wrenches(stack, stack.of_nodes(v), stack.drift, base, external)


def times(stack: TreeArrays, x: Array, armature: Array) -> Array:
    """The product M x (n,), with armature."""
    moved = stack.of_nodes(x)
    zero = jnp.zeros(3, x.dtype)
    found = _wrenches(stack, jnp.zeros_like(moved), _as_change(stack, moved), Twist(zero, zero), {})
    return stack.of_wrenches(_handed_inwards(stack, found)) + armature * x


def solve(
    stack: TreeArrays, y: Array, armature: Array, loads: Array | None = None
) -> tuple[Array, tuple[Array, Array]]:
    """M^-1 (y - the forces of `loads` (N, 6)) (n,); the pivots D (n,), and the diagonal of M, their measure."""
    S, real, parents, (before, own, inertias, loads), places = _one_by_one(stack, loads)
    has = places >= 0
    pushes, rotors = (x if has.all() else jnp.where(has, x[places], 0) for x in (y, armature))
    N = len(parents)

    def inwards(total, step):
        parent, i, one = step
        over, kept = expand(ft.partial(_articulated, stack))(total[i], *one)
        return total.at[parent].add(over), kept

    steps = (before, own, S, real, inertias, loads, pushes, rotors)
    start = jnp.zeros((N + 1, 37), y.dtype)
    _, kept = jax.lax.scan(inwards, start, (parents, np.arange(N), steps), reverse=True)
    (U, inverse, push), judged = kept[:3], kept[3:]

    def outwards(found, step):
        parent, i, one = step
        here, x = expand(ft.partial(_accelerated, stack))(found[parent], *one)
        return found.at[i].set(here), x

    steps = (before, own, S, U, inverse, push)
    _, x = jax.lax.scan(outwards, jnp.zeros((N + 1, 6), y.dtype), (parents, np.arange(N), steps))
    pivots, diagonal, x = (found if has.all() else found[has] for found in (*judged, x))
    return x, (pivots, diagonal)


def mass_matrix(stack: TreeArrays) -> Array:
    """The mass matrix M (n, n), by composite rigid bodies, without armature."""
    N, dtype = len(stack.parents), stack.own.dtype

    def inwards(total, step):
        parent, i, one = step
        over, kept = expand(ft.partial(_composite, stack))(total[i], *one)
        return total.at[parent].add(over), kept

    index = np.arange(N)
    steps = (stack.before, stack.own, stack.inertias)
    _, whole = jax.lax.scan(inwards, jnp.zeros((N + 1, 10), dtype), (stack.parents, index, steps), reverse=True)
    poses, of = poses_in_world(stack), stack.nodes_of_speeds
    S, momentum = jax.vmap(expand(_in_world))(poses[of], whole[of], stack.all_S)
    moved = np.eye(N, dtype=bool)
    for i, parent in enumerate(stack.parents):
        moved[i] |= moved[parent] if parent < N else False
    # The speeds that move a node, each with those of the node that come no earlier; other entries are zero.
    near, far = np.nonzero(np.triu(moved[of][:, of].T))
    products = jnp.sum(S[near] * momentum[far], axis=1)
    place = np.full((len(of), len(of)), len(near))
    place[near, far] = place[far, near] = np.arange(len(near))
    return jnp.concatenate([products, jnp.zeros(1, dtype)])[place]


@eqx.filter_jit
def poses_in_world(stack: TreeArrays) -> Array:
    """The poses of all nodes, and of the ground, seen from the ground (N + 1, 12): see `pose_of`.

    It is one call in the traced program, as are the next, which several callers make for the same tree.
    """
    ground = flat(Pose(jnp.eye(3, dtype=stack.own.dtype), jnp.zeros(3, stack.own.dtype)))
    return _from_ground(stack, lambda outer, before, own: flat(pose_of(outer) @ (before @ stack.pose(own))), ground)


@eqx.filter_jit
def twists(stack: TreeArrays, v: Array) -> Array:
    """The twists of all nodes, and of the ground, seen from the nodes (N + 1, 6)."""
    return _from_ground(stack, ft.partial(_moving, stack), jnp.zeros(6, v.dtype), stack.of_nodes(v))


@eqx.filter_jit
def rates(stack: TreeArrays, v: Array, twists: Array, a: Array | None = None) -> Array:
    """The rates of the twists of all nodes, and of the ground, for rates `a` of the speeds (None: zero), (N + 1, 6)."""
    more = _more(stack, a)
    own = stack.of_nodes(v), twists[:-1], jnp.zeros((len(stack.parents), 6), v.dtype) if more is None else more
    return _from_ground(stack, ft.partial(_changing, stack), jnp.zeros(6, v.dtype), *own)


def _from_ground(stack: TreeArrays, function: Callable[..., Array], ground: Array, *own: Array) -> Array:
    """The values of all nodes, each from that of its parent; that of the `ground` comes last (N + 1, ...).

    `function`: (value of the parent, `before` and `own` of the node, what belongs to the node) -> its value.
    """
    N = len(stack.parents)

    def outwards(found, step):
        parent, i, one = step
        return found.at[i].set(expand(function)(found[parent], *one)), None

    start = jnp.zeros((N + 1, *ground.shape), ground.dtype).at[N].set(ground)
    return jax.lax.scan(outwards, start, (stack.parents, np.arange(N), (stack.before, stack.own, *own)))[0]


def _wrenches(
    stack: TreeArrays, moved: Array, more: Array | None, base: Twist, external: Mapping[int, Wrench]
) -> Array:
    """The wrench that each node itself takes (N, 6); `more`: S v' + S' v of each node (None: zero)."""
    N, dtype = len(stack.parents), moved.dtype

    def outwards(found, step):
        parent, i, one = step
        here, wrench = expand(ft.partial(_carried, stack))(found[parent], *one)
        return found.at[i].set(here), wrench

    index = np.arange(N)
    start = jnp.zeros((N + 1, 12), dtype).at[N, 6:].set(jnp.concatenate(base))
    more = jnp.zeros((N, 6), dtype) if more is None else more
    steps = (stack.before, stack.own, moved, more, stack.inertias)
    _, f = jax.lax.scan(outwards, start, (stack.parents, index, steps))
    for i, wrench in external.items():
        back = Pose(stack.back.R[i], stack.back.p[i])
        f = f.at[i].add(-jnp.concatenate(back.outwards(wrench)))
    return f


def _handed_inwards(stack: TreeArrays, f: Array) -> Array:
    """The wrench through each joint (N, 6), from the wrench that each node itself takes."""
    N = len(stack.parents)

    def inwards(total, step):
        parent, i, one = step
        over, here = expand(ft.partial(_handed_on, stack))(total[i], *one)
        return total.at[parent].add(over), here

    steps = (stack.parents, np.arange(N), (stack.before, stack.own, f))
    return jax.lax.scan(inwards, jnp.zeros((N + 1, 6), f.dtype), steps, reverse=True)[1]


def _more(stack: TreeArrays, a: Array | None) -> Array | None:
    """S a + S' v of each node (N, 6); None if it is zero."""
    more = None if a is None else _as_change(stack, stack.of_nodes(a))
    return stack.drift if more is None else more if stack.drift is None else more + stack.drift


def _as_change(stack: TreeArrays, moved: Array) -> Array:
    """The result of `TreeArrays.of_nodes` as twists (N, 6)."""
    return moved if stack.S is not None else jnp.pad(moved[:, None], ((0, 0), (5, 0)))


def _one_by_one(
    stack: TreeArrays, loads: Array | None
) -> tuple[Array | None, Array | np.ndarray | None, np.ndarray, tuple[Pose, Array, SpatialInertia, Array], np.ndarray]:
    """The tree with nodes of at most one speed: S, whether it exists, parents, the other arrays, indices of speeds.

    A node of several speeds becomes several nodes in one place: the first has its pose, the last its inertia and load.
    """
    N = len(stack.parents)
    loads = jnp.zeros((N, 6), stack.own.dtype) if loads is None else loads
    if stack.S is None:
        return None, None, stack.parents, (stack.before, stack.own, stack.inertias, loads), np.arange(N)
    counts = np.maximum(stack.counts, 1)
    ends = np.cumsum(counts)
    of = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(of)) - (ends - counts)[of]
    first, last = number == 0, number == counts[of] - 1
    lasts = np.append(ends - 1, len(of))  # that of the ground is one beyond all
    parents = np.where(first, lasts[stack.parents[of]], np.arange(len(of)) - 1)
    known, S = stack.real[of, number], stack.S[of, number]
    dtype = stack.own.dtype
    still = Pose(jnp.eye(3, dtype=dtype), jnp.zeros(3, dtype))
    before = Pose(*(_where(first, x[of], y) for x, y in zip(stack.before, still, strict=True)))
    own = _where(first, stack.own[of], flat(still))
    *inertia, loads = (_where(last, x[of], jnp.zeros_like(x[0])) for x in (*stack.inertias, loads))
    places = np.where(known, np.cumsum(known) - 1, -1)
    return S, known.astype(dtype), parents, (before, own, SpatialInertia(*inertia), loads), places


def _where(condition: np.ndarray, x: Array, y: Array) -> Array:
    return jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y[None])


# Steps from one node to the next, of small arrays.


def flat(pose: Pose) -> Array:
    return jnp.concatenate([pose.R.ravel(), pose.p])


def pose_of(flat: Array) -> Pose:
    return Pose(flat[:9].reshape(3, 3), flat[9:])


def twist_of(flat: Array) -> Twist:
    return Twist(flat[:3], flat[3:])


def _moving(stack: TreeArrays, outer: Array, before: Pose, own: Array, moved: Array) -> Array:
    """The twist (6,) of a node, from that of its parent."""
    return jnp.concatenate((before @ stack.pose(own)).inwards(twist_of(outer)) + stack.twist(moved))


def _changing(
    stack: TreeArrays, outer: Array, before: Pose, own: Array, moved: Array, twist: Array, more: Array
) -> Array:
    """The rate of the twist (6,) of a node, from that of its parent; `more`: as of `_wrenches`."""
    seen = (before @ stack.pose(own)).inwards(twist_of(outer))
    return jnp.concatenate(seen + twist_of(twist).cross(stack.twist(moved)) + twist_of(more))


def _carried(
    stack: TreeArrays, outer: Array, before: Pose, own: Array, moved: Array, more: Array, inertia: SpatialInertia
):
    """Twist and its rate (12,) of a node from those of its parent, and the wrench (6,) for this motion."""
    twist = _moving(stack, outer[:6], before, own, moved)
    change = _changing(stack, outer[6:], before, own, moved, twist, more)
    V = twist_of(twist)
    wrench = inertia.times(twist_of(change)) + inertia.times(V).carried(V)
    return jnp.concatenate([twist, change]), jnp.concatenate(wrench)


def _handed_on(stack: TreeArrays, beyond: Array, before: Pose, own: Array, wrench: Array) -> tuple[Array, Array]:
    """The wrench of a node on its parent, seen from the parent, and the wrench through its joint, (6,) each."""
    total = beyond + wrench
    return jnp.concatenate((before @ stack.pose(own)).outwards(Wrench(total[:3], total[3:]))), total


def _composite(
    stack: TreeArrays, beyond: Array, before: Pose, own: Array, inertia: SpatialInertia
) -> tuple[Array, Array]:
    """The inertia of a node and all beyond it, seen from its parent, and from the node, (10,) each."""
    total = inertia_of(beyond) + inertia
    return packed(total.outwards(before @ stack.pose(own))), packed(total)


def packed(inertia: SpatialInertia) -> Array:
    return jnp.concatenate([inertia.m[None], inertia.h, inertia.J[UPPER]])


def inertia_of(packed: Array) -> SpatialInertia:
    return SpatialInertia(packed[0], packed[1:4], packed[4:][PLACES])


def _in_world(pose: Array, inertia: Array, S: Array) -> tuple[Array, Array]:
    """A twist, and its momentum, seen from the ground, (6,) each."""
    at, twist = pose_of(pose), twist_of(S)
    momentum = inertia_of(inertia).times(twist)
    return jnp.concatenate(at.twist_outwards(twist)), jnp.concatenate(at.outwards(momentum))


def _unit(stack: TreeArrays, S: Array | None) -> Array:
    return jnp.eye(6, dtype=stack.own.dtype)[5] if S is None else S


def _articulated(
    stack: TreeArrays, beyond: Array, before: Pose, own: Array, S: Array | None, real: Array | None,
    inertia: SpatialInertia, load: Array, force: Array, armature: Array,
):  # fmt: skip
    """A node's part (37,) of its parent's I^A, p and composite inertia; U, 1 / D, D^-1 (y - S^T p), D, and S^T I S
    with the composite inertia I, the diagonal of M."""
    one, X, s = jnp.ones((), own.dtype), before @ stack.pose(own), _unit(stack, S)
    real = one if real is None else real
    m, h, J = inertia
    A = beyond[:6][PLACES] + m * jnp.eye(3, dtype=own.dtype)
    B = beyond[6:15].reshape(3, 3) - skew(h)
    C, p, whole = beyond[15:21][PLACES] + J, beyond[21:27] + load, inertia_of(beyond[27:]) + inertia
    U, W = A @ s[:3] + B @ s[3:], B.T @ s[:3] + C @ s[3:]
    both = jnp.concatenate([U, W])
    D, diagonal = s @ both + armature, whole.times(twist_of(s)).along(twist_of(s)) + armature
    inverse = real / (D + (one - real))
    push = (force - s @ p) * inverse
    A, B, C = (Y - (x * inverse)[:, None] * y[None] for Y, x, y in ((A, U, U), (B, U, W), (C, W, W)))
    p = p + both * push
    A, B, C = (X.R @ Y @ X.R.T for Y in (A, B, C))
    K = skew(X.p)
    AK = A @ K
    C = C - B.T @ K + K @ B - K @ AK
    p = jnp.concatenate(X.outwards(Wrench(p[:3], p[3:])))
    over = [A[UPPER], (B - AK).ravel(), C[UPPER], p, packed(whole.outwards(X))]
    return jnp.concatenate(over), (both, inverse, push, D, diagonal)


def _accelerated(
    stack: TreeArrays, outer: Array, before: Pose, own: Array, S: Array | None, U: Array, inverse: Array, push: Array
) -> tuple[Array, Array]:
    """The acceleration (6,) of a node, from that of its parent, and the acceleration of its coordinate."""
    a = jnp.concatenate((before @ stack.pose(own)).inwards(twist_of(outer)))
    x = push - inverse * (U @ a)
    return a + _unit(stack, S) * x, x
