"""Figures of a trajectory over time. No global state: figures are made without pyplot."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._coordinate import Coordinate, by_unit, force_unit, named, rate_unit, speeds_named
from .._scenario import Scenario
from .._trajectory import Trajectory


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


def components(t: Any, values: Any, name: str, title: str = "") -> Figure:
    """A figure of a quantity over time, one curve per component.

    Args:
        t: Times (T,) [s].
        values: (T,) or (T, k).
        name: `Coordinate` or text: name of the quantity, its components if there are more than one, and its unit, as in
            "tool x, y, z [m]". Components that are not listed are numbered.
        title: Title above the figure.
    """
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


def _over_time(axis: Axes, t: Any, errors: dict[str, Any], name: str, none: str) -> None:
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
