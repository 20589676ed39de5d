"""Pictures of a parameter study."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ._figures import axis_label, legend


MOST = 4000  # most trajectories of which quantiles are taken
BANDS = ((5, 95, 0.2), (25, 75, 0.4))  # lower and upper percentile, and opacity


def quantiles(data: Any, field: str = "q", title: str = "") -> Figure:
    """A figure of a field's median and percentile bands over the samples of a study, a panel for each component.

    Args:
        data: The result of `ukjax.sweep`. Failed samples are left out; of many samples an even selection is shown.
        field: A field along (sample, time), with or without components.
        title: Title above the figure.

    Raises:
        ValueError: If the study has no such field, or nothing succeeded.
    """
    if field not in data or data[field].dims[:2] != ("sample", "time"):
        known = [str(k) for k, x in data.data_vars.items() if x.dims[:2] == ("sample", "time")]
        raise ValueError(f"field must be one of {', '.join(known) or 'none'}, but is {field!r}.")
    okay = np.flatnonzero(np.asarray(data.result) == 0)
    if not len(okay):
        raise ValueError("There is no trajectory that succeeded to draw.")
    chosen = okay[:: -(-len(okay) // MOST)]
    values = np.asarray(data[field].isel(sample=chosen)).reshape(len(chosen), data.sizes["time"], -1)
    names, units = _components(data, field, values.shape[2])
    figure = Figure(figsize=(7.0, 1.0 + 2.1 * values.shape[2]), layout="constrained")
    axes = figure.subplots(values.shape[2], 1, sharex=True, squeeze=False)[:, 0]
    time = np.asarray(data.time)
    for i, axis in enumerate(axes):
        for low, high, alpha in BANDS:
            edges = np.percentile(values[..., i], (low, high), axis=0)
            axis.fill_between(time, *edges, color="C0", alpha=alpha, lw=0, label=f"{low} to {high} %")
        axis.plot(time, np.median(values[..., i], axis=0), color="C0", label="median")
        axis.set_ylabel(axis_label(names[i], units[i]))
        axis.grid(visible=True, alpha=0.3)
    legend(axes[0], 2 + len(BANDS))
    axes[-1].set_xlabel("time t [s]")
    count = data.sizes["sample"]
    below = f"{len(chosen)} of {count} trajectories, {count - len(okay)} failed or missing"
    figure.suptitle(f"{title}\n{below}".strip())
    return figure


def over_parameters(data: Any, figure_name: str, title: str = "") -> Figure:
    """A figure of a number of each trajectory over the varied parameters; samples that failed are marked.

    Two parameters of a grid make a map; otherwise there is a panel for each parameter.

    Args:
        data: The result of `ukjax.sweep`.
        figure_name: A variable along `sample`, such as "largest_position_error".
        title: Title above the figure.

    Raises:
        ValueError: If the study has no such variable.
    """
    known = [str(k) for k, x in data.data_vars.items() if x.dims == ("sample",)]
    if figure_name not in known:
        raise ValueError(f"figure must be one of {', '.join(known)}, but is {figure_name!r}.")
    varied = [str(k) for k in data.attrs["varied"]]
    values, result = np.asarray(data[figure_name], float), np.asarray(data.result)
    label = axis_label(data[figure_name].attrs.get("long_name", figure_name), data[figure_name].attrs.get("units", ""))
    points = [np.asarray(data[name], float) for name in varied]
    if len(varied) == 2 and len(values) == np.prod([len(np.unique(x)) for x in points]):
        picture = _map(varied, points, np.where(result == 0, values, np.nan), label, result)
    else:
        picture = _panels(varied, points, values, label, result)
    picture.suptitle(title)
    return picture


def _map(names: list[str], points: list[np.ndarray], values: np.ndarray, label: str, result: np.ndarray) -> Figure:
    picture = Figure(figsize=(7.0, 5.2), layout="constrained")
    axis: Axes = picture.subplots()
    xs, ys = (np.unique(x) for x in points)
    grid = np.full((len(ys), len(xs)), np.nan)
    grid[np.searchsorted(ys, points[1]), np.searchsorted(xs, points[0])] = values
    norm = LogNorm() if _is_spread(values) else None
    mesh = axis.pcolormesh(xs, ys, grid, norm=norm, shading="nearest")
    picture.colorbar(mesh, label=label)
    _marked(axis, points[0], points[1], result)
    axis.set_xlabel(names[0])
    axis.set_ylabel(names[1])
    _scales(axis, xs, ys)
    return picture


def _panels(names: list[str], points: list[np.ndarray], values: np.ndarray, label: str, result: np.ndarray) -> Figure:
    picture = Figure(figsize=(4.2 * len(names) + 0.8, 4.0), layout="constrained")
    axes = picture.subplots(1, len(names), sharey=True, squeeze=False)[0]
    okay = (result == 0) & np.isfinite(values)
    for axis, name, x in zip(axes, names, points, strict=True):
        axis.plot(x[okay], values[okay], ".", ms=4 if np.sum(okay) < 500 else 2, alpha=0.7)
        bottom = np.full(len(x), np.min(values[okay], initial=np.inf) if np.any(okay) else 0.0)
        _marked(axis, x, bottom, result)
        axis.set_xlabel(name)
        axis.grid(visible=True, alpha=0.3)
        if _is_spread(values[okay]):
            axis.set_yscale("log")
    axes[0].set_ylabel(label)
    return picture


def _marked(axis: Axes, x: np.ndarray, y: np.ndarray, result: np.ndarray) -> None:
    """Marks samples that failed, and samples that are not computed yet."""
    for which, text, marker in ((result > 0, "failed", "rx"), (np.isnan(result), "not done", "k.")):
        if np.any(which):
            axis.plot(x[which], y[which], marker, ms=4, label=f"{text}: {np.sum(which)}")
            axis.legend(loc="upper right")


def _is_spread(values: np.ndarray) -> bool:
    """Whether all finite values are positive and span more than two powers of ten."""
    known = values[np.isfinite(values)]
    return len(known) > 0 and float(np.min(known)) > 0 and float(np.max(known)) > 100 * float(np.min(known))


def _scales(axis: Axes, xs: np.ndarray, ys: np.ndarray) -> None:
    """Makes axes logarithmic where their values have about equal ratios."""
    for values, setter in ((xs, axis.set_xscale), (ys, axis.set_yscale)):
        if len(values) > 2 and values[0] > 0 and np.ptp(np.diff(np.log(values))) < 1e-6:
            setter("log")


def _components(data: Any, field: str, count: int) -> tuple[list[str], list[str]]:
    """The names and units of a field's components."""
    dims = data[field].dims[2:]
    if not dims:
        return [data[field].attrs.get("long_name", field)], [data[field].attrs.get("units", "")]
    names = {"coordinate": "name", "speed": "speed_name", "actuator": "actuator_name"}.get(dims[0], dims[0])
    called = [str(x) for x in np.asarray(data[names])] if names in data.coords else [str(i) for i in range(count)]
    units = str(data[field].attrs.get("units", "")).split(", ")
    what = "" if field == "q" else f"{field} of "
    return [what + name for name in called], units * count if len(units) == 1 else units
