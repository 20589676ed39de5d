"""The pseudoinverse and its derivative rule."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import ukjax

from ..helpers import STRATEGIES, assert_close, assert_gradients, long
from ..inside import pseudoinverse, pseudoinverse_at, pseudosolve, pseudosolve_at, whiten


def matrix(seed, m, n, rank, values=None):
    """Random m x n of the given rank, singular values between 1 and 2 or as given."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(k, k)))[0] for k in (m, n))
    values = rng.uniform(1, 2, rank) if values is None else np.asarray(values)
    return jnp.array((U[:, :rank] * values) @ V[:, :rank].T)


@pytest.mark.parametrize("shape_rank", [(3, 5, 3), (3, 5, 2), (4, 4, 4), (5, 3, 3), (5, 3, 1), (2, 3, 0)])
def test_solution_is_least_squares_of_least_norm(shape_rank):
    B = matrix(1, *shape_rank)
    y = jnp.array(np.random.default_rng(2).normal(size=B.shape[0]))
    x, rank = pseudosolve(ukjax.SVD(), B, y)
    assert int(rank) == shape_rank[2]
    assert_close(x, jnp.array(np.linalg.lstsq(np.asarray(B), np.asarray(y), rcond=1e-6)[0]), atol=1e-12)


@pytest.mark.parametrize(
    "values", [long((1.0, 1.0), id="repeated"), pytest.param((2.0, 1.0), id="distinct"), long((1.0,), id="deficient")]
)
@pytest.mark.parametrize("shape", [(2, 4), long((4, 2)), long((3, 3))])
def test_derivative_against_differences_along_constant_rank(values, shape):
    base = matrix(3, *shape, len(values), values)
    rng = np.random.default_rng(4)
    X, Y = jnp.array(rng.normal(size=(shape[0],) * 2)), jnp.array(rng.normal(size=(shape[1],) * 2))
    y, w = jnp.array(rng.normal(size=shape[0])), jnp.array(rng.normal(size=shape[1]))

    def f(s):
        # Regular factors on both sides leave the rank alone.
        B = (jnp.eye(shape[0]) + s * X) @ base @ (jnp.eye(shape[1]) + s * Y)
        return w @ pseudosolve(ukjax.SVD(), B, y * (1 + s))[0]

    assert_gradients(f, jnp.asarray(0.0), rtol=1e-7)
    assert_gradients(jax.grad(f), jnp.asarray(0.0), rtol=1e-6)  # second order


def test_pseudoinverse_derivative_is_that_of_its_application():
    B, dB = matrix(5, 3, 4, 2), jnp.array(np.random.default_rng(6).normal(size=(3, 4)))
    y = jnp.arange(3.0)
    of_matrix = jax.jvp(lambda B: pseudoinverse(ukjax.SVD(), B)[0] @ y, (B,), (dB,))
    of_solve = jax.jvp(lambda B: pseudosolve(ukjax.SVD(), B, y)[0], (B,), (dB,))
    assert_close(of_matrix[1], of_solve[1], atol=1e-12)


@pytest.mark.parametrize("strategy", [ukjax.SVD, long(ukjax.pseudoinverse.Jacobi)])
@pytest.mark.parametrize("shape", [(3, 5), long((5, 3))])
def test_one_decomposition_decides_at_several_tolerances(strategy, shape):
    """What it gives at each, and the derivative of that, is what a strategy of that tolerance gives; in a batch too."""
    rtols, values = (1e-1, 1e-3, 1e-5), (1.0, 1e-2, 1e-4)
    Bs = jnp.stack([matrix(seed, *shape, 3, values) for seed in (7, 8)])
    rng = np.random.default_rng(9)
    dBs, y = jnp.array(rng.normal(size=Bs.shape)), jnp.array(rng.normal(size=shape[0]))

    def together(B):
        X, rank = pseudosolve_at(strategy(), B, y, rtols)
        return X, pseudoinverse_at(strategy(), B, rtols)[0], rank

    def apart(B):
        solved = [pseudosolve(strategy(rtol), B, y) for rtol in rtols]
        inverses = [pseudoinverse(strategy(rtol), B)[0] for rtol in rtols]
        return jnp.stack([x for x, _ in solved]), jnp.stack(inverses), jnp.stack([rank for _, rank in solved])

    def along(f):
        return jax.jit(lambda Bs: (jax.vmap(f)(Bs), jax.jvp(lambda B: f(B)[:2], (Bs[0],), (dBs[0],))))(Bs)

    (got, got_change), (want, want_change) = along(together), along(apart)
    np.testing.assert_array_equal(got[2], [[1, 2, 3]] * 2)
    for x, expected in zip(
        jax.tree_util.tree_leaves((got, got_change)), jax.tree_util.tree_leaves((want, want_change))
    ):
        np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-9 * np.max(np.abs(expected)))


