"""Level by level against one shot, against a Kalman filter by somebody else, and in the limits of the noise."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from filterpy.kalman import KalmanFilter

import ukjax
from models import n_four_bar
from ukjax.formulation import Level, Recursive

from ..helpers import assert_close, assert_gradients, falling, long, rod


def terms(seed, n=6, dependent=True):
    """M, Q, A, b of rank 3; five rows, if two of them are to depend on the others."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, n))
    M, Q, A, x = root @ root.T + np.eye(n), rng.normal(size=n), rng.normal(size=(3, n)), rng.normal(size=n)
    if dependent:
        A = np.concatenate([A, 2 * A[:1], A[1:2] - 30 * A[2:3]])
    return M, Q, A, A @ x


def system_of(M, Q, A, b, rows=None):
    rows = range(len(b)) if rows is None else rows
    constraint = ukjax.AccelerationConstraint(lambda q, v, t: A[np.array(rows)], lambda q, v, t: b[np.array(rows)])
    return ukjax.Mechanism(ukjax.System(lambda q, t: jnp.asarray(M), lambda q, v, t: jnp.asarray(Q)), constraint)


def compositions(m):
    """All ways to group m rows in order."""
    for cuts in itertools.product((False, True), repeat=m - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), m]
        yield tuple(b - a for a, b in itertools.pairwise(bounds))


def by_levels(M, Q, A, b, sizes, noise=None):
    level = Level.start(M, Q)
    levels, at = [level], 0
    for i, m in enumerate(sizes):
        level = level.enforce(A[at : at + m], b[at : at + m], None if noise is None else noise[i])
        levels.append(level)
        at += m
    return levels


enforced = jax.jit(by_levels, static_argnums=4)


