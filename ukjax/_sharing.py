"""Parameter sharing: one leaf for each parameter, wherever constraints and the system reach it from.

A constraint that is a method of a system holds that system. If both were kept, every parameter would be two leaves, and
a gradient with respect to either would be incomplete. Everything that occurs again is therefore replaced by a
`Reference`, which has no leaves; `joined` restores the original.

Two things are the same if they are one module object, also within one pytree, or one array object in two different
pytrees. For that `own_parameters` makes each number in a system's fields an array of its own.

A function may reach an array without holding it in a pytree: by a closure, an attribute or a global variable. Its
traced operations still meet that very array, which is recognised by identity (`Origin`) and replaced by the present
value in its place (`Binding`).
"""

import dataclasses
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.tree_util import KeyPath, keystr, tree_flatten_with_path, tree_leaves, tree_map, tree_structure, tree_unflatten
from jaxtyping import Array, ArrayLike, PyTree

from ._program import substituted
from ._result import is_traced


class Place(NamedTuple):
    """The place of an array: a leaf of a pytree, or a row of such a leaf."""

    path: KeyPath
    row: int | None = None


class Stacks:
    """Records, for each stacked array, the arrays that became its rows."""

    def __init__(self):
        self._rows: dict[int, tuple[weakref.ref, tuple[Array, ...]]] = {}

    def remember(self, stack: Array, rows: Sequence[Array]) -> None:
        if not is_traced(stack, *rows):
            key = id(stack)
            self._rows[key] = weakref.ref(stack, lambda _: self._rows.pop(key, None)), tuple(rows)

    def rows(self, stack: Array) -> tuple[Array, ...]:
        """Returns the arrays that `stack` was made of; an empty tuple if they are not known."""
        alive, rows = self._rows.get(id(stack), (lambda: None, ()))
        return rows if alive() is stack else ()

    def row(self, stack: Array, row: int) -> Array:
        """Returns the array that a row of `stack` was made of; the row itself if that array is not known."""
        rows = self.rows(stack)
        return rows[row] if rows else stack[row]


stacks = Stacks()


class Binding(eqx.Module):
    """The arrays that functions reached when a pytree was made (`origin`), and their present `values`."""

    origin: "Origin" = eqx.field(static=True)
    values: tuple[PyTree, ...]  # one for each path of the origin

    @property
    def is_needed(self) -> bool:
        """Whether the values differ from the original arrays, or stand for other arrays too."""
        return not self.origin.is_at(self.values)

    def __call__(self, function: Callable) -> Callable:
        return Bound(function, self) if self.is_needed else function


class Bound(eqx.Module):
    """A function evaluated with the present values of the arrays that it reaches, with the attributes of `function`."""

    function: Callable
    binding: Binding

    def __call__(self, *arguments):
        return substituted(self.function, self.binding.origin, self.binding.values)(*arguments)

    def __getattr__(self, name: str) -> Any:
        if name in ("function", "binding"):  # not set yet
            raise AttributeError(name)
        return getattr(self.function, name)


def binding(parts: Sequence[PyTree], origin: "Origin") -> Binding:
    """Binds functions to the present values in parts that have the structure of those from `separated`."""
    present = dict(tree_flatten_with_path(list(parts))[0])
    return Binding(origin, tuple(present.get(path) for path in origin.paths))


