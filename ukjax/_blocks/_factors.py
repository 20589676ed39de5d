"""Factorisation of a symmetric semidefinite matrix of blocks, node by node of a graph.

S: D (C, m, m) on the diagonal, E (edges, m, m) beside it, S_ij with i eliminated before j. Rows that depend on those
before them are left out. G = S_ii^+ of the remainder of a node when its turn comes; T_a = G S_ia for its neighbours a.

A step of the order takes nodes of low degree, as many as are not neighbours of each other. A chain is halved with every
step, so that N nodes take log N steps (cyclic reduction), and each is one operation on arrays.
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Step(NamedTuple):
    """Nodes that are eliminated together, and the places of their neighbours; d: the most neighbours of a node.

    Attributes:
        nodes: The nodes, (k,).
        near: Their neighbours, (k, d); where there is none, the number of nodes.
        edges: The edge to each, from the node that goes first, (k, d); where there is none, the number of edges.
        pairs: The edge between two neighbours, from the neighbour that goes first, (k, d, d); elsewhere the number of
            edges plus one.
    """

    nodes: np.ndarray
    near: np.ndarray
    edges: np.ndarray
    pairs: np.ndarray


class Order(NamedTuple):
    """All steps, and the number of each edge, (first, second) -> number, those that elimination adds included."""

    steps: tuple[Step, ...]
    edges: dict[tuple[int, int], int]


def order_of(count: int, pairs: Iterable[tuple[int, int]]) -> Order:
    """The order for `count` nodes of which some pairs are neighbours."""
    near: list[set[int]] = [set() for _ in range(count)]
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    left, levels = set(range(count)), []
    while left:
        chosen = _apart(left, near)
        levels.append([(i, sorted(near[i])) for i in chosen])
        for i in chosen:
            for j in near[i]:
                near[j] |= near[i]
                near[j] -= {i, j}
            left.remove(i)
    turn = {i: at for at, (i, _) in enumerate(x for level in levels for x in level)}
    edges: dict[tuple[int, int], int] = {}
    for i, around in (x for level in levels for x in level):
        for j in around:
            edges[i, j] = len(edges)
    return Order(tuple(_step(level, turn, edges) for level in levels), edges)


def _apart(left: set[int], near: list[set[int]]) -> list[int]:
    """Nodes of low degree, none of which are neighbours."""
    least = min(len(near[i]) for i in left)
    low = sorted((len(near[i]), i) for i in left if len(near[i]) <= max(2 * least, least + 1))
    chosen, blocked = [], set()
    for _, i in low:
        if i not in blocked:
            chosen.append(i)
            blocked |= near[i]
    return chosen


def _step(level: list[tuple[int, list[int]]], turn: dict[int, int], edges: dict[tuple[int, int], int]) -> Step:
    count, most = len(level), max(len(around) for _, around in level)
    nodes = np.array([i for i, _ in level])
    near, to = np.full((count, most), len(turn)), np.full((count, most), len(edges))
    pairs = np.full((count, most, most), len(edges) + 1)
    for row, (i, around) in enumerate(level):
        for x, a in enumerate(around):
            near[row, x], to[row, x] = a, edges[i, a]
            for y, b in enumerate(around):
                if turn[a] < turn[b]:
                    pairs[row, x, y] = edges[a, b]
    return Step(nodes, near, to, pairs)


class Eliminated(NamedTuple):
    """The results of a step: G (k, m, m), T (k, d, m, m), the pivots of the rows (k, m), and which rows count."""

    inverse: Array
    towards: Array
    pivots: Array
    kept: Array


class Factors(NamedTuple):
    """The factorisation of a matrix of C nodes with m rows each."""

    order: Order
    parts: tuple[Eliminated, ...]
    shape: tuple[int, int]

    def solve(self, y: Array) -> Array:
        """The solution x (C, m) of S x = y, zero in the rows that were left out."""
        y, leading = jnp.concatenate([y, jnp.zeros_like(y[:1])]), []
        for step, part in self._forwards():
            own = y[step.nodes]
            y = y.at[step.near].add(-jnp.einsum("kdij,ki->kdj", part.towards, own))
            leading.append(jnp.einsum("kij,kj->ki", part.inverse, own))
        x = jnp.zeros_like(y)
        for (step, part), own in zip(reversed(self._forwards()), reversed(leading), strict=True):
            x = x.at[step.nodes].set(own - jnp.einsum("kdij,kdj->ki", part.towards, x[step.near]))
        return x[:-1]

    def inverse_diagonal(self) -> Array:
        """The diagonal of the inverse of the rows that were kept, (C, m).

        It goes from the last node to the first, and finds only the blocks of the inverse Z that belong to edges: with N
        the neighbours of i, Z_iN = -T Z_NN and Z_ii = G - Z_iN T^T.  Takahashi, Fagan & Chin (1973).
        """
        C, m = self.shape
        # As in `factorise`, there are two blocks that belong to no edge: one to read, one to write.
        dtype = self.parts[0].inverse.dtype
        Z, beside = jnp.zeros((C + 1, m, m), dtype), jnp.zeros((len(self.order.edges) + 2, m, m), dtype)
        for step, part in reversed(self._forwards()):
            d = step.near.shape[1]
            among = beside[_read(step.pairs, len(self.order.edges))]  # from the neighbour that goes first
            among = among + jnp.swapaxes(jnp.swapaxes(among, 1, 2), 3, 4)
            own = np.arange(d)
            among = among.at[:, own, own].set(Z[step.near])
            towards = -jnp.einsum("kaij,kabjl->kbil", part.towards, among)
            Z = Z.at[step.nodes].set(part.inverse - jnp.einsum("kbil,kbjl->kij", towards, part.towards))
            beside = beside.at[_written(step.edges, len(self.order.edges))].set(towards)
        return jnp.diagonal(Z[:-1], axis1=1, axis2=2)

    def of_rows(self, name: str) -> Array:
        """The field `name` of all rows, (C, m)."""
        values = jnp.concatenate([getattr(part, name) for part in self.parts])
        places = np.concatenate([step.nodes for step in self.order.steps])
        return values[np.argsort(places)]

    def _forwards(self) -> list[tuple[Step, Eliminated]]:
        return list(zip(self.order.steps, self.parts, strict=True))


def factorise(order: Order, D: Array, E: Array, least: Array) -> Factors:
    """Factorises D (C, m, m), E (edges, m, m); a row counts if its pivot is larger than its entry of `least` (C, m)."""
    m = D.shape[1]
    D = jnp.concatenate([D, jnp.zeros_like(D[:1])])
    E = jnp.concatenate([E, jnp.zeros((2, m, m), E.dtype)])  # a zero block to read, and one for unwanted writes
    parts = []
    for step in order.steps:
        beside, own = E[step.edges], np.arange(step.near.shape[1])
        inverse, pivots, kept = jax.vmap(_inverse)(D[step.nodes], least[step.nodes])
        towards = jnp.einsum("kij,kdjl->kdil", inverse, beside)
        change = jnp.einsum("kaji,kbjl->kabil", beside, towards)
        D = D.at[step.near].add(-change[:, own, own])
        E = E.at[step.pairs].add(-change)
        parts.append(Eliminated(inverse, towards, pivots, kept))
    return Factors(order, tuple(parts), (D.shape[0] - 1, m))


def _read(edges: np.ndarray, count: int) -> np.ndarray:
    return np.minimum(edges, count)


def _written(edges: np.ndarray, count: int) -> np.ndarray:
    return np.where(edges == count, count + 1, edges)


def _inverse(S: Array, least: Array) -> tuple[Array, Array, Array]:
    """The inverse G (m, m), the pivots, and which rows count, (m,) each; G is zero in the rows that do not count."""
    m = S.shape[0]
    one, zero = jnp.ones_like(S[0, 0]), jnp.zeros_like(S[0, 0])
    rest = [[S[i, j] for j in range(m)] for i in range(m)]
    lower = [[one if i == j else zero for j in range(m)] for i in range(m)]  # L^-1 with S = L D L^T
    pivots, kept, inverses = [], [], []
    for j in range(m):
        pivots.append(rest[j][j])
        kept.append(pivots[j] > least[j])
        inverses.append(jnp.where(kept[j], one / jnp.where(kept[j], pivots[j], one), zero))
        for i in range(j + 1, m):
            factor = rest[i][j] * inverses[j]
            rest[i] = [rest[i][l] - factor * rest[j][l] if l > j else zero for l in range(m)]
            lower[i] = [lower[i][l] - factor * lower[j][l] if l <= j else lower[i][l] for l in range(m)]
    W, counts = jnp.stack([jnp.stack(row) for row in lower]), jnp.stack(kept)
    W = jnp.where(counts[:, None] & counts[None], W, zero)
    return (W.T * jnp.stack(inverses)[None]) @ W, jnp.stack(pivots), counts
