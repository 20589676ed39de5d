"""The result of a simulation."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from . import _check
from ._dataset import SCALARS, SERVO_SCALARS, VECTORS, Labels, Names, columns, dataset, frame
from ._result import RESULTS
from ._show import AbstractShown, Report, extent, number, outcome, shortened, values


if TYPE_CHECKING:
    import pandas
    import xarray


# Names that `simulate(keep=...)` may hold; those that exist with a servo only, and those computed on request only.
OF_SERVOS = ("control", *SERVO_SCALARS)
OF_EACH = ("constraint_forces", "multipliers")
OF_CONTROLLERS = ("memory",)
OPTIONAL = (*(name for name, _, _ in VECTORS), *OF_SERVOS, *SCALARS, *OF_EACH, *OF_CONTROLLERS)

# Fields that every trajectory has unless they were not kept.
ALWAYS = (*(name for name, _, _ in VECTORS), *SCALARS, *OF_EACH)

# A field that was not kept is None in the pytree. Type checkers see an array all the same: nearly every user keeps
# everything, and need not check each field for None.
if TYPE_CHECKING:
    Positions = Float[Array, "T n_q"]
    Vectors = Float[Array, "T n"]
    Norms = Float[Array, " T"]
    Counts = Int[Array, " T"]
else:
    Positions = Float[Array, "T n_q"] | None
    Vectors = Float[Array, "T n"] | None
    Norms = Float[Array, " T"] | None
    Counts = Int[Array, " T"] | None


class Trajectory(AbstractShown):
    """A motion at the saved times; rows that a failed simulation did not reach are NaN.

    A field that `simulate(keep=...)` left out is None; `print` names those that are.

    Attributes:
        t: Times (T,) [s].
        q: Coordinates (T, n), or (T, n_q) if the system has a kinematics [m or rad].
        v: Rates of q, or the speeds (T, n) [m/s or rad/s].
        acceleration: (T, n) [m/s^2 or rad/s^2].
        constraint_force: Ideal constraint force (T, n) [N or N m].
        nonideal_force: Acting part of the non-ideal force (T, n) [N or N m].
        control: Control of all actuators, in the order of the servos, or of a `Feedback` (T, p), at the time of a
            sample that decided there; None without either.
        position_residual: Euclidean norm of Φ over all holonomic constraints (T,).
        velocity_residual: Euclidean norm of Φ̇ and ψ over all constraints (T,).
        servo_residual: Euclidean norm of A q'' - b over the rows of all servo constraints (T,): what saturation, or
            `exact=False`, leaves. None without a servo, like the next two.
        servo_position_residual: Euclidean norm of Φ over the servo constraints (T,).
        servo_velocity_residual: Euclidean norm of Φ̇ and ψ over the servo constraints (T,).
        rank: Rank of A (T,); -1 in rows that were not reached.
        constraint_forces: Share of each constraint in `constraint_force`, by its name, (T, n) [N or N m]; kept by
            `simulate(keep="all")`, or if `keep` names it. Where rows depend on each other only the sum is determined;
            the shares are those of the multipliers of least norm.
        multipliers: Lagrange multipliers of each constraint's rows, by its name, (T, m); kept likewise.
        memory: Memory of a `Feedback` which has one (T, s).
        result: `RESULTS`; empty message if all went well.
        stats: Numbers of steps (`num_steps`, `num_accepted_steps`, `num_rejected_steps`), the time reached (`t_reached`
            [s]), and with a servo the first saved time at which it missed its rows, because an actuator was at a limit
            or no control meets them (`servo_missed_from` [s], infinite if there is none; where a field was kept that
            needs the control).
        names: `Names` of coordinates, speeds and actuators, with units, as far as the mechanism or the scenario has
            them.
    """

    t: Float[Array, " T"]
    q: Positions
    v: Vectors
    acceleration: Vectors
    constraint_force: Vectors
    nonideal_force: Vectors
    control: Float[Array, "T p"] | None
    position_residual: Norms
    velocity_residual: Norms
    servo_residual: Float[Array, " T"] | None
    servo_position_residual: Float[Array, " T"] | None
    servo_velocity_residual: Float[Array, " T"] | None
    rank: Counts
    result: RESULTS
    stats: dict[str, Array]
    constraint_forces: dict[str, Float[Array, "T n"]] | None = None
    multipliers: dict[str, Float[Array, "T _"]] | None = None
    memory: Float[Array, "T s"] | None = None
    names: Names | None = eqx.field(static=True, default=None)

    def to_dataset(
        self,
        coordinates: Sequence[str] | None = None,
        controls: Sequence[str] | None = None,
        speeds: Sequence[str] | None = None,
        observables: Mapping[str, object] | None = None,
    ) -> "xarray.Dataset":
        """Returns the trajectory, or a batch of them, as a labelled xarray data set for `to_netcdf` or `to_zarr`.

        A batch lies along `trajectory`, all saved at the same times, with `stats` and the numbers of `result`, which
        `flag_meanings` names.

        Along `coordinate` lie the labels, and the coordinates `name` and `unit` of which they are made; the attribute
        `units` of `coordinate` and of every variable is the unit of all, or one for each, with commas between. Where
        actuators have names, `actuator` is labelled likewise, by `actuator_name` and `actuator_unit`.

        Args:
            coordinates: A name for each coordinate, `Coordinate("x", "m")` or "x [m]". If omitted, those in `names`,
                or `q1`, `q2`, ...
            controls: A name for each actuator, likewise; without labels if there are none.
            speeds: A name for each speed of a mechanism with a kinematics. Then v, accelerations and forces lie along
                `speed`; otherwise along `coordinate`, whose rates v are.
            observables: Further quantities over the saved times: "tool x, y [m]" -> (T,) or (T, k), as
                `Scenario.observed` returns them.

        Raises:
            ValueError: If the number of names is not the number of coordinates, speeds or actuators, those of a
                batch are saved at different times, or an observable has another number of times.
        """
        return dataset(self, Labels.of(self, coordinates, controls, speeds), _observables(observables, self.t))

    def to_dataframe(
        self,
        coordinates: Sequence[str] | None = None,
        controls: Sequence[str] | None = None,
        speeds: Sequence[str] | None = None,
        observables: Mapping[str, object] | None = None,
    ) -> "pandas.DataFrame":
        """Returns the trajectory as a pandas data frame: a row for each saved time, a column for each number.

        Coordinates have columns of their names, such as "theta [rad]", other fields of field and name, such as
        "v theta [rad/s]" and "control u1 [N]". A batch has an index of two levels, `trajectory` and `t [s]`.

        Args:
            coordinates: As in `to_dataset`.
            controls: As in `to_dataset`; "u1", "u2", ... if there are none.
            speeds: As in `to_dataset`.
            observables: As in `to_dataset`.

        Raises:
            ValueError: If the number of names is wrong, the trajectory is a batch of batches, or an observable has
                another number of times.
        """
        return frame(self, Labels.of(self, coordinates, controls, speeds), _observables(observables, self.t))

    def to_csv(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Writes the table of `to_dataframe` to a CSV file, which spreadsheets and MATLAB's `readtable` read.

        Args:
            path: File to write.
            **options: Arguments of `to_dataframe`.

        Raises:
            TypeError: If `path` is no path, or an option has another name.
            OSError: If the file cannot be written.
        """
        file, table = _check.path(path, "path"), self.to_dataframe(**options)
        table.to_csv(file)

    def called(
        self,
        coordinates: Sequence[str] | None = None,
        speeds: Sequence[str] | None = None,
        controls: Sequence[str] | None = None,
    ) -> "Trajectory":
        """Returns the same trajectory with names for its coordinates, speeds and actuators, such as "theta [rad]".

        Names that are omitted stay as they are.

        Raises:
            ValueError: If the number of names is not the number of coordinates, speeds or actuators.
        """
        given, own = (coordinates, speeds, controls), self.names or Names()
        found = Names(*(old if x is None else tuple(map(str, x)) for x, old in zip(given, own, strict=True)))
        made = object.__new__(Trajectory)
        vars(made).update(vars(self), names=found)
        Labels.of(made, None, None, None)
        return made

    def _report(self) -> Report:
        return _report(self)


