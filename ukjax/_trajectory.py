"""What a simulation gives back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int


if TYPE_CHECKING:
    import xarray


_VECTORS = {
    "q": "coordinate",
    "v": "rate of the coordinate",
    "acceleration": "acceleration of the coordinate",
    "constraint_force": "ideal constraint force",
    "nonideal_force": "acting part of the non-ideal force",
}
_SCALARS = {
    "position_residual": "norm of the position constraints",
    "velocity_residual": "norm of the velocity constraints",
    "rank": "rank of the constraint matrix",
}
_OF_SERVOS = {
    "servo_residual": "norm of the accelerations missed by the servos",
    "servo_position_residual": "norm of the position errors of the servo constraints",
    "servo_velocity_residual": "norm of the velocity errors of the servo constraints",
}
# What `simulate(keep=...)` may name, what of that there is with a servo only, and what only if it is asked for.
OF_SERVOS = ("control", *_OF_SERVOS)
OF_EACH = ("constraint_forces", "multipliers")
OPTIONAL = (*_VECTORS, *OF_SERVOS, *_SCALARS, *OF_EACH)


class Trajectory(eqx.Module):
    """A motion at the saved times; rows that a failed simulation did not reach are NaN.

    A field that `simulate(keep=...)` left out is None.

    Attributes:
        t: Times (T,) [s].
        q: Coordinates (T, n) [m or rad].
        v: Their rates (T, n) [m/s or rad/s].
        acceleration: (T, n) [m/s^2 or rad/s^2].
        constraint_force: Ideal constraint force (T, n) [N or N m].
        nonideal_force: Acting part of the non-ideal force (T, n) [N or N m].
        control: Control of all actuators, in the order of the servos (T, p); None without a servo.
        position_residual: Euclidean norm of Φ over all holonomic constraints (T,).
        velocity_residual: Euclidean norm of Φ̇ and ψ over all constraints (T,).
        servo_residual: Euclidean norm of A q'' - b over the rows of all servo constraints (T,): what saturation, or
            `exact=False`, leaves. None without a servo, like the next two.
        servo_position_residual: Euclidean norm of Φ over the servo constraints (T,).
        servo_velocity_residual: Euclidean norm of Φ̇ and ψ over the servo constraints (T,).
        rank: Rank of A (T,); -1 in rows that were not reached.
        constraint_forces: What of `constraint_force` each constraint makes, by its name, (T, n) [N or N m]; None unless
            `simulate(keep="all")`, or `keep` names it. Where rows depend on each other only the sum is determined, and
            these belong to the multipliers of least norm.
        multipliers: Lagrange multipliers of the rows of each constraint, by its name, (T, m); as before.
        result: `RESULTS`; empty message if all went well.
        stats: Numbers of steps (`num_steps`, `num_accepted_steps`, `num_rejected_steps`), the time reached (`t_reached`
            [s]), and with a servo the first saved time at which it missed its rows, because an actuator was at a limit
            or no control meets them (`servo_missed_from` [s], infinite if there is none; where a field was kept that
            needs the control).
    """

    t: Float[Array, " T"]
    q: Float[Array, "T n"]
    v: Float[Array, "T n"]
    acceleration: Float[Array, "T n"]
    constraint_force: Float[Array, "T n"]
    nonideal_force: Float[Array, "T n"]
    control: Float[Array, "T p"] | None
    position_residual: Float[Array, " T"]
    velocity_residual: Float[Array, " T"]
    servo_residual: Float[Array, " T"] | None
    servo_position_residual: Float[Array, " T"] | None
    servo_velocity_residual: Float[Array, " T"] | None
    rank: Int[Array, " T"]
    result: Any
    stats: dict[str, Any]
    constraint_forces: dict[str, Float[Array, "T n"]] | None = None
    multipliers: dict[str, Float[Array, "T _"]] | None = None

    def to_dataset(self, coordinates: Sequence[str] | None = None) -> "xarray.Dataset":
        """The trajectory as a labelled xarray data set, ready for `to_netcdf`.

        Args:
            coordinates: A name for each coordinate; `q1`, `q2`, ... if omitted.

        Raises:
            ValueError: If the number of names is not the number of coordinates, or the trajectory is a batch.
        """
        import xarray as xr

        if self.t.ndim != 1:
            raise ValueError(f"to_dataset takes one trajectory, but t has shape {self.t.shape}: index the batch first.")
        vectors = {k: np.asarray(x) for k in _VECTORS if (x := getattr(self, k)) is not None}
        n = next((x.shape[1] for x in vectors.values()), 0)
        names = [f"q{i + 1}" for i in range(n)] if coordinates is None else list(coordinates)
        if vectors and len(names) != n:
            raise ValueError(f"coordinates must be {n} names, one per coordinate, but got {len(names)}: {names}.")
        data = {k: (("time", "coordinate"), x, {"long_name": _VECTORS[k]}) for k, x in vectors.items()}
        scalars = {k: text for k, text in (_SCALARS | _OF_SERVOS).items() if getattr(self, k) is not None}
        data |= {k: (("time",), np.asarray(getattr(self, k)), {"long_name": text}) for k, text in scalars.items()}
        if self.control is not None:
            data["control"] = (("time", "actuator"), np.asarray(self.control), {"long_name": "control"})
        more = {}
        if self.constraint_forces:
            forces = np.stack([np.asarray(x) for x in self.constraint_forces.values()], axis=1)
            text = {"long_name": "ideal constraint force, by constraint"}
            data["constraint_forces"] = (("time", "constraint", "coordinate"), forces, text)
            more["constraint"] = list(self.constraint_forces)
        if self.multipliers:
            rows = {f"{k} row {i}": x[:, i] for k, x in self.multipliers.items() for i in range(x.shape[1])}
            text = {"long_name": "Lagrange multiplier"}
            data["multipliers"] = (("time", "row"), np.stack([np.asarray(x) for x in rows.values()], axis=1), text)
            more["row"] = list(rows)
        time = ("time", np.asarray(self.t), {"units": "s", "long_name": "time"})
        return xr.Dataset(data, coords={"time": time, "coordinate": names, **more})
