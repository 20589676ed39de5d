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


class Trajectory(eqx.Module):
    """A motion at the saved times; rows that a failed simulation did not reach are NaN.

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
        stats: Numbers of steps (`num_steps`, `num_accepted_steps`, `num_rejected_steps`) and the time reached
            (`t_reached` [s]).
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

    def to_dataset(self, coordinates: Sequence[str] | None = None) -> "xarray.Dataset":
        """The trajectory as a labelled xarray data set, ready for `to_netcdf`.

        Args:
            coordinates: A name for each coordinate; `q1`, `q2`, ... if omitted.

        Raises:
            ValueError: If the number of names is not the number of coordinates, or the trajectory is a batch.
        """
        import xarray as xr

        if self.q.ndim != 2:
            raise ValueError(f"to_dataset takes one trajectory, but q has shape {self.q.shape}: index the batch first.")
        n = self.q.shape[1]
        names = [f"q{i + 1}" for i in range(n)] if coordinates is None else list(coordinates)
        if len(names) != n:
            raise ValueError(f"coordinates must be {n} names, one per coordinate, but got {len(names)}: {names}.")
        data = {
            k: (("time", "coordinate"), np.asarray(getattr(self, k)), {"long_name": v}) for k, v in _VECTORS.items()
        }
        data |= {k: (("time",), np.asarray(getattr(self, k)), {"long_name": v}) for k, v in _SCALARS.items()}
        if self.control is not None:
            data["control"] = (("time", "actuator"), np.asarray(self.control), {"long_name": "control"})
            data |= {k: (("time",), np.asarray(getattr(self, k)), {"long_name": v}) for k, v in _OF_SERVOS.items()}
        time = ("time", np.asarray(self.t), {"units": "s", "long_name": "time"})
        return xr.Dataset(data, coords={"time": time, "coordinate": names})
