"""What a simulation gives back."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from ._coordinate import force_unit, named, rate_unit


if TYPE_CHECKING:
    import xarray


# Name, what it is, and its unit, from that of the coordinate.
_VECTORS = (
    ("q", "coordinate", str),
    ("v", "rate of the coordinate", rate_unit),
    ("acceleration", "acceleration of the coordinate", functools.partial(rate_unit, order=2)),
    ("constraint_force", "ideal constraint force", force_unit),
    ("nonideal_force", "acting part of the non-ideal force", force_unit),
)
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

    def to_dataset(
        self, coordinates: Sequence[str] | None = None, controls: Sequence[str] | None = None
    ) -> "xarray.Dataset":
        """The trajectory as a labelled xarray data set, ready for `to_netcdf`.

        Along `coordinate` lie the labels, and the coordinates `name` and `unit` of which they are made; the attribute
        `units` of `coordinate` and of every variable is the unit of all, or one for each, with commas between. The same
        along `actuator`, with `actuator_name` and `actuator_unit`, if there are `controls`.

        Args:
            coordinates: A name for each coordinate, `Coordinate("x", "m")` or "x [m]"; `q1`, `q2`, ... if omitted.
            controls: Likewise for each actuator; without labels if omitted.

        Raises:
            ValueError: If the number of names is not the number of coordinates or of actuators, or the trajectory is a
                batch.
        """
        import xarray as xr

        if self.q.ndim != 2:
            raise ValueError(f"to_dataset takes one trajectory, but q has shape {self.q.shape}: index the batch first.")
        names = named(coordinates, self.q.shape[1], "q", "coordinates, coordinate")
        units = [name.unit for name in names]
        data: dict[str, Any] = {
            k: (("time", "coordinate"), np.asarray(getattr(self, k)), _described(what, [of(u) for u in units]))
            for k, what, of in _VECTORS
        }
        data |= {k: (("time",), np.asarray(getattr(self, k)), {"long_name": v}) for k, v in _SCALARS.items()}
        coords: dict[str, Any] = {"time": ("time", np.asarray(self.t), {"units": "s", "long_name": "time"})}
        coords |= {
            "coordinate": ("coordinate", list(map(str, names)), _described("coordinate", units)),
            "name": ("coordinate", [name.name for name in names]),
            "unit": ("coordinate", units),
        }
        if self.control is not None:
            actuators = None if controls is None else named(controls, self.control.shape[1], "u", "controls, actuator")
            units = [] if actuators is None else [name.unit for name in actuators]
            data["control"] = (("time", "actuator"), np.asarray(self.control), _described("control", units))
            data |= {k: (("time",), np.asarray(getattr(self, k)), {"long_name": v}) for k, v in _OF_SERVOS.items()}
            if actuators is not None:
                coords["actuator"] = ("actuator", list(map(str, actuators)), _described("actuator", units))
                coords["actuator_name"] = ("actuator", [name.name for name in actuators])
                coords["actuator_unit"] = ("actuator", units)
        return xr.Dataset(data, coords=coords)


def _described(what: str, units: Sequence[str]) -> dict[str, str]:
    """Attributes of a variable: what it is, and its units as far as they are known."""
    if not any(units):
        return {"long_name": what}
    return {"long_name": what, "units": units[0] if len(set(units)) == 1 else ", ".join(units)}
