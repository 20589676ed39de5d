"""The order in which to eliminate the nodes of a graph: many at a time, none of them neighbours.

A step takes nodes of low degree, as many as are not neighbours of each other. A chain is halved with every step, so
that N nodes take log N steps (cyclic reduction), and each is one operation on arrays.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


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
