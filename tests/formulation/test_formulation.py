"""Every formulation with every pseudoinverse, on one table of systems."""

import functools as ft
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models.parallelogram import scenario as parallelogram
from models.scara import scenario as scara
from ukjax import RESULTS

from ..helpers import (
    FORMULATIONS,
    STRATEGIES,
    assert_close,
    falling,
    name_of,
    random_mechanism,
    random_state,
    rod,
    sampled,
)


every_formulation = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.__name__)
# One for M > 0 and one for any M; the others in the long run.
one_of_each = pytest.mark.parametrize(
    "formulation", sampled(FORMULATIONS, ["UdwadiaKalaba", "PennestriDeFalco"], name_of)
)
every_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)


def pair(formulation, strategy):
    """A parameter; what has neither the usual formulation nor a usual pseudoinverse is long."""
    is_batched = isinstance(strategy, (ukjax.pseudoinverse.Jacobi, ukjax.pseudoinverse.RowGramSchmidt))
    usual = isinstance(strategy, ukjax.SVD) or (formulation is ukjax.UdwadiaKalaba and is_batched)
    name = f"{type(strategy).__name__}-{formulation.__name__}"
    return pytest.param(formulation, strategy, id=name, marks=[] if usual else [pytest.mark.long])


every_pair = pytest.mark.parametrize(
    ("formulation", "strategy"), [pair(f, s) for s in STRATEGIES for f in FORMULATIONS]
)


class Case(NamedTuple):
    """Terms along a path s on which the rank is constant; what a test differentiates."""

    terms: Callable  # (s) -> (M (4, 4), Q (4,), A (6, 4), b (6,))
    rank: int


def _rows(A, b):
    """Six rows, those missing being zero: so that all cases share one compiled function."""
    return jnp.zeros((6, 4)).at[: A.shape[0]].set(A), jnp.zeros(6).at[: b.shape[0]].set(b)


def _random(m, copies, mass, seed=0):
    rng = np.random.default_rng(seed)
    A0, A1, K = rng.normal(size=(m, 4)), rng.normal(size=(m, 4)), rng.normal(size=(4, 4))
    Q0, Q1, b0, b1 = rng.normal(size=4), rng.normal(size=4), rng.normal(size=m), rng.normal(size=m)
    scales = np.repeat([1.0, -3.0, 0.01][:copies], m)

    def terms(s):
        A, b = jnp.tile(A0 + s * A1, (copies, 1)) * scales[:, None], jnp.tile(b0 + s * b1, copies) * scales
        return mass(K, s), Q0 + s * Q1, *_rows(A, b)

    return terms


def _spread(K, s):
    """Condition number 1e4, turning with s."""
    X = (jnp.eye(4) + s * (K - K.T)) @ np.linalg.qr(K)[0]
    return X @ jnp.diag(jnp.geomspace(1.0, 1e4, 4)) @ X.T


