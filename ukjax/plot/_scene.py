"""A drawing at the times of a trajectory, as plain arrays, from which pictures, animations and the page are made.

T: number of times; k: points of a link; d: 2 in the plane, 3 in space.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from .. import _check
from .._scenario import Drawing, Scenario
from .._trajectory import Trajectory


T = TypeVar("T")
# A force of a drawing: a function that returns a point and a force, or the name of a constraint and such a function.
Arrow = Callable[..., tuple[ArrayLike, ArrayLike]] | tuple[str, Callable[..., tuple[ArrayLike, ArrayLike]]]
COLORS = ("#2f7fd8", "#e8710a", "#1a9f6c", "#d6336c", "#8558d9", "#b58900", "#0c9bb3", "#c2571a")


# A mechanism that travels so many times its own size takes the picture along.
FAR = 2.0


@dataclasses.dataclass(frozen=True)
class Scene:
    """The arrays of everything in a picture.

    Attributes:
        title: Title of the picture.
        t: Times (T,) [s].
        links: Name -> points (T, k, d) [m].
        trails: Name of a link -> its last point (T, d) [m].
        arrows: Name -> points (T, d) [m] and forces there (T, d) [N].
        scenery: Name -> points (k, d) [m].
    """

    title: str
    t: np.ndarray
    links: dict[str, np.ndarray]
    trails: dict[str, np.ndarray]
    arrows: dict[str, tuple[np.ndarray, np.ndarray]]
    scenery: dict[str, np.ndarray]

    @property
    def dimension(self) -> int:
        return next(iter(self.links.values())).shape[2]

    def color(self, name: str) -> str:
        """The color of a link or of an arrow."""
        return COLORS[[*self.links, *self.arrows].index(name) % len(COLORS)]

    def closed(self, name: str) -> bool:
        """Whether a link is a polygon, whose last point is always its first."""
        points = self.links[name]
        extent = np.max(np.ptp(points, axis=1), initial=0.0)
        return points.shape[1] > 2 and bool(np.allclose(points[:, 0], points[:, -1], rtol=0.0, atol=1e-9 * extent))

    @functools.cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper corner (d,) [m] of all that is drawn at any time, with a margin."""
        lower, upper = _corners([*self.links.values(), *self.scenery.values(), *self._tips()])
        extent = np.max(upper - lower) or 1.0
        # The margin keeps a line along an axis, or a dot at the edge, from being cut.
        middle, half = (lower + upper) / 2, np.maximum((upper - lower) / 2, 0.1 * extent) + 0.05 * extent
        return middle - half, middle + half

    @property
    def size(self) -> np.ndarray:
        """The largest extent of all links at one time (d,) [m]."""
        points = np.concatenate(list(self.links.values()), axis=1)  # (T, k, d)
        return np.max(np.ptp(points, axis=1), axis=0)

    @property
    def travels(self) -> bool:
        """Whether the mechanism goes so far that a picture has to go along."""
        way = np.ptp(np.concatenate(list(self.links.values()), axis=1).reshape(-1, self.dimension), axis=0)
        largest = np.max(self.size)
        return bool(largest > 0 and np.max(way) >= (1 + FAR) * largest)

    @functools.cached_property
    def scale(self) -> tuple[float, float]:
        """A round length [m], and the round force [N] that an arrow of this length stands for; zero without forces."""
        sizes = [np.linalg.norm(force, axis=1) for _, force in self.arrows.values()]
        largest = max((np.max(size, where=np.isfinite(size), initial=0.0) for size in sizes), default=0.0)
        if largest == 0:
            return 1.0, 0.0
        lower, upper = _corners([*self.links.values(), *self.scenery.values()])
        return _round(0.3 * float(np.max(upper - lower) or 1.0), up=False), _round(float(largest), up=True)

    @functools.cached_property
    def vectors(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """The starts and spans of the arrows by name, (T, d) [m] each; a span is zero where a force is not finite."""
        length, force = self.scale
        per_newton = length / force if force else 0.0
        return {
            name: (at, per_newton * np.nan_to_num(force, posinf=0.0, neginf=0.0))
            for name, (at, force) in self.arrows.items()
        }

    def _tips(self) -> list[np.ndarray]:
        return [at + along for at, along in self.vectors.values()]


def scene(scenario: Scenario, trajectory: Trajectory) -> Scene:
    """The drawing of a scenario along a trajectory.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If the scenario has no drawing, the trajectory is a batch, or a function of the drawing fails,
            returns a wrong shape, or something that is not finite; the message names it.
    """
    _check.instance(scenario, Scenario, "scenario", "ukjax.Scenario(mechanism, q0, v0, t1)")
    _check.instance(trajectory, Trajectory, "trajectory", "ukjax.simulate(...)")
    drawing = check(scenario)
    if trajectory.q.ndim != 2:
        raise ValueError(
            f"A picture takes one trajectory, not a batch, but q has shape {trajectory.q.shape}: index the batch first."
        )
    forces = {name: _forces_of(arrow, trajectory) for name, arrow in drawing.forces.items()}
    links, arrows = jax.jit(lambda q, t, forces: _evaluated(drawing, q, t, forces))(trajectory.q, trajectory.t, forces)
    links = {name: np.asarray(points, float) for name, points in links.items()}
    arrows = {name: (np.asarray(at, float), np.asarray(force, float)) for name, (at, force) in arrows.items()}
    t = np.asarray(trajectory.t)
    places = {f"links[{k!r}]": x for k, x in links.items()} | {f"forces[{k!r}]": x for k, (x, _) in arrows.items()}
    for what, points in places.items():
        wrong = ~np.isfinite(points.reshape(len(t), -1)).all(axis=1)
        if wrong.any():
            raise ValueError(f"{what} of the drawing is not finite at t = {t[wrong][0]:g} s.")
    scenery = {name: np.asarray(points, float) for name, points in drawing.scenery.items()}
    return Scene(scenario.name, t, links, {name: links[name][:, -1] for name in drawing.trails}, arrows, scenery)


def _forces_of(arrow: Arrow, trajectory: Trajectory) -> tuple[Array, ...]:
    """The forces that the function of an arrow takes after q and t."""
    if not isinstance(arrow, tuple):
        return (trajectory.constraint_force,)
    forces, multipliers = (getattr(trajectory, name) for name in ("constraint_forces", "multipliers"))
    if forces is None or multipliers is None:
        raise ValueError(
            "The drawing has an arrow for what one constraint does, but the trajectory does not tell. Pass "
            'keep="all" to ukjax.simulate.'
        )
    return forces[arrow[0]], multipliers[arrow[0]]


def _function_of(arrow: Arrow) -> Callable[..., tuple[Array, ...]]:
    return _pair(arrow[1] if isinstance(arrow, tuple) else arrow)


def _evaluated(
    drawing: Drawing, q: Array, t: Array, forces: dict[str, tuple[Array, ...]]
) -> tuple[dict[str, Array], dict[str, tuple[Array, ...]]]:
    links = {name: jax.vmap(_array(f))(q, t) for name, f in drawing.links.items()}
    return links, {name: jax.vmap(_function_of(f))(q, t, *forces[name]) for name, f in drawing.forces.items()}


def _array(function: Callable[..., ArrayLike]) -> Callable[..., Array]:
    """A link's function, which may return a list of lists, as a function that returns an array."""
    return lambda *arguments: jnp.asarray(function(*arguments))


def _pair(function: Callable[..., tuple[ArrayLike, ArrayLike]]) -> Callable[..., tuple[Array, ...]]:
    return lambda *arguments: tuple(jnp.asarray(x) for x in function(*arguments))


def check(scenario: Scenario) -> Drawing:
    """The drawing of a scenario; raises ValueError if there is none, a shape is wrong, or plane and space are mixed.

    The check only traces, so it is cheap before a simulation.
    """
    drawing = scenario.drawing
    if drawing is None:
        raise ValueError(
            f"The scenario {scenario.name!r} has no drawing. Pass drawing=ukjax.study.Drawing(links) to "
            "ukjax.Scenario, with links = {name: f(q, t) -> points (k, 2) or (k, 3) [m]}."
        )
    q, t = (jax.ShapeDtypeStruct(shape, scenario.q0.dtype) for shape in (scenario.q0.shape, ()))
    dimensions = {}
    for name, link in drawing.links.items():
        what = f"links[{name!r}]"
        shape = _traced(what, _array(link), q, t).shape
        if len(shape) != 2 or shape[0] == 0 or shape[1] not in (2, 3):
            hint = "For a single point write point[None]." if shape in ((2,), (3,)) else "One row per point."
            raise ValueError(f"{what}(q, t) must return points (k, 2) or (k, 3), but returned shape {shape}. {hint}")
        dimensions[what] = shape[1]
    for name, arrow in drawing.forces.items():
        what = f"forces[{name!r}]"
        shapes = [x.shape for x in _traced(what, _function_of(arrow), q, t, q, *_multipliers(what, arrow, scenario))]
        if shapes not in ([(2,), (2,)], [(3,), (3,)]):
            given = "force, multipliers" if isinstance(arrow, tuple) else "constraint_force"
            raise ValueError(
                f"{what}(q, t, {given}) must return a point and a force, both of shape (2,) or both (3,), but "
                f"returned shapes {', '.join(map(str, shapes))}."
            )
        dimensions[what] = shapes[0][0]
    dimensions |= {f"scenery[{name!r}]": np.shape(points)[1] for name, points in drawing.scenery.items()}
    first = next(iter(dimensions))
    for what, d in dimensions.items():
        if d != dimensions[first]:
            raise ValueError(
                f"{what} has {d} components, but {first} has {dimensions[first]}: draw all in the "
                "plane, or all in space."
            )
    return drawing


def _multipliers(what: str, arrow: Arrow, scenario: Scenario) -> list[jax.ShapeDtypeStruct]:
    """The shape of the multipliers of an arrow's constraint, in a list; raises ValueError for an unknown constraint."""
    if not isinstance(arrow, tuple):
        return []
    terms = jax.eval_shape(scenario.mechanism.terms, scenario.q0, scenario.v0, jnp.asarray(scenario.t0))
    rows = dict(terms.rows or ())
    if arrow[0] not in rows:
        names = ", ".join(rows) or "none"
        raise ValueError(f"{what} of the drawing is about the constraint {arrow[0]!r}, but there is {names}.")
    return [jax.ShapeDtypeStruct((rows[arrow[0]],), scenario.q0.dtype)]


def _traced(what: str, function: Callable[..., T], *arguments: jax.ShapeDtypeStruct) -> T:
    try:
        return jax.eval_shape(function, *arguments)
    except (TypeError, ValueError, IndexError, AttributeError, NameError, KeyError) as error:
        raise ValueError(f"{what} of the drawing failed: {str(error).splitlines()[0]}") from error


def _corners(points: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.concatenate([x.reshape(-1, x.shape[-1]) for x in points])
    return flat.min(axis=0), flat.max(axis=0)


def _round(value: float, up: bool) -> float:
    """1, 2 or 5 times a power of ten: the smallest above the positive `value` if `up`, else the largest below."""
    power = 10.0 ** np.floor(np.log10(value))
    steps = [m * power for m in (1, 2, 5, 10)]
    near = 1e-9 * value
    return min(x for x in steps if x >= value - near) if up else max(x for x in steps if x <= value + near)
