"""What the pictures of experiments share: panels with grid lines, one legend, theory under numbers, and captions."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike


# What should come out: wide, light, and under what did.
THEORY: dict[str, Any] = {"color": "0.75", "ls": "-", "lw": 4.0, "zorder": 1}
SIZE = (7.0, 4.2)  # [inch]


def panels(rows: int = 1, columns: int = 1, size: tuple[float, float] = SIZE, **options: Any) -> tuple[Figure, Any]:
    """Makes a figure and its axes (rows * columns,), row by row; `options` are those of `Figure.subplots`."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel()
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.align_ylabels()
    return figure, axes


def over_time(*labels: str, height: float = 0.0) -> tuple[Figure, Any]:
    """Makes a figure with a panel for each label, one above the other, over the same time."""
    figure, axes = panels(len(labels), size=(SIZE[0], height or 1.0 + 1.9 * len(labels)), sharex=True)
    for axis, label in zip(axes, labels, strict=True):
        axis.set_ylabel(label)
        axis.margins(x=0.0)
    axes[-1].set_xlabel("time t [s]")
    return figure, axes


def in_space(figure: Figure, points: ArrayLike) -> Any:
    """Adds axes for a path (T, 3) [m], on which a circle looks like one."""
    axis: Any = figure.add_subplot(projection="3d")
    extent = np.ptp(np.asarray(points), axis=0)
    axis.set_box_aspect(extent, zoom=0.82)
    for each, name, share in zip((axis.xaxis, axis.yaxis, axis.zaxis), "xyz", extent / extent.max(), strict=True):
        each.set_major_locator(MaxNLocator(max(3, round(7 * share)), prune="both"))
        each.set_label_text(f"{name} [m]")
        each.labelpad = 8
    # Pads shrink with the box in their direction.
    slim = extent[:2].max() / extent.max()
    axis.zaxis.labelpad = 10 / slim
    axis.zaxis.set_tick_params(pad=4 / slim)
    return axis


def visible(values: ArrayLike, least: float = 1e-18) -> np.ndarray:
    """Sizes for a logarithmic axis, on which zeros and dust of rounding are no less than `least`."""
    return np.maximum(np.abs(np.asarray(values)), least)


def legend(figure: Figure, axes: Any = None) -> None:
    """Adds one legend above all panels, with each name that is in any of them (or in `axes`) once."""
    named = {}
    for axis in figure.axes if axes is None else axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    figure.legend(named.values(), named, loc="outside upper center", **_style([*named], figure.get_figwidth()))


def legend_above(axis: Any) -> None:
    """Adds the legend of one panel above it, where no curve is."""
    _, labels = axis.get_legend_handles_labels()
    # On the right, because on the left an axis writes its power of ten.
    style = _style(labels, axis.figure.get_figwidth() * axis.get_position().width)
    axis.legend(loc="lower right", bbox_to_anchor=(1, 1), borderpad=0, **style)


def _style(labels: Sequence[str], width: float) -> dict[str, Any]:
    """As many columns as there is room for on `width` [inch], of which each takes fifteen letters."""
    lengths, rows = [len(re.sub("[$_^{}]", "", label)) + 9 for label in labels], 1
    while rows < len(labels):
        columns = [lengths[i : i + rows] for i in range(0, len(labels), rows)]
        if sum(map(max, columns)) <= 15.0 * width:
            break
        rows += 1
    return {"ncols": -(-len(labels) // rows), "fontsize": "small", "frameon": False}


def captioned(figure: Figure, caption: str) -> Figure:
    """Says what a picture shows: not in it, but below it in the report."""
    figure.set_label(caption)
    return figure
