"""Reactions: the multipliers of each constraint's rows, and the generalised force that they make.

Q^c = A^T lambda: constraint force (n,); B = A W^T with W^T W = M^-1; D: row scales; H = D B.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from ._formulation import metric, row_scales
from ._linalg import Jacobi, SkipIfZero, pseudoinverse
from ._terms import Terms
from ._types import Matrix, Partition, Rows, Vector


# Singular values below which dependent rows have no internal reaction: genuine ones are about one times the scales of
# rows; what rounding leaves of others lies below.
DEPENDENT = 1e-8


class Reactions(NamedTuple):
    """Force (n,), in coordinates, and multipliers of the rows (m,) of each constraint, by its name."""

    constraint_forces: dict[str, Vector]
    multipliers: dict[str, Array]


def reactions(terms: Terms, constraint_force: Vector) -> Reactions:
    r"""Returns the share of each constraint in the ideal constraint force.

    $Q^c = A^\top\lambda = \sum_i A_i^\top \lambda_i$. Where rows are dependent only the sum is determined. The
    $\lambda$ returned has the least Euclidean norm, for the rows as the user wrote them: see `sharing`.

    Gradients: forward and reverse mode, where the rank of A is locally constant.
    """
    finite = stop_gradient(jnp.all(jnp.isfinite(constraint_force)) & jnp.all(jnp.isfinite(terms.A)))
    usable = lambda x: jnp.where(finite, x, jnp.zeros_like(x))
    force = usable(constraint_force)
    share = sharing(usable(terms.M), usable(terms.A), terms.partition)
    multipliers = jnp.where(finite, share @ force, jnp.nan)
    rows = (("constraints", terms.A.shape[0]),) if terms.rows is None else terms.rows
    ends = np.cumsum([m for _, m in rows])
    parts = [slice(end - m, end) for end, (_, m) in zip(ends, rows, strict=True)]
    names = [name for name, _ in rows]
    return Reactions(
        {name: terms.A[part].T @ multipliers[part] for name, part in zip(names, parts, strict=True)},
        {name: multipliers[part] for name, part in zip(names, parts, strict=True)},
    )


def sharing(M: Matrix, A: Rows, partition: Partition | None = None) -> Rows:
    r"""Returns T (m, n) with $\lambda = T f$, the multipliers of a constraint force f.

    For any other force f the constraints react with $-\lambda$.

    With $H = D A W^\top$ and $P = (H^\top)^+$ one solution of $A^\top\lambda = f$ is $D P W f$. That of least norm
    differs from it by internal reactions of dependent rows, $N = D (1 - P H^\top)$:

    $$T = (1 - N N^+)\, D P W$$

    The rank of H is decided in the metric of M, where neither units nor scales of rows matter. The shares are those of
    the rows as written, so that inertia does not matter to them. Where M is not definite, the metric adds rows to it,
    which changes neither.
    """
    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    W = metric(M, A, partition).W
    B = A @ W.T
    D = row_scales(B)
    H = D[:, None] * B
    P, rank = pseudoinverse(Jacobi(), H.T)
    # Without dependent rows this is nothing but rounding errors.
    N = jnp.where(rank < A.shape[0], D[:, None] * (identity - P @ H.T), jnp.zeros_like(identity))
    back, _ = pseudoinverse(SkipIfZero(Jacobi(DEPENDENT), DEPENDENT), N)
    share = D[:, None] * (P @ W)
    return share - N @ (back @ share)
