"""A trajectory as a labelled data set."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Array

from ._coordinate import Coordinate, force_unit, named, rate_unit, speeds_named
from ._result import code_of, codes


if TYPE_CHECKING:
    import pandas
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


class Labels(NamedTuple):
    """Names with units: of the coordinates, of the speeds (None if these are rates), and of the actuators."""

    coordinates: tuple[Coordinate, ...]
    speeds: tuple[Coordinate, ...] | None
    controls: tuple[Coordinate, ...] | None

    @classmethod
    def of(
        cls,
        trajectory: Any,
        coordinates: Sequence[str] | None,
        controls: Sequence[str] | None,
        speeds: Sequence[str] | None,
    ) -> "Labels":
        """Returns the given names, else those that the trajectory has; raises ValueError if their number is wrong."""
        own = trajectory.names or Names()
        coordinates = own.coordinates if coordinates is None else coordinates
        speeds = own.speeds if speeds is None else speeds
        controls = own.controls if controls is None else controls
        fields = vars(trajectory)
        sizes = {k: fields[k].shape[-1] for k, *_ in VECTORS if fields[k] is not None}
        n = sizes.get("q", len(coordinates) if coordinates else next(iter(sizes.values()), 0))
        names = named(coordinates, n, "q", "coordinates, coordinate")
        count = next((size for k, size in sizes.items() if k != "q"), len(speeds or names))
        rates, control = speeds_named(speeds, names, count), fields["control"]
        if control is None or controls is None:
            return cls(names, rates, None)
        return cls(names, rates, named(controls, control.shape[-1], "u", "controls, actuator"))

    def of_field(self, field: str) -> list[Coordinate]:
        """Returns the names that belong to a vector field, with the units of its numbers."""
        if self.speeds is None or field == "q":
            unit = {k: of for k, _, of in VECTORS}[field]
            return [Coordinate(x.name, unit(x.unit)) for x in self.coordinates]
        return [Coordinate(x.name, _of_speed(field, x.unit)) for x in self.speeds]


class Names(NamedTuple):
    """The names with units that a trajectory has of its mechanism or scenario; None for those that are not known."""

    coordinates: tuple[str, ...] | None = None
    speeds: tuple[str, ...] | None = None
    controls: tuple[str, ...] | None = None


def dataset(trajectory: Any, labels: Labels, observables: Mapping[str, object]) -> "xarray.Dataset":
    """Returns the data set of `Trajectory.to_dataset`."""
    import xarray as xr

    time, lead = _times(trajectory.t)
    fields = vars(trajectory)
    names, rates, controls = labels
    units = [name.unit for name in names]
    data: Variables = {}
    for k, what, _ in VECTORS:
        if fields[k] is None:
            continue
        along = "coordinate" if rates is None or k == "q" else "speed"
        if along == "speed":
            what = what.replace("rate of the coordinate", "speed").replace("acceleration of the coordinate", "its rate")
        described = _described(what, [name.unit for name in labels.of_field(k)])
        data[k] = ((*lead, "time", along), np.asarray(fields[k]), described)
    for k, what in (SCALARS | SERVO_SCALARS).items():
        if fields[k] is not None:
            data[k] = ((*lead, "time"), np.asarray(fields[k]), {"long_name": what})
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
    for more, texts in (_control(fields["control"], controls, lead), _of_each(fields, along, forces, lead)):
        data, coords = data | more, coords | texts
    if fields["memory"] is not None:
        text = {"long_name": "memory of the controller"}
        data["memory"] = ((*lead, "time", "memory_entry"), np.asarray(fields["memory"]), text)
    if lead:
        data |= _of_batch(trajectory)
    for name, x in observables.items():
        variable = variable_of(Coordinate(name), {*data, *coords})
        more, texts = observable(variable, Coordinate(name), np.asarray(x), (*lead, "time"))
        data, coords = data | more, coords | texts
    return xr.Dataset(data, coords=coords)


def slug(name: Coordinate) -> str:
    """Returns the name of a variable for the name of a quantity: letters, digits and underscores."""
    return "_".join("".join(c if c.isalnum() else " " for c in name.name).split())


def variable_of(name: Coordinate, taken: set[str]) -> str:
    """Returns the name of an observable's variable, which is none of those that are `taken`."""
    chosen = slug(Coordinate(_stem(name), "")) or "observable"
    while chosen in taken:
        chosen += "_observed"
    return chosen


def _stem(name: Coordinate) -> str:
    """Returns the name of a vector without those of its components: "tool" of "tool x, y, z"."""
    stem = name.name.partition(",")[0].strip().rpartition(" ")[0] if len(name.parts) > 1 else ""
    return stem or name.name


def observable(
    variable: str, name: Coordinate, values: np.ndarray, lead: tuple[str, ...]
) -> tuple[Variables, Variables]:
    """Returns the variable of an observable, and the labels of its components."""
    text = {"long_name": name.name} | ({"units": name.unit} if name.unit else {})
    if values.ndim == len(lead):
        return {variable: (lead, values, text)}, {}
    along = f"{variable}_component"
    return {variable: ((*lead, along), values, text)}, {along: (along, components(name, values.shape[-1]))}