def _observables(given: Mapping[str, object] | None, t: Array | np.ndarray) -> dict[str, np.ndarray]:
    """Returns observables as arrays over the saved times; raises TypeError or ValueError if they are none."""
    found = _check.mapping(given, "observables", '{"tool x, y [m]": values}')
    arrays = {name: np.asarray(x) for name, x in found.items()}
    for name, x in arrays.items():
        if x.shape[: t.ndim] != t.shape or x.ndim > t.ndim + 1:
            raise ValueError(
                f"observables[{name!r}] must have shape {t.shape}, a number for each saved time, or one more axis for "
                f"its components, but has {x.shape}."
            )
    return arrays


def _report(trajectory: Trajectory) -> Report:
    """Returns the display of a trajectory or a batch: ranges of what moves, errors, and how it ended."""
    t, fields = np.asarray(trajectory.t), vars(trajectory)
    if t.ndim > 2:
        return Report("Trajectory", [("t", values(t)), ("result", outcome(trajectory.result))])
    batch = t.ndim == 2
    low, high = extent(t)
    steps = np.asarray(trajectory.stats["num_accepted_steps"])
    many = f"{steps}" if not batch else f"{steps.min()} to {steps.max()}"
    title = f"Trajectory: {outcome(trajectory.result)}"
    about = f"{t.shape[-1]} saved times from {number(low)} to {number(high)} s, {many} steps"
    labels = Labels.of(trajectory, None, None, None)
    found = columns(trajectory, labels, {})
    coordinates = () if fields["q"] is None else labels.of_field("q")
    rows, curves = [], []
    for name, x in found.items():
        if name in coordinates or name.startswith(("v ", "control ")):
            ends = extent(x[:, -1]) if batch else (x[0], x[-1])
            rows.append((name, *map(number, (*ends, *extent(x)))))
            curves.append(x.reshape(-1, x.shape[-1]))
    head = ("", "least at the end", "largest at the end") if batch else ("", "start", "end")
    rows, more = shortened(rows)
    notes = [about, *more]
    if errors := [f"{k.split('_')[0]} {np.nanmax(found[k]):.3g}" for k in (*SCALARS,)[:2] if k in found]:
        notes.append(f"largest error of the constraints: in {', in '.join(errors)}")
    ranks = np.unique(found["rank"][found["rank"] >= 0]) if "rank" in found else np.zeros(0)
    if len(ranks):
        notes.append(f"rank of the constraints: {' to '.join(map(str, dict.fromkeys(ranks[[0, -1]])))}")
    if missing := [k for k in ALWAYS if fields[k] is None]:
        notes.append(f"not kept: {', '.join(missing)}")
    return Report(title, rows, (*head, "least", "largest"), notes, curves[: len(rows)])
