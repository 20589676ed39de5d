"""The Cholesky factor of a mass matrix, which need not be positive definite, and its inverse."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike

from .._types import Matrix, Partition
from ._base import with_derivative
from ._batch import batched, one_at_a_time


# Larger mass matrices go to LAPACK; smaller ones, whose batches are large, do not: see `_factorise`.
LARGEST = 16


def whiten(M: Matrix, partition: Partition | None = None) -> tuple[Matrix, Matrix, Array]:
    """Returns L with L L^T = M, W = L^-1, and whether M is symmetric positive definite (if not, L = W = identity).

    Where M is block-diagonal, `partition` holds the coordinates of the blocks: only those are factorised, equal blocks
    together.
    """
    if partition is None:
        return _whiten(M)
    L = W = jnp.zeros_like(M)
    definite = jnp.asarray(True)
    for members in partition:
        i = np.array(members)
        rows, columns = i[:, :, None], i[:, None, :]
        blocks = jax.vmap(_whiten)(M[rows, columns])
        L, W = L.at[rows, columns].set(blocks[0]), W.at[rows, columns].set(blocks[1])
        definite = definite & jnp.all(blocks[2])
    identity = jnp.eye(M.shape[0], dtype=M.dtype)
    return jnp.where(definite, L, identity), jnp.where(definite, W, identity), definite


def _factorise(M: Matrix) -> tuple[Matrix, Matrix, Array]:
    """Factorises one block of M, as `whiten`.

    A pivot counts as positive if it exceeds rounding: n eps of the diagonal entry it came from.

    The function has its own derivative, for two reasons. A mass matrix met in a trial step that was rejected anyway
    must leave no NaN in the gradient. And the derivative needs products only: if it solved triangular systems, two
    batched LAPACK calls could run at a time on the CPU, and wait for each other forever. Every call therefore waits for
    the one before, and small matrices need no LAPACK.
    """
    n, eps = M.shape[0], jnp.finfo(M.dtype).eps
    own = jnp.abs(jnp.diag(M))
    symmetric = jnp.all(eps * own[:, None] * own[None] >= (M - M.T) ** 2)
    if n <= LARGEST:
        L, W = jnp.split(_small(M, jnp.eye(n, dtype=M.dtype))[0], 2, axis=1)
    else:
        L, W = _large(M)
    pivots = jnp.diag(L) ** 2 > n * eps * own
    definite = symmetric & jnp.all(pivots) & jnp.all(jnp.isfinite(L)) & jnp.all(jnp.isfinite(W))
    identity = jnp.eye(n, dtype=M.dtype)
    return jnp.where(definite, L, identity), jnp.where(definite, W, identity), definite


def _factorise_jvp(primals, tangents):
    (M,), (dM,) = primals, tangents
    L, W, definite = _whiten(M)
    return (L, W, definite), (*_derivative(L, W, dM), None)


def _derivative(L: Matrix, W: Matrix, dM: Matrix) -> tuple[Matrix, Matrix]:
    # L' = L S, W' = -S W with S = low(W M' W^T): the lower triangle and half the diagonal.  Murray (2016).
    S = W @ ((dM + dM.T) / 2) @ W.T
    S = jnp.tril(S) - jnp.diag(jnp.diag(S)) / 2
    return L @ S, -S @ W


_whiten = with_derivative(_factorise, _factorise_jvp)


def _first_definite(M: Matrix, G: Matrix, shifted: Matrix, known: ArrayLike) -> tuple[Matrix, Matrix, Array, Array]:
    """Returns L and W of M if M is positive definite, else of G, whether they are of M, and whether of either.

    One kernel runs in a loop. The loop stops after M if that is definite, for all of a batch, and does not begin if
    that is `known`. G counts only if M has no negative direction, which a third round decides.
    """
    identity = jnp.eye(M.shape[0], dtype=M.dtype)

    def following(carry):
        k, L, W, of_mass, _found = carry
        new = _factorise(jnp.where(k == 0, M, jnp.where(k == 1, G, shifted)))
        keep = k == 2
        ends = jnp.where(k == 0, new[2], ~new[2])
        return (
            jnp.where(ends, 3, k + 1),
            jnp.where(keep, L, new[0]),
            jnp.where(keep, W, new[1]),
            of_mass | ((k == 0) & new[2]),
            new[2],
        )

    start = jnp.where(known, 3, 0), identity, identity, known, known
    _, L, W, of_mass, found = jax.lax.while_loop(lambda carry: carry[0] < 3, following, start)
    # The loop returns arrays, also of a `known` that is a number.
    return jnp.where(found, L, identity), jnp.where(found, W, identity), of_mass, found  # pyright: ignore


def _first_definite_jvp(primals, tangents):
    (M, G, shifted, known), (dM, dG, *_) = primals, tangents
    L, W, of_mass, found = _of_first_definite(M, G, shifted, known)
    dL, dW = _derivative(L, W, jnp.where(of_mass, dM, dG))
    return (L, W, of_mass, found), (dL, dW, None, None)


_of_first_definite = with_derivative(_first_definite, _first_definite_jvp)


def whiten_first(
    M: Matrix, G: Matrix, shifted: Matrix, partition: Partition | None = None
) -> tuple[Matrix, Matrix, Array, Array]:
    """Returns `whiten` of M where M is positive definite, else of G where G is and M has no negative direction.

    `shifted`: M with a small addition to its diagonal, which is positive definite if M has no such direction.
    """
    if partition is None:
        return _of_first_definite(M, G, shifted, jnp.asarray(False))
    L, W, definite = whiten(M, partition)
    Lg, Wg, _, found = _of_first_definite(M, G, shifted, definite)
    return jnp.where(definite, L, Lg), jnp.where(definite, W, Wg), definite, found


def _cholesky(M: Array, identity: Array) -> tuple[Array, Array]:
    """Returns [L, L^-1] of M (n, n, batch) side by side, and the number of positive pivots."""
    n, _, size = M.shape
    below = jnp.arange(n)[:, None]
    L, W, positive = jnp.zeros_like(M), jnp.zeros_like(M), jnp.zeros(size, int)

    def step(j, carry):
        M, L, W, positive = carry
        pivot = M[j, j]
        length = jnp.sqrt(jnp.where(pivot > 0, pivot, 1))
        column = jnp.where(below >= j, M[:, j] / length, 0)
        row = (identity[j] - jnp.sum(L[j][:, None] * W, axis=0)) / length
        M = M - column[:, None] * column[None]
        # A pivot that is not positive leaves a zero on the diagonal, which marks the failure.
        L = L.at[:, j].set(jnp.where(pivot > 0, column, 0))
        return M, L, W.at[j].set(row), positive + (pivot > 0).astype(positive.dtype)

    carry = M, L, W, positive
    if n <= 6:
        for j in range(n):
            carry = step(j, carry)
    else:
        carry = jax.lax.fori_loop(0, n, step, carry)
    _, L, W, positive = carry
    return jnp.concatenate([L, W], axis=1), positive


def _by_lapack(M: Array) -> tuple[Array, Array]:
    L = jnp.linalg.cholesky(M)
    return L, solve_triangular(L, jnp.eye(M.shape[0], dtype=M.dtype), lower=True)


_small, _large = batched(_cholesky), one_at_a_time(_by_lapack)