def _repeated_singular_values(s):
    # B = A / sqrt(2) has two singular values in pairs, because of a row that is the sum of two.
    c, z = jnp.cos(s), jnp.sin(s)
    A = jnp.array([[c, z, 0.0, 0.0], [-z, c, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    return 2.0 * jnp.eye(4), jnp.array([1.0, 2.0 + s, 3.0, 1.0]), *_rows(A, jnp.array([1.0, 1.0, 2.0]))


def _unequal_rows(s):
    # One row in micrometres, one in kilometres.
    A = jnp.array([[1e6, 2e6, 0.0, 0.0], [1e-3, 0.0, (1 + s) * 1e-3, 1e-3]])
    M = jnp.diag(jnp.array([1.0, 2.0, 0.5, 1.0]))
    return M, jnp.array([0.0, 1.0, s, 1.0]), *_rows(A, jnp.array([1e6, 2e-3]))


def _scara(s):
    case = scara("printed")
    t = case.mechanism.terms(case.q0 + s, case.v0 * (1 + s), jnp.asarray(0.0))
    return t.M, t.Q, jnp.concatenate([t.A, 3 * t.A[:2]]), jnp.concatenate([t.b, 3 * t.b[:2]])


regular = lambda K, s: K @ K.T + (3 + s) * jnp.eye(4)
CASES = {
    "full rank": Case(_random(2, 1, regular), 2),
    "as many rows as coordinates": Case(_random(4, 1, regular), 4),
    "more rows than coordinates": Case(_random(3, 2, regular), 3),
    "redundant rows": Case(_random(2, 3, regular), 2),
    "M = m I": Case(_random(2, 2, lambda K, s: (2 + s) * jnp.eye(4)), 2),
    "ill-conditioned M": Case(_random(2, 2, _spread), 2),
    "repeated singular values": Case(_repeated_singular_values, 3),
    "unequal rows": Case(_unequal_rows, 2),
    "SCARA, two rows twice": Case(_scara, 4),
}


motion_of = eqx.filter_jit(ukjax.equation_of_motion)


@ft.cache
def compiled(formulation, strategy):
    return jax.jit(lambda M, Q, A, b: formulation(strategy).solve(ukjax.Terms(M, Q, A, b)))


def reference(M, Q, A, b):
    """The literal formula with M^{1/2}, in NumPy."""
    M, Q, A, b = (np.asarray(x) for x in (M, Q, A, b))
    values, vectors = np.linalg.eigh(M)
    inverse = vectors @ np.diag(values**-0.5) @ vectors.T
    length = np.linalg.norm(A @ inverse, axis=1)
    scale = 1 / np.where(length > 0, length, 1)
    a = np.linalg.solve(M, Q)
    return a + inverse @ np.linalg.pinv(scale[:, None] * (A @ inverse), rcond=1e-6) @ (scale * (b - A @ a))


def to_terms(arrays, nonideal=None):
    return ukjax.Terms(*arrays, nonideal)


@every_pair
def test_one_acceleration_and_the_right_rank(formulation, strategy):
    for name, (terms, rank) in CASES.items():
        arrays = [jnp.asarray(x) for x in terms(0.0)]
        M, Q, _, _ = arrays
        motion, want = compiled(formulation, strategy)(*arrays), reference(*arrays)
        assert np.max(np.abs(motion.acceleration - want)) <= 1e-10 * (1 + np.max(np.abs(want))), name
        assert int(motion.rank) == rank, name
        assert bool(motion.result == RESULTS.successful), name
        assert_close(M @ motion.acceleration - Q, motion.constraint_force, atol=1e-8 * float(jnp.max(jnp.abs(M))))


@pytest.mark.long
@every_strategy
def test_the_parallelogram(strategy):
    check_parallelogram(ukjax.UdwadiaKalaba, strategy)


@one_of_each
def test_the_parallelogram_by_every_formulation(formulation):
    check_parallelogram(formulation, ukjax.pseudoinverse.RowGramSchmidt())


def check_parallelogram(formulation, strategy):
    case = parallelogram()
    q, v = case.mechanism.system.state(jnp.asarray(-0.7), jnp.asarray(2.0))
    motion = motion_of(case.mechanism, q, v, formulation=formulation(strategy))
    assert_close(motion.acceleration[2], jnp.asarray(-3.5 * 9.81 / 3.05 * np.cos(-0.7)), atol=1e-10)
    assert int(motion.rank) == 11


@ft.cache
def _curves(formulation, strategy):
    """acceleration . w along a path, and its derivatives: forward, reverse, and reverse over reverse.

    The path goes in by its terms and their first two derivatives, so that all cases share one compiled function.
    """

    def curves(terms, slope, bend):
        at = lambda s: jax.tree_util.tree_map(lambda x, y, z: x + s * y + s**2 * z / 2, terms, slope, bend)
        f = lambda s: WEIGHTS @ formulation(strategy).solve(ukjax.Terms(*at(s))).acceleration
        s = jnp.zeros(())
        return f(s), jax.jvp(f, (s,), (jnp.ones(()),))[1], jax.grad(f)(s), jax.grad(jax.grad(f))(s)

    return jax.jit(curves)


def _path(name, s=0.0):
    terms, s = CASES[name].terms, jnp.asarray(s)
    return terms(s), jax.jacfwd(terms)(s), jax.jacfwd(jax.jacfwd(terms))(s)


WEIGHTS = jnp.array([1.0, -0.5, 0.3, 2.0])
GRADIENTS = ["redundant rows", "M = m I", "ill-conditioned M", "repeated singular values"]


@pytest.mark.long
@every_formulation
@every_strategy
def test_one_gradient_of_every_order_and_mode(formulation, strategy):
    for name in GRADIENTS:
        got = [float(x) for x in _curves(formulation, strategy)(*_path(name))]
        want = [float(x) for x in _curves(ukjax.UdwadiaKalaba, ukjax.SVD())(*_path(name))]
        size = 1 + np.abs(want)
        assert np.all(np.isfinite(got)), name
        assert np.all(np.abs(np.subtract(got, want)) <= [1e-10, 1e-8, 1e-8, 1e-6] * size), (name, got, want)


def check_gradients(formulation, strategy, name, h=1e-5):
    """Forward, reverse and second derivative against central differences along the path itself."""
    curves, value = _curves(formulation, strategy), compiled(formulation, strategy)
    at = lambda s: float(WEIGHTS @ value(*(jnp.asarray(x) for x in CASES[name].terms(s))).acceleration)
    slope = lambda s: float(curves(*_path(name, s))[2])
    _, forward, reverse, second = (float(x) for x in curves(*_path(name)))
    assert forward == pytest.approx(reverse, rel=1e-8, abs=1e-8)
    assert reverse == pytest.approx((at(h) - at(-h)) / (2 * h), rel=1e-6, abs=1e-6)
    assert second == pytest.approx((slope(h) - slope(-h)) / (2 * h), rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.long] if "SCARA" in x else []) for x in CASES])
