"""Every pseudoinverse strategy: Penrose's conditions, Zhao's propositions, rank, derivatives, batches."""

import functools as ft
import subprocess
import sys

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import ukjax

from ..helpers import OPTIMISED, STRATEGIES, assert_close, assert_gradients, long, name_of, sampled
from ..inside import pseudoinverse, pseudosolve


NAMES = [type(s).__name__ for s in STRATEGIES]
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
# Those of the paper that are there for comparison: in the long run.
sampled_strategies = pytest.mark.parametrize(
    "strategy", sampled(STRATEGIES, ["SVD", "Jacobi", "RowGramSchmidt"], name_of)
)
WIDE, TALL = (12, 20), (20, 12)


@ft.cache
def compiled(strategy):
    """One compiled function for each shape, whatever the examples."""
    return jax.jit(lambda B: pseudoinverse(strategy, B), compiler_options=OPTIMISED)


def matrix(seed, m, n, values):
    """Random m x n with the given singular values and zeros beyond."""
    rng = np.random.default_rng(seed)
    U, V = (np.linalg.qr(rng.normal(size=(k, k)))[0] for k in (m, n))
    return (U[:, : len(values)] * np.asarray(values)) @ V[:, : len(values)].T


def embedded(B, shape, seed):
    """B among rows and columns of zeros, shuffled: so every size runs through the same compiled function."""
    rng = np.random.default_rng(seed)
    out = np.zeros(shape)
    rows = rng.permutation(shape[0])[: B.shape[0]]
    columns = rng.permutation(shape[1])[: B.shape[1]]
    out[np.ix_(rows, columns)] = B
    return jnp.array(out)


@st.composite
def matrices(draw, largest):
    """A matrix of any size up to `largest`, of any rank, with condition number up to a hundred, and its rank."""
    m, n = draw(st.integers(1, largest[0])), draw(st.integers(1, largest[1]))
    rank = draw(st.integers(0, min(m, n)))
    seed = draw(st.integers(0, 10_000))
    values = np.random.default_rng(seed).choice([1.0, 2.0, 0.02, 1.5], rank)  # repeated ones too
    return embedded(matrix(seed, m, n, values), largest, seed), rank


def assert_penrose(B, P, atol):
    for got, want in ((B @ P @ B, B), (P @ B @ P, P), ((B @ P).T, B @ P), ((P @ B).T, P @ B)):
        assert_close(got, want, atol=atol)


@sampled_strategies
@pytest.mark.parametrize("largest", [WIDE, TALL], ids=["wide", "tall"])
def test_penrose_conditions_at_every_size_and_rank(strategy, largest):
    @given(case=matrices(largest))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def check(case):
        B, rank = case
        P, found = compiled(strategy)(B)
        assert int(found) == rank
        assert_penrose(B, P, atol=2e-9)
        assert_close(P, jnp.array(np.linalg.pinv(np.asarray(B), rcond=1e-6)), atol=2e-9)

    check()


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_repeated_singular_values_are_told_apart_from_others(shape):
    """Rows that Jacobi's rotations made equally long are mixed at every further one, however small its reason was."""
    values = [np.random.default_rng(seed).choice([1.0, 2.0, 0.02, 1.5], 12) for seed in range(300)]
    B = np.stack([matrix(seed, *shape, some) for seed, some in enumerate(values)])
    P, _ = jax.jit(jax.vmap(lambda B: pseudoinverse(ukjax.pseudoinverse.Jacobi(), B)))(jnp.asarray(B))
    assert_close(P, np.linalg.pinv(B, rcond=1e-6), atol=1e-9)


