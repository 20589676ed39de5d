"""Figures of a study: quantiles over time, and numbers of each trajectory over the parameters that were varied."""

from typing import TYPE_CHECKING, NamedTuple, Unpack

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from ._frame import Canvas, axis_label, framed, show_zero, suited


if TYPE_CHECKING:
    import xarray as xr


MOST = 4000  # most trajectories of which quantiles are taken
BANDS = ((5, 95, 0.2), (25, 75, 0.4))  # lower and upper percentile, and opacity


def quantiles(
    data: "xr.Dataset",
    field: str = "q",
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of a field's median and percentile bands over the samples of a study, a panel for each component.

    Args:
        data: The result of `ukjax.sweep`. Failed samples are left out; of many samples an even selection is shown.
        field: A field or an observable along (sample, time), with or without components.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

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
    failed = data.sizes["sample"] - len(okay)
    median = f"median of {len(chosen)}" + (f", {failed} failed or missing" if failed else "")
    count = values.shape[2]
    with framed([1] * count, (7.0, 1.0 + 2.1 * count), title, canvas) as frame:
        for i, axis in enumerate(frame.axes):
            middle = np.median(values[..., i], axis=0)
            factor = frame.curves(i, data.time, {median: middle}, names[i], units[i])
            for low, high, alpha in BANDS:
                edges = factor * np.percentile(values[..., i], (low, high), axis=0)
                axis.fill_between(data.time, *edges, color="C0", alpha=alpha, lw=0, label=f"{low} to {high} %")
        frame.legend(frame.axes[0], [median, *map(str, BANDS)])
        return frame.finished("time t [s]")


class _Varied(NamedTuple):
    """A varied parameter: its label, its value in each sample, and whether its axis is logarithmic."""

    label: str
    values: np.ndarray
    logarithmic: bool


def over_parameters(
    data: "xr.Dataset",
    figure_name: str,
    title: str = "",
    **canvas: Unpack[Canvas],
) -> Figure:
    """A figure of a number of each trajectory over the varied parameters; samples that failed are marked.

    Two parameters of a grid make a map; otherwise there is a panel for each parameter. Of an observable, which changes
    with time, the number is the largest magnitude.

    Args:
        data: The result of `ukjax.sweep`.
        figure_name: A variable along `sample`, such as "largest_position_error", or an observable.
        title: Title above the figure.
        **canvas: `ax`, `figsize` and `style`: see `Canvas`.

    Raises:
        ValueError: If the study has no such variable.
    """
    fields = {"q", "v", "acceleration", "control"}
    known = [str(k) for k, x in data.data_vars.items() if x.dims[:1] == ("sample",) and k not in fields]
    if figure_name not in known:
        raise ValueError(f"figure must be one of {', '.join(known)}, but is {figure_name!r}.")
    result, attributes = np.asarray(data.result), data[figure_name].attrs
    values, what = np.asarray(data[figure_name], float), attributes.get("long_name", figure_name)
    if values.ndim > 1:
        values, what = np.max(np.abs(values), axis=tuple(range(1, values.ndim))), f"largest {what}"
    factor, unit = suited([values[result == 0]], attributes.get("units", ""))
    values, label = np.where(result == 0, factor * values, np.nan), axis_label(what, unit)
    varied = [_varied(data, str(name)) for name in data.attrs["varied"]]
    grid = len(varied) == 2 and len(values) == np.prod([len(np.unique(x.values)) for x in varied])
    panels, size = ([1], (7.0, 5.2)) if grid else ([len(varied)], (4.2 * len(varied) + 0.8, 4.0))
    with framed(panels, size, title, canvas) as frame:
        if grid:
            _map(frame.axes[0], varied, values, label, result)
        else:
            _scatter(frame.axes, varied, values, label, result)
        return frame.figure


def _varied(data: "xr.Dataset", name: str) -> _Varied:
    attributes, values = data[name].attrs, np.asarray(data[name], float)
    label = axis_label(attributes.get("long_name", name), attributes.get("units", ""))
    return _Varied(label, values, attributes.get("scale") == "log" or _has_equal_ratios(np.unique(values)))


def _map(axis: Axes, varied: list[_Varied], values: np.ndarray, label: str, result: np.ndarray) -> None:
    first, second = varied
    xs, ys = np.unique(first.values), np.unique(second.values)
    grid = np.full((len(ys), len(xs)), np.nan)
    grid[np.searchsorted(ys, second.values), np.searchsorted(xs, first.values)] = values
    norm = LogNorm() if _is_spread(values) else None
    mesh = axis.pcolormesh(_edges(xs, first.logarithmic), _edges(ys, second.logarithmic), grid, norm=norm)
    axis.figure.colorbar(mesh, label=label)
    _marked(axis, first.values, second.values, result)
    axis.set_xlabel(first.label)
    axis.set_ylabel(second.label)
    for one, set_scale in ((first, axis.set_xscale), (second, axis.set_yscale)):
        set_scale("log" if one.logarithmic else "linear")


def _edges(values: np.ndarray, logarithmic: bool) -> np.ndarray:
    """The edges of cells about values, halfway between them on their axis."""
    x = np.log(values) if logarithmic else values
    middles = (x[1:] + x[:-1]) / 2
    ends = (2 * x[0] - middles[0], 2 * x[-1] - middles[-1]) if len(x) > 1 else (x[0] - 0.5, x[0] + 0.5)
    edges = np.concatenate([ends[:1], middles, ends[1:]])
    return np.exp(edges) if logarithmic else edges


def _scatter(axes: list[Axes], varied: list[_Varied], values: np.ndarray, label: str, result: np.ndarray) -> None:
    okay = np.isfinite(values)
    lowest = np.min(values[okay], initial=np.inf) if np.any(okay) else 0.0
    for axis, one in zip(axes, varied, strict=True):
        axis.plot(one.values[okay], values[okay], ".", ms=6 if np.sum(okay) < 500 else 2, alpha=0.7)
        if _is_spread(values):
            axis.set_yscale("log")
        else:
            axis.ticklabel_format(axis="y", useOffset=False)
            show_zero(axis)
        _marked(axis, one.values, np.full(len(values), lowest), result)
        axis.set_xlabel(one.label)
        axis.set_xscale("log" if one.logarithmic else "linear")
        axis.grid(visible=True, alpha=0.3)
        axis.sharey(axes[0]) if axis is not axes[0] else axis.set_ylabel(label)


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


def _has_equal_ratios(values: np.ndarray) -> bool:
    return len(values) > 2 and values[0] > 0 and bool(np.ptp(np.diff(np.log(values))) < 1e-6)


def _components(data: "xr.Dataset", field: str, count: int) -> tuple[list[str], list[str]]:
    """The names and units of a field's components."""
    attributes, dims = data[field].attrs, data[field].dims[2:]
    what, units = attributes.get("long_name", field), str(attributes.get("units", "")).split(", ")
    if not dims:
        return [what], units
    if str(dims[0]) == f"{field}_component":
        return [f"{field} {name}" for name in map(str, np.asarray(data[dims[0]]))], units * count
    names = {"coordinate": "name", "speed": "speed_name", "actuator": "actuator_name"}.get(str(dims[0]), str(dims[0]))
    called = [str(x) for x in np.asarray(data[names])] if names in data.coords else [str(i) for i in range(count)]
    return [name if field == "q" else f"{field} of {name}" for name in called], units * count if len(
        units
    ) == 1 else units
