"""What pictures of a mechanism and its animation share: equal axes, scenery, links, trails and arrows of a scene."""

from collections.abc import Sequence
from typing import Any

import mpl_toolkits.mplot3d as _  # noqa: F401  (makes matplotlib know projection="3d")
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ._scene import Scene


ELEVATION, AZIMUTH = 22.0, -55.0  # of the eye [degrees]
SCENERY = "#8a8f98"


def stage(scene: Scene) -> tuple[Figure, Any]:
    """A figure with equal axes that hold the whole scene, its scenery and a legend."""
    lower, upper = scene.bounds
    figure = Figure(figsize=_size(upper - lower), layout="constrained")
    figure.suptitle(scene.title)
    axis: Any = figure.add_subplot(projection="3d" if scene.dimension == 3 else None)
    for name, *limits in zip("xyz", lower, upper):
        axis.set(**{f"{name}lim": limits})
    for name, points in scene.scenery.items():
        axis.plot(*points.T, color=SCENERY, lw=1.2, label=name, zorder=1, **_dot(points))
    if scene.dimension == 3:
        axis.view_init(ELEVATION, AZIMUTH)
        axis.set_proj_type("ortho")
        axis.set_box_aspect(upper - lower, zoom=0.84)  # else labels are cut, or meet the legend
        axis.set_zlabel("z [m]")
        for each in (axis.xaxis, axis.yaxis, axis.zaxis):
            each.labelpad = 8
        axis.locator_params(nbins=5)
    else:
        axis.set_aspect("equal", adjustable="box")
        axis.grid(alpha=0.3)
    axis.set_xlabel("x [m]")
    axis.set_ylabel("y [m]")
    _legend(figure, scene)
    return figure, axis


def link(axis: Any, scene: Scene, name: str, points: np.ndarray, alpha: float = 1.0) -> Line2D:
    """A line with a dot at either end, and small ones between."""
    ends = [0, len(points) - 1]
    style = {"color": scene.color(name), "alpha": alpha, "solid_capstyle": "round", "zorder": 3}
    (line,) = axis.plot(*points.T, lw=2.5, marker="o", ms=6, markevery=ends, **style)
    return line


def trail(axis: Any, scene: Scene, name: str, points: np.ndarray) -> Line2D:
    (line,) = axis.plot(*points.T, color=scene.color(name), lw=0.9, alpha=0.7, zorder=2)
    return line


def arrow(axis: Any, scene: Scene, name: str, points: np.ndarray, alpha: float = 1.0) -> Line2D:
    (line,) = axis.plot(*points.T, color=scene.color(name), lw=1.6, alpha=alpha, zorder=4)
    return line


def outline(scene: Scene, at: np.ndarray, along: np.ndarray) -> np.ndarray:
    """The points of an arrow from `at` (d,), spanning `along` (d,) [m], drawn in one stroke: (5, d)."""
    length = np.linalg.norm(along)
    if length == 0:
        return np.tile(at, (5, 1))
    lower, upper = scene.bounds
    head = min(0.4 * length, 0.03 * np.max(upper - lower))
    back, side = -head * along / length, 0.45 * head * _sideways(along)
    tip = at + along
    return np.stack([at, tip, tip + back + side, tip, tip + back - side])


def move(line: Any, points: np.ndarray) -> None:
    """Puts a line somewhere else, in the plane or in space."""
    if points.shape[1] == 3:
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
    """A single point of scenery is a dot."""
    return {"marker": "o", "ms": 5, "ls": ""} if len(points) == 1 else {}


def _size(extent: np.ndarray) -> tuple[float, float]:
    """Width and height of the figure [inch] that suit what is drawn."""
    if len(extent) == 3:
        across, tilt = np.hypot(extent[0], extent[1]), np.deg2rad(ELEVATION)
        upright = np.sin(tilt) * across + np.cos(tilt) * extent[2]
        return 7.0, round(float(np.clip(6.0 * upright / across, 3.0, 6.0)) + 1.2, 1)
    width = float(np.clip(5.6 * extent[0] / extent[1], 3.0, 6.4))
    height = float(np.clip(width * extent[1] / extent[0], 1.6, 5.6))
    return round(width + 1.0, 1), round(height + 1.5, 1)


def _legend(figure: Figure, scene: Scene) -> None:
    """Below the axes: links, scenery, and arrows with their scale; of many links only the kinds."""
    handles: list[Line2D] = []
    if len(scene.links) <= 8:
        handles += [Line2D([], [], color=scene.color(k), lw=2.5, marker="o", ms=5, label=k) for k in scene.links]
    handles += [Line2D([], [], color=SCENERY, lw=1.2, label=k, **_dot(x)) for k, x in scene.scenery.items()]
    length, force = scene.scale
    if force:
        for name in scene.arrows if len(scene.arrows) <= 8 else [next(iter(scene.arrows))]:
            label = f"{name}: {force:g} N are {length:g} m"
            style = {"lw": 1.6, "marker": ">", "ms": 5, "markevery": [1]}
            handles.append(Line2D([], [], color=scene.color(name), label=label, **style))
    ncols = _columns([len(str(handle.get_label())) for handle in handles], figure.get_figwidth())
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, fontsize="small", frameon=False)
    # Every further line of it needs room, which the axes would otherwise lose.
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.2 * (-(-len(handles) // ncols) - 1))


def _columns(lengths: Sequence[int], width: float) -> int:
    """As many columns as fit side by side, for labels of so many letters in a figure so wide [inch]."""
    for ncols in range(min(4, len(lengths)), 1, -1):
        rows = -(-len(lengths) // ncols)
        if sum(max(lengths[i : i + rows]) + 8 for i in range(0, len(lengths), rows)) <= 13 * width:
            return ncols
    return 1