@sampled_strategies
@pytest.mark.parametrize("shape", [(1, 1), (4, 1), (2, 5), (7, 7), (12, 20)])
def test_penrose_conditions_at_the_sizes_themselves(strategy, shape):
    for rank in {0, 1, min(shape) // 2, min(shape)}:
        B = jnp.array(matrix(rank, *shape, np.linspace(1, 2, rank)))
        P, found = compiled(strategy)(B)
        assert int(found) == rank
        assert_penrose(B, P, atol=1e-11)


@sampled_strategies
def test_propositions_1_to_5_of_zhao(strategy):
    inverse = compiled(strategy)
    sizes = st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3)

    @given(
        case=matrices(WIDE),
        other=matrices((8, 8)),
        factor=sizes | st.sampled_from([1e-200, 1e200]),
        a=st.lists(sizes, min_size=1, max_size=8),
    )
    @settings(max_examples=40, deadline=None, derandomize=True)
    def check(case, other, factor, a):
        B, rank = case
        P, _ = inverse(B)
        scaled, found = inverse(factor * B)  # 1
        assert int(found) == rank
        assert_close(scaled * factor, P, atol=2e-9)

        a = jnp.array(a + [0.0] * (8 - len(a)))[None]
        square = (a @ a.T)[0, 0]
        rounding = 1e-9 / float(jnp.sqrt(square))
        assert_close(inverse(a)[0], a.T / square, atol=rounding)  # 2
        assert_close(inverse(a.T)[0], a / square, atol=rounding)  # 3
        assert_close(inverse(a.T @ a)[0], a.T @ a / square**2, atol=1e-9 / float(square))  # 4

        C, more = other  # 5
        blocks = jnp.zeros((20, 28)).at[:12, :20].set(B).at[12:, 20:].set(C)
        of_blocks, found = inverse(blocks)
        assert int(found) == rank + more
        want = jnp.zeros((28, 20)).at[:20, :12].set(P).at[20:, 12:].set(inverse(C)[0])
        assert_close(of_blocks, want, atol=2e-9)

    check()


@every_strategy
def test_rows_without_columns_and_the_other_way_round(strategy):
    for shape in ((0, 3), (3, 0)):
        P, rank = strategy.solve(jnp.zeros(shape), jnp.eye(shape[0]))
        assert P.shape == shape[::-1]
        assert int(rank) == 0


@sampled_strategies
def test_rank_tolerance_decides_what_counts_as_zero(strategy):
    # Rows 1e-3 apart: their smaller singular value is about half of that.
    B = jnp.array([[1.0, 0.0, 0.0], [1.0, 1e-3, 0.0]])
    rank = lambda rtol: int(pseudosolve(type(strategy)(rtol), B, jnp.ones(2))[1])
    assert rank(1e-6) == 2
    assert rank(None) == 2
    assert rank(1e-2) == 1


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-3, "much", [1e-3], np.nan])
def test_a_senseless_tolerance_is_named(bad):
    with pytest.raises(ValueError, match="rtol must"):
        ukjax.pseudoinverse.Varga(rtol=bad)


@every_strategy
def test_no_row_of_noise_is_taken_for_a_constraint(strategy):
    B = jnp.array([[1.0, 2.0, 0.0], [1e-17, -1e-17, 3e-17], [0.0, 1.0, 1.0]])
    assert int(pseudosolve(strategy, B, jnp.ones(3))[1]) == 2


DERIVATIVES = [((2, 4), (1.0, 1.0)), ((4, 2), (2.0, 1.0)), ((3, 3), (1.0,)), ((3, 5), (2.0, 2.0, 1e-2)), ((2, 3), ())]


@pytest.mark.parametrize(("shape", "values"), DERIVATIVES, ids=["repeated", "tall", "deficient", "stiff", "zero"])
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(ukjax.SVD(), id="SVD"),
        long(ukjax.pseudoinverse.RowGramSchmidt(), id="RowGramSchmidt"),
    ],
)
def test_derivatives_against_differences_along_constant_rank(strategy, shape, values):
    check_derivatives(strategy, shape, values)


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy", [s for s in STRATEGIES if not isinstance(s, (ukjax.SVD, ukjax.pseudoinverse.RowGramSchmidt))]
)
def test_derivatives_of_the_other_strategies(strategy):
    # One rule serves all of them: a deficient matrix with a repeated singular value tells.
    check_derivatives(strategy, (3, 4), (2.0, 2.0))


