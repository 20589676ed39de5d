r"""Natural sizes of the unknowns and equations of an equilibrium, so that units do not matter.

C: scales of the coordinates in the metric of the mass matrix, in which all accelerations have one unit; E: scales by
which the constraints compare coordinates, in which all displacements have one unit, and all speeds. Displacements of a
heavy body are as large as of a light one, while its accelerations are less; s_d, s_v, s_a: sizes of displacements,
speeds and accelerations in these units; N = dq / dd; G: actuation; c: quantities that must stay constant.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._formulation import balancing_scales, coordinate_scales
from .._manifold import Rounding
from .._rounding import with_rounding_errors
from .._types import Coordinates, Rows, RowValues, Scalar, Vector
from ._plant import Plant


# Part of the largest size below which a size is small; masses of a ratio of 1e12 give larger ones.
SMALL = 1e-8


class Sizes(NamedTuple):
    """Sizes of the unknowns, and of the changes of the equations with them.

    Attributes:
        d: Displacements (n,); v: speeds (n,); u: inputs (p,); a: accelerations (n,); l: multipliers (m,).
        force: M a - Q - A^T l (n,); row: A a - b (m,); error: errors of position and velocity (r,); change: c' (k,).
        scales: C (n,).
    """

    d: Vector
    v: Vector
    u: Array
    a: Vector
    l: RowValues
    force: Vector
    row: RowValues
    error: Array
    change: Array
    scales: Vector


def sizes_of(plant: Plant, constant: Callable, q: Coordinates, v: Vector, t: Scalar, u: Array) -> Sizes:
    """Returns sizes from the terms of the constraints, the coordinates, and the forces and their derivatives."""
    q, v, t, u = stop_gradient((q, v, t, u))
    mechanism, rest = plant.mechanism, jnp.zeros_like(v)
    at = lambda d: mechanism.retract(q, d, t)
    terms = mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    M, Q, A, b = stop_gradient((terms.M, terms.Q, terms.A, terms.b))
    C = coordinate_scales(M, A)
    N, moved = mechanism.displacements(q, t, v.shape[0])
    position, of_d = _rows(lambda q, d, t: mechanism.position_error(mechanism.retract(q, d, t), t), q, rest, t)
    velocity, of_v = _rows(mechanism.velocity_error, q, v, t)
    levers = jnp.maximum(position.levers, jnp.abs(of_d)), jnp.maximum(velocity.levers, jnp.abs(of_v)), jnp.abs(A)
    _, E = balancing_scales(jnp.concatenate(levers), C)
    along = _lengths(of_d, position, E), _lengths(of_v, velocity, E)

    s_d = _first(_least(position.terms / along[0]), _largest(moved / E), 1.0)
    applied = lambda d: plant.applied(at(d), v, t, u)
    force = lambda d: mechanism.terms(at(d), v, t, applied(d)).Q
    stiffness = C[:, None] * stop_gradient(jax.jacfwd(force)(rest)) * E[None]
    rows = jnp.linalg.norm(A * C[None], axis=1)
    rows = jnp.where(rows > 0, rows, 1.0)
    s_v = _largest(v / E)
    s_a = _first(_largest(C * Q, b / rows, s_d * stiffness), s_v**2 / s_d, s_d)
    s_v = jnp.maximum(s_v, jnp.sqrt(s_a * s_d))

    G = jnp.linalg.norm(C[:, None] * stop_gradient(plant.matrix(q, t, v.shape[0])), axis=0)
    with_q, with_v = stop_gradient(jax.jacfwd(lambda q, v: constant(q, v, t), argnums=(0, 1))(q, v))
    change = jnp.linalg.norm(with_q @ N * E[None], axis=1) * s_v + jnp.linalg.norm(with_v * C[None], axis=1) * s_a
    return Sizes(
        d=s_d * E,
        v=s_v * E,
        u=jnp.maximum(jnp.abs(u), s_a / jnp.where(G > 0, G, 1.0)),
        a=s_a * C,
        l=s_a / rows,
        force=s_a / C,
        row=s_a * rows,
        error=jnp.concatenate([s_d * along[0] + position.terms, s_v * along[1] + velocity.terms]),
        change=jnp.where(change > 0, change, 1.0),
        scales=C,
    )


def _rows(function: Callable, q: Coordinates, x: Vector, t: Scalar) -> tuple[Rounding, Rows]:
    """Returns rounding errors of function(q, x, t) (m,) and of its Jacobian in x (m, n), and that Jacobian."""
    both = lambda q, x, t: (function(q, x, t), jax.jacfwd(lambda x: function(q, x, t))(x))
    (_, J), errors = with_rounding_errors(both, q, x, t)
    return Rounding(*errors), stop_gradient(J)


def _lengths(J: Rows, rounding: Rounding, C: Vector) -> RowValues:
    """Returns the lengths of rows, (m,); of their terms for rows of rounding errors, and one without terms."""
    none = jnp.all(jnp.abs(J) <= rounding.rows, axis=1)
    lengths = jnp.linalg.norm(jnp.where(none[:, None], rounding.levers, J) * C[None], axis=1)
    return jnp.where(lengths > 0, lengths, 1.0)


def _largest(*values: Array) -> Scalar:
    return jnp.max(jnp.abs(jnp.concatenate([x.reshape(-1) for x in values])), initial=0.0)


def _least(sizes: Array) -> Scalar:
    """Returns the least size that is not small beside the largest; zero if there is none.

    Rows that nearly vanish have very large sizes.
    """
    counts = sizes > SMALL * jnp.max(sizes, initial=0.0)
    least = jnp.min(sizes, where=counts, initial=jnp.inf)
    return jnp.where(jnp.any(counts), least, 0.0)


def _first(*sizes: Array | float) -> Scalar:
    """Returns the first that is positive and finite, or the last."""
    *others, found = sizes
    for size in reversed(others):
        found = jnp.where((size > 0) & jnp.isfinite(size), size, found)
    return jnp.asarray(found)
