"""Parameter sharing: what several pytrees have in common is kept once, as one leaf.

A constraint that is a method of a system holds that system. If both were kept, every parameter would be two leaves, and
a gradient with respect to either would be incomplete. Everything that occurs again is therefore replaced by a
`Reference`, which has no leaves; `joined` restores the original.

Two things are the same if they are one module object, also within one pytree, or one array object in two different
pytrees. An array that a function reaches without holding it in a pytree is found by its `Origin` (_binding).
"""

from collections.abc import Hashable, Sequence

import equinox as eqx
import jax
from jax.tree_util import tree_flatten_with_path, tree_leaves, tree_map, tree_structure, tree_unflatten
from jaxtyping import Array, PyTree

from ._binding import Origin, Path, Place, no_such, stacks


class Reference(eqx.Module):
    """Stands for the object at a place in a sequence of pytrees.

    `level`: the depth of nesting, since pytrees with references may be separated again.
    """

    level: int = eqx.field(static=True)
    place: Place = eqx.field(static=True)


def separated(*parts: PyTree) -> tuple[list[PyTree], Origin]:
    """Returns the pytrees with references to what occurred before (the first is whole), and their origin."""
    inner = [x.level for x in tree_leaves(parts, is_leaf=_is_reference) if _is_reference(x)]
    known = _Known(1 + max(inner, default=-1))
    apart = [_separate(part, (jax.tree_util.SequenceKey(i),), known, whole=i == 0) for i, part in enumerate(parts)]
    return apart, Origin([(x, place) for x, place in known.arrays.values() if place], known.level)


def joined(parts: Sequence[PyTree], origin: Origin) -> list[PyTree]:
    """Returns the pytrees that `separated` was given."""
    made: dict[Reference, PyTree] = {}

    def is_ours(x: PyTree) -> bool:
        return isinstance(x, Reference) and x.level == origin.level

    def put_back(x: PyTree) -> PyTree:
        if not is_ours(x):
            return x
        if x not in made:
            found = [*parts]
            for key in x.place.path:
                found = dict(children(put_back(found))).get(key)
                if found is None:
                    raise no_such(x.place.path)
            found = found if x.place.row is None else found[x.place.row]
            made[x] = join(found) if x.place.path[0].idx else found  # the first was left whole
        return made[x]

    def join(x: PyTree) -> PyTree:
        if not any(map(is_ours, tree_leaves(x, is_leaf=is_ours))):
            return x
        return tree_map(put_back, x, is_leaf=is_ours)

    first, *others = parts
    return [first, *map(join, others)]


class _Known:
    """Records the first place of each module and each array, by identity; keeps the objects alive meanwhile."""

    def __init__(self, level: int):
        self.level = level
        self.modules: dict[int, tuple[eqx.Module, Place]] = {}
        self.arrays: dict[int, tuple[Array, Place | None]] = {}

    def add(self, x: PyTree, path: Path) -> None:
        if isinstance(x, eqx.Module):
            self.modules.setdefault(id(x), (x, Place(path)))
        elif eqx.is_array(x):
            for array, row in ((x, None), *((row, i) for i, row in enumerate(stacks.rows(x)))):
                # An array that stands for two parameters of one pytree is neither of them.
                self.arrays[id(array)] = array, None if id(array) in self.arrays else Place(path, row)

    def find(self, x: PyTree, path: Path) -> Reference | None:
        if isinstance(x, eqx.Module):
            place = self.modules.get(id(x), (x, None))[1] if any(map(eqx.is_array, tree_leaves(x))) else None
        else:
            place = self.arrays.get(id(x), (x, None))[1]
            place = None if place is None or place.path[0] == path[0] else place
        return None if place is None else Reference(self.level, place)


def _separate(x: PyTree, path: Path, known: _Known, whole: bool) -> PyTree:
    found = None if whole else known.find(x, path)
    if found is not None:
        return found
    parts = [_separate(child, (*path, key), known, whole) for key, child in children(x)]
    known.add(x, path)
    return with_children(x, parts)


def children(x: PyTree) -> list[tuple[Hashable, PyTree]]:
    """Returns keys and values one level down; none for a leaf, or for a node that JAX cannot flatten (mixed keys)."""
    try:
        entries, structure = tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    except (TypeError, ValueError):
        return []
    return [] if jax.tree_util.treedef_is_leaf(structure) else [(path[0], child) for path, child in entries]


def with_children(x: PyTree, new: Sequence[PyTree]) -> PyTree:
    """Returns `x` with the children `new`; `x` itself if they are the same."""
    if all(child is old for child, (_, old) in zip(new, children(x), strict=True)):
        return x
    return tree_unflatten(tree_structure(x, is_leaf=lambda y: y is not x), new)


def _is_reference(x: PyTree) -> bool:
    return isinstance(x, Reference)
