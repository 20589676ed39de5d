"""The Cholesky factor of a mass matrix that may turn out not to be positive definite."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from .._types import Matrix


@jax.custom_jvp
def cholesky(M: Matrix) -> tuple[Matrix, Array]:
    """L with L L^T = M, and whether M is symmetric positive definite; L is the identity where it is not.

    Has a derivative of its own so that a mass matrix met in a trial step that was rejected anyway leaves no NaN in the
    gradient, without factorising twice.
    """
    size = jnp.max(jnp.abs(M), initial=0.0)
    symmetric = jnp.max(jnp.abs(M - M.T), initial=0.0) <= jnp.sqrt(jnp.finfo(M.dtype).eps) * size
    L = jnp.linalg.cholesky(M)
    definite = symmetric & jnp.all(jnp.isfinite(L))
    return jnp.where(definite, L, jnp.eye(M.shape[0], dtype=M.dtype)), definite


@cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    # L' = L low(L^-1 M' L^-T): low keeps the lower triangle and half the diagonal.  Murray (2016).
    (M,), (dM,) = primals, tangents
    L, definite = cholesky(M)
    left = solve_triangular(L, (dM + dM.T) / 2, lower=True)
    middle = solve_triangular(L, left.T, lower=True)
    low = jnp.tril(middle) - jnp.diag(jnp.diag(middle)) / 2
    return (L, definite), (L @ low, np.zeros((), jax.dtypes.float0))
