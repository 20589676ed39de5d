"""What each constraint does: the multipliers of its rows, and the generalised force that they make.

Q^c = A^T lambda: constraint force (n,); B = A W^T with W^T W = M^-1; D: row scales; x = W Q^c.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from ._formulation import row_scales
from ._linalg import Jacobi, pseudosolve, whiten
from ._terms import Terms
from ._types import Vector


class Reactions(NamedTuple):
    """By the name of the constraint: its force (n,), in coordinates, and the multipliers of its rows (m,)."""

    constraint_forces: dict[str, Vector]
    multipliers: dict[str, Array]


def reactions(terms: Terms, constraint_force: Vector) -> Reactions:
    r"""What each constraint contributes to the ideal constraint force.

    $Q^c = A^\top\lambda = \sum_i A_i^\top \lambda_i$. Where rows are dependent the sum alone is determined; of all
    $\lambda$ this is the one of least norm, its rows brought to about the same length in the metric of M.

    Gradients: forward and reverse mode, where the rank of A is locally constant.
    """
    finite = stop_gradient(jnp.all(jnp.isfinite(constraint_force)) & jnp.all(jnp.isfinite(terms.A)))
    usable = lambda x: jnp.where(finite, x, jnp.zeros_like(x))
    A, force = usable(terms.A), usable(constraint_force)
    _, W, _ = whiten(usable(terms.M), terms.partition)
    B = A @ W.T
    D = row_scales(B)
    scaled, _ = pseudosolve(Jacobi(), (D[:, None] * B).T, W @ force)
    multipliers = jnp.where(finite, D * scaled, jnp.nan)
    rows = (("constraints", A.shape[0]),) if terms.rows is None else terms.rows
    ends = np.cumsum([m for _, m in rows])
    parts = [slice(end - m, end) for end, (_, m) in zip(ends, rows, strict=True)]
    names = [name for name, _ in rows]
    return Reactions(
        {name: terms.A[part].T @ multipliers[part] for name, part in zip(names, parts, strict=True)},
        {name: multipliers[part] for name, part in zip(names, parts, strict=True)},
    )
