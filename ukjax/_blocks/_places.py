"""The places of the modules and constraints of a mechanism, in arrays of one shape for all of them.

K modules of at most n coordinates, C constraints of at most m rows, each about at most P modules. Smaller ones are
filled up: with the identity in M, and with zero rows.
"""

import functools as ft
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .._types import Partition
from ._order import Order, order_of


class Shared(NamedTuple):
    """Pairs of constraints about one module: both, with the place of the module in them, and the edge between them."""

    first: np.ndarray  # (pairs, 2): constraint, place of the module in it; the one that is eliminated first
    second: np.ndarray
    edges: np.ndarray


class Places(NamedTuple):
    """The places of coordinates, modules, constraints and rows.

    Attributes:
        columns: The coordinates of each module, (K, n); the number of all coordinates where it has less.
        modules: The modules of each constraint, (C, P); K where it has less.
        within: The columns of a constraint's own rows that are about each coordinate of its modules, (C, P, n); their
            largest number where there is none.
        real: Whether each row is a row of the mechanism and no filler, (C, m).
        rows: The constraint and the row in it of all real rows, in the order of the mechanism, (2, number of rows).
        shared: The pairs of constraints about the same module.
        order: The order of elimination of the constraints.
    """

    columns: np.ndarray
    modules: np.ndarray
    within: np.ndarray
    real: np.ndarray
    rows: np.ndarray
    shared: Shared
    order: Order

    @property
    def widest(self) -> int:
        """The largest number of columns of a constraint."""
        return int(np.max(self.within, initial=0))


# For each kind of constraint, the coordinates that each constraint is about.
Groups = tuple[tuple[tuple[int, ...], ...], ...]


@ft.lru_cache(maxsize=32)
def places_of(partition: Partition, groups: Groups, rows_each: tuple[int, ...]) -> Places:
    """Finds the places from the modules, the kinds of constraints, and the number of rows of one of each kind."""
    modules = [columns for kind in partition for columns in kind]
    size, widest = sum(map(len, modules)), max(map(len, modules))
    home = {column: (k, place) for k, columns in enumerate(modules) for place, column in enumerate(columns)}
    about = [columns for kind in groups for columns in kind]
    heights = [m for kind, m in zip(groups, rows_each, strict=True) for _ in kind]
    touched = [list(dict.fromkeys(home[column][0] for column in columns)) for columns in about]
    most = max(map(len, touched))
    nothing = max(map(len, about))
    found = np.full((len(about), most), len(modules))
    within = np.full((len(about), most, widest), nothing)
    for c, (columns, near) in enumerate(zip(about, touched, strict=True)):
        found[c, : len(near)] = near
        for j, column in enumerate(columns):
            k, place = home[column]
            within[c, near.index(k), place] = j
    real = np.arange(max(heights))[None] < np.array(heights)[:, None]
    pairs = _meetings(touched)
    order = order_of(len(about), {(a, b) for (a, _), (b, _) in pairs})
    return Places(
        columns=_filled(modules, size),
        modules=found,
        within=within,
        real=real,
        rows=np.stack(np.nonzero(real)),
        shared=_oriented(pairs, order),
        order=order,
    )


def _filled(modules: Sequence[Sequence[int]], nothing: int) -> np.ndarray:
    found = np.full((len(modules), max(map(len, modules))), nothing)
    for k, columns in enumerate(modules):
        found[k, : len(columns)] = columns
    return found


def _meetings(touched: Sequence[Sequence[int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of constraints that meet in a module, each with the place of the module in it."""
    at: dict[int, list[tuple[int, int]]] = {}
    for c, near in enumerate(touched):
        for place, k in enumerate(near):
            at.setdefault(k, []).append((c, place))
    return [(a, b) for here in at.values() for i, b in enumerate(here) for a in here[:i]]


def _oriented(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]], order: Order) -> Shared:
    turned = [(a, b) if (a[0], b[0]) in order.edges else (b, a) for a, b in pairs]
    table = lambda side: np.array([pair[side] for pair in turned], int).reshape(-1, 2)
    return Shared(table(0), table(1), np.array([order.edges[a[0], b[0]] for a, b in turned], int))
