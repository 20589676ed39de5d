"""Large mechanisms block by block: the elimination against NumPy, the motion against matrices."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum, three_rrr
from ukjax import RESULTS

from ..helpers import assert_close, assert_gradients, long, without_matrices
from ..inside import factorise, order_of


ON, OFF = ukjax.UdwadiaKalaba(expand=True), ukjax.UdwadiaKalaba(expand=False)
GRAPHS = {
    "chain": (7, [(i, i + 1) for i in range(6)]),
    "ring": (6, [(i, (i + 1) % 6) for i in range(6)]),
    "star": (5, [(0, i) for i in range(1, 5)]),
    "all": (4, [(i, j) for i in range(4) for j in range(i)]),
    "nothing": (3, []),
}


def test_a_chain_is_halved_with_every_step():
    for N in (1, 2, 50, 200):
        order = order_of(N, [(i, i + 1) for i in range(N - 1)])
        assert sorted(np.concatenate([step.nodes for step in order.steps]).tolist()) == list(range(N))
        assert len(order.steps) <= np.log2(N) + 2
        assert max(step.near.shape[1] for step in order.steps) <= 2


def blocks_of(graph, m=2, dependent=()):
    """A matrix of blocks over a graph, R^T R with R of the same pattern; some rows depend on others."""
    count, pairs = GRAPHS[graph]
    rng = np.random.default_rng(0)
    R = np.zeros((max(1, len(pairs)) * 2 * m + count * m, count, m))
    R[: count * m] = np.eye(count * m).reshape(-1, count, m)
    for e, (a, b) in enumerate(pairs):
        rows = slice(count * m + 2 * m * e, count * m + 2 * m * (e + 1))
        R[rows, a], R[rows, b] = rng.normal(size=(2 * m, m)), rng.normal(size=(2 * m, m))
    for row, other in dependent:
        R[:, row // m, row % m] = 2 * R[:, other // m, other % m]
    flat = R.reshape(len(R), -1)
    return flat.T @ flat


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_elimination_is_that_of_the_whole_matrix(graph):
    (count, pairs), m = GRAPHS[graph], 2
    S = blocks_of(graph, m)
    order = order_of(count, pairs)
    block = lambda i, j: S[m * i : m * (i + 1), m * j : m * (j + 1)]
    D = jnp.asarray(np.stack([block(i, i) for i in range(count)]))
    E = jnp.asarray(np.stack([block(i, j) for i, j in order.edges]) if order.edges else np.zeros((0, m, m)))

    @jax.jit
    def found(D, E, y):
        factors = factorise(order, D, E, jnp.full((count, m), 1e-10))
        return factors.solve(y), factors.inverse_diagonal()

    y = np.random.default_rng(1).normal(size=(count, m))
    x, diagonal = found(D, E, jnp.asarray(y))
    assert_close(x, np.linalg.solve(S, y.ravel()).reshape(count, m), atol=1e-12)
    assert_close(diagonal, np.diag(np.linalg.inv(S)).reshape(count, m), atol=1e-12)


def test_a_row_that_depends_on_one_in_its_own_block_is_left_out():
    m, (count, pairs) = 2, GRAPHS["chain"]
    S = blocks_of("chain", m, dependent=[(5, 4)])
    order = order_of(count, pairs)
    block = lambda i, j: S[m * i : m * (i + 1), m * j : m * (j + 1)]
    D = jnp.asarray(np.stack([block(i, i) for i in range(count)]))
    E = jnp.asarray(np.stack([block(i, j) for i, j in order.edges]))
    y = S @ np.random.default_rng(1).normal(size=count * m)

    @jax.jit
    def found(D, E, y):
        factors = factorise(order, D, E, 1e-10 * jnp.diagonal(D, axis1=1, axis2=2))
        return factors.of_rows("kept"), factors.solve(y)

    kept, x = (np.asarray(z).ravel() for z in found(D, E, jnp.asarray(y.reshape(count, m))))
    assert np.flatnonzero(~kept).tolist() == [5]
    assert x[5] == 0.0
    assert_close(S @ x, y, atol=1e-11)


@ft.cache
def chain(N=9, closed=True, twice=False):
    """The same chain in one piece and rod by rod, and states of it; `twice`: its last joint is there twice."""
    end = (0.6 * N, 0.0) if closed else None
    whole = n_pendulum.Chain(m=1.0 + 0.1 * np.arange(N), L=np.ones(N), end=end)
    modular = n_pendulum.modular(whole)
    if twice:
        rod = n_pendulum.Rod(whole.m[-1], whole.L[-1], whole.g)
        modular = modular.add(
            {"again": ukjax.modular.Coupling(f"rod{N - 1}", ukjax.Holonomic(n_pendulum.Pivot(rod, whole.end, 1)))}
        )
    phi = n_pendulum.arc(N, 1.0, end) if closed else np.linspace(-1.2, 0.4, N)
    rng = np.random.default_rng(0)
    angles = jnp.asarray(phi)[None] + 0.01 * jnp.asarray(rng.normal(size=(5, N)))
    q, v = jax.vmap(whole.state)(angles, 0.1 * jnp.asarray(rng.normal(size=(5, N))))
    return whole.mechanism(), modular.mechanism(), q, v


@eqx.filter_jit
def motions(mechanism, q, v, formulation):
    of = lambda q, v: ukjax.equation_of_motion(mechanism, q, v, formulation=formulation, throw=False)
    return jax.vmap(of)(q, v)


def assert_same(got, want, at=slice(None), tolerance=1e-11):
    for name in ("acceleration", "unconstrained_acceleration", "constraint_force"):
        x, y = getattr(got, name)[at], getattr(want, name)[at]
        assert_close(x, y, atol=tolerance * (1 + float(jnp.max(jnp.abs(y)))))
    assert np.array_equal(got.rank, want.rank)
    assert bool(jnp.all(got.result == want.result))


@pytest.mark.parametrize("closed", [True, long(False)])
def test_the_motion_is_that_of_the_whole_and_needs_no_matrices(closed):
    whole, modular, q, v = chain(closed=closed)
    want = motions(whole, q, v, OFF)
    of = lambda q, v: ukjax.equation_of_motion(modular, q, v, formulation=ON, throw=False)
    with without_matrices():
        got = jax.jit(jax.vmap(of))(q, v)  # not by `motions`, which would keep for others what is compiled now
    assert_same(got, want)
    assert set(np.asarray(got.rank).tolist()) == {20 if closed else 18}


@pytest.mark.long
def test_rows_that_are_there_twice():
    """The motion without matrices, the derivative by them."""
    _, modular, q, v = chain(twice=True)
    got, want = motions(modular, q, v, ON), motions(modular, q, v, OFF)
    assert_same(got, want)
    assert set(np.asarray(want.rank).tolist()) == {20}
    slope = lambda way: jax.jit(jax.grad(lambda q: jnp.sum(jnp.sin(motions(modular, q, v, way).acceleration))))(q)
    assert_close(slope(ON), slope(OFF), atol=1e-9 * (1 + float(jnp.max(jnp.abs(slope(OFF))))))


@pytest.mark.long
def test_one_bad_state_changes_no_other():
    """Rods in line, where rows depend on each other; a rod out of its joints; and NaN."""
    _, modular, q, v = chain(closed=False)
    inline, _ = n_pendulum.Chain(m=np.ones(9), L=np.ones(9)).state(jnp.zeros(9), jnp.zeros(9))
    bad = jnp.stack([q[0], inline, q[2].at[5].set(jnp.nan), q[3].at[5].add(1.0), q[4]])
    got, want = motions(modular, bad, v, ON), motions(modular, bad, v, OFF)
    assert_same(got, want, at=np.array([0, 1, 3, 4]))
    assert (got.result == RESULTS.not_finite).tolist() == [False, False, True, False, False]
    good = jnp.array([True, False, False, False, True])[:, None]
    loss = lambda q, way: jnp.sum(jnp.where(good, motions(modular, q, v, way).acceleration, 0.0))
    slope = jax.jit(jax.grad(ft.partial(loss, way=ON)))(bad)
    assert np.isfinite(slope).all(axis=1).tolist() == [True, True, False, True, True]
    assert_close(slope[0], jax.jit(jax.grad(ft.partial(loss, way=OFF)))(q)[0], rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_the_closed_chain_in_line_is_left_to_matrices():
    """Where the closed chain is stretched its rows depend on each other, but at no state beside it."""
    N = 9
    whole = n_pendulum.Chain(m=np.ones(N), L=np.ones(N), end=(float(N), 0.0))
    modular = n_pendulum.modular(whole).mechanism()
    q, v = (x[None] for x in whole.state(jnp.zeros(N), jnp.zeros(N)))
    got, want = motions(modular, q, v, ON), motions(whole.mechanism(), q, v, OFF)
    assert_same(got, want)
    assert int(got.rank[0]) == 2 * N + 1


@pytest.mark.long
def test_gradients_in_both_modes_and_second_derivatives():
    whole, modular, q, v = chain()
    state, weights = (q[0], v[0]), jnp.cos(jnp.arange(27.0))

    def of(mechanism, q, v, way):
        motion = ukjax.equation_of_motion(mechanism, q, v, formulation=way, throw=False)
        return weights @ (jnp.sin(motion.acceleration) + 0.1 * motion.constraint_force)

    many = ukjax.UdwadiaKalaba(expand=True)
    assert_gradients(lambda x: of(modular, *x, many), state, rtol=1e-6, atol=1e-6)
    by_parts = eqx.filter_jit(eqx.filter_grad(lambda m: of(m, *state, many)))(modular)
    along = jax.tree_util.tree_map(lambda x: jnp.cos(jnp.arange(float(x.size))).reshape(x.shape), by_parts)
    moved = lambda h: eqx.apply_updates(modular, jax.tree_util.tree_map(lambda x: h * x, along))
    value = eqx.filter_jit(lambda m: of(m, *state, many))
    pairs = zip(jax.tree_util.tree_leaves(by_parts), jax.tree_util.tree_leaves(along), strict=True)
    numeric = float(value(moved(1e-6)) - value(moved(-1e-6))) / 2e-6
    assert sum(float(jnp.sum(x * y)) for x, y in pairs) == pytest.approx(numeric, rel=1e-6)
    twice = lambda m, way: jax.jit(jax.jvp, static_argnums=0)(
        jax.grad(lambda q: of(m, q, v[0], way)), (q[0],), (weights,)
    )[1]
    want = twice(whole, OFF)
    assert_close(twice(modular, many), want, atol=1e-8 * (1 + float(jnp.max(jnp.abs(want)))))


@pytest.mark.long
def test_a_gradient_by_what_only_the_forces_depend_on():
    whole, modular, q, v = chain()

    def slope(mechanism, way):
        push = lambda k: k * jnp.sin(jnp.arange(27.0))
        of = lambda q, v, k: ukjax.equation_of_motion(mechanism, q, v, applied=push(k), formulation=way, throw=False)
        return jax.jit(jax.grad(lambda k: jnp.sum(jnp.sin(jax.vmap(of, (0, 0, None))(q, v, k).acceleration))))(0.3)

    assert_close(slope(modular, ON), slope(whole, OFF), rtol=1e-10)


@pytest.mark.long
def test_modules_and_constraints_of_several_sizes():
    case = three_rrr.scenario()
    rng = np.random.default_rng(0)
    v = case.v0[None] + 0.1 * jnp.asarray(rng.normal(size=(3, 18)))
    q = jnp.broadcast_to(case.q0, (3, 18))
    assert_same(motions(case.mechanism, q, v, ON), motions(case.mechanism, q, v, OFF))


@pytest.mark.long
def test_a_trajectory_of_many_rods():
    whole, modular, q, v = chain()
    ts = jnp.linspace(0.0, 0.2, 3)
    run = lambda m, way: jax.jit(lambda q: ukjax.simulate(m, q, v[0], ts, formulation=way, throw=False))(q[0])
    got, want = run(modular, ukjax.UdwadiaKalaba()), run(whole, OFF)
    for name in ("q", "v", "acceleration", "constraint_force"):
        assert_close(getattr(got, name), getattr(want, name), rtol=1e-7, atol=1e-6)
