"""Parts of a mechanism's pictures and animation: equal axes, scenery, links, trails and arrows of a scene."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from mpl_toolkits.mplot3d import Axes3D, proj3d  # the import registers projection="3d" with matplotlib
from mpl_toolkits.mplot3d.art3d import Line3D

from .._coordinate import Coordinate
from ._frame import Picture, Size, given_axes, sized
from ._scene import Scene


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
