r"""Velocities after an impact: those next to the ones before, in the metric of M, that satisfy given rows.

J v+ = r: rows of the mode that follows, and of what is hit; W^T W = M^-1; B = D J W^T;
v+ = v - W^T B^+ D (J v - r): the impulse M (v+ - v) lies in the space of the rows, as one of ideal constraints does.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .. import _check
from .._formulation import row_scales
from .._linalg import SVD, pseudosolve, whiten
from .._mechanism import Mechanism
from ._mode import Impact


STEPS = 3  # rows may be nonlinear in v; of linear ones the first step is exact


def velocities_after(impact: Any, after: Mechanism | None, q: Array, v: Array, t: Array, M: Array) -> tuple:
    """q and v after an event with an `impact`, at the beginning of a mode `after` it; M: mass matrix there."""
    if impact is not None and not isinstance(impact, Impact):
        q, v = _given(impact(q, v, t), q, v)
    rows = []
    if after is not None:
        rows.append(lambda v: after.velocity_error(q, v, t))
    if isinstance(impact, Impact):
        mechanism: Any = after
        constraint, e = impact.constraint, impact.restitution
        speed = (
            (lambda v: constraint.velocity_error(q, v, t))
            if mechanism is None
            else (lambda v: mechanism.velocity_error_of(constraint, q, v, t))
        )
        before = speed(v)
        rows.append(lambda v: speed(v) + e * before)
    if not rows:
        return q, v
    error = lambda v: jnp.concatenate([row(v) for row in rows])
    _, W, _ = whiten(M)
    for _ in range(STEPS):
        J = jax.jacfwd(error)(v)
        if not J.shape[0]:
            return q, v
        D = row_scales(J)
        v = v - W.T @ pseudosolve(SVD(), D[:, None] * J @ W.T, D * error(v))[0]
    return q, v


def _given(value: Any, q: Array, v: Array) -> tuple[Array, Array]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"impact(q, v, t) must return a pair (q, v), but returned {type(value).__name__}.")
    new = _check.output(value[0], q.shape, q.dtype, "q of impact(q, v, t)")
    return new, _check.output(value[1], v.shape, v.dtype, "v of impact(q, v, t)")