def check_derivatives(strategy, shape, values):
    m, n = shape
    base = jnp.array(matrix(3, m, n, values))
    rng = np.random.default_rng(4)
    X, Y = jnp.array(rng.normal(size=(m, m))), jnp.array(rng.normal(size=(n, n)))
    y, w = jnp.array(rng.normal(size=m)), jnp.array(rng.normal(size=n))

    def f(s):
        # Regular factors on both sides leave the rank alone.
        B = (jnp.eye(m) + s * X) @ base @ (jnp.eye(n) + s * Y)
        return w @ pseudosolve(strategy, B, y * (1 + s))[0]

    assert_gradients(f, jnp.asarray(0.0), rtol=1e-6, atol=1e-6)
    assert_gradients(jax.grad(f), jnp.asarray(0.0), rtol=1e-5, atol=1e-4)  # second order


@pytest.mark.parametrize(
    "strategy",
    [ukjax.SVD(), long(ukjax.pseudoinverse.RowGramSchmidt())],
)
def test_a_lineax_solver_like_any_other(strategy):
    B, y = jnp.array(matrix(7, 4, 6, (2.0, 1.0))), jnp.arange(4.0)
    want = np.linalg.pinv(np.asarray(B), rcond=1e-6) @ np.asarray(y)
    value = lambda B: lx.linear_solve(lx.MatrixLinearOperator(B), y, strategy).value
    solution = lx.linear_solve(lx.MatrixLinearOperator(B), y, strategy)
    assert_close(solution.value, jnp.array(want), atol=1e-10)
    assert int(solution.stats["rank"]) == 2
    assert_close(solution.stats["residual"], jnp.linalg.norm(B @ want - y), atol=1e-10)
    dB = jnp.array(matrix(7, 4, 6, (0.3, -1.0)))  # along constant rank
    _, along = jax.jvp(value, (B,), (dB,))
    _, ours = jax.jvp(lambda B: pseudosolve(strategy, B, y)[0], (B,), (dB,))
    assert_close(along, ours, atol=1e-9)
    pulled = jax.vjp(value, B)[1](jnp.ones(6))[0]
    assert_close(jnp.sum(pulled * dB), jnp.sum(along), atol=1e-9)


def test_lineax_structures_and_complex_numbers():
    A = {"a": {"x": jnp.ones((2, 3)), "y": 2.0 * jnp.ones(2)}, "b": {"x": jnp.zeros(3), "y": jnp.asarray(1.0)}}
    shape = {"x": jax.ShapeDtypeStruct((3,), float), "y": jax.ShapeDtypeStruct((), float)}
    operator = lx.PyTreeLinearOperator(
        A, {"a": jax.ShapeDtypeStruct((2,), float), "b": jax.ShapeDtypeStruct((), float)}
    )
    assert operator.in_structure() == shape
    y = {"a": jnp.array([1.0, 1.0]), "b": jnp.asarray(0.5)}
    got = lx.linear_solve(operator, y, ukjax.pseudoinverse.RowGramSchmidt()).value
    want = lx.linear_solve(operator, y, lx.SVD()).value
    jax.tree_util.tree_map(lambda a, b: assert_close(a, b, atol=1e-12), got, want)
    with pytest.raises(ValueError, match="real"):
        lx.linear_solve(
            lx.MatrixLinearOperator(jnp.eye(2, dtype=complex)), jnp.ones(2, complex), ukjax.pseudoinverse.Jacobi()
        )


