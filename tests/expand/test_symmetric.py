"""Symmetric systems, as scalar code and as arrays: against NumPy, their derivatives against differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, assert_gradients, central_difference
from ..inside import Certain, are_clear, pivots, solve_symmetric


N = 6
# A chain, beginning in the middle: eliminated in the order in which it is written it fills in.
EDGES = [(3, 0), (0, 5), (5, 1), (1, 4), (4, 2)]


def matrix(x):
    """Positive definite, zero but for a chain."""
    S = jnp.diag(3 + jnp.cos(x[:N]))
    for k, (i, j) in enumerate(EDGES):
        S = S.at[i, j].set(jnp.sin(x[k])).at[j, i].set(jnp.sin(x[k]))
    return S


def solution(x):
    return solve_symmetric(matrix(x), jnp.stack([x[:N], x[:N] ** 2, jnp.ones(N)], axis=1))


def ways(function):
    return {"arrays": function, "scalars": ukjax.expand(function)}


@pytest.mark.parametrize("way", ["arrays", "scalars"])
def test_solutions_are_those_of_numpy(way):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(7, N)))
    S = np.array([matrix(y) for y in x])
    right = np.stack([x, x**2, np.ones_like(x)], axis=2)
    assert_close(jax.jit(jax.vmap(ways(solution)[way]))(x), np.linalg.solve(S, right), atol=1e-13)
    assert_close(jax.jit(ways(solution)[way])(x[0]), np.linalg.solve(S[0], right[0]), atol=1e-13)
    of = lambda x: pivots(matrix(x))
    found = jax.jit(jax.vmap(ways(of)[way]))(x)
    assert bool(jnp.all(found.kept))
    assert_close(jnp.prod(found.pivots, axis=1), np.linalg.det(S), rtol=1e-12)
    lengths = np.sqrt(np.diagonal(S, axis1=1, axis2=2))
    unit = S / lengths[:, :, None] / lengths[:, None]
    smallest = np.sqrt(np.linalg.eigvalsh(unit)[:, 0])
    assert np.all(1 / np.asarray(found.bound) <= smallest * N**0.5)
    assert np.all(1 / np.asarray(found.bound) >= smallest / 4)


@pytest.mark.parametrize("way", ["arrays", "scalars"])
def test_a_row_that_depends_on_others_is_struck_out(way):
    rows = jnp.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]])
    S = lambda a: a * rows @ rows.T
    of = lambda a: (solve_symmetric(S(a), S(a) @ jnp.arange(4.0), 1e-8), pivots(S(a), 1e-8))
    x, found = jax.jit(ways(of)[way])(jnp.asarray(1.5))
    kept = np.asarray(found.kept)
    assert kept.tolist() != [True] * 4
    assert kept.sum() == 3
    assert float(jnp.max(jnp.abs(jnp.where(kept, 0.0, x)))) == 0.0
    whole = np.asarray(S(1.5))
    assert_close(whole @ x, whole @ np.arange(4.0), atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("way", ["arrays", "scalars"])
def test_derivatives_are_those_of_differences(way):
    x = jnp.asarray(np.random.default_rng(1).normal(size=N))
    loss = lambda x: jnp.sum(jnp.sin(ways(solution)[way](x)))
    assert_gradients(loss, x)
    numeric = central_difference(jax.jit(jax.grad(loss)), x)
    assert_close(jax.jit(jax.jacfwd(jax.grad(loss)))(x), numeric, atol=1e-6)
    batch = jax.jit(jax.vmap(jax.grad(loss)))(jnp.stack([x, 2 * x]))
    assert_close(batch, jnp.stack([jax.grad(loss)(x), jax.grad(loss)(2 * x)]), atol=1e-12)


@pytest.mark.parametrize("m", [6, 16, 30])
def test_rows_are_clear_only_where_their_least_singular_value_is_larger(m):
    """Rows of unit length, some nearly dependent: clear for limits below that value, never for those above it.

    The bound by pivots may be a thousandth of that value, or less if there are more rows.
    """
    rng = np.random.default_rng(m)
    B = np.eye(m, m + 4) + 0.4 * rng.normal(size=(m, m + 4))
    B /= np.linalg.norm(B, axis=1, keepdims=True)
    least = np.linalg.svd(B)[1][-1]
    lengths = 10.0 ** rng.uniform(-2, 2, m)
    S, none = jnp.asarray(np.outer(lengths, lengths) * (B @ B.T)), jnp.zeros(m)

    def clear(part):
        certain = Certain(rank=part * least, dependent=1e-6, pivot=1e-9, residual=1e-9, push=1e-9)
        return bool(are_clear(certain, S, pivots(S, 1e-12), none, none, none, jnp.zeros(())))

    assert not clear(1.001)
    assert clear(1e-3)
