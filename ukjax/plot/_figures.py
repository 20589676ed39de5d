"""Figures of a trajectory, of the path of a mechanism, of a tuning and of a study; many pictures in one figure.

There is no global state: figures are made without pyplot.
"""

import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import jax
import matplotlib.image
import numpy as np
from jaxtyping import Array, ArrayLike
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from .. import _check
from .._coordinate import Coordinate, by_unit, force_unit, named, rate_unit, speeds_named
from .._scenario import Scenario
from .._trajectory import Trajectory
from .._tune import Tuning
from . import _stage
from ._scene import scene


if TYPE_CHECKING:
    import xarray as xr


def overview(
    trajectory: Trajectory,
    coordinates: Sequence[str] | None = None,
    title: str = "",
    speeds: Sequence[str] | None = None,
) -> Figure:
    """A figure of coordinates, their rates, constraint forces and constraint errors over time.

    Args:
        trajectory: One trajectory, not a batch.
        coordinates: Names with units, `Coordinate("q1", "rad")` or "q1 [rad]"; coordinates of one unit share an axis.
        title: Title above the figure.
        speeds: Likewise for each speed, if speeds are not the rates of the coordinates.
    """
    names = named(coordinates, trajectory.q.shape[1], "q", "coordinates, coordinate")
    rates = speeds_named(speeds, names, trajectory.v.shape[1])
    moving, rate, of_rate = (names, "rate", rate_unit) if rates is None else (rates, "speed", str)
    rows = (
        (trajectory.q, "coordinate", names, str),
        (trajectory.v, rate, moving, of_rate),
        (trajectory.constraint_force, "constraint force", moving, force_unit),
    )
    columns = max(len(by_unit(names)), len(by_unit(moving)))
    figure = Figure(figsize=(4.2 * columns + 0.8, 9.5), layout="constrained")
    grid = figure.add_gridspec(4, columns)
    for row, (values, what, called, unit_of) in enumerate(rows):
        for column, (unit, members) in enumerate(by_unit(called).items()):
            axis = figure.add_subplot(grid[row, column])
            axis.tick_params(labelbottom=row == 2)
            for i in members:
                axis.plot(trajectory.t, values[:, i], label=called[i].name)
            axis.set_ylabel(axis_label(what, unit_of(unit)))
            legend(axis, len(members))
            axis.set_xlabel("time t [s]" if row == 2 else "")
    _residuals(figure.add_subplot(grid[3, :]), trajectory)
    figure.suptitle(title)
    return figure


def components(
    t: ArrayLike | Sequence[float], values: ArrayLike | Sequence[ArrayLike], name: str, title: str = ""
) -> Figure:
    """A figure of a quantity over time, one curve per component.

    Args:
        t: Times (T,) [s].
        values: (T,) or (T, k).
        name: `Coordinate` or text: name of the quantity, its components if there are more than one, and its unit, as in
            "tool x, y, z [m]". Components that are not listed are numbered.
        title: Title above the figure.
    """
    t = np.asarray(t)
    values = np.asarray(values).reshape(len(t), -1)
    quantity = Coordinate(name)
    labels = quantity.parts
    if len(labels) != values.shape[1]:
        labels = [f"component {i + 1}" for i in range(values.shape[1])]
    figure = Figure(figsize=(7.0, 3.8), layout="constrained")
    axis = figure.subplots()
    for label, value in zip(labels, values.T):
        axis.plot(t, value, label=label)
    axis.set_xlabel("time t [s]")
    axis.set_ylabel(quantity)
    if values.shape[1] > 1:
        legend(axis, values.shape[1])
    axis.grid(visible=True, alpha=0.3)
    figure.suptitle(title)
    return figure


def controls(trajectory: Trajectory, names: Sequence[str], title: str = "") -> Figure:
    """A figure of the control of every actuator over time, and of the errors of the servo constraints.

    Args:
        trajectory: One trajectory, with a servo or a controller.
        names: A name with unit for each actuator, as text or `Coordinate`; actuators of one unit share an axis.
        title: Title above the figure.
    """
    control = np.asarray(trajectory.control)
    actuators = named(names, control.shape[1], "u", "names, actuator")
    groups = by_unit(actuators)
    has_errors = trajectory.servo_residual is not None
    panels = len(groups) + has_errors
    figure = Figure(figsize=(7.4, 2.8 * panels), layout="constrained")
    axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
    figure.suptitle(title)
    for axis, (unit, members) in zip(axes, groups.items()):
        for i in members:
            axis.plot(trajectory.t, control[:, i], label=actuators[i].name)
        axis.set_ylabel(axis_label("control", unit))
        axis.tick_params(labelbottom=axis is axes[-1])
        legend(axis, len(members))
    if not has_errors:
        axes[-1].set_xlabel("time t [s]")
        return figure
    errors = {
        "position": trajectory.servo_position_residual,
        "velocity": trajectory.servo_velocity_residual,
        "acceleration": trajectory.servo_residual,
    }
    _over_time(axes[-1], trajectory.t, errors, "servo error (norm, SI)", "no servo error")
    return figure


