"""Motion, residuals and verdict at the states of a run.

y = (q, v, store) side by side; m: servo rows; T: saved times; p: actuators.

`StateLayout` tells where coordinates q (n_q,), speeds v (n,) and the store of a controller lie in y.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._equation import reactions
from .._formulation import AbstractFormulation, Motion
from .._mechanism import Mechanism
from .._result import RESULTS, first_failure, worst
from .._servo import AbstractController, Driven
from .._trajectory import OF_EACH


class StateLayout(eqx.Module):
    """A mechanism, and the numbers of coordinates and of speeds in its state."""

    mechanism: Mechanism
    coordinates: int = eqx.field(static=True)
    speeds: int = eqx.field(static=True)

    @classmethod
    def of(cls, mechanism: Mechanism, start: tuple[Array, Array]) -> "StateLayout":
        """The layout of a run that starts from q and v."""
        q0, v0 = start
        return cls(mechanism, q0.shape[0], v0.shape[0])

    def split(self, y: Array) -> tuple[Array, Array]:
        """The coordinates q and speeds v of one state or, along the last axis, of many."""
        q, v, *_ = jnp.split(y, [self.coordinates, self.size], axis=-1)
        return q, v

    def stored(self, y: Array) -> Array:
        """The store of the controller, of one state or of many."""
        return y[..., self.size :]

    @property
    def size(self) -> int:
        """The number of coordinates and speeds together."""
        return self.coordinates + self.speeds

    def rates(self, t: Array, y: Array) -> Array:
        """The rates q' of the coordinates (n_q,)."""
        return self.mechanism.rates(*self.split(y), t)


# The fields of a trajectory that need an equation of motion.
OF_MOTION = ("acceleration", "constraint_force", "nonideal_force", "control", "servo_residual", "rank", *OF_EACH)


def motion_at(
    layout: StateLayout, controller: AbstractController, formulation: AbstractFormulation, t: Array, y: Array
) -> tuple[Driven, Array]:
    """The motion under the controller, and q'."""
    (q, v), mechanism = layout.split(y), layout.mechanism
    rates, store = mechanism.rates(q, v, t), layout.stored(y) if controller.has_store else None
    return controller.drive(mechanism, formulation, q, v, t, store), rates


def margins_at(layout: StateLayout, controller: AbstractController, t: Array, y: Array) -> Array:
    """The signed distances of the controls from the limits at which the motion has kinks (2 p,); empty without."""
    if controller.limits is None:
        return jnp.zeros(0, y.dtype)
    return controller.margins(*layout.split(y), t, layout.stored(y))


# (t, y) -> what `motion_at` returns.
MotionAt = Callable[[Array, Array], tuple[Driven, Array]]


def derivative(motion: MotionAt, t: Array, y: Array) -> Array:
    """Returns y' = (q', v', store'), NaN where there is no motion: an adaptive controller then tries a smaller step.

    The stages of a step lie off the constraints, where redundant rows contradict each other a little; that is no
    failure.
    """
    (at, _, _, change), rates = motion(t, y)
    is_drift = (at.result == RESULTS.constraints_contradict) & at.drifted
    # Added and not selected: a derivative then need not evaluate `there`, which costs as much as the motion.
    there = (at.result == RESULTS.successful) | is_drift
    acceleration = at.acceleration + stop_gradient(jnp.where(there, 0.0, jnp.nan).astype(y.dtype))
    return jnp.concatenate([rates, acceleration] if change is None else [rates, acceleration, change])


def _motion_where_reached(motion: MotionAt, t: Array, y: Array) -> Driven:
    """The motion at a state, NaN if the run did not reach it; a model itself may return finite numbers at NaN."""
    ((at, u, control, _), _), reached = motion(t, y), jnp.all(jnp.isfinite(y))

    def blank(x: Array) -> Array:
        return jnp.where(reached, x, jnp.nan)

    u = None if u is None else blank(u)
    control = None if control is None else eqx.tree_at(lambda c: c.residual, control, blank(control.residual))
    at = Motion(
        acceleration=blank(at.acceleration),
        unconstrained_acceleration=blank(at.unconstrained_acceleration),
        constraint_force=blank(at.constraint_force),
        nonideal_force=blank(at.nonideal_force),
        rank=jnp.where(reached, at.rank, -1),
        residual=blank(at.residual),
        result=worst(at.result, RESULTS.where(reached, RESULTS.successful, RESULTS.not_finite)),
        drifted=at.drifted,
    )
    return Driven(at, u, control)


