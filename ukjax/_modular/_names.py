"""Coordinates by name: views of a state, by which constraints on named modules are written."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._constraint import AbstractConstraint, AbstractFunctionConstraint


@dataclasses.dataclass(frozen=True)
class Names:
    """Names of the entries of a vector, in order: a coordinate, or a module with `Names` of its own."""

    entries: tuple[tuple[str, "Names | None"], ...]

    @property
    def size(self) -> int:
        return sum(1 if inner is None else inner.size for _, inner in self.entries)

    def find(self, path: str) -> tuple[int, "Names | None"]:
        """Returns the first index of `path`, such as "leg.bar", and its names; raises ValueError if unknown."""
        first, _, rest = path.partition(".")
        start = 0
        for name, inner in self.entries:
            if name == first:
                if not rest:
                    return start, inner
                if inner is None:
                    raise ValueError(f"{first!r} is a coordinate, which has no part {rest!r}.")
                further, found = inner.find(rest)
                return start + further, found
            start += 1 if inner is None else inner.size
        raise ValueError(f"there is no {first!r}; there is {', '.join(name for name, _ in self.entries)}.")


class View:
    """A vector whose parts have names: `q.platform.x`, `q["leg.bar"]`; `q[:]` is the vector itself."""

    __slots__ = ("_names", "_values")

    def __init__(self, values: Array, names: Names):
        self._values, self._names = values, names

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except ValueError as error:
            raise AttributeError(str(error)) from error

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self._values[key]
        start, inner = self._names.find(key)
        return self._values[start] if inner is None else View(self._values[start : start + inner.size], inner)


class OfViews(eqx.Module):
    """A function of views of modules, called with the vector of all their coordinates; the time is passed on."""

    function: Callable
    names: tuple[Names, ...] = eqx.field(static=True)

    def __call__(self, *state_and_time):
        *vectors, t = state_and_time
        return self.function(*(self._split(x) for x in vectors), t)

    def _split(self, x: Array) -> tuple[View, ...]:
        views, start = [], 0
        for names in self.names:
            views.append(View(x[start : start + names.size], names))
            start += names.size
        return tuple(views)


class OnViews(AbstractConstraint):
    """A user's own constraint, whose methods take views, called with arrays."""

    constraint: AbstractConstraint
    names: tuple[Names, ...] = eqx.field(static=True)

    def rows(self, q, v, t, kinematics=None):
        return OfViews(self.constraint.rows, self.names)(q, v, t)

    def position_error(self, q, t):
        return OfViews(self.constraint.position_error, self.names)(q, t)

    def velocity_error(self, q, v, t, kinematics=None):
        return OfViews(self.constraint.velocity_error, self.names)(q, v, t)


def on_views(constraint: AbstractConstraint, names: tuple[Names, ...]) -> AbstractConstraint:
    """Returns `constraint`, whose functions or methods take views, as a constraint on arrays."""
    if isinstance(constraint, AbstractFunctionConstraint):
        return constraint.through(lambda function: OfViews(function, names))
    return OnViews(constraint, names)


def of_coordinates(coordinates: tuple[str, ...]) -> Names:
    return Names(tuple((name, None) for name in coordinates))


def of_modules(modules: Mapping[str, Names]) -> Names:
    return Names(tuple(modules.items()))


def filled(names: Names, parts: Any, what: str) -> list[Array]:
    """Returns the values of a state, part by part; raises ValueError if one is missing or has a wrong shape."""
    if not isinstance(parts, Mapping):
        array = jnp.atleast_1d(_check.floating(parts, what))
        if array.shape != (names.size,):
            wanted = ", ".join(name for name, _ in names.entries)
            raise ValueError(f"{what} must have shape ({names.size},), for {wanted}, but has shape {array.shape}.")
        return [array]
    known = [name for name, _ in names.entries]
    wrong = [*(name for name in known if name not in parts), *(name for name in parts if name not in known)]
    if wrong:
        raise ValueError(f"{what} must have the entries {', '.join(known)}, but not so {', '.join(wrong)}.")
    found = []
    for name, inner in names.entries:
        found += filled(of_coordinates((name,)) if inner is None else inner, parts[name], f"{what}[{name!r}]")
    return found


def check_size(q: Array, size: int) -> None:
    """Raises ValueError unless q has the size of a composite; JAX would clamp an index beyond the end."""
    if q.shape != (size,):
        raise ValueError(f"q must have shape ({size},), as the composite has, but has shape {q.shape}.")


def check_names(names: Iterable[str], what: str) -> None:
    """Raises ValueError unless the names are different Python identifiers."""
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise ValueError(f"{what} must be Python identifiers, without a leading underscore, but one is {name!r}.")
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what} must be one or several different names, but are {names}.")
