"""The result of a simulation."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import equinox as eqx
from jaxtyping import Array, Float, Int

from ._dataset import SCALARS, SERVO_SCALARS, VECTORS, dataset
from ._result import RESULTS


if TYPE_CHECKING:
    import xarray


# Names that `simulate(keep=...)` may hold; those that exist with a servo only, and those computed on request only.
OF_SERVOS = ("control", *SERVO_SCALARS)
OF_EACH = ("constraint_forces", "multipliers")
OF_CONTROLLERS = ("memory",)
OPTIONAL = (*(name for name, _, _ in VECTORS), *OF_SERVOS, *SCALARS, *OF_EACH, *OF_CONTROLLERS)

# A field that was not kept is None. Type checkers see an array all the same: nearly every user keeps everything, and
# need not check each field for None.
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


class Trajectory(eqx.Module):
    """A motion at the saved times; rows that a failed simulation did not reach are NaN.

    A field that `simulate(keep=...)` left out is None.

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
        constraint_forces: Share of each constraint in `constraint_force`, by its name, (T, n) [N or N m]; None unless
            `simulate(keep="all")`, or `keep` names it. Where rows depend on each other only the sum is determined; the
            shares are those of the multipliers of least norm.
        multipliers: Lagrange multipliers of each constraint's rows, by its name, (T, m); None unless kept likewise.
        memory: Memory of a `Feedback` which has one (T, s).
        result: `RESULTS`; empty message if all went well.
        stats: Numbers of steps (`num_steps`, `num_accepted_steps`, `num_rejected_steps`), the time reached (`t_reached`
            [s]), and with a servo the first saved time at which it missed its rows, because an actuator was at a limit
            or no control meets them (`servo_missed_from` [s], infinite if there is none; where a field was kept that
            needs the control).
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

    def to_dataset(
        self,
        coordinates: Sequence[str] | None = None,
        controls: Sequence[str] | None = None,
        speeds: Sequence[str] | None = None,
    ) -> "xarray.Dataset":
        """Returns the trajectory, or a batch of them, as a labelled xarray data set for `to_netcdf` or `to_zarr`.

        A batch lies along `trajectory`, all saved at the same times, with `stats` and the numbers of `result`, which
        `flag_meanings` names.

        Along `coordinate` lie the labels, and the coordinates `name` and `unit` of which they are made; the attribute
        `units` of `coordinate` and of every variable is the unit of all, or one for each, with commas between. With
        `controls`, `actuator` is labelled likewise, by `actuator_name` and `actuator_unit`.

        Args:
            coordinates: A name for each coordinate, `Coordinate("x", "m")` or "x [m]"; `q1`, `q2`, ... if omitted.
            controls: A name for each actuator, likewise; without labels if omitted.
            speeds: A name for each speed of a mechanism with a kinematics. Then v, accelerations and forces lie along
                `speed`; otherwise along `coordinate`, whose rates v are.

        Raises:
            ValueError: If the number of names is not the number of coordinates, speeds or actuators, or those of a
                batch are saved at different times.
        """
        return dataset(self, coordinates, controls, speeds)