def test_the_gradient_against_differences(name):
    check_gradients(ukjax.UdwadiaKalaba, ukjax.SVD(), name)


@pytest.mark.long
@every_formulation
def test_the_gradient_of_every_formulation_against_differences(formulation):
    for name in CASES:
        check_gradients(formulation, ukjax.pseudoinverse.RowGramSchmidt(), name)


@every_pair
def test_order_and_scaling_of_rows_change_nothing(formulation, strategy):
    M, Q, A, b = (jnp.asarray(x) for x in CASES["redundant rows"].terms(0.0))
    want = reference(M, Q, A, b)
    rng = np.random.default_rng(0)
    for _ in range(3):
        order, scale = rng.permutation(6), jnp.asarray(10.0 ** rng.uniform(-3, 3, 6))
        got = compiled(formulation, strategy)(M, Q, scale[:, None] * A[order], scale * b[order])
        assert_close(got.acceleration, jnp.asarray(want), atol=1e-10)
        assert int(got.rank) == 2


@every_pair
def test_contradictory_rows_are_reported(formulation, strategy):
    M, Q, A, b = (jnp.asarray(x) for x in CASES["redundant rows"].terms(0.0))
    solve = compiled(formulation, strategy)
    assert bool(solve(M, Q, A, b).result == RESULTS.successful)
    for size in (1.0, 1e-2, 1e-4):
        for row in (0, 3, 5):
            assert bool(solve(M, Q, A, b.at[row].mul(1 + size)).result == RESULTS.constraints_contradict)


@one_of_each
def test_a_contradiction_raises_through_the_front_door(formulation):
    rows = [ukjax.AccelerationConstraint(lambda q, v, t: jnp.ones((1, 2)), lambda q, v, t, b=b: b * jnp.ones(1))
            for b in (1.0, 2.0)]  # fmt: skip
    with pytest.raises(RuntimeError, match="contradict"):
        ukjax.equation_of_motion(ukjax.Mechanism(falling(), rows), [0.0, 0.0], [0.0, 0.0], formulation=formulation())


@one_of_each
def test_a_negative_mass_and_a_nan_are_reported(formulation):
    M, Q, A, b = (jnp.asarray(x) for x in CASES["full rank"].terms(0.0))
    motion = compiled(formulation, ukjax.SVD())(M - 20 * jnp.eye(4), Q, A, b)
    assert bool(motion.result == RESULTS.mass_not_positive_definite)
    assert np.all(np.isnan(motion.acceleration))
    motion = compiled(formulation, ukjax.SVD())(M, Q * jnp.nan, A, b)
    assert bool(motion.result == RESULTS.not_finite)
    # The gradient of a state that is all right does not notice the failure beside it.
    f = lambda Q: jnp.sum(jnp.nan_to_num(formulation().solve(to_terms((M, Q, A, b))).acceleration))
    assert np.all(np.isfinite(jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([Q, Q * jnp.nan]))[0]))


@every_formulation
def test_what_is_no_pseudoinverse_is_named(formulation):
    for bad in ("SVD", ukjax.SVD, None):
        with pytest.raises(TypeError, match="AbstractLinearSolver"):
            formulation(bad)
    with pytest.raises(ValueError, match="consistency_rtol must not be negative"):
        formulation(consistency_rtol=-1.0)


