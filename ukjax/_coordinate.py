"""What a number is called, and in which unit it is."""

import re
from collections.abc import Sequence
from typing import Any


_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s+\[(?P<unit>[^\[\]]*)\]\s*", re.DOTALL)


class Coordinate(str):
    """A name with a unit: of a coordinate, a control, or anything else that is plotted.

    It is the text "name [unit]", so that it serves wherever such a text does, as a key or a label.

    Args:
        name: Such as "theta 1"; or the whole text, "theta 1 [rad]", if `unit` is omitted. Brackets that do not stand
            apart, as in "x[0]", are no unit.
        unit: Such as "rad", "m/s" or "N m"; empty for a pure number.

    Attributes:
        name: The name alone.
        unit: The unit alone.

    Raises:
        TypeError: If one of them is no text.
        ValueError: If `unit` has brackets of its own.
    """

    name: str
    unit: str

    def __new__(cls, name: str, unit: str | None = None) -> "Coordinate":
        if isinstance(name, Coordinate) and unit is None:
            return name
        if not isinstance(name, str) or not isinstance(unit, str | None):
            raise TypeError(f"A name and its unit must be text, such as 'q1', 'rad', but are {name!r}, {unit!r}.")
        found = _WITH_UNIT.fullmatch(name) if unit is None else None
        alone, of = (found["name"], found["unit"].strip()) if found else (name, unit or "")
        if "[" in of or "]" in of:
            raise ValueError(f"unit must be without brackets, such as 'rad', but is {of!r}.")
        self = super().__new__(cls, f"{alone} [{of}]" if of else alone)
        self.name, self.unit = alone, of
        return self

    @property
    def parts(self) -> list[str]:
        """What the components of a vector are called: of "tool x, y, z" they are x, y and z."""
        return [part.split()[-1] if part.strip() else part for part in self.name.split(",")]


# Of forces that belong to coordinates in these units, or to speeds.
_FORCE_UNITS = {"m": "N", "rad": "N m", "m/s": "N", "rad/s": "N m"}


def rate_unit(unit: str, order: int = 1) -> str:
    """The unit of a derivative by time of something in `unit`; empty if that is not known."""
    return unit and f"{unit}/s" + (f"^{order}" if order > 1 else "")


def force_unit(unit: str) -> str:
    """The unit of the generalised force of a coordinate, or of a speed, in `unit`; empty if that is not known."""
    return _FORCE_UNITS.get(unit, "")


def named(names: Sequence[Any] | None, count: int, letter: str, what: str) -> tuple[Coordinate, ...]:
    """A name for each of `count` numbers; "q1", "q2", ... with this letter if there are no names.

    Raises:
        ValueError: If there are more or fewer names; `what` says of what.
    """
    given = tuple(f"{letter}{i + 1}" for i in range(count)) if names is None else tuple(names)
    if len(given) != count:
        kind, of = what.split(", ")
        raise ValueError(f"{kind} must be {count} names, one per {of}, but got {len(given)}: {given}.")
    return tuple(Coordinate(name) for name in given)


def speeds_named(
    names: Sequence[Any] | None, coordinates: Sequence[Coordinate], count: int
) -> tuple[Coordinate, ...] | None:
    """A name for each of `count` speeds; None if there are no names and as many coordinates, of which they are rates.

    Raises:
        ValueError: If there are more or fewer names.
    """
    if names is None and count == len(coordinates):
        return None
    return named(names, count, "v", "speeds, speed")


def by_unit(names: Sequence[Coordinate]) -> dict[str, list[int]]:
    """Unit -> indices of the names that have it."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name.unit, []).append(i)
    return groups
