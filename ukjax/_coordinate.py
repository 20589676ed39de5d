"""Names with units for coordinates, controls and other quantities."""

import re
from collections.abc import Sequence


_WITH_UNIT = re.compile(r"(?P<name>.*\S)\s+\[(?P<unit>[^\[\]]*)\]\s*", re.DOTALL)


class Coordinate(str):
    """A name with a unit: of a coordinate, a control, or anything else that is plotted.

    A `Coordinate` is the text "name [unit]", and serves as a key or a label.

    Args:
        name: Such as "theta 1"; or the whole text, "theta 1 [rad]", if `unit` is omitted. Brackets without a space
            before them, as in "x[0]", are no unit.
        unit: Such as "rad", "m/s" or "N m"; empty for a pure number.

    Attributes:
        name: The name alone.
        unit: The unit alone.

    Raises:
        TypeError: If `name` or `unit` is not text.
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
        """The names of a vector's components: x, y and z of "tool x, y, z"."""
        return [part.split()[-1] if part.strip() else part for part in self.name.split(",")]


# Units of generalised forces, by the unit of their coordinate or speed.
_FORCE_UNITS = {"m": "N", "rad": "N m", "m/s": "N", "rad/s": "N m"}


def rate_unit(unit: str, order: int = 1) -> str:
    """Returns the unit of a time derivative of a quantity in `unit`; empty if that is not known."""
    return unit and f"{unit}/s" + (f"^{order}" if order > 1 else "")


def force_unit(unit: str) -> str:
    """Returns the unit of the generalised force of a coordinate or speed in `unit`; empty if that is not known."""
    return _FORCE_UNITS.get(unit, "")


def named(names: Sequence[str] | None, count: int, letter: str, what: str) -> tuple[Coordinate, ...]:
    """Returns a name for each of `count` numbers; "q1", "q2", ... (by `letter`) if `names` is None.

    Raises:
        ValueError: If the number of names is not `count`; `what` is the argument and its item, for the message.
    """
    given = tuple(f"{letter}{i + 1}" for i in range(count)) if names is None else tuple(names)
    if len(given) != count:
        kind, of = what.split(", ")
        raise ValueError(f"{kind} must be {count} names, one per {of}, but got {len(given)}: {given}.")
    return tuple(Coordinate(name) for name in given)


def speeds_named(
    names: Sequence[str] | None, coordinates: Sequence[Coordinate], count: int
) -> tuple[Coordinate, ...] | None:
    """Returns a name for each of `count` speeds; None without `names` if the speeds are rates of the coordinates.

    Raises:
        ValueError: If the number of names is not `count`.
    """
    if names is None and count == len(coordinates):
        return None
    return named(names, count, "v", "speeds, speed")


def by_unit(names: Sequence[Coordinate]) -> dict[str, list[int]]:
    """Returns the indices of the names by unit."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name.unit, []).append(i)
    return groups
