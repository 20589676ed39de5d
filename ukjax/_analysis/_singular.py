r"""Test for a singular configuration, at which branches of the motion meet.

A: Jacobian of the velocity errors in v; W^T W = M^-1; D: row scales; B = D A W^T, of rank r; N = 1 - B B^+ and T = 1 -
B^+ B: projectors on dependent combinations of rows, and on free speeds. Where the rank is r nearby too, dependent rows
remain dependent along every motion q' = t with A t = 0, and N dB[t] T = 0. Where branches meet, this is not so: along
most directions t the rank grows, and no tangent space describes the motion. All speeds W^T z have one unit. Therefore
all entries of dB[t] have one unit, and can be compared.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._formulation import metric, row_scales
from .._linalg import SVD, pseudoinverse
from .._mechanism import Mechanism
from .._types import Coordinates, Matrix, Scalar, Vector


# Part of their whole change by which rows may become independent: the rank test's own tolerance.
GROWING = 1e-4


def is_singular(mechanism: Mechanism, q: Coordinates, v: Vector, t: Scalar) -> Array:
    """Whether the rank of the constraint rows is greater next to this state than at it."""
    q, v = stop_gradient((q, v))
    rest, M = jnp.zeros_like(v), mechanism.mass(q, t, v.shape[0])
    at = lambda d: mechanism.retract(q, d, t)
    rows = lambda d: jax.jacfwd(lambda v: mechanism.velocity_error(at(d), v, t))(v)
    A = rows(rest)
    if not A.shape[0]:
        return jnp.asarray(False)
    W = metric(M, A).W
    D = row_scales(A @ W.T)
    left, free = _left(D[:, None] * A @ W.T)
    of_position = jax.jacfwd(lambda d: mechanism.position_error(at(d), t))(rest)
    B = of_position @ W.T
    moves = free if not B.shape[0] else _left(row_scales(B)[:, None] * B)[1]
    turned = jax.vmap(lambda d: jax.jvp(rows, (rest,), (d,))[1], in_axes=1)(W.T @ moves)
    change = D[None, :, None] * turned @ W.T
    grown = jnp.max(jnp.abs(left @ change @ free), initial=0.0)
    return grown > GROWING * jnp.max(jnp.abs(change), initial=0.0)


def _left(B: Matrix) -> tuple[Matrix, Matrix]:
    """Returns N and T, projectors on the dependent combinations of rows and on the null space of B."""
    inverse = pseudoinverse(SVD(), B)[0]
    m, n = B.shape
    return jnp.eye(m, dtype=B.dtype) - B @ inverse, jnp.eye(n, dtype=B.dtype) - inverse @ B