class Origin:
    """The arrays of a pytree when it was made, each with its place; `level` is that of the pytree's references.

    An origin is part of the key by which a compiled program is found again. Two origins are equal if every array that
    their functions reached while they were traced was at the same place in both, or in neither.
    """

    def __init__(self, arrays: Iterable[tuple[Array, Place]], level: int = 0):
        arrays = [(x, place) for x, place in arrays if isinstance(x, jax.Array)]  # NumPy's are not traced
        self.level, self.paths = level, tuple(dict.fromkeys(place.path for _, place in arrays))
        number = {path: i for i, path in enumerate(self.paths)}
        self._places = {id(x): (weakref.ref(x), (number[place.path], place.row)) for x, place in arrays}
        self._first = {place: alive for alive, place in self._places.values()}
        self._reached: dict[int, weakref.ref] = {}

    def __hash__(self) -> int:
        return hash(self.paths)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Origin) or self.paths != other.paths:
            return self is other
        reached = [alive() for alive in (*self._reached.values(), *other._reached.values())]
        return all(self._place(x) == other._place(x) for x in reached if x is not None)

    def __deepcopy__(self, memo: dict[int, object]) -> "Origin":
        return self

    def __reduce__(self):
        return Origin, (self.arrays, self.level)

    @property
    def arrays(self) -> list[tuple[Array, Place]]:
        """The arrays that are still alive, with the places where they were."""
        found = [(alive(), Place(self.paths[i], row)) for alive, (i, row) in self._places.values()]
        return [(x, at) for x, at in found if x is not None]

    def is_at(self, values: Sequence[PyTree]) -> bool:
        """Whether `values`, one for each path, are the original arrays, and no other array shares their places."""
        first = [self._first.get((i, None), lambda: None)() for i in range(len(values))]
        return len(self._first) == len(self._places) and all(x is y for x, y in zip(first, values, strict=True))

    def knows(self, x: object) -> bool:
        """Whether an operand of a function is one of the arrays."""
        if id(x) not in self._reached and isinstance(x, jax.Array) and not isinstance(x, Tracer):
            self._reached[id(x)] = weakref.ref(x, lambda _, key=id(x): self._reached.pop(key, None))
        return self._place(x) is not None

    def current(self, x: Array, values: Sequence[PyTree]) -> Array:
        """Returns the present value at the place of array `x`; `values`: one for each of the paths."""
        place = self._place(x)
        assert place is not None, "asked of what it knows"
        index, row = place
        if values[index] is None:
            raise no_such(self.paths[index])
        found = values[index] if row is None else values[index][row]
        if not _can_replace(found, x):
            raise ValueError(f"{keystr(self.paths[index][1:])} must be a real number or array, but is {found!r}.")
        if jnp.shape(found) != x.shape:
            raise ValueError(
                f"{keystr(self.paths[index][1:])} has shape {jnp.shape(found)} now, but a function that reaches it was "
                f"given {x.shape}. Make a new ukjax.Mechanism; for a batch of mechanisms use jax.vmap."
            )
        return found if getattr(found, "dtype", None) == x.dtype else jnp.asarray(found, x.dtype)

    def _place(self, x: object) -> tuple[int, int | None] | None:
        alive, place = self._places.get(id(x), (lambda: None, None))
        return place if alive() is x else None


def _can_replace(found: object, x: Array) -> bool:
    """Whether `found` is a number or an array whose kind of dtype may replace that of `x`."""
    dtype = getattr(found, "dtype", None)
    if dtype is None:
        return isinstance(found, int | float) and not isinstance(found, bool)
    becomes_real = jnp.issubdtype(dtype, jnp.complexfloating) and not jnp.issubdtype(x.dtype, jnp.complexfloating)
    return not becomes_real and jnp.issubdtype(dtype, bool) == jnp.issubdtype(x.dtype, bool)


def no_such(path: KeyPath) -> ValueError:
    """Returns the error for a shared array whose place no longer exists."""
    return ValueError(
        f"A constraint shares {keystr(path[1:])} with its system, but the system has no such parameter: it was "
        "replaced by one of another kind. Make a new ukjax.Mechanism with constraints of the new system."
    )


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

    def add(self, x: PyTree, path: KeyPath) -> None:
        if isinstance(x, eqx.Module):
            self.modules.setdefault(id(x), (x, Place(path)))
        elif eqx.is_array(x):
            for array, row in ((x, None), *((row, i) for i, row in enumerate(stacks.rows(x)))):
                # An array that stands for two parameters of one pytree is neither of them.
                self.arrays[id(array)] = array, None if id(array) in self.arrays else Place(path, row)

    def find(self, x: PyTree, path: KeyPath) -> Reference | None:
        if isinstance(x, eqx.Module):
            place = self.modules.get(id(x), (x, None))[1] if any(map(eqx.is_array, tree_leaves(x))) else None
        else:
            place = self.arrays.get(id(x), (x, None))[1]
            place = None if place is None or place.path[0] == path[0] else place
        return None if place is None else Reference(self.level, place)


def _separate(x: PyTree, path: KeyPath, known: _Known, whole: bool) -> PyTree:
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


def own_parameters(module: eqx.Module) -> None:
    """Makes every number in the fields of a module, and of modules within, an array used nowhere else in the module.

    The array's identity later identifies the parameter. The module is changed in place: call this while it is being
    made.
    """
    count: dict[int, int] = {}

    def counted(x: ArrayLike) -> ArrayLike:
        count[id(x)] = count.get(id(x), 0) + 1
        return x

    def own(x: ArrayLike) -> ArrayLike:
        if is_traced(x):
            return jnp.array(x) if count[id(x)] > 1 else x
        with jax.ensure_compile_time_eval():
            return jnp.array(x) if count[id(x)] > 1 or not isinstance(x, jax.Array) else x

    for change in (counted, own):
        _change_numbers(module, change, set())


def _change_numbers(x: PyTree, change: Callable[[ArrayLike], ArrayLike], entered: set[int]) -> PyTree:
    if eqx.is_array(x) or isinstance(x, float):
        return change(x) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else x
    if isinstance(x, eqx.Module):
        if id(x) not in entered:
            entered.add(id(x))
            for field in dataclasses.fields(x):
                if not field.metadata.get("static", False):
                    value = _change_numbers(getattr(x, field.name), change, entered)
                    object.__setattr__(x, field.name, value)
        return x
    parts = [_change_numbers(child, change, entered) for _, child in children(x)]
    return with_children(x, parts)