def energy(scenario: Scenario, trajectory: Trajectory) -> Figure:
    """A figure of kinetic energy v M v / 2 and of the power of the ideal constraint forces over time.

    The power is zero where no constraint moves with time, so it shows the work of drives.

    Args:
        scenario: The scenario with the mass matrix.
        trajectory: One trajectory, not a batch.
    """
    q, v, t = trajectory.q, trajectory.v, trajectory.t
    kinetic = jax.jit(jax.vmap(lambda q, v, t: v @ scenario.mechanism.system.mass(q, t) @ v / 2))(q, v, t)
    powers = np.asarray(trajectory.constraint_force) * np.asarray(v)
    power = np.sum(powers, axis=1)
    figure = Figure(figsize=(7.0, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(t, kinetic)
    upper.set_ylabel("kinetic energy [J]")
    if np.max(np.abs(power)) > 1e-9 * np.max(np.abs(powers), initial=0.0):
        lower.plot(t, power)
    else:
        lower.text(0.5, 0.5, "none, up to rounding", ha="center", va="center", transform=lower.transAxes)
        lower.set_yticks([])
    lower.set_ylabel("power of constraint forces [W]")
    lower.set_xlabel("time t [s]")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.suptitle(scenario.name)
    return figure


def axis_label(what: str, unit: str) -> str:
    """The label of an axis: a quantity and its unit; SI where units are mixed or unknown."""
    return f"{what} [{unit}]" if unit else f"{what} [SI]"


def legend(axis: Axes, curves: int) -> None:
    """Adds a grid, and a legend unless there are too many curves."""
    axis.grid(alpha=0.3)
    if curves <= 8:
        # The legend is above the axis, where no curve is, in as many columns as there is room for.
        longest = max((len(str(line.get_label())) for line in axis.get_lines()), default=0)
        ncols = max(1, min(4, 56 // (longest + 4)))
        # It is on the right, because on the left an axis writes its power of ten.
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize="small", ncols=ncols, frameon=False, borderpad=0)


def _residuals(axis: Axes, trajectory: Trajectory) -> None:
    errors = {"position": trajectory.position_residual, "velocity": trajectory.velocity_residual}
    _over_time(axis, trajectory.t, errors, "constraint error (norm, SI)", "no constraint error")


def _over_time(axis: Axes, t: Array, errors: Mapping[str, Array | None], name: str, none: str) -> None:
    for label, values in errors.items():
        values = np.asarray(values)
        if np.any(values > 0):
            axis.semilogy(t, np.where(values > 0, values, np.nan), label=label)
    axis.set_xlabel("time t [s]")
    axis.set_ylabel(name)
    if axis.get_lines():
        legend(axis, len(errors))
    else:
        axis.text(0.5, 0.5, none, ha="center", va="center", transform=axis.transAxes)


def path(scenario: Scenario, trajectory: Trajectory, positions: int = 6) -> Figure:
    """The mechanism in a few positions, later ones darker, with trails, constraint forces and scenery; axes are equal.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`.
        trajectory: Its motion, one trajectory, not a batch.
        positions: Number of positions, evenly spaced in time, from start to end.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `positions` is no positive integer, or a function
            of the drawing returns a wrong shape.
    """
    _check.count(positions, "positions")
    seen = scene(scenario, trajectory)
    figure, axis = _stage.stage(seen)
    shown = np.unique(np.linspace(0, len(seen.t) - 1, positions).round().astype(int))[::-1]
    for name, points in seen.trails.items():
        _stage.trail(axis, seen, name, points)
    vectors = seen.vectors
    # Opacity is 0.2 for the first position and 1 for the last, which is drawn first so that it hides no other.
    for i, alpha in zip(shown, np.linspace(1.0, 0.2, len(shown))):
        for name, points in seen.links.items():
            _stage.link(axis, seen, name, points[i], alpha)
        for name, (at, along) in vectors.items():
            _stage.arrow(axis, seen, name, _stage.outline(seen, at[i], along[i]), alpha)
    times = ", ".join(f"{seen.t[i]:.3g}" for i in shown[::-1])
    _stage.caption(axis, f"t = {times} s, later ones darker", "small")
    return figure


PNG = b"\x89PNG"
COLUMNS = 6
CELL = (2.6, 2.8)  # size of a picture with its caption [in]
LETTERS = 46  # most letters in a line of a caption


def contact_sheet(pictures: Sequence[bytes], captions: Sequence[str], columns: int = COLUMNS) -> Figure:
    """PNG pictures side by side in rows, each with a caption above.

    Args:
        pictures: PNG files, as bytes.
        captions: A text for each picture.
        columns: Pictures in a row.

    Raises:
        ValueError: If there are no pictures, a picture is no PNG file, captions and pictures differ in number, or
            `columns` is no positive integer.
    """
    _check.count(columns, "columns")
    if not pictures or not all(isinstance(one, bytes) and one.startswith(PNG) for one in pictures):
        raise ValueError("pictures must be at least one PNG file, as bytes: pass path.read_bytes() of each.")
    if len(captions) != len(pictures):
        raise ValueError(f"captions must be as many as pictures, {len(pictures)}, but are {len(captions)}.")
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    figure = Figure(figsize=(CELL[0] * columns, CELL[1] * rows), layout="constrained")
    axes = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    for axis in axes:
        axis.axis("off")
    for axis, picture, caption in zip(axes, pictures, captions, strict=False):
        axis.imshow(matplotlib.image.imread(BytesIO(picture), format="png"), interpolation="antialiased")
        lines = (textwrap.fill(line, LETTERS) for line in caption.splitlines())
        axis.set_title("\n".join(lines), fontsize=7, pad=2)
    figure.set_dpi(160)
    return figure


def convergence(tuning: Tuning, quantities: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """A figure of loss, norm of the gradient, and tuned quantities over the steps; the best step is marked.

    Args:
        tuning: The result of `ukjax.tune`.
        quantities: "name [unit]" or `Coordinate` -> value at every step; quantities of one unit share an axis.
        title: Title above the figure.
    """
    names = [Coordinate(name) for name in quantities]
    groups = by_unit(names)
    figure = Figure(figsize=(7.0, 2.1 * (len(groups) + 2) + 0.6), layout="constrained")
    axes = figure.subplots(len(groups) + 2, 1, sharex=True)
    over_all = np.isfinite(tuning.full_losses)
    minibatches = not np.array_equal(tuning.full_losses, tuning.losses, equal_nan=True)
    if minibatches:
        axes[0].plot(tuning.losses, lw=0.8, alpha=0.7, label="of the minibatch")
    axes[0].plot(np.flatnonzero(over_all), tuning.full_losses[over_all], label="over all samples")
    axes[0].set_ylabel("loss")
    _scale(axes[0], tuning.losses)
    if minibatches:
        legend(axes[0], 2)
    axes[1].plot(tuning.gradient_norms)
    axes[1].set_ylabel("norm of gradient")
    _scale(axes[1], tuning.gradient_norms)
    for axis, (unit, members) in zip(axes[2:], groups.items(), strict=True):
        for i in members:
            axis.plot(quantities[names[i]], label=names[i].name)
        axis.set_ylabel(f"tuned [{unit}]" if unit else "tuned")
        legend(axis, len(members))
    for axis in axes:
        axis.grid(visible=True, alpha=0.3)
        axis.axvline(tuning.step, color="k", ls=":", lw=0.8)
    axes[-1].set_xlabel(f"step of the optimiser (best: {tuning.step})")
    figure.suptitle(title)
    return figure


def _scale(axis: Axes, values: np.ndarray) -> None:
    """Makes an axis logarithmic if all values are positive and span more than a power of ten."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > 10 * finite.min():
        axis.set_yscale("log")


MOST = 4000  # most trajectories of which quantiles are taken
BANDS = ((5, 95, 0.2), (25, 75, 0.4))  # lower and upper percentile, and opacity


def quantiles(data: "xr.Dataset", field: str = "q", title: str = "") -> Figure:
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


def over_parameters(data: "xr.Dataset", figure_name: str, title: str = "") -> Figure:
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


def _components(data: "xr.Dataset", field: str, count: int) -> tuple[list[str], list[str]]:
    """The names and units of a field's components."""
    dims = data[field].dims[2:]
    if not dims:
        return [data[field].attrs.get("long_name", field)], [data[field].attrs.get("units", "")]
    names = {"coordinate": "name", "speed": "speed_name", "actuator": "actuator_name"}.get(str(dims[0]), str(dims[0]))
    called = [str(x) for x in np.asarray(data[names])] if names in data.coords else [str(i) for i in range(count)]
    units = str(data[field].attrs.get("units", "")).split(", ")
    what = "" if field == "q" else f"{field} of "
    return [what + name for name in called], units * count if len(units) == 1 else units
