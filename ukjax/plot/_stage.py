"""A drawing at the times of a trajectory as plain arrays, and the parts of pictures and animations made of them.

The parts are equal axes, scenery, links, trails and arrows.

T: number of times; k: points of a link; d: 2 in the plane, 3 in space.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from mpl_toolkits.mplot3d import Axes3D, proj3d
from mpl_toolkits.mplot3d.art3d import Line3D

from .. import _check
from .._coordinate import Coordinate
from .._scenario import Drawing, Scenario
from .._trajectory import Trajectory
from ._frame import Picture, Size, given_axes, sized


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


ELEVATION, AZIMUTH = 22.0, -55.0  # direction of view [degrees]
SCENERY = "#8a8f98"
HIGHEST = 6.0  # largest height of a scene in space [inch]


def stage(
    scene: Scene, title: str, ax: Axes | Sequence[Axes] | None = None, figsize: Size = None
) -> tuple[Figure, Axes]:
    """A figure with equal axes that hold the whole scene, its scenery and a legend; or the axes `ax`, made so.

    Raises:
        ValueError: If `ax` is no axes of the scene's dimension, or is given with a title or a size.
    """
    lower, upper = scene.bounds
    space = scene.dimension == 3
    if ax is not None:
        (axis,) = given_axes(ax, 1, title, figsize)
        if isinstance(axis, Axes3D) != space:
            kind = 'add_subplot(projection="3d")' if space else "add_subplot()"
            raise ValueError(f"ax must be axes in {'space' if space else 'the plane'}: pass figure.{kind}.")
        figure: Any = axis.figure
    else:
        size = sized(figsize, (7.0, 7.0) if space else _size(upper - lower))
        figure = Picture(figsize=size, layout=None if space else "constrained")
        figure.suptitle(title)
        axis = figure.add_subplot(projection="3d" if space else None)
    _set_up(axis, scene)
    if ax is not None:
        _legend(axis, scene, "upper center", bbox_to_anchor=(0.5, -0.12))
    elif isinstance(axis, Axes3D):
        _fill(figure, axis, _legend(figure, scene, "lower center")[0], figsize)
    else:
        _, lines = _legend(figure, scene, "outside lower center")
        if figsize is None:
            # Every further line of the legend needs room, which the axes would otherwise lose.
            width, height = figure.get_size_inches()
            figure.set_size_inches(width, height + 0.2 * (lines - 1))
    return figure, axis


def _set_up(axis: Axes, scene: Scene) -> None:
    """Limits, labels and scenery."""
    lower, upper = scene.bounds
    for name, *limits in zip("xyz", lower, upper):
        axis.set(**{f"{name}lim": limits})
    for name, points in scene.scenery.items():
        axis.plot(*points.T, color=SCENERY, lw=1.2, label=name, zorder=1, **_dot(points))
    axis.set_xlabel("x [m]")
    axis.set_ylabel("y [m]")
    if isinstance(axis, Axes3D):
        _set_up_space(axis, upper - lower)
    else:
        axis.set_aspect("equal", adjustable="box")
        axis.grid(alpha=0.3)


def bare(figure: Figure, scene: Scene) -> Axes:
    """Equal axes that fill a figure and are invisible, with the scenery of a scene in the plane."""
    axis = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    _set_up(axis, scene)
    axis.axis("off")
    return axis


def seen_from_afar(scene: Scene) -> Scene:
    """The scene in the plane of the picture, without forces: one in space as its axes show it.

    A mechanism that travels stays in the middle, without trails and scenery.
    """
    if scene.dimension == 3:
        elevation, azimuth = np.deg2rad([ELEVATION, AZIMUTH])
        right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
        up = np.array([-np.sin(elevation) * np.cos(azimuth), -np.sin(elevation) * np.sin(azimuth), np.cos(elevation)])
        plane = np.stack([right, up], axis=1)  # (3, 2)
        parts = {k: {name: x @ plane for name, x in getattr(scene, k).items()} for k in ("links", "trails", "scenery")}
        scene = dataclasses.replace(scene, **parts)
    if scene.travels:
        middle = np.mean(np.concatenate(list(scene.links.values()), axis=1), axis=1, keepdims=True)
        links = {name: x - middle for name, x in scene.links.items()}
        scene = dataclasses.replace(scene, links=links, trails={}, scenery={})
    return dataclasses.replace(scene, arrows={})


def caption(axis: Axes, text: str, fontsize: str) -> Text:
    """A text above the scene, below the title of the figure."""
    if not isinstance(axis, Axes3D):
        return axis.set_title(text, fontsize=fontsize)
    # In space the axes are larger than the visible scene: `_fill` has placed the title.
    axis.title.set(text=text, fontsize=fontsize)
    return axis.title


def _set_up_space(axis: Axes3D, extent: np.ndarray) -> None:
    axis.view_init(ELEVATION, AZIMUTH)
    axis.set_proj_type("ortho")
    axis.set_box_aspect(extent)
    axis.set_zlabel("z [m]")
    for each, length in zip((axis.xaxis, axis.yaxis, axis.zaxis), extent):
        each.labelpad = 8
        # On a short axis the numbers of many ticks would overlap.
        each.set_major_locator(MaxNLocator(int(np.clip(round(6 * length / np.max(extent)), 2, 5))))


def _fill(figure: Figure, axis: Axes3D, legend: Legend, figsize: Size) -> None:
    """Makes a scene in space as large as the figure, and the figure no larger than that, unless its size is given.

    matplotlib draws the scene in the middle of a square, at half its width, and leaves the rest white.
    """
    titles, margin = 0.65, 0.15  # [inch]
    width, side = figure.get_figwidth(), 6.0
    below = legend.get_window_extent().height / figure.dpi + 2 * margin
    highest = HIGHEST if figsize is None else max(figsize[1] - below - titles, 0.5)
    for _ in range(4):  # texts do not grow with the scene, so that the size is found by iteration
        seen = _placed(figure, axis, 0.0, 0.0, side)
        side *= min((width - 2 * margin) / seen.width, highest / seen.height)
    seen = _placed(figure, axis, 0.0, 0.0, side)
    texts = [text.get_window_extent() for text in (legend, *figure.texts)]
    # The size is in tenths of an inch, because a film needs an even number of dots.
    width = np.ceil(10 * (max(seen.width, *(text.width / figure.dpi for text in texts)) + 2 * margin)) / 10
    height = np.ceil(10 * (below + seen.height + titles)) / 10
    width, height = (width, height) if figsize is None else figsize
    left, bottom = (width - seen.x0 - seen.x1) / 2, (height - titles + below - seen.height) / 2 - seen.y0
    figure.set_size_inches(width, height)
    _placed(figure, axis, left, bottom, side)
    axis.set_title("", y=1.0)  # an explicit y, so that matplotlib does not move the title
    axis.title.set_position(((width / 2 - left) / side, (below + seen.height - bottom) / side))


def _placed(figure: Figure, axis: Axes3D, left: float, bottom: float, side: float) -> Bbox:
    """Puts the axes in a square with a side, and returns the box of their visible part [inch]."""
    width, height = figure.get_size_inches()
    axis.set_position((left / width, bottom / height, side / width, side / height))
    figure.draw_without_rendering()
    corners = np.array(list(itertools.product(axis.get_xlim(), axis.get_ylim(), axis.get_zlim())))
    x, y, _ = proj3d.proj_transform(corners[:, 0], corners[:, 1], corners[:, 2], axis.get_proj())
    box = Bbox.null()
    box.update_from_data_xy(axis.transData.transform(np.stack([x, y], axis=1)))
    written = [each.get_tightbbox() for each in (axis.xaxis, axis.yaxis, axis.zaxis)]
    return Bbox.union([box, *filter(None, written)]).transformed(figure.dpi_scale_trans.inverted())


def link(axis: Axes, scene: Scene, name: str, points: np.ndarray, alpha: float = 1.0) -> Line2D:
    """A line with a dot at either end, or a closed line without dots."""
    ends = [] if scene.closed(name) else [0, len(points) - 1]
    style = {"color": scene.color(name), "alpha": alpha, "solid_capstyle": "round", "zorder": 3}
    (line,) = axis.plot(*points.T, lw=2.5, marker="o", ms=6, markevery=ends, **style)
    return line


def trail(axis: Axes, scene: Scene, name: str, points: np.ndarray) -> Line2D:
    (line,) = axis.plot(*points.T, color=scene.color(name), lw=0.9, alpha=0.7, zorder=2)
    return line


def arrow(axis: Axes, scene: Scene, name: str, points: np.ndarray, alpha: float = 1.0) -> Line2D:
    (line,) = axis.plot(*points.T, color=scene.color(name), lw=1.6, alpha=alpha, zorder=4)
    return line


def outline(scene: Scene, at: np.ndarray, along: np.ndarray) -> np.ndarray:
    """The points (5, d) of an arrow from `at` (d,), spanning `along` (d,) [m], as one line."""
    length = np.linalg.norm(along)
    if length == 0:
        return np.tile(at, (5, 1))
    lower, upper = scene.bounds
    head = min(0.4 * length, 0.03 * np.max(upper - lower))
    back, side = -head * along / length, 0.45 * head * _sideways(along)
    tip = at + along
    return np.stack([at, tip, tip + back + side, tip, tip + back - side])


def move(line: Line2D, points: np.ndarray) -> None:
    """Moves a line to new points, in the plane or in space."""
    if isinstance(line, Line3D):
        line.set_data_3d(*points.T)
    else:
        line.set_data(*points.T)


def _sideways(along: np.ndarray) -> np.ndarray:
    """A unit vector at right angles to an arrow, in the plane of the picture."""
    if len(along) == 2:
        side = np.array([-along[1], along[0]])
    else:
        elevation, azimuth = np.deg2rad([ELEVATION, AZIMUTH])
        eye = [np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)]
        side = np.cross(along, eye)
    size = np.linalg.norm(side)
    return side / size if size > 0 else side


def _dot(points: np.ndarray) -> dict[str, Any]:
    """The style of scenery: a dot for a single point."""
    return {"marker": "o", "ms": 5, "ls": ""} if len(points) == 1 else {}


def _size(extent: np.ndarray) -> tuple[float, float]:
    """The width and height of the figure [inch] for a scene in the plane."""
    width = float(np.clip(5.6 * extent[0] / extent[1], 3.0, 6.4))
    height = float(np.clip(width * extent[1] / extent[0], 1.6, 5.6))
    return round(width + 1.0, 1), round(height + 1.5, 1)


def _legend(holder: Figure | Axes, scene: Scene, place: Any, **options: Any) -> tuple[Legend, int]:
    """The legend of links (if at most 8), scenery, and arrows with their scale, and its number of lines."""
    handles: list[Line2D] = []
    if len(scene.links) <= 8:
        for name in scene.links:
            marker = "" if scene.closed(name) else "o"
            handles.append(Line2D([], [], color=scene.color(name), lw=2.5, marker=marker, ms=5, label=name))
    handles += [Line2D([], [], color=SCENERY, lw=1.2, label=k, **_dot(x)) for k, x in scene.scenery.items()]
    length, force = scene.scale
    if force:
        for name in scene.arrows if len(scene.arrows) <= 8 else [next(iter(scene.arrows))]:
            label = f"{Coordinate(name).name}: {force:g} N are {length:g} m"
            style = {"lw": 1.6, "marker": ">", "ms": 5, "markevery": [1]}
            handles.append(Line2D([], [], color=scene.color(name), label=label, **style))
    ncols = _columns([len(str(handle.get_label())) for handle in handles], _width(holder))
    legend = holder.legend(handles=handles, loc=place, ncols=ncols, fontsize="small", frameon=False, **options)
    return legend, -(-len(handles) // ncols)


def _width(holder: Figure | Axes) -> float:
    """The width of a figure or of axes [in]."""
    if isinstance(holder, Figure):
        return holder.get_figwidth()
    return holder.get_window_extent().width / holder.figure.dpi


def _columns(lengths: Sequence[int], width: float) -> int:
    """The most columns that fit side by side, for the lengths of labels [letters] and the width of a figure [inch]."""
    for ncols in range(min(4, len(lengths)), 1, -1):
        rows = -(-len(lengths) // ncols)
        if sum(max(lengths[i : i + rows]) + 8 for i in range(0, len(lengths), rows)) <= 13 * width:
            return ncols
    return 1
