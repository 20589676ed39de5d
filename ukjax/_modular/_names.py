"""Coordinates by name: views of a state through which constraints are written on named modules."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
from jaxtyping import Array

from .._constraint import AbstractConstraint, AccelerationConstraint, Holonomic, Nonholonomic


@dataclasses.dataclass(frozen=True)
class Names:
    """What the entries of a vector are called, in order: a coordinate, or a module with `Names` of its own."""

    entries: tuple[tuple[str, "Names | None"], ...]

    @property
    def size(self) -> int:
        return sum(1 if inner is None else inner.size for _, inner in self.entries)

    def find(self, path: str) -> tuple[int, "Names | None"]:
        """Where `path`, such as "leg.bar", starts, and its names; ValueError if there is no such thing."""
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
    """A function of views of modules as one of their coordinates in a row; the time is passed on."""

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


def on_views(constraint: AbstractConstraint, names: tuple[Names, ...]) -> AbstractConstraint:
    """`constraint`, whose functions take views, as one whose functions take arrays."""
    of = lambda function: OfViews(function, names)
    if isinstance(constraint, Holonomic):
        return Holonomic(of(constraint.phi), constraint.stabilization)
    if isinstance(constraint, Nonholonomic):
        return Nonholonomic(of(constraint.psi), constraint.stabilization)
    if isinstance(constraint, AccelerationConstraint):
        return AccelerationConstraint(of(constraint.matrix), of(constraint.vector))
    return constraint


def of_coordinates(coordinates: tuple[str, ...]) -> Names:
    return Names(tuple((name, None) for name in coordinates))


def of_modules(modules: Mapping[str, Names]) -> Names:
    return Names(tuple(modules.items()))