@pytest.mark.parametrize("solver", [*STRATEGIES, lx.SVD()], ids=lambda solver: type(solver).__name__)
def test_a_compiled_batch_of_right_hand_sides_has_a_gradient(solver):
    """B^+ y for one B and several y: its derivative with respect to y is B^+, compiled before it is differentiated."""
    B, ys, w = matrix(5, 4, 2, 2), jnp.array(np.random.default_rng(6).normal(size=(5, 4))), jnp.ones((5, 1, 2))
    batch = jax.jit(jax.vmap(lambda y, w: w @ pseudosolve(solver, B, y)[0]))
    gradient = jax.grad(lambda ys: jnp.sum(batch(ys, w)))(ys)
    assert_close(gradient, jnp.array([np.linalg.pinv(np.asarray(B)).sum(0)] * 5), atol=1e-12)


@pytest.mark.parametrize("solver", [lx.SVD(), lx.QR(), lx.AutoLinearSolver(well_posed=False)])
def test_any_lineax_solver_serves_and_ours_serves_in_lineax(solver):
    B, y = matrix(7, 2, 4, 2), jnp.array([1.0, -2.0])
    want = jnp.linalg.pinv(B) @ y
    x, rank = pseudosolve(solver, B, y)
    assert_close(x, want, atol=1e-12)
    assert int(rank) == 2
    ours = lx.linear_solve(lx.MatrixLinearOperator(B), y, ukjax.SVD())
    assert_close(ours.value, want, atol=1e-12)
    assert int(ours.stats["rank"]) == 2
    assert_close(jax.grad(lambda y: lx.linear_solve(lx.MatrixLinearOperator(B), y, ukjax.SVD()).value[0])(y),
                 jnp.linalg.pinv(B)[0], atol=1e-12)  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("repeated", [True, False])
def test_whitening_and_its_derivative(n, repeated):
    rng = np.random.default_rng(8)
    X = jnp.array(rng.normal(size=(n, n)))
    M = 2.0 * jnp.eye(n) if repeated else X @ X.T + jnp.eye(n)
    L, W, definite = whiten(M)
    assert bool(definite)
    assert_close(L, jnp.linalg.cholesky(M), atol=1e-12)
    assert_close(W @ L, jnp.eye(n), atol=1e-12)
    f = lambda s: sum(jnp.sum(jnp.sin(x)) for x in whiten(M + s * (X + X.T))[:2])
    assert_gradients(f, jnp.asarray(0.0), rtol=1e-7)


@pytest.mark.parametrize(
    "M", [-jnp.eye(2), jnp.zeros((2, 2)), jnp.array([[1.0, 0.5], [0.0, 1.0]]), jnp.full((2, 2), jnp.nan)]
)
def test_what_is_no_mass_matrix(M):
    L, W, definite = whiten(M)
    assert not bool(definite)
    assert_close(L, jnp.eye(M.shape[0]))
    assert_close(W, L)
    assert np.isfinite(jax.grad(lambda M: jnp.sum(whiten(M)[0]))(M)).all()
