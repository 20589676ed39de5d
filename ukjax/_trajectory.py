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
# What `simulate(keep=...)` may name, and what of that there is with a servo only.
OF_SERVOS = ("control", *_OF_SERVOS)
OPTIONAL = (*_VECTORS, *OF_SERVOS, *_SCALARS)

# A field that was not kept is None. To those who check types it is an array all the same, since nearly everyone keeps
# everything, and then need not ask each field whether it is there.
if TYPE_CHECKING:
    Vectors = Float[Array, "T n"]
    Numbers = Float[Array, " T"]
    Counts = Int[Array, " T"]
else:
    Vectors = Float[Array, "T n"] | None
    Numbers = Float[Array, " T"] | None
    Counts = Int[Array, " T"] | None


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
        result: `RESULTS`; empty message if all went well.
        stats: Numbers of steps (`num_steps`, `num_accepted_steps`, `num_rejected_steps`), the time reached (`t_reached`
            [s]), and with a servo the first saved time at which it missed its rows, because an actuator was at a limit
            or no control meets them (`servo_missed_from` [s], infinite if there is none; where a field was kept that
            needs the control).
    """

    t: Float[Array, " T"]
    q: Vectors
    v: Vectors
    acceleration: Vectors
    constraint_force: Vectors
    nonideal_force: Vectors
    control: Float[Array, "T p"] | None
    position_residual: Numbers
    velocity_residual: Numbers
    servo_residual: Float[Array, " T"] | None
    servo_position_residual: Float[Array, " T"] | None
    servo_velocity_residual: Float[Array, " T"] | None
    rank: Counts
    result: Any
    stats: dict[str, Any]

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
        time = ("time", np.asarray(self.t), {"units": "s", "long_name": "time"})
        return xr.Dataset(data, coords={"time": time, "coordinate": names})
