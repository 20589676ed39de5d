"""Whether a run starts on its constraints.

y = (q, v) side by side.
"""

import warnings
from typing import Any

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._constraint import members_of
from .._result import RESULTS, InconsistentStart
from ._phase import Phase


# A start may be off the constraints by this part of the size of the state before anything is said.
OFF = 1e-4


def warn_of_start(position: Array, velocity: Array, much: Array, callers: int = 2) -> None:
    """An `InconsistentStart` if it is much, on behalf of the caller of the caller, or of one so many callers away."""
    if much:
        warnings.warn(
            f"q0, v0 are off the constraints, by up to {position:.3g} in position and {velocity:.3g} in velocity, and "
            "nothing returns to them: the error stays, or grows. Start from ukjax.assemble(mechanism, q0, v0, ts[0]), "
            "give the constraints a ukjax.Baumgarte(...), or pass projection=ukjax.Projection().",
            InconsistentStart,
            stacklevel=callers + 1,
        )


def off_constraints(phase: Phase, t: Array, y: Array) -> tuple[Array, Array, Array]:
    """The largest position and velocity error of the constraints without a stabilisation, and whether that is much."""
    (q, v), mechanism = phase.split(stop_gradient(y)), phase.mechanism
    returns = lambda one: getattr(one, "stabilization", None) is not None
    bare = lambda constraint: not all(map(returns, members_of(constraint)))
    which = [one for one in mechanism.constraints if bare(one)]
    largest = lambda errors: stop_gradient(jnp.max(jnp.abs(jnp.concatenate([jnp.zeros(1, y.dtype), *errors]))))
    position = largest([one.position_error(q, t) for one in which])
    velocity = largest([mechanism.velocity_error_of(one, q, v, t) for one in which])
    size = lambda x: jnp.max(jnp.abs(x), initial=1.0) * max(OFF, 10 * float(jnp.finfo(y.dtype).eps) ** 0.5)
    return position, velocity, (position > size(q)) | (velocity > size(v))


def starts_on_constraints(phase: Phase, t: Array, y: Array, otherwise: Any) -> Any:
    """Success if the positions satisfy the constraints, as far as a start must."""
    q, _ = phase.split(stop_gradient(y))
    size = jnp.max(jnp.abs(q), initial=1.0)
    error = jnp.max(jnp.abs(stop_gradient(phase.mechanism.position_error(q, t))), initial=0.0)
    okay = (error <= 10 * jnp.sqrt(jnp.finfo(y.dtype).eps) * size) | ~jnp.isfinite(error)
    return RESULTS.where(okay, RESULTS.successful, otherwise)
