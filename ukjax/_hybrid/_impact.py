r"""Velocities after an impact: those next to the ones before, in the metric of M, that satisfy given rows.

J v+ = r: rows of the mode that follows, and of what is hit, whose speeds come back unless the mode holds them;
W^T W = M^-1; B = D J W^T;
v+ = v - W^T B^+ D (J v - r): the impulse M (v+ - v) lies in the space of the rows, as one of ideal constraints does.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check
from .._formulation import metric, row_scales
from .._linalg import SVD, pseudosolve
from .._mechanism import Mechanism
from .._types import BoolScalar
from ._mode import Impact


STEPS = 3  # rows may be nonlinear in v; of linear ones the first step is exact
MISSED = 1e-6  # of the size of a state: what rows may be missed by


def after_impact(
    impact: Any, mechanism: Mechanism, q: Array, v: Array, t: Array, ends: bool
) -> tuple[Array, Array, BoolScalar]:
    """q and v after an event, at the beginning of a mode with this mechanism, and whether it can begin there.

    If the motion `ends`, no constraints are to be satisfied but those of the impact.
    """
    rows: list[Callable[[Array], Array]] = [] if ends else [lambda v: mechanism.velocity_error(q, v, t)]
    if isinstance(impact, Impact):
        speed = lambda v: mechanism.velocity_error_of(impact.constraint, q, v, t)
        returned = impact.restitution * speed(v)
        if not ends:
            returned = jnp.where(_held(rows[0], speed, v, mechanism.mass(q, t, v.shape[0])), 0.0, returned)
        rows.append(lambda v: speed(v) + returned)
    elif impact is not None:
        q, v = _given(impact(q, v, t), q, v)
    error = lambda v: jnp.concatenate([jnp.zeros(0, v.dtype), *(row(v) for row in rows)])
    before, W = v, metric(mechanism.mass(q, t, v.shape[0]), jax.jacfwd(error)(v)).W

    def nearer(v: Array, _: None) -> tuple[Array, None]:
        J = jax.jacfwd(error)(v)
        D = row_scales(J)
        return v - W.T @ pseudosolve(SVD(), D[:, None] * J @ W.T, D * error(v))[0], None

    v, _ = jax.lax.scan(nearer, v, length=STEPS if error(v).shape[0] else 0)
    gap = jnp.zeros(0, q.dtype) if ends else mechanism.position_error(q, t)
    fast = jnp.max(jnp.abs(jnp.concatenate([before, v])), initial=1.0)
    lengths = 1 + jnp.linalg.norm(jax.jacfwd(error)(v), axis=1)
    met = jnp.all(jnp.abs(error(v)) <= MISSED * fast * lengths)
    size = jnp.max(jnp.abs(q), initial=1.0)
    return q, v, stop_gradient(met & jnp.all(jnp.abs(gap) <= MISSED * size))


def _held(rows: Callable[[Array], Array], speed: Callable[[Array], Array], v: Array, M: Array) -> Array:
    """Which speeds of an impact the rows of a mode hold, so that none can come back."""
    A, hit = (stop_gradient(jax.jacfwd(x)(v)) for x in (rows, speed))
    W = metric(stop_gradient(M), jnp.concatenate([A, hit])).W
    B, hit = A @ W.T, hit @ W.T
    if not B.shape[0]:
        return jnp.zeros(hit.shape[0], bool)
    B = row_scales(B)[:, None] * B
    left = hit - jax.vmap(lambda row: pseudosolve(SVD(), B, B @ row)[0])(hit)
    return jnp.linalg.norm(left, axis=1) <= MISSED * jnp.linalg.norm(hit, axis=1)


def _given(value: Any, q: Array, v: Array) -> tuple[Array, Array]:
    if not isinstance(value, tuple) or len(value) != 2:
        shape = getattr(value, "shape", None)
        what = type(value).__name__ if shape is None else f"an array of shape {shape}"
        raise ValueError(f"impact(q, v, t) must return a pair (q, v), but returned {what}.")
    new = _check.output(value[0], q.shape, q.dtype, "q of impact(q, v, t)")
    return new, _check.output(value[1], v.shape, v.dtype, "v of impact(q, v, t)")
