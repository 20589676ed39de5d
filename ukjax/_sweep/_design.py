"""The design of a study: the parameters that are varied, and the points.

N: samples; d: varied parameters.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import ArrayLike

from .. import _check
from .._coordinate import Coordinate


DESIGNS = ("grid", "random", "lhs", "sobol")
MOST = 10**9  # points: of more, every parameter takes more than 8 GB


# The values of a parameter: (low, high) or (low, high, how many), either with "log" at the end; or a list of numbers.
Varied = tuple[float | str, ...] | Sequence[float] | ArrayLike


@dataclasses.dataclass(frozen=True)
class Design:
    """The points of a study.

    Attributes:
        values: The values of each varied parameter (N,).
        kind: "grid", "random", "lhs" or "sobol".
        shape: The number of values of each parameter of a grid, the last one varying fastest; empty otherwise.
        seed: The seed of random points.
        text: The ranges as they were given, to tell one study from another.
        about: The attributes of each parameter: `long_name`, `units` if it has some, and `scale`, "log" or "linear".
    """

    values: dict[str, np.ndarray]
    kind: str
    shape: tuple[int, ...]
    seed: int
    text: dict[str, str]
    about: dict[str, dict[str, str]]

    @property
    def count(self) -> int:
        return len(next(iter(self.values.values())))


@dataclasses.dataclass(frozen=True)
class _Range:
    low: float
    high: float
    count: int | None
    logarithmic: bool

    def at(self, share: np.ndarray) -> np.ndarray:
        """The values at shares of the way from the low end to the high one."""
        if self.logarithmic:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * share


def design_of(vary: Mapping[str, Varied], kind: str, samples: int | None, seed: int) -> Design:
    """Makes the points of a study from the arguments of `sweep`; raises ValueError if these are invalid."""
    if kind not in DESIGNS:
        raise ValueError(f"design must be one of {', '.join(DESIGNS)}, but is {kind!r}.")
    if not isinstance(vary, Mapping) or not vary:
        raise ValueError("vary must name at least one parameter, such as {'m1': (1.0, 2.0, 11)}.")
    seed = _check.seed(seed)
    ranges = {Coordinate(name).name: _range(name, given) for name, given in vary.items()}
    if len(ranges) < len(vary):
        raise ValueError(f"vary must name each parameter once, but names {', '.join(vary)}.")
    text = {Coordinate(name).name: _text(given) for name, given in vary.items()}
    about = {one.name: _about(one, ranges[one.name]) for one in map(Coordinate, vary)}
    if kind == "grid":
        if samples is not None:
            raise ValueError("samples has no effect with a grid, whose ranges say how many. Leave one of them out.")
        counts = [len(x) if isinstance(x, np.ndarray) else x.count or 1 for x in ranges.values()]
        _check_possible(math.prod(counts), "vary")
        axes = {name: _axis(name, given) for name, given in ranges.items()}
        points = np.meshgrid(*axes.values(), indexing="ij")
        values = {name: x.ravel() for name, x in zip(axes, points, strict=True)}
        return Design(values, kind, tuple(len(x) for x in axes.values()), seed, text, about)
    if samples is None:
        raise ValueError(f"samples must be given with design={kind!r}: pass how many.")
    count, spans = _check.count(samples, "samples"), {}
    _check_possible(count, "samples")
    for name, given in ranges.items():
        if not isinstance(given, _Range) or given.count is not None:
            raise ValueError(f"vary[{name!r}] must be (low, high) with design={kind!r}, but is {text[name]}.")
        spans[name] = given
    shares = _shares(kind, len(spans), count, seed)
    return Design({k: r.at(shares[:, i]) for i, (k, r) in enumerate(spans.items())}, kind, (), seed, text, about)


def _about(name: Coordinate, given: "_Range | np.ndarray") -> dict[str, str]:
    units = {"units": name.unit} if name.unit else {}
    return {"long_name": name.name, **units, "scale": "log" if getattr(given, "logarithmic", False) else "linear"}


def _check_possible(count: int, name: str) -> None:
    if count > MOST:
        raise ValueError(
            f"{name} must ask for at most {MOST:,} points, which are held in memory, but asks for {count:,}."
        )


def _shares(kind: str, d: int, count: int, seed: int) -> np.ndarray:
    """Points (N, d) of the unit cube."""
    if kind == "random":
        return np.random.default_rng(seed).random((count, d))
    from scipy.stats import qmc

    sampler: Any = qmc  # whose argument is called seed until SciPy 1.14, and rng too since then
    if kind == "lhs":
        return sampler.LatinHypercube(d, seed=seed).random(count)
    if count & (count - 1):
        near = 2 ** (count.bit_length())
        raise ValueError(f"samples must be a power of two with design='sobol', such as {near}, but is {count}.")
    return sampler.Sobol(d, seed=seed).random_base2(count.bit_length() - 1)


def _axis(name: str, given: "_Range | np.ndarray") -> np.ndarray:
    if isinstance(given, np.ndarray):
        return given
    if given.count is None:
        raise ValueError(f"vary[{name!r}] must be (low, high, how many) with a grid, or a list of values.")
    return given.at(np.linspace(0.0, 1.0, given.count))


def _range(name: str, given: Varied) -> "_Range | np.ndarray":
    """Reads a range (low, high) or (low, high, count), either followed by "log"; or the values of a list or array."""
    if not isinstance(given, tuple):
        return _values(name, given)
    parts, logarithmic = list(given), False
    if parts and parts[-1] == "log":
        logarithmic = bool(parts.pop())
    if len(parts) not in (2, 3):
        raise ValueError(
            f"vary[{name!r}] must be (low, high), (low, high, how many), either with 'log' at the end, or a list of "
            f"values, but is {given!r}."
        )
    low, high = (_check.scalar(x, f"vary[{name!r}]") for x in parts[:2])
    count = None if len(parts) == 2 else _check.count(parts[2], f"vary[{name!r}], how many,")
    if not low < high and not (low == high and count == 1):
        raise ValueError(f"vary[{name!r}] must go from low to high, but goes from {low:g} to {high:g}.")
    if logarithmic and low <= 0:
        raise ValueError(f"vary[{name!r}] must be positive with 'log', but begins at {low:g}.")
    return _Range(low, high, count, logarithmic)


def _values(name: str, given: Sequence[float] | ArrayLike) -> np.ndarray:
    try:
        values = np.asarray(given, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"vary[{name!r}] must be numbers, but is {given!r}.") from error
    if values.ndim != 1 or not len(values):
        raise ValueError(f"vary[{name!r}] must be (low, high, how many) or a list of values, but is {given!r}.")
    _check.finite(values, f"vary[{name!r}]")
    return values


def _text(given: Varied) -> str:
    if isinstance(given, tuple):
        ends, rest = [repr(float(x)) for x in given[:2]], given[2:]
        return ":".join([*ends, *(x if isinstance(x, str) else f"{int(x)}" for x in rest)])
    return ",".join(repr(float(x)) for x in np.asarray(given, float))


def parse(settings: Sequence[str]) -> dict[str, tuple[float | str, ...] | list[float]]:
    """Parses `name=lo:hi:n`, `name=lo:hi`, either with `:log`, or `name=a,b,c` into `vary`; raises ValueError.

    A name may have a unit: `name [unit]=lo:hi:n`.
    """
    vary: dict[str, tuple[float | str, ...] | list[float]] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name or not text:
            raise ValueError(f"--vary takes name=low:high:n or name=a,b,c, but got {setting!r}.")
        if name in vary:
            raise ValueError(f"--vary {name} is given twice.")
        try:
            if ":" in text:
                parts = text.split(":")
                log = parts[-1:] == ["log"]
                parts = parts[:-1] if log else parts
                numbers = [*map(float, parts[:2]), *map(int, parts[2:])]
                vary[name] = (*numbers, "log") if log else tuple(numbers)
            else:
                vary[name] = [float(x) for x in text.split(",")]
        except ValueError as error:
            raise ValueError(f"--vary takes name=low:high:n or name=a,b,c, but got {setting!r}: {error}.") from error
    return vary
