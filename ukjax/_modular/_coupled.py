"""Systems and constraints of one kind, which differ in numbers only and are evaluated together.

k: number of objects of one kind; n_k: coordinates that each depends on; m: rows of each.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_leaves, tree_map, tree_structure, tree_unflatten
from jaxtyping import Array, PyTree

from .._constraint import AbstractConstraint, AbstractConstraintGroup, bound
from .._sharing import Binding, Place, stacks


Tree = TypeVar("Tree")


class Alike(eqx.Module):
    """Objects that differ in numbers only, and the coordinates that each depends on (k, n_k)."""

    each: PyTree  # its arrays have a leading axis k
    columns: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    bindings: tuple[Binding, ...] = ()  # of the functions in them

    @property
    def members(self) -> tuple[PyTree, ...]:
        """The objects one after the other."""
        arrays, rest = eqx.partition(self.each, eqx.is_array)
        return tuple(eqx.combine(tree_map(lambda x, i=i: x[i], arrays), rest) for i in range(len(self.columns)))

    def map(self, function: Callable[..., Tree], *vectors: Array) -> Tree:
        """Returns `function(object, *its parts of the vectors)` for all objects at once."""
        i = np.array(self.columns)
        for binding in self.bindings:
            function = binding(function)
        return eqx.filter_vmap(lambda *x: function(*x))(self.each, *(x[i] for x in vectors))


class Stacked(NamedTuple):
    """Places of the arrays of objects of one kind: `skeleton` is one object with `Places` for its arrays."""

    skeleton: PyTree
    columns: tuple[tuple[int, ...], ...]

    def alike(self, values: Sequence[Array], *bindings: Binding) -> Alike:
        """Returns the objects, with their arrays taken from `values`."""
        return Alike(self._with_arrays(lambda places: places.taken(values)), self.columns, bindings)

    def placed(self, entry: Callable[[tuple[int, int]], Array]) -> list[tuple[PyTree, tuple[int, ...]]]:
        """Returns the objects with their coordinates; `entry` gives the array at a place, always the same object."""
        each = (self._with_arrays(lambda places, i=i: entry(places.places[i])) for i in range(len(self.columns)))
        return list(zip(each, self.columns, strict=True))

    def _with_arrays(self, array: Callable[["Places"], Array]) -> PyTree:
        """Returns the skeleton with an array for each of its `Places`."""
        leaves, structure = tree_flatten(self.skeleton, is_leaf=lambda x: isinstance(x, Places))
        return tree_unflatten(structure, [array(x) if isinstance(x, Places) else x for x in leaves])


@dataclasses.dataclass(frozen=True)
class Places:
    """Places of an array in each of k objects: the number of a stack, and the row in it, for each."""

    places: tuple[tuple[int, int], ...]

    def taken(self, values: Sequence[Array]) -> Array:
        """Returns the arrays of all objects, (k, ...)."""
        stacks, rows = zip(*self.places, strict=True)
        if len(set(stacks)) > 1:
            return jnp.stack([values[stack][row] for stack, row in self.places])
        values_of = values[stacks[0]]
        return values_of if rows == tuple(range(values_of.shape[0])) else values_of[np.array(rows)]


def stacked(
    kinds: Sequence[tuple[Sequence[PyTree], tuple[tuple[int, ...], ...]]],
) -> tuple[tuple[Array, ...], list[Stacked], list[tuple[Array, Place]]]:
    """Stacks the arrays of objects of each kind, each array once: arrays that objects share are kept in one place.

    Also returns the place of each array that is kept in one place only. An array that occurs twice in one object stands
    for two parameters, each of which is kept.
    """
    values: list[Array] = []
    rows: list[list[Array]] = []
    known: dict[int, list[tuple[int, int]]] = {}
    found = []
    for things, columns in kinds:
        leaves = [tree_leaves(thing) for thing in things]
        before, skeleton = {k: x[0] for k, x in known.items() if len(x) == 1}, []
        for column in zip(*leaves, strict=True):
            if not eqx.is_array(column[0]):
                skeleton.append(column[0])
                continue
            new = {id(x): x for x in column if id(x) not in before}
            places = {**before, **{key: (len(values), row) for row, key in enumerate(new)}}
            if new:
                rows.append(list(new.values()))
                values.append(jnp.stack(rows[-1]))
                stacks.remember(values[-1], rows[-1])
            for key in new:
                known.setdefault(key, []).append(places[key])
            skeleton.append(Places(tuple(places[id(x)] for x in column)))
        found.append(Stacked(tree_unflatten(tree_structure(things[0]), skeleton), columns))
    places = [(x, Place((k,))) for k, x in enumerate(values)]
    for k, of in enumerate(rows):
        places += [(x, Place((k,), row)) for row, x in enumerate(of) if len(known[id(x)]) == 1]
    return tuple(values), found, places


class Coupled(AbstractConstraintGroup):
    """Constraints of one kind and one level, each on some coordinates of a composite."""

    alike: Alike
    names: tuple[str, ...] = eqx.field(static=True)
    rows_each: int = eqx.field(static=True)
    level: int = eqx.field(static=True)

    @property
    def members(self):
        members = self.alike.members
        for binding in self.alike.bindings:
            members = tuple(bound(member, binding) for member in members)
        return dict(zip(self.names, members, strict=True))

    def bound(self, binding):
        alike = dataclasses.replace(self.alike, bindings=(*self.alike.bindings, binding))
        return dataclasses.replace(self, alike=alike)

    @property
    def columns(self):
        return self.alike.columns

    def rows(self, q, v, t, kinematics=None):
        A, b = self.each_rows(q, v, t)
        k, m, _ = A.shape
        columns = np.array(self.columns)[:, None, :]
        all_rows = jnp.zeros((k, m, q.shape[0]), A.dtype)
        scattered = all_rows.at[np.arange(k)[:, None, None], np.arange(m)[None, :, None], columns].set(A)
        return scattered.reshape(k * m, -1), b.reshape(-1)

    def each_rows(self, q, v, t):
        return self.alike.map(lambda constraint, q, v: constraint.rows(q, v, t), q, v)

    def position_error(self, q, t):
        return self.alike.map(lambda constraint, q: constraint.position_error(q, t), q).reshape(-1)

    def velocity_error(self, q, v, t, kinematics=None):
        return self.alike.map(lambda constraint, q, v: constraint.velocity_error(q, v, t), q, v).reshape(-1)


def rows_of(constraint: AbstractConstraint, columns: Sequence[int], size: int) -> int:
    """Returns the number of rows of a constraint, and so checks the results of its functions."""
    zero = jnp.zeros(size)
    part = zero[np.array(columns)]
    A, _ = eqx.filter_eval_shape(constraint.rows, part, part, jnp.zeros((), zero.dtype))
    return A.shape[0]


def alike_groups(things: Sequence[PyTree], columns: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Groups objects of one kind with equally many coordinates; each group holds their indices."""
    found: list[list[int]] = []
    for i, (thing, of) in enumerate(zip(things, columns, strict=True)):
        for members in found:
            if len(columns[members[0]]) == len(of) and _alike(things[members[0]], thing):
                members.append(i)
                break
        else:
            found.append([i])
    return tuple(map(tuple, found))


def _alike(a: PyTree, b: PyTree) -> bool:
    """Whether two pytrees differ in the values of their arrays only."""
    if tree_structure(a) != tree_structure(b):
        return False
    return all(map(_same, tree_leaves(a), tree_leaves(b)))


def _same(x: PyTree, y: PyTree) -> bool:
    if eqx.is_array(x):
        return eqx.is_array(y) and x.shape == y.shape and x.dtype == y.dtype
    return x is y or bool(x == y)
