"""A trajectory as a labelled data set."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Array

from ._coordinate import Coordinate, force_unit, named, rate_unit, speeds_named
from ._result import code_of, codes


if TYPE_CHECKING:
    import xarray


# Variables of a data set by name: dimensions, values, and attributes if there are any.
Variables = dict[str, tuple[object, ...]]
# Name, description, and unit as a function of the coordinate's. All but q belong to speeds where those are no rates.
VECTORS = (
    ("q", "coordinate", str),
    ("v", "rate of the coordinate", rate_unit),
    ("acceleration", "acceleration of the coordinate", functools.partial(rate_unit, order=2)),
    ("constraint_force", "ideal constraint force", force_unit),
    ("nonideal_force", "acting part of the non-ideal force", force_unit),
)
SCALARS = {
    "position_residual": "norm of the position constraints",
    "velocity_residual": "norm of the velocity constraints",
    "rank": "rank of the constraint matrix",
}
SERVO_SCALARS = {
    "servo_residual": "norm of the accelerations missed by the servos",
    "servo_position_residual": "norm of the position errors of the servo constraints",
    "servo_velocity_residual": "norm of the velocity errors of the servo constraints",
}


# Entries of `Trajectory.stats` that a data set of a batch holds: name, description, unit.
STATS = (
    ("num_steps", "number of steps", ""),
    ("num_accepted_steps", "number of accepted steps", ""),
    ("num_rejected_steps", "number of rejected steps", ""),
    ("t_reached", "time reached", "s"),
    ("servo_missed_from", "first saved time at which the servo missed its rows", "s"),
)
# Names in a data set other than fields: axes, their labels, and the outcome of each trajectory.
AXES = ("coordinate", "speed", "actuator")
LABELS = frozenset({
    "time", "constraint", "row", "memory_entry", "name", "unit", "result", *AXES, *(name for name, *_ in STATS),
    *(f"{axis}_{label}" for axis in AXES[1:] for label in ("name", "unit")),
})  # fmt: skip


def _of_speed(name: str, unit: str) -> str:
    """Returns the unit of a vector field, from that of the speed."""
    if name.endswith("force"):
        return force_unit(unit)
    return unit and (f"{unit}^2" if name == "acceleration" else unit)


def dataset(
    trajectory: Any,
    coordinates: Sequence[str] | None,
    controls: Sequence[str] | None,
    speeds: Sequence[str] | None = None,
) -> "xarray.Dataset":
    """Returns the data set of `Trajectory.to_dataset`."""
    import xarray as xr

    time, lead = _times(trajectory.t)
    kept = [(k, what, of) for k, what, of in VECTORS if getattr(trajectory, k) is not None]
    sizes = {k: getattr(trajectory, k).shape[-1] for k, _, _ in kept}
    n = sizes.get("q", len(coordinates) if coordinates else next(iter(sizes.values()), 0))
    names = named(coordinates, n, "q", "coordinates, coordinate")
    units = [name.unit for name in names]
    rates = speeds_named(speeds, names, next((size for k, size in sizes.items() if k != "q"), len(speeds or names)))
    data: Variables = {}
    for k, what, of in kept:
        along, described = "coordinate", _described(what, [of(u) for u in units])
        if rates is not None and k != "q":
            what = what.replace("rate of the coordinate", "speed").replace("acceleration of the coordinate", "its rate")
            along, described = "speed", _described(what, [_of_speed(k, rate.unit) for rate in rates])
        data[k] = ((*lead, "time", along), np.asarray(getattr(trajectory, k)), described)
    scalars = {k: what for k, what in (SCALARS | SERVO_SCALARS).items() if getattr(trajectory, k) is not None}
    data |= {
        k: ((*lead, "time"), np.asarray(getattr(trajectory, k)), {"long_name": what}) for k, what in scalars.items()
    }
    coords: Variables = {"time": ("time", time, {"units": "s", "long_name": "time"})}
    coords |= {
        "coordinate": ("coordinate", list(map(str, names)), _described("coordinate", units)),
        "name": ("coordinate", [name.name for name in names]),
        "unit": ("coordinate", units),
    }
    along, forces = "coordinate", [force_unit(name.unit) for name in names]
    if rates is not None:
        along, forces = "speed", [force_unit(rate.unit) for rate in rates]
        coords |= {
            "speed": ("speed", list(map(str, rates)), _described("speed", [rate.unit for rate in rates])),
            "speed_name": ("speed", [rate.name for rate in rates]),
            "speed_unit": ("speed", [rate.unit for rate in rates]),
        }
    for more, labels in (_control(trajectory.control, controls, lead), _of_each(trajectory, along, forces, lead)):
        data, coords = data | more, coords | labels
    if trajectory.memory is not None:
        text = {"long_name": "memory of the controller"}
        data["memory"] = ((*lead, "time", "memory_entry"), np.asarray(trajectory.memory), text)
    if lead:
        data |= _of_batch(trajectory)
    return xr.Dataset(data, coords=coords)


def _times(t: Array) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the times (T,), and the batch axis if any; raises ValueError for batches of batches and other shapes."""
    times = np.asarray(t)
    if times.ndim == 1:
        return times, ()
    if times.ndim != 2 or not len(times):
        raise ValueError(f"to_dataset takes a trajectory or a batch of them, but t has shape {times.shape}.")
    if np.any(times != times[:1]):
        raise ValueError("to_dataset takes a batch of which all are saved at the same times: index it first.")
    return times[0], ("trajectory",)