@pytest.mark.parametrize(
    "strategy",
    [
        ukjax.SVD(),
        long(ukjax.pseudoinverse.Varga()),
        long(ukjax.pseudoinverse.RowGramSchmidt()),
        long(ukjax.pseudoinverse.Jacobi()),
    ],
)
def test_a_batch_is_the_loop_however_it_is_nested(strategy):
    rng = np.random.default_rng(5)
    B, y = jnp.array(rng.normal(size=(3, 5, 2, 4))), jnp.array(rng.normal(size=(3, 5, 2)))
    one = lambda B, y: pseudosolve(strategy, B, y)[0]
    want = np.array([[np.linalg.pinv(b) @ z for b, z in zip(bs, zs)] for bs, zs in zip(np.asarray(B), np.asarray(y))])
    assert_close(jax.jit(jax.vmap(jax.vmap(one)))(B, y), jnp.array(want), atol=1e-11)
    # Only the matrix, or only the right-hand side, in the batch; and the batch somewhere else.
    assert_close(jax.vmap(one, (0, None))(B[0], y[0, 0]), jax.vmap(one)(B[0], jnp.tile(y[0, :1], (5, 1))), atol=1e-12)
    assert_close(
        jax.vmap(one, (None, 0))(B[0, 0], y[0]), jax.vmap(one)(jnp.tile(B[0, :1], (5, 1, 1)), y[0]), atol=1e-12
    )
    assert_close(jax.vmap(one, (2, 1))(jnp.moveaxis(B[0], 0, 2), y[0].T), jnp.array(want[0]), atol=1e-11)
    grad = jax.grad(lambda B, y: jnp.sum(jnp.sin(one(B, y))))
    alone = jnp.stack([grad(b, z) for b, z in zip(B[0], y[0])])
    assert_close(jax.jit(jax.vmap(grad))(B[0], y[0]), alone, atol=1e-10)


@pytest.mark.parametrize("size", [7, long(300), 1000])
def test_tiles_of_whatever_number(size):
    # More than one tile, and a last one that is not full; every tenth matrix is deficient, one is zero.
    rng = np.random.default_rng(size)
    B = rng.normal(size=(size, 3, 4))
    B[::10, 2] = B[::10, 0] - B[::10, 1]
    B[3] = 0
    y = rng.normal(size=(size, 3))
    for strategy in (
        ukjax.pseudoinverse.RowGramSchmidt(),
        ukjax.pseudoinverse.Jacobi(),
        ukjax.pseudoinverse.Greville(),
    ):
        x, rank = jax.jit(jax.vmap(ft.partial(pseudosolve, strategy)))(jnp.array(B), jnp.array(y))
        want = np.einsum("bij,bj->bi", np.linalg.pinv(B, rcond=1e-8), y)
        assert_close(x, jnp.array(want), rtol=1e-7, atol=1e-9)
        assert rank.tolist() == [0 if i == 3 else 3 - (i % 10 == 0) for i in range(size)]


@pytest.mark.long
def test_single_precision_stays_single():
    B = jnp.array(matrix(1, 3, 5, (2.0, 1.0)), jnp.float32)
    for strategy in STRATEGIES:
        P, rank = pseudoinverse(strategy, B)
        assert int(rank) == 2
        assert_close(P, jnp.array(np.linalg.pinv(np.asarray(B), rcond=1e-3)), atol=2e-5)


HANG = """
import jax, jax.numpy as jnp, numpy as np, ukjax
from ukjax._linalg import pseudosolve
jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
B, y = jnp.array(rng.normal(size=(50_000, 4, 4))), jnp.array(rng.normal(size=(50_000, 4)))
strategies = [getattr(ukjax if name == "SVD" else ukjax.pseudoinverse, name)() for name in {names}]
together = lambda B, y: [pseudosolve(s, B, y)[0] for s in strategies]
xs = jax.jit(jax.vmap(together))(B, y)
for x in xs:
    assert float(jnp.median(jnp.linalg.norm(jnp.einsum("bij,bj->bi", B, x) - y, axis=1))) < 1e-11
print("done", len(xs))
"""


@pytest.mark.long
def test_fifty_thousand_systems_through_every_strategy_in_one_call_return():
    # In a process of its own: what can hang here is not to be interrupted from within.
    code = HANG.format(names=NAMES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.split() == ["done", str(len(STRATEGIES))]


@given(case=matrices(WIDE))
@example(case=(jnp.zeros(WIDE), 0))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_all_strategies_agree(case):
    B, rank = case
    found = [compiled(strategy)(B) for strategy in STRATEGIES]
    for P, r in found:
        assert int(r) == rank
        assert_close(P, found[0][0], atol=2e-9)
