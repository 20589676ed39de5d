"""The result of a simulation of a motion with events."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from .._result import is_traced
from .._trajectory import Numbers, Positions, Vectors


class HybridTrajectory(eqx.Module):
    """A motion at the saved times, with its events; rows that it did not reach are NaN.

    A field that `simulate_hybrid(keep=...)` left out is None.

    Attributes:
        t: Times (T,) [s]. At the time of an event, up to rounding, the state is the one before the event; with several
            events at a time, before the first.
        q: Coordinates (T, n_q) [m or rad].
        v: Rates of q, or the speeds (T, n) [m/s or rad/s].
        acceleration: (T, n) [m/s^2 or rad/s^2].
        constraint_force: Ideal constraint force (T, n) [N or N m].
        position_residual: Euclidean norm of Φ over all holonomic constraints of the mode (T,).
        velocity_residual: Euclidean norm of Φ̇ and ψ over all constraints of the mode (T,).
        mode: Number of the mode (T,), as in `modes`; -1 in rows that were not reached.
        event_times: Times of the events (K,) [s], never decreasing; NaN beyond the last.
        event: Number of each event (K,) within its mode, as in `events`; -1 beyond the last.
        event_mode: The mode that each event ended (K,); -1 beyond the last.
        event_q: Coordinates after the events (K, n_q); NaN beyond the last.
        event_v: Velocities after the events (K, n); NaN beyond the last.
        modes: Names of the modes.
        events: Names of the events of each mode, then "NAME to rest" for each event with a `rest` mode.
        result: `RESULTS`; empty message if all went well.
        stats: `num_steps`: attempted steps, those of the search for events included; `num_events`.
        nonideal_force: Acting part of the non-ideal force (T, n) [N or N m].
        control: Control of all actuators (T, p), p as large as in the mode that has most; NaN for actuators that the
            mode does not have. None if nothing acts in any mode.
        servo_residual: As in `Trajectory` (T,), like the next two; NaN in modes without a servo, None if none has one.
        servo_position_residual: (T,).
        servo_velocity_residual: (T,).
        rank: Rank of A (T,); -1 in rows that were not reached.
        constraint_forces: Share of each constraint in `constraint_force`, by its name, (T, n) [N or N m]; NaN in
            modes that have no constraint of this name. None unless `simulate_hybrid(keep="all")`, or `keep` names it.
        multipliers: Lagrange multipliers of the rows of each constraint, by its name, (T, m); NaN and None likewise.
    """

    t: Float[Array, " T"]
    q: Positions
    v: Vectors
    acceleration: Vectors
    constraint_force: Vectors
    position_residual: Numbers
    velocity_residual: Numbers
    mode: Int[Array, " T"]
    event_times: Float[Array, " K"]
    event: Int[Array, " K"]
    event_mode: Int[Array, " K"]
    event_q: Float[Array, "K n_q"]
    event_v: Float[Array, "K n"]
    modes: tuple[str, ...] = eqx.field(static=True)
    events: tuple[tuple[str, ...], ...] = eqx.field(static=True)
    result: Any
    stats: dict[str, Any]
    nonideal_force: Float[Array, "T n"] | None = None
    control: Float[Array, "T p"] | None = None
    servo_residual: Float[Array, " T"] | None = None
    servo_position_residual: Float[Array, " T"] | None = None
    servo_velocity_residual: Float[Array, " T"] | None = None
    rank: Int[Array, " T"] | None = None
    constraint_forces: dict[str, Float[Array, "T n"]] | None = None
    multipliers: dict[str, Float[Array, "T _"]] | None = None

    def happened(self) -> list[tuple[float, str, str]]:
        """Returns time, mode and event of all events, in order; raises ValueError if traced, or for a batch."""
        if is_traced(self.event) or self.event.ndim != 1:
            raise ValueError("happened() is of one trajectory outside of jit, vmap and grad: index the batch first.")
        found = []
        for t, mode, event in zip(*map(np.asarray, (self.event_times, self.event_mode, self.event)), strict=True):
            if event >= 0:
                found.append((float(t), self.modes[mode], self.events[mode][event]))
        return found