def _of_batch(trajectory: Any) -> Variables:
    """Returns the outcome of each trajectory: its result and its `stats`."""
    known = codes()
    flags = {"long_name": "how it ended", "flag_values": np.array(list(known.values()), np.int32)}
    flags["flag_meanings"] = " ".join(known)
    data: Variables = {"result": (("trajectory",), code_of(trajectory.result).astype(np.int32), flags)}
    for name, what, units in STATS:
        if name in trajectory.stats:
            text = {"long_name": what} | ({"units": units} if units else {})
            data[name] = (("trajectory",), np.asarray(trajectory.stats[name]), text)
    return data


def _control(
    control: Array | None, controls: Sequence[str] | None, lead: tuple[str, ...]
) -> tuple[Variables, Variables]:
    """Returns the control, with labels of its actuators if they have names."""
    if control is None:
        return {}, {}
    actuators: list[Coordinate] = (
        [] if controls is None else list(named(controls, control.shape[-1], "u", "controls, actuator"))
    )
    units = [name.unit for name in actuators]
    data: Variables = {"control": ((*lead, "time", "actuator"), np.asarray(control), _described("control", units))}
    if not actuators:
        return data, {}
    return data, {
        "actuator": ("actuator", list(map(str, actuators)), _described("actuator", units)),
        "actuator_name": ("actuator", [name.name for name in actuators]),
        "actuator_unit": ("actuator", units),
    }


def _of_each(trajectory: Any, along: str, units: Sequence[str], lead: tuple[str, ...]) -> tuple[Variables, Variables]:
    """Returns the force and the multipliers of each constraint, labelled by its name."""
    data: Variables = {}
    labels: Variables = {}
    if trajectory.constraint_forces:
        forces = np.stack([np.asarray(x) for x in trajectory.constraint_forces.values()], axis=-2)
        text = _described("ideal constraint force, by constraint", units)
        data["constraint_forces"] = ((*lead, "time", "constraint", along), forces, text)
        labels["constraint"] = ("constraint", list(trajectory.constraint_forces))
    if trajectory.multipliers:
        rows = {f"{k} row {i}": x[..., i] for k, x in trajectory.multipliers.items() for i in range(x.shape[-1])}
        values = np.stack([np.asarray(x) for x in rows.values()], axis=-1)
        data["multipliers"] = ((*lead, "time", "row"), values, {"long_name": "Lagrange multiplier"})
        labels["row"] = ("row", list(rows))
    return data, labels


def _described(what: str, units: Sequence[str]) -> dict[str, str]:
    """Returns the attributes of a variable: its description, and its units as far as they are known."""
    if not any(units):
        return {"long_name": what}
    return {"long_name": what, "units": units[0] if len(set(units)) == 1 else ", ".join(units)}