class StateReport(NamedTuple):
    """The fields of a trajectory at one state, the result of the motion, and the verdict on a servo."""

    fields: dict[str, Array]
    result: RESULTS
    missed: Array | None
    servo_failed: Array | None
    unreachable: Array | None


def report_state(motion: MotionAt, t: Array, y: Array) -> StateReport:
    at, u, control, _ = _motion_where_reached(motion, t, y)
    names = ("acceleration", "constraint_force", "nonideal_force", "rank")
    fields = {name: getattr(at, name) for name in names}
    if u is not None:
        fields["control"] = u
    if control is None:
        return StateReport(fields, at.result, None, None, None)
    fields["servo_residual"] = control.residual
    reached = jnp.all(jnp.isfinite(y))
    missed = reached & (~control.consistent | jnp.any(control.saturated))
    failed = reached & ~control.consistent & (at.result != RESULTS.successful)
    return StateReport(fields, at.result, missed, failed, control.unreachable)


def of_each(layout: StateLayout, t: Array, y: Array, constraint_force: Array) -> dict[str, dict[str, Array]]:
    """The fields `constraint_forces` and `multipliers` at one state, by the names of the constraints."""
    return reactions(layout.mechanism.terms(*layout.split(y), t), constraint_force)._asdict()


def verdict(rows: StateReport, outcome: RESULTS) -> tuple[RESULTS, Array | None]:
    """Returns the result of a run and the servo errors that no control could meet, from the states of `row_errors`.

    `outcome`: how the integration ended. A run that broke down has its reason in the last two states; a run that
    reached the end may have failed in between.
    """
    ends = jax.tree_util.tree_map(lambda x: x[-2:], rows.result)
    failure = worst(first_failure(ends), outcome)
    result = RESULTS.where(outcome == RESULTS.successful, first_failure(rows.result), failure)
    lost = RESULTS.projection_off_constraints
    result = RESULTS.where(outcome == lost, lost, result)
    if rows.unreachable is None or rows.servo_failed is None:
        return result, None
    return result, rows.unreachable[jnp.argmax(rows.servo_failed)]


def residuals(layout: StateLayout, controller: AbstractController, t: Array, y: Array) -> dict[str, Array]:
    """The norms of the errors of constraints and servo constraints at one state, by the names of the fields."""
    (q, v), mechanism = layout.split(stop_gradient(y)), layout.mechanism
    errors = dict(zip(("position_residual", "velocity_residual"), mechanism.errors(q, v, t), strict=True))
    errors |= controller.residuals(mechanism, q, v, t)
    return {name: jnp.linalg.norm(stop_gradient(error)) for name, error in errors.items()}


def row_errors(layout: StateLayout, ts: Array, ys: Array, end: tuple[Array, Array], whole: bool) -> tuple[Array, Array]:
    """The states that decide the result: the saved ones (or the first not reached, unless `whole`), the end, one ahead.

    A run that broke down ends just before the state it could not evaluate, hence the state ahead. The rate of v there
    is a difference of saved states, which is near enough, and needs no further equation of motion.
    """
    t, y = stop_gradient(end)
    past = stop_gradient(ys)
    before = jnp.maximum(jnp.sum(ts < t) - 1, 0)
    (_, v0), (_, v1) = layout.split(past[before]), layout.split(y)
    since = t - ts[before]
    change = jnp.where(since > 0, (v1 - v0) / jnp.where(since > 0, since, 1.0), 0.0)
    ahead = 1e4 * jnp.finfo(ts.dtype).eps * jnp.max(jnp.abs(ts))
    rest = jnp.zeros(y.shape[0] - layout.size, y.dtype)
    there = y + ahead * jnp.concatenate([stop_gradient(layout.rates(t, y)), change, rest])
    if not whole:
        first = jnp.argmin(jnp.all(jnp.isfinite(past), axis=1))
        ts, ys = ts[first][None], past[first][None]
    return jnp.concatenate([ts, jnp.stack([t, t + ahead])]), jnp.concatenate([ys, jnp.stack([y, there])])