@pytest.mark.parametrize(
    "groupings",
    [((5,), (2, 3), (1, 1, 1, 1, 1)), long(tuple(compositions(5)))],
    ids=["three", "all"],
)
def test_every_order_and_grouping_is_one_shot(groupings):
    M, Q, A, b = terms(0)
    root = np.linalg.cholesky(M)
    B = A @ np.linalg.inv(root).T
    free = np.linalg.solve(M, Q)
    want = free + np.linalg.inv(root).T @ np.linalg.pinv(B, rcond=1e-10) @ (b - A @ free)
    idle = np.eye(6) - np.linalg.pinv(B, rcond=1e-10) @ B
    orders = list(itertools.permutations(range(5)))
    for sizes in groupings:
        for order in orders[:: 120 // 6]:
            rows = np.array(order)
            levels = enforced(M, Q, A[rows], b[rows], sizes)
            last = levels[-1]
            assert_close(last.acceleration, want, atol=1e-12)
            assert sum(int(level.rank) for level in levels) == 3
            assert_close(last.P, last.P.T, atol=0)
            assert_close(last.P @ last.P, last.P, atol=1e-12)
            assert_close(last.P, idle, atol=1e-12)
            total = sum(level.force for level in levels)
            assert_close(total, M @ want - Q, atol=1e-11)


@pytest.mark.parametrize("order", [long((0, 1, 2, 3, 4)), (3, 0, 4, 2, 1)])
def test_as_a_formulation(order):
    M, Q, A, b = terms(1)
    mechanism = system_of(M, Q, A, b, order)
    at = jnp.zeros(6), jnp.zeros(6)
    want = ukjax.equation_of_motion(mechanism, *at)
    for sizes, expand in (((5,), False), ((1, 1, 1, 1, 1), False), ((2, 3), False), ((2, 3), None)):
        got = ukjax.equation_of_motion(mechanism, *at, formulation=Recursive(sizes, expand=expand))
        assert_close(got.acceleration, want.acceleration, atol=1e-12)
        assert_close(got.constraint_force, want.constraint_force, atol=1e-11)
        assert int(got.rank) == 3


@pytest.mark.long
def test_gradients_are_those_of_one_shot():
    def loss(inputs, formulation):
        g, length, q, v = inputs
        mechanism = ukjax.Mechanism(falling(g=g), [rod(length), rod(length)])
        return jnp.sum(jnp.sin(ukjax.equation_of_motion(mechanism, q, v, formulation=formulation).acceleration))

    inputs = jnp.asarray(9.81), jnp.asarray(1.0), jnp.array([0.6, -0.8]), jnp.array([1.6, 1.2])
    by_level = lambda inputs: loss(inputs, Recursive((1, 1), expand=False))
    want = jax.grad(lambda inputs: loss(inputs, ukjax.UdwadiaKalaba()))(inputs)
    for got, wanted in zip(jax.grad(by_level)(inputs), want, strict=True):
        assert_close(got, wanted, atol=1e-11)
    assert_gradients(by_level, inputs, rtol=1e-7, atol=1e-7)


NOISE = {
    "none": ((1, 2), None),
    "in all": ((2, 1, 2), [0.3 * np.eye(2), np.array([[2.0]]), np.array([[1.0, 0.4], [0.4, 0.7]])]),
    "before exact rows": ((1, 2), [np.array([[0.3]]), None]),
}


@pytest.mark.parametrize("levels", NOISE)
def test_a_kalman_filter_does_the_same(levels):
    sizes, noise = NOISE[levels]
    M, Q, A, b = terms(2, dependent=levels == "in all")
    W = np.linalg.inv(np.linalg.cholesky(M))
    kalman = KalmanFilter(dim_x=6, dim_z=1)
    kalman.x, kalman.P = (W @ Q)[:, None], np.eye(6)
    at = 0
    for i, (m, level) in enumerate(zip(sizes, enforced(M, Q, A, b, sizes, noise)[1:], strict=True)):
        R = np.zeros((m, m)) if noise is None or noise[i] is None else noise[i]
        kalman.dim_z = m
        kalman.update(b[at : at + m][:, None], R=R, H=A[at : at + m] @ W.T)
        assert_close(level.L.T @ level.acceleration, kalman.x[:, 0], atol=1e-12)
        assert_close(level.P, kalman.P, atol=1e-12)
        at += m


def test_limits_of_the_noise():
    M, Q, A, b = terms(3, dependent=False)
    motion = lambda R: enforced(M, Q, A, b, (1, 2), [jnp.asarray(R), jnp.asarray(R)])[-1].acceleration
    exact, free = enforced(M, Q, A, b, (1, 2))[-1].acceleration, np.linalg.solve(M, Q)
    small = [float(jnp.linalg.norm(motion(R) - exact)) for R in (1e-4, 1e-5, 1e-6)]
    # The error is proportional to R, and far away the motion goes to the free one as 1 / R.
    assert small[0] / small[1] == pytest.approx(10, rel=0.01)
    assert small[1] / small[2] == pytest.approx(10, rel=0.01)
    large = [float(jnp.linalg.norm(motion(R) - free)) for R in (1e5, 1e6)]
    assert large[0] / large[1] == pytest.approx(10, rel=0.01)
    assert_close(motion(0.0), exact, atol=1e-12)


@pytest.mark.long
def test_gradient_with_respect_to_the_noise():
    M, Q, A, b = terms(4)
    mechanism = system_of(M, Q, A, b)

    def loss(R):
        formulation = Recursive((2, 3), (None, R))
        return jnp.sum(ukjax.equation_of_motion(mechanism, jnp.zeros(6), jnp.zeros(6), formulation=formulation)
                       .acceleration ** 2)  # fmt: skip

    assert_gradients(loss, jnp.array([0.3, 1.0, 2.0]), rtol=1e-7, atol=1e-8)


def test_noisy_rows_contradict_nothing():
    M, Q, A, b = terms(5)
    b = b.copy()
    b[3] += 1.0
    mechanism = system_of(M, Q, A, b)
    at = jnp.zeros(6), jnp.zeros(6)
    for expand in (False, None):
        with pytest.raises(RuntimeError, match="contradict"):
            ukjax.equation_of_motion(mechanism, *at, formulation=Recursive((3, 2), expand=expand))
    got = ukjax.equation_of_motion(mechanism, *at, formulation=Recursive((3, 2), (None, 0.1)))
    assert float(jnp.max(jnp.abs(A[:3] @ got.acceleration - b[:3]))) < 1e-10


def test_rows_after_noisy_ones_are_met_exactly():
    M, Q, A, b = terms(6, dependent=False)
    formulation = Recursive((1, 2), (0.1, None))
    got = ukjax.equation_of_motion(system_of(M, Q, A, b), jnp.zeros(6), jnp.zeros(6), formulation=formulation)
    assert float(jnp.max(jnp.abs(A[1:] @ got.acceleration - b[1:]))) < 1e-12
    assert float(jnp.abs(A[0] @ got.acceleration - b[0])) > 1e-3


@pytest.mark.long
def test_a_trajectory_with_redundant_rows():
    scenario = n_four_bar.scenario(2, t1=1.0)
    ts = jnp.linspace(0.0, 1.0, 5)
    m = jax.eval_shape(lambda: scenario.mechanism.terms(scenario.q0, scenario.v0, jnp.zeros(()))).b.shape[0]
    run = lambda formulation: ukjax.simulate(
        scenario.mechanism, scenario.q0, scenario.v0, ts, formulation=formulation, projection=ukjax.Projection()
    )
    one = run(ukjax.UdwadiaKalaba())
    for expand in (False, None):
        levels = run(Recursive((m // 2, m - m // 2), expand=expand))
        assert_close(levels.q, one.q, atol=1e-7)
        assert set(np.asarray(levels.rank).tolist()) == set(np.asarray(one.rank).tolist())


def test_projector_takes_an_acceleration_to_its_free_part():
    M, Q, A, b = terms(6)
    level = enforced(M, Q, A, b, (2, 3))[-1]
    assert_close(A @ level.projector, np.zeros((5, 6)), atol=1e-11)
    assert_close(jnp.trace(level.projector), 3.0, atol=1e-12)


def test_the_rank_test_of_a_lineax_solver_is_the_default():
    # The second row is off the first by an angle within the tolerance, but far above rounding.
    A, b = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1e-6]]), np.zeros(2)
    mechanism = system_of(np.diag([1.0, 2.0, 3.0]), np.array([1.0, 2.0, -9.81]), A, b)
    state = (jnp.zeros(3), jnp.zeros(3))
    for solver in (ukjax.SVD(), lx.SVD()):
        formulation = Recursive((1, 1), pseudoinverse=solver)
        motion = ukjax.equation_of_motion(mechanism, *state, formulation=formulation, throw=False)
        assert motion.rank == 1
        assert_close(motion.acceleration, [-1 / 3, 1 / 3, -3.27], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: Recursive(()), "levels must be numbers of rows"),
        (lambda: Recursive((1, 0)), "levels must be numbers of rows"),
        (lambda: Recursive((1, 2.0)), "levels must be numbers of rows"),
        (lambda: Recursive((1, 2), expand="yes"), "expand must be True, False or None, but is 'yes'"),
        (lambda: Recursive((1, 2), (1.0,)), "noise must hold one entry for each of the 2 levels"),
        (lambda: Recursive((1, 2), (None, -1.0)), r"noise\[1\] must be symmetric and not negative"),
        (lambda: Recursive((2,), (jnp.ones(3),)), r"noise\[0\] must be a scalar or have shape \(2,\)"),
        (lambda: Recursive((2,), (jnp.inf,)), r"noise\[0\] must be finite"),
        (lambda: Level.start(jnp.eye(2), jnp.zeros(3)), r"M must have shape \(n, n\)"),
        (lambda: Level.start(jnp.eye(2), jnp.zeros(2)).enforce(jnp.ones((1, 3)), jnp.ones(1)), r"A must have"),
        (lambda: Level.start(jnp.eye(2), jnp.zeros(2)).enforce(jnp.ones((1, 2)), jnp.ones(2)), r"b must have"),
        (
            lambda: ukjax.equation_of_motion(
                ukjax.Mechanism(falling(), rod()), [1.0, 0.0], [0.0, 0.0], formulation=Recursive((2,))
            ),
            r"levels must add up to the 1 rows",
        ),
    ],
)  # fmt: skip
def test_senseless_levels_are_named(call, match):
    with pytest.raises(ValueError, match=match):
        call()


def test_a_level_is_a_pytree_that_batches():
    M, Q, A, b = terms(7)
    batch = jax.jit(jax.vmap(lambda Q: by_levels(M, Q, A, b, (2, 3))[-1].acceleration))(jnp.stack([Q, 2 * Q]))
    assert_close(batch[0], enforced(M, Q, A, b, (2, 3))[-1].acceleration, atol=1e-12)
    assert eqx.is_array(jax.tree_util.tree_leaves(Level.start(M, Q))[0])
