"""Checks whether a run starts on its constraints.

y = (q, v) side by side.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._constraint import members_of
from .._result import RESULTS, InconsistentStart
from .._rounding import missed_part
from ._states import StateLayout


# A start may be off the constraints by this part of the terms of a row without a warning.
OFF = 1e-4


def warn_of_start(position: Array, velocity: Array, much: Array, callers: int = 2) -> None:
    """Warns of an `InconsistentStart` if `much`; the warning is attributed to the frame `callers` levels up."""
    if much:
        warnings.warn(
            f"q0, v0 are off the constraints, by up to {position:.3g} in position and {velocity:.3g} in velocity, and "
            "nothing returns to them: the error stays, or grows. Start from ukjax.assemble(mechanism, q0, v0, ts[0]), "
            "give the constraints a ukjax.Baumgarte(...), or pass projection=ukjax.Projection().",
            InconsistentStart,
            stacklevel=callers + 1,
        )


def off_constraints(layout: StateLayout, t: Array, y: Array, ys: Array) -> tuple[Array, Array, Array]:
    """The largest position and velocity errors of constraints without stabilisation, and whether these are too large.

    `ys`: states (T, n) of the run that begins at y, for the scales of its coordinates and rates.
    """
    (q, v), mechanism = layout.split(stop_gradient(y)), layout.mechanism
    returns = lambda one: getattr(one, "stabilization", None) is not None
    bare = lambda constraint: not all(map(returns, members_of(constraint)))
    which = [one for one in mechanism.constraints if bare(one)]
    positions = lambda q: jnp.concatenate([jnp.zeros(0, y.dtype), *(one.position_error(q, t) for one in which)])
    velocities = lambda v: jnp.concatenate(
        [jnp.zeros(0, y.dtype), *(mechanism.velocity_error_of(one, q, v, t) for one in which)]
    )
    ys = stop_gradient(ys)
    along = layout.split(jnp.max(jnp.where(jnp.isfinite(ys), jnp.abs(ys), 0.0), axis=0, initial=0.0))
    most = max(OFF, 10 * float(jnp.finfo(y.dtype).eps) ** 0.5)
    much = (_missed(positions, q, along[0]) > most) | (_missed(velocities, v, along[1]) > most)
    position, velocity = (jnp.max(jnp.abs(stop_gradient(x)), initial=0.0) for x in (positions(q), velocities(v)))
    return position, velocity, much


def starts_on_constraints(layout: StateLayout, t: Array, y: Array, before: Array, otherwise: Any) -> Any:
    """Returns success if the positions of y satisfy the constraints, else `otherwise`; `before`: y unprojected."""
    (q, _), (q0, _) = layout.split(stop_gradient(y)), layout.split(stop_gradient(before))
    missed = _missed(lambda q: layout.mechanism.position_error(q, t), q, jnp.abs(q0))
    okay = (missed <= 10 * jnp.sqrt(jnp.finfo(y.dtype).eps)) | ~jnp.isfinite(missed)
    return RESULTS.where(okay, RESULTS.successful, otherwise)


def _missed(errors: Callable[[Array], Array], x: Array, size: Array) -> Array:
    return jnp.max(missed_part(errors, x, size), initial=0.0)
