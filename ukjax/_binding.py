"""Functions bound to the present values of the arrays that they reach.

A function may reach an array without holding it in a pytree: by a closure, an attribute or a global variable. Its
traced operations still meet that very array, which is recognised by identity and replaced by the present value in its
place.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, PyTree

from ._program import substituted
from ._result import is_traced


Path = tuple[Any, ...]


class Place(NamedTuple):
    """The place of an array: a leaf of a pytree, or a row of such a leaf."""

    path: Path
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
    values: tuple[Any, ...]  # one for each path of the origin

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

    def __deepcopy__(self, memo: Any) -> "Origin":
        return self

    def __reduce__(self):
        return Origin, (self.arrays, self.level)

    @property
    def arrays(self) -> list[tuple[Array, Place]]:
        """The arrays that are still alive, with the places where they were."""
        found = [(alive(), Place(self.paths[i], row)) for alive, (i, row) in self._places.values()]
        return [(x, at) for x, at in found if x is not None]

    def is_at(self, values: Sequence[Any]) -> bool:
        """Whether `values`, one for each path, are the original arrays, and no other array shares their places."""
        first = lambda i: self._first.get((i, None), lambda: None)()
        return len(self._first) == len(self._places) and all(first(i) is x for i, x in enumerate(values))

    def knows(self, x: Any) -> bool:
        """Whether an operand of a function is one of the arrays."""
        if id(x) not in self._reached and isinstance(x, jax.Array) and not isinstance(x, Tracer):
            self._reached[id(x)] = weakref.ref(x, lambda _, key=id(x): self._reached.pop(key, None))
        return self._place(x) is not None

    def current(self, x: Any, values: Sequence[Any]) -> Any:
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

    def _place(self, x: Any) -> tuple[int, int | None] | None:
        alive, place = self._places.get(id(x), (lambda: None, None))
        return place if alive() is x else None


def _can_replace(found: Any, x: Array) -> bool:
    """Whether `found` is a number or an array whose kind of dtype may replace that of `x`."""
    dtype = getattr(found, "dtype", None)
    if dtype is None:
        return isinstance(found, int | float) and not isinstance(found, bool)
    is_complex = lambda dtype: jnp.issubdtype(dtype, jnp.complexfloating)
    return is_complex(dtype) <= is_complex(x.dtype) and jnp.issubdtype(dtype, bool) == jnp.issubdtype(x.dtype, bool)


def no_such(path: Path) -> ValueError:
    """Returns the error for a shared array whose place no longer exists."""
    return ValueError(
        f"A constraint shares {keystr(path[1:])} with its system, but the system has no such parameter: it was "
        "replaced by one of another kind. Make a new ukjax.Mechanism with constraints of the new system."
    )
