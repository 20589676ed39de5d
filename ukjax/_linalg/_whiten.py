"""The Cholesky factor of a mass matrix, which may turn out not to be positive definite, and its inverse."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array

from .._types import Matrix


@jax.custom_jvp
def whiten(M: Matrix) -> tuple[Matrix, Matrix, Array]:
    """L with L L^T = M, W = L^-1, and whether M is symmetric positive definite; both are the identity where it is not.

    Has a derivative of its own, for two reasons. A mass matrix met in a trial step that was rejected anyway must leave
    no NaN in the gradient. And the derivative needs products only: where it solved triangular systems, two batched
    LAPACK calls could run at a time, and on the CPU, over some thousand matrices each, wait for each other forever.
    So it was seen with the gradient of 5 000 accelerations in one call; now every call waits for the one before.
    """
    size = jnp.max(jnp.abs(M), initial=0.0)
    symmetric = jnp.max(jnp.abs(M - M.T), initial=0.0) <= jnp.sqrt(jnp.finfo(M.dtype).eps) * size
    L = jnp.linalg.cholesky(M)
    W = solve_triangular(L, jnp.eye(M.shape[0], dtype=M.dtype), lower=True)
    definite = symmetric & jnp.all(jnp.isfinite(L)) & jnp.all(jnp.isfinite(W))
    identity = jnp.eye(M.shape[0], dtype=M.dtype)
    return jnp.where(definite, L, identity), jnp.where(definite, W, identity), definite


@whiten.defjvp  # pyright: ignore[reportArgumentType]
def _whiten_jvp(primals, tangents):
    # L' = L S, W' = -S W with S = low(W M' W^T): the lower triangle and half the diagonal.  Murray (2016).
    (M,), (dM,) = primals, tangents
    L, W, definite = whiten(M)
    S = W @ ((dM + dM.T) / 2) @ W.T
    S = jnp.tril(S) - jnp.diag(jnp.diag(S)) / 2
    return (L, W, definite), (L @ S, -S @ W, np.zeros((), jax.dtypes.float0))
