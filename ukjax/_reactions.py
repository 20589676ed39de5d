"""What each constraint does: the multipliers of its rows, and the generalised force that they make.

Q^c = A^T lambda: constraint force (n,); B = A W^T with W^T W = M^-1; D: row scales; H = D B.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from ._formulation import metric, row_scales
from ._linalg import Jacobi, Seldom, pseudoinverse
from ._terms import Terms
from ._types import Matrix, Partition, Rows, Vector


# Ways in which dependent rows act against each other have singular values of one times the scales of rows; what
# rounding leaves of others lies below.
DEPENDENT = 1e-8


class Reactions(NamedTuple):
    """By the name of the constraint: its force (n,), in coordinates, and the multipliers of its rows (m,)."""

    constraint_forces: dict[str, Vector]
    multipliers: dict[str, Array]


def reactions(terms: Terms, constraint_force: Vector) -> Reactions:
    r"""What each constraint contributes to the ideal constraint force.

    $Q^c = A^\top\lambda = \sum_i A_i^\top \lambda_i$. Where rows are dependent the sum alone is determined; of all
    $\lambda$ this is the one of least Euclidean norm, of the rows as they are written: see `sharing`.

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
    r"""T (m, n) with $\lambda = T f$: the multipliers of a constraint force f, and of any other force what the
    constraints do against it, $-\lambda$.

    With $H = D A W^\top$ and $P = (H^\top)^+$ one solution of $A^\top\lambda = f$ is $D P W f$; that of least
    norm differs from it by what dependent rows can do against each other, $N = D (1 - P H^\top)$:

    $$T = (1 - N N^+)\, D P W$$

    The rank of H is decided in the metric of M, where neither units nor scales of rows matter; the shares are those of
    rows as written, so that inertia does not matter to them. Where M is not definite, rows are added to it, which
    changes neither.
    """
    identity = jnp.eye(A.shape[0], dtype=A.dtype)
    W = metric(M, A, partition).W
    B = A @ W.T
    D = row_scales(B)
    H = D[:, None] * B
    P, rank = pseudoinverse(Jacobi(), H.T)
    # Without dependent rows there is nothing but rounding errors.
    N = jnp.where(rank < A.shape[0], D[:, None] * (identity - P @ H.T), jnp.zeros_like(identity))
    back, _ = pseudoinverse(Seldom(Jacobi(DEPENDENT), DEPENDENT), N)
    share = D[:, None] * (P @ W)
    return share - N @ (back @ share)
