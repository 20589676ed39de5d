"""What a simulation of a motion with events gives back."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

from .._result import is_traced


class HybridTrajectory(eqx.Module):
    """A motion at the saved times, and what happened on the way; rows that it did not reach are NaN.

    Attributes:
        t: Times (T,) [s]. At the time of an event the state is the one before it.
        q: Coordinates (T, n_q) [m or rad].
        v: Their rates, or the speeds (T, n) [m/s or rad/s].
        acceleration: (T, n) [m/s^2 or rad/s^2].
        constraint_force: Ideal constraint force (T, n) [N or N m].
        position_residual: Euclidean norm of Φ over all holonomic constraints of the mode (T,).
        velocity_residual: Euclidean norm of Φ̇ and ψ over all constraints of the mode (T,).
        mode: Which mode (T,), numbered as in `modes`; -1 in rows that were not reached.
        event_times: When events happened (K,) [s]; NaN beyond the last.
        event: Which event (K,), numbered within its mode; -1 beyond the last.
        event_mode: The mode that it ended (K,).
        event_q: Coordinates at the events (K, n_q).
        event_v: Velocities after them (K, n).
        modes: Names of the modes.
        events: Names of the events of each mode.
        result: `RESULTS`; empty message if all went well.
        stats: `num_steps`: attempted steps, those of the search for events included; `num_events`.
    """

    t: Float[Array, " T"]
    q: Float[Array, "T n_q"]
    v: Float[Array, "T n"]
    acceleration: Float[Array, "T n"]
    constraint_force: Float[Array, "T n"]
    position_residual: Float[Array, " T"]
    velocity_residual: Float[Array, " T"]
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

    def happened(self) -> list[tuple[float, str, str]]:
        """Time, mode and event of everything that happened, in order. ValueError if it is traced, or a batch."""
        if is_traced(self.event) or self.event.ndim != 1:
            raise ValueError("happened() is of one trajectory outside of jit, vmap and grad: index the batch first.")
        found = []
        for t, mode, event in zip(*map(np.asarray, (self.event_times, self.event_mode, self.event)), strict=True):
            if event >= 0:
                found.append((float(t), self.modes[mode], self.events[mode][event]))
        return found