def components(name: Coordinate, count: int) -> list[str]:
    """Returns a label for each component of an observable: those that its name lists, else numbers."""
    return name.parts if len(name.parts) == count else [str(i + 1) for i in range(count)]


def columns(trajectory: Any, labels: Labels, observables: Mapping[str, object]) -> dict[str, np.ndarray]:
    """Returns every number that was kept over time, (T,) or (B, T), by name: "theta [rad]", "v theta [rad/s]", ..."""
    found: dict[str, np.ndarray] = {}
    fields = vars(trajectory)

    def add(what: str, names: Sequence[str], values: object) -> None:
        for i, name in enumerate(names):
            column = f"{what} {name}".strip()
            # Two quantities of one name have two columns.
            found[column if column not in found else f"{column} ({i + 1})"] = np.asarray(values)[..., i]

    for field, *_ in VECTORS:
        if fields[field] is not None:
            add("" if field == "q" else field, labels.of_field(field), fields[field])
    along = labels.of_field("constraint_force")
    if fields["control"] is not None:
        add("control", labels.controls or named(None, fields["control"].shape[-1], "u", ""), fields["control"])
    found |= {k: np.asarray(fields[k]) for k in SCALARS | SERVO_SCALARS if fields[k] is not None}
    for name, force in (fields["constraint_forces"] or {}).items():
        add(f"constraint_forces {name}", along, force)
    for name, rows in (fields["multipliers"] or {}).items():
        add(f"multipliers {name}", [f"row {i}" for i in range(rows.shape[-1])], rows)
    if fields["memory"] is not None:
        add("memory", [str(i) for i in range(fields["memory"].shape[-1])], fields["memory"])
    for key, x in observables.items():
        name, values = Coordinate(key), np.asarray(x)
        if values.ndim == np.ndim(trajectory.t):
            add("", [name], values[..., None])
        else:
            unit = f" [{name.unit}]" if name.unit else ""
            add(_stem(name), [f"{part}{unit}" for part in components(name, values.shape[-1])], values)
    return found


def frame(trajectory: Any, labels: Labels, observables: Mapping[str, object]) -> "pandas.DataFrame":
    """Returns the data frame of `Trajectory.to_dataframe`."""
    import pandas as pd

    t = np.asarray(trajectory.t)
    if t.ndim > 2:
        raise ValueError(f"to_dataframe takes a trajectory or a batch of them, but t has shape {t.shape}.")
    index = pd.Index(t.ravel(), name="t [s]")
    if t.ndim == 2:
        which = np.repeat(np.arange(len(t)), t.shape[1])
        index = pd.MultiIndex.from_arrays([which, t.ravel()], names=["trajectory", "t [s]"])
    return pd.DataFrame({k: x.ravel() for k, x in columns(trajectory, labels, observables).items()}, index=index)


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
    control: Array | None, actuators: Sequence[Coordinate] | None, lead: tuple[str, ...]
) -> tuple[Variables, Variables]:
    """Returns the control, with labels of its actuators if they have names."""
    if control is None:
        return {}, {}
    units = [name.unit for name in actuators or ()]
    data: Variables = {"control": ((*lead, "time", "actuator"), np.asarray(control), _described("control", units))}
    if not actuators:
        return data, {}
    return data, {
        "actuator": ("actuator", list(map(str, actuators)), _described("actuator", units)),
        "actuator_name": ("actuator", [name.name for name in actuators]),
        "actuator_unit": ("actuator", units),
    }


def _of_each(
    fields: Mapping[str, Any], along: str, units: Sequence[str], lead: tuple[str, ...]
) -> tuple[Variables, Variables]:
    """Returns the force and the multipliers of each constraint, labelled by its name."""
    data: Variables = {}
    labels: Variables = {}
    if fields["constraint_forces"]:
        forces = np.stack([np.asarray(x) for x in fields["constraint_forces"].values()], axis=-2)
        text = _described("ideal constraint force, by constraint", units)
        data["constraint_forces"] = ((*lead, "time", "constraint", along), forces, text)
        labels["constraint"] = ("constraint", list(fields["constraint_forces"]))
    if fields["multipliers"]:
        rows = {f"{k} row {i}": x[..., i] for k, x in fields["multipliers"].items() for i in range(x.shape[-1])}
        values = np.stack([np.asarray(x) for x in rows.values()], axis=-1)
        data["multipliers"] = ((*lead, "time", "row"), values, {"long_name": "Lagrange multiplier"})
        labels["row"] = ("row", list(rows))
    return data, labels


def _described(what: str, units: Sequence[str]) -> dict[str, str]:
    """Returns the attributes of a variable: its description, and its units as far as they are known."""
    if not any(units):
        return {"long_name": what}
    return {"long_name": what, "units": units[0] if len(set(units)) == 1 else ", ".join(units)}
