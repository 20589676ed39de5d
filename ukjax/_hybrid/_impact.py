r"""The impact law: the velocities closest to those before, in the metric of M, that satisfy given rows.

J v+ = r: rows of the mode that follows, and of the impact, whose speeds are returned unless the mode holds them;
W^T W = M^-1; B = D J W^T;
v+ = v - W^T B^+ D (J v - r): the impulse M (v+ - v) lies in the space of the rows, as one of ideal constraints does.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check
from .._formulation import coordinate_scales, metric, row_scales
from .._linalg import SVD, pseudosolve
from .._manifold import Rounding
from .._mechanism import Mechanism
from .._rounding import missed_part, with_rounding_errors
from .._types import BoolScalar
from ._mode import Event, Impact, Mode, Modes, Velocities


STEPS = 3  # of Newton's method, for rows that are nonlinear in v; the first step is exact for linear rows
LEAST_SIZE = 1e-3  # size of a coordinate, in its own unit, since all coordinates may be zero at an impact
MISSED = 1e-6  # allowed error of a row, as a part of the size of its terms, or of the coordinates


def after_impact(
    impact: Impact | Velocities | None, mechanism: Mechanism, q: Array, v: Array, t: Array, ends: bool
) -> tuple[Array, Array, BoolScalar]:
    """Returns q and v after an event, where a mode with this mechanism begins, and whether the mode can begin there.

    If the motion `ends`, only the rows of the impact need be satisfied.
    """
    if impact is not None and not isinstance(impact, Impact):
        q, v = _given(impact(q, v, t), q, v)

    def held(v: Array) -> Array:
        return jnp.zeros(0, v.dtype) if ends else mechanism.velocity_error(q, v, t)

    def hits(v: Array) -> Array:
        if isinstance(impact, Impact):
            return mechanism.velocity_error_of(impact.constraint, q, v, t)
        return jnp.zeros(0, v.dtype)

    def rows(v: Array) -> Array:
        return jnp.concatenate([held(v), hits(v)])

    if isinstance(impact, Impact):
        _check_rows(impact, hits(v).shape)
    of_start, errors = with_rounding_errors(lambda v: (rows(v), jax.jacfwd(rows)(v)), v)
    rounding = Rounding(*errors)
    speeds, J = rounding.without(*of_start)
    M, m = mechanism.mass(q, t, v.shape[0]), jax.eval_shape(held, v).shape[0]
    W = metric(M, J, all_are_real=True).W
    returned = jnp.zeros_like(speeds)
    if isinstance(impact, Impact):
        back = jnp.where(_stay(J[:m] @ W.T, J[m:] @ W.T), 0.0, impact.restitution * speeds[m:])
        returned = returned.at[m:].set(back)
    before = v

    def nearer(v: Array, _: None) -> tuple[Array, None]:
        e, J = rounding.without(rows(v) + returned, jax.jacfwd(rows)(v))
        B = J @ W.T
        D = row_scales(B, all_are_real=True)
        return v - W.T @ pseudosolve(SVD(), D[:, None] * B, D * e)[0], None

    v, _ = jax.lax.scan(nearer, v, length=STEPS if returned.shape[0] else 0)
    C = coordinate_scales(M, J)
    fast = stop_gradient(C * jnp.max(jnp.maximum(jnp.abs(before), jnp.abs(v)) / C))
    met = jnp.all(missed_part(lambda v: rows(v) + returned, v, fast) <= MISSED)
    if not ends:
        gaps = missed_part(lambda q: mechanism.position_error(q, t), q, _extent(mechanism, q, t, C))
        met &= jnp.all(gaps <= MISSED)
    return q, v, met


def _extent(mechanism: Mechanism, q: Array, t: Array, C: Array) -> Array:
    """Returns the sizes of coordinates (n_q,) that, with scales C (n,) of a metric, are all as large as the largest."""
    slopes, moved = mechanism.displacements(q, t, C.shape[0])
    slopes = jnp.abs(slopes)
    return jnp.maximum(LEAST_SIZE, jnp.max(slopes * C[None], axis=1) * jnp.max(moved / C))


def _stay(B: Array, hit: Array) -> Array:
    """Whether the rows of a mode hold each speed of an impact, so that it cannot return; both in the metric."""
    B, hit = stop_gradient((B, hit))
    if not B.shape[0]:
        return jnp.zeros(hit.shape[0], bool)
    B = row_scales(B, all_are_real=True)[:, None] * B
    left = hit - jax.vmap(lambda row: pseudosolve(SVD(), B, B @ row)[0])(hit)
    return jnp.linalg.norm(left, axis=1) <= MISSED * jnp.linalg.norm(hit, axis=1)


def _check_rows(impact: Impact, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless there are rows to be hit, and a restitution for all or for each."""
    if shape == (0,):
        raise ValueError("constraint of an Impact has no rows that could be hit. Return at least one: q[1:] of two.")
    e = impact.restitution.shape
    if e not in ((), shape):
        raise ValueError(f"restitution must be a scalar or of shape {shape}, one per row of constraint, but has {e}.")


def _given(value: object, q: Array, v: Array) -> tuple[Array, Array]:
    if not isinstance(value, tuple) or len(value) != 2:
        shape = getattr(value, "shape", None)
        what = type(value).__name__ if shape is None else f"an array of shape {shape}"
        what = f"a tuple of {len(value)}" if isinstance(value, tuple) else what
        raise ValueError(f"impact(q, v, t) must return a pair (q, v), but returned {what}.")
    new = _check.output(value[0], q.shape, q.dtype, "q of impact(q, v, t)")
    return new, _check.output(value[1], v.shape, v.dtype, "v of impact(q, v, t)")


# (q, v, t, multipliers) -> q, v, number of the next mode (-1: the end), whether it can begin there
Transition = Callable[[Array, Array, Array, dict[str, Array] | None], tuple[Array, Array, Array, Array]]


def transitions(mode: Mode, modes: Modes) -> list[Transition]:
    """Returns the transitions without an event, at each event, and at each coming to rest, as in `Mode.names`."""
    events = tuple(mode.events.values())
    rests = [_towards(None, mode, modes, events[i].rest) for i in mode.resting]
    return [_stays, *(of_event(event, mode, modes) for event in events), *rests]


def _stays(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple[Array, Array, Array, Array]:
    return q, v, jnp.asarray(-1), jnp.asarray(True)


def of_event(event: Event, mode: Mode, modes: Modes) -> Transition:
    """Returns the transition at an event of a mode."""
    ways = [_towards(event.impact, mode, modes, target) for target in event.targets]
    if len(ways) == 1:
        return ways[0]

    def chosen(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        which = event.chosen(q, v, t, carried)
        return jax.lax.switch(which, [lambda q, v, t, way=way: way(q, v, t, carried) for way in ways], q, v, t)

    return chosen


def _towards(impact: Impact | Velocities | None, mode: Mode, modes: Modes, target: str | None) -> Transition:
    number = -1 if target is None else modes.number(target)
    following = mode if target is None else modes.each[number]

    def apply(q: Array, v: Array, t: Array, carried: dict[str, Array] | None) -> tuple:
        q, v, met = after_impact(impact, following.mechanism, q, v, t, ends=target is None)
        return q, v, jnp.asarray(number), met

    return apply