@every_formulation
def test_no_constraint_at_all(formulation):
    M, Q, A, b = (jnp.asarray(x) for x in CASES["full rank"].terms(0.0))
    motion = compiled(formulation, ukjax.SVD())(M, Q, A[:0], b[:0])
    assert_close(motion.acceleration, jnp.linalg.solve(M, Q), atol=1e-12)
    assert int(motion.rank) == 0


@one_of_each
def test_the_non_ideal_force_acts_through_its_projection(formulation):
    # Liu et al. (2015), eq. 12 and 13, literally.
    M, Q, A, b = (np.asarray(x) for x in CASES["redundant rows"].terms(0.0))
    c = np.array([0.3, -2.0, 1.0, 0.7])
    values, vectors = np.linalg.eigh(M)
    half, inverse = (vectors @ np.diag(values**p) @ vectors.T for p in (0.5, -0.5))
    B = A @ inverse
    P = np.linalg.pinv(B, rcond=1e-6)
    ideal = half @ P @ (b - A @ np.linalg.solve(M, Q))
    nonideal = half @ (np.eye(4) - P @ B) @ inverse @ c
    seen = []
    friction = lambda force: (seen.append(force), jnp.asarray(c))[1]
    motion = formulation().solve(to_terms([jnp.asarray(x) for x in (M, Q, A, b)], friction))
    assert_close(seen[0], jnp.asarray(ideal), atol=1e-9)
    assert_close(motion.constraint_force, jnp.asarray(ideal), atol=1e-9)
    assert_close(motion.nonideal_force, jnp.asarray(nonideal), atol=1e-9)
    assert_close(motion.acceleration, jnp.linalg.solve(M, Q + ideal + nonideal), atol=1e-9)


@every_formulation
def test_a_formulation_takes_any_lineax_solver(formulation):
    import lineax as lx

    M, Q, A, b = (jnp.asarray(x) for x in CASES["full rank"].terms(0.0))
    want = formulation().solve(to_terms((M, Q, A, b)))
    got = formulation(lx.SVD()).solve(to_terms((M, Q, A, b)))
    assert_close(got.acceleration, want.acceleration, atol=1e-10)
    assert int(got.rank) == 2


@ft.cache
def _made_up():
    mechanism = random_mechanism(1, copies=2)
    q, v, _ = random_state(2)
    return mechanism, *ukjax.assemble(mechanism, q, v)


@pytest.mark.long
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_batches_are_the_loop(formulation):
    mechanism, q, v = _made_up()
    one = lambda q, v: ukjax.equation_of_motion(
        mechanism, q, v, formulation=formulation(ukjax.pseudoinverse.RowGramSchmidt()), throw=False
    )
    batch = jax.jit(jax.vmap(one))(jnp.stack([q, q]), jnp.stack([v, 0 * v])).acceleration
    for got, rate in zip(batch, (v, 0 * v), strict=True):
        assert_close(got, motion_of(mechanism, q, rate).acceleration, atol=1e-9)


@pytest.mark.long
def test_the_window_around_a_singular_configuration_is_no_contradiction():
    # As the rods come into line a singular value passes zero; inside of the rank tolerance the rows cannot be met, and
    # the constraints still do not contradict each other.
    case = parallelogram("crossing")
    state = case.mechanism.system.state
    solve = eqx.filter_jit(lambda q, v: ukjax.equation_of_motion(case.mechanism, q, v, throw=False))
    ranks = set()
    for theta in (0.0, 1e-9, -1e-7, 3e-6, 1e-5, -1e-4, 3e-4, 1e-2):
        motion = solve(*state(jnp.asarray(theta), jnp.asarray(4.0)))
        assert bool(motion.result == RESULTS.successful), theta
        assert_close(motion.acceleration[2], jnp.asarray(-3.5 * 9.81 / 3.05 * np.cos(theta)), atol=1e-6)
        ranks.add(int(motion.rank))
    assert ranks == {10, 11}


@pytest.mark.long
def test_rows_that_a_formulation_sees_are_those_of_the_mechanism():
    twice = ukjax.Mechanism(falling(), [rod(), rod()])
    for formulation in FORMULATIONS:
        motion = ukjax.equation_of_motion(twice, [1.0, 0.0], [0.0, 2.0], formulation=formulation())
        assert_close(motion.acceleration, jnp.array([-4.0, -9.81]), atol=1e-12)
        assert int(motion.rank) == 1
