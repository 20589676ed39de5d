"""The verdict on rows and rank: what is missed is no success, whatever the masses, the units and the other rows."""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import ukjax
from ukjax import RESULTS

from ..helpers import assert_close, assert_gradients, falling, long


DEFINITE = [
    pytest.param(ukjax.UdwadiaKalaba(), id="UdwadiaKalaba"),
    pytest.param(ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()), id="RowGramSchmidt"),
    long(ukjax.UdwadiaKalaba(ukjax.pseudoinverse.Jacobi()), id="Jacobi"),
    long(ukjax.formulation.RangeSpace(), id="RangeSpace"),
    long(ukjax.formulation.Recursive((2, 3), expand=False), id="Recursive"),
]
SINGULAR = [
    long(ukjax.formulation.PennestriDeFalco(), id="PennestriDeFalco"),
    long(ukjax.formulation.UdwadiaPhohomsiri(), id="UdwadiaPhohomsiri"),
    long(ukjax.formulation.LagrangeMultiplier(), id="LagrangeMultiplier"),
    long(ukjax.formulation.KernelProjection(), id="KernelProjection"),
]
every_formulation = pytest.mark.parametrize("formulation", [*DEFINITE, *SINGULAR])
every_definite = pytest.mark.parametrize("formulation", DEFINITE)


@eqx.filter_jit
def solved(formulation, M, Q, A, b):
    """The motions of a batch; four coordinates and five rows always, so that all tests share one program."""
    motion = jax.vmap(lambda M, Q, A, b: formulation.solve(ukjax.Terms(M, Q, A, b)))(M, Q, A, b)
    return motion.acceleration, motion.rank, motion.result == RESULTS.successful


def solve(formulation, terms):
    """Accelerations, ranks and successes of a list of (masses, Q, A, b), filled up with what changes nothing."""
    M, Q, A, b = np.tile(np.eye(4), (64, 1, 1)), np.zeros((64, 4)), np.zeros((64, 5, 4)), np.zeros((64, 5))
    for i, (masses, force, rows, values) in enumerate(terms):
        n, m = len(masses), len(values)
        M[i] *= max(masses)
        M[i, :n, :n], Q[i, :n], A[i, :m, :n], b[i, :m] = np.diag(masses), force, rows, values
    got = solved(formulation, *(jnp.asarray(x) for x in (M, Q, A, b)))
    return [np.asarray(x)[: len(terms)] for x in got]


@every_formulation
def test_a_light_mass_drops_no_row(formulation):
    """q1'' + q2'' = 2 and q1'' - q2'' = 0: both are one, whatever the masses and the forces."""
    rows, values = [[1, 1], [1, -1]], [2, 0]
    ratios = [1.0, 1e-4, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-14]
    cases = [((1, r), force, rows, values) for r in ratios for force in ((0, 0), (3, r), (0, 5 * r**0.5))]
    acceleration, rank, success = solve(formulation, cases)
    assert success.all()
    assert rank.tolist() == [2] * len(cases)
    assert_close(acceleration[:, :2], np.ones((len(cases), 2)), atol=1e-5)


@every_definite
def test_a_direction_that_vanishes_next_to_a_singular_configuration_stays_dropped(formulation):
    """Two rods in line but for an angle s: q1'' = 1 is theirs; q2'' = 0.5 keeps what the force makes of it."""
    angles = [0.0, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 3e-5]
    cases = [((1, 1), (0, 0.5), [[1, s], [1, -s]], [1 + s, 1 - s]) for s in angles]
    acceleration, rank, success = solve(formulation, cases)
    assert success.all()
    assert rank.tolist() == [1] * len(angles)
    assert_close(acceleration[:, :2], np.tile([1.0, 0.5], (len(angles), 1)), atol=1e-4)


@every_formulation
def test_redundant_rows_that_have_drifted_are_consistent(formulation):
    rng = np.random.default_rng(0)
    A0, b0, masses, force = rng.normal(size=(2, 4)), rng.normal(size=2), (1, 2, 0.3, 1), rng.normal(size=4)
    A, b = np.concatenate([A0, A0[:1] + A0[1:], 2 * A0[:1]]), np.concatenate([b0, [b0.sum(), 2 * b0[0]]])
    cases = [(masses, force, A, b)]
    for drift in 10.0 ** np.arange(-10, -6):
        cases.append((masses, force, A + drift * rng.normal(size=A.shape), b + drift * rng.normal(size=4)))
    acceleration, rank, success = solve(formulation, cases)
    assert success.all()
    assert rank.tolist() == [2] * len(cases)
    assert_close(acceleration, np.tile(acceleration[0], (len(cases), 1)), atol=1e-5)


@every_formulation
def test_rows_that_have_nothing_to_do_with_it_hide_no_contradiction(formulation):
    """Two rows at an angle of 1e-6, and two that contradict each other by 1e-2 in another coordinate."""
    pair = [[1, 0, 0, 0], [1, 1e-6, 0, 0]]
    cases = []
    for size in (1e-2, 1e-3, 1e-4, 1e-5):
        for force in ((0, 1, 0, 0), (0, 1e3, 0, 1), (1, 1e5, 0, 0)):
            rows = [*pair, [0, 0, 1, 0], [0, 0, 1, 0]]
            cases.append(((1, 1, 1, 1), force, rows, [1, 1, 1, 1 + size]))
    assert not solve(formulation, cases)[2].any()
    # Nor does a large force, which the rows take.
    held = [((1, 1, 1, 1), (0, 0, 1e6, 0), [[0, 0, 1, 0], [0, 0, 1, 0]], [1, 1 + size]) for size in (1e-2, 1e-4, 1e-5)]
    assert not solve(formulation, held)[2].any()


@every_formulation
def test_a_short_row_is_a_row(formulation):
    """The second row is 1e-2 off the first in direction, and shorter by up to 13 decades."""
    sizes = [1.0, 1e-4, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-13, 1e4, 1e9]
    cases = [((1, 1), (0, 0), [[1, 0], [s, 1e-2 * s]], [0, 1e-2 * s]) for s in sizes]
    acceleration, rank, success = solve(formulation, cases)
    assert success.all()
    assert rank.tolist() == [2] * len(sizes)
    assert_close(acceleration[:, :2], np.tile([0.0, 1.0], (len(sizes), 1)), atol=1e-9)
    # What is as short as rounding errors is not taken for a row; but to miss it is no success either.
    tiny = [((1, 1), (0, 0), [[1, 0], [s, 1e-2 * s]], [0, 1e-2 * s]) for s in (1e-17, 1e-18, 1e-25)]
    assert not solve(formulation, tiny)[2].any()


def in_units(case, mass, length, time):
    """The same mechanism in other units; its last coordinate is an angle, its rows have units of their own."""
    masses, force, rows, values = (np.asarray(x, float) for x in case)
    units = np.array([length] * (len(masses) - 1) + [1.0])  # of the coordinates
    of_rows = length ** np.arange(len(values))
    return (
        masses * mass * length**2 / units**2,
        force * mass * length**2 / time**2 / units,
        rows * of_rows[:, None] / units[None],
        values * of_rows / time**2,
    )


CASES = {
    "consistent": ((1, 2, 0.5), (1, 0, 3), [[1, 2, 0.5], [0, 1, 1]], [1, 2]),
    "redundant": ((1, 2, 0.5), (1, 0, 3), [[1, 2, 0.5], [0, 1, 1], [1, 3, 1.5]], [1, 2, 3]),
    "contradictory": ((1, 2, 0.5), (1, 0, 3), [[1, 2, 0.5], [0, 1, 1], [1, 3, 1.5]], [1, 2, 3.0001]),
    "just not": ((1, 2, 0.5), (1, 0, 3), [[1, 2, 0.5], [0, 1, 1], [1, 3, 1.5]], [1, 2, 3.000001]),
    "singular": ((1, 1, 1), (0, 0.5, 1), [[1, 1e-5, 0.1], [1, -1e-5, 0.1]], [1.00001, 0.99999]),
    "light": ((1, 1e-9, 1), (0, 0, 1), [[1, 1, 0], [1, -1, 0], [0, 0, 1]], [2, 0, 1]),
    "hidden": ((1, 1, 1), (0, 1e3, 0), [[1, 0, 0], [1, 1e-6, 0], [0, 0, 1], [0, 0, 1]], [1, 1, 1, 1.001]),
}


@every_definite
def test_units_change_neither_verdict_nor_rank(formulation):
    scales = [(1, 1, 1), (1e3, 1, 1), (1e-3, 1, 1), (1, 1e3, 1), (1, 1e-3, 1), (1, 1, 1e3), (1e-3, 1e3, 1e-3)]
    for name, case in CASES.items():
        _, rank, success = solve(formulation, [in_units(case, *scale) for scale in scales])
        assert len(set(rank.tolist())) == 1, (name, rank)
        assert len(set(success.tolist())) == 1, (name, success)
        assert success[0] == (name not in ("contradictory", "hidden")), name


@pytest.mark.parametrize("formulation", SINGULAR)
def test_units_change_nothing_where_coordinates_have_one_unit(formulation):
    scales = [(1, 1, 1), (1e3, 1, 1), (1e-3, 1, 1), (1, 1, 1e3), (1e-3, 1, 1e-3)]
    for name, case in CASES.items():
        _, rank, success = solve(formulation, [in_units(case, *scale) for scale in scales])
        assert len(set(rank.tolist())) == 1, (name, rank)
        assert len(set(success.tolist())) == 1, (name, success)


def made_up(count, seed):
    """Masses over ten decades, three rows and two that depend on them, scaled over eighteen; some contradict.

    Returns M, Q, A, b and by which part of its terms a row was made to contradict, zero for none.
    """
    rng = np.random.default_rng(seed)
    K, sizes = rng.normal(size=(count, 4, 4)), 10 ** (rng.uniform(-5, 5, (count, 4)) / 2)
    M = sizes[:, :, None] * (np.eye(4) + 0.2 * K @ K.transpose(0, 2, 1)) * sizes[:, None]
    A = np.where(rng.uniform(size=(count, 5, 4)) < 0.7, rng.normal(size=(count, 5, 4)), 0)
    A[:, 3:] = np.einsum("ikj,ijl->ikl", rng.integers(-2, 3, (count, 2, 3)), A[:, :3])
    q = rng.normal(size=(count, 4))
    b, terms = np.einsum("ijk,ik->ij", A, q), np.einsum("ijk,ik->ij", np.abs(A), np.abs(q))
    wrong = np.where(rng.uniform(size=count) < 0.3, 10 ** rng.uniform(-3, 0, count), 0.0)
    which = rng.integers(3, 5, count)
    b[np.arange(count), which] += wrong * terms[np.arange(count), which]
    Q = np.einsum("ijk,ik->ij", M, rng.normal(size=(count, 4)) * 10 ** rng.uniform(-3, 3, (count, 1)))
    scale = 10 ** rng.uniform(-9, 9, (count, 5))
    return M, Q, A * scale[:, :, None], b * scale, wrong


def exact(M, Q, A, b):
    """q'' for independent rows, with eighty digits."""
    with mpmath.workdps(80):
        M, Q, A, b = (mpmath.matrix(x.tolist()) for x in (M, Q, A, b))
        inverse = M**-1
        a = inverse * Q
        return np.array([float(x) for x in a + inverse * A.T * mpmath.lu_solve(A * inverse * A.T, b - A * a)])


def check_made_up(formulation, count, seed, compared):
    M, Q, A, b, wrong = made_up(count, seed)
    acceleration, _, success = (np.asarray(x) for x in solved(formulation, *(jnp.asarray(x) for x in (M, Q, A, b))))
    wide = [x.astype(np.longdouble) for x in (A, acceleration, b)]
    error = np.abs(np.einsum("ijk,ik->ij", wide[0], wide[1]) - wide[2])
    terms = np.abs(b) + np.einsum("ijk,ik->ij", np.abs(A), np.abs(acceleration))
    part = np.max(error / np.where(terms > 0, terms, 1), axis=1)
    # Ten times the rank tolerance, next to a singular configuration, is the most that a success may miss.
    assert np.max(part[success]) < 1.1e-3, np.argmax(np.where(success, part, 0))
    assert np.mean(part[success] > 1e-6) < 5e-3
    assert np.mean(success[wrong == 0]) > 0.95
    assert np.mean(success[wrong > 0]) < 0.02
    lengths = np.linalg.norm(A[:, :3], axis=2, keepdims=True)
    angles = np.linalg.svd(A[:, :3] / np.where(lengths > 0, lengths, 1), compute_uv=False)[:, -1]
    for i in np.flatnonzero(success & (wrong == 0) & (angles > 1e-2) & (part < 1e-6))[:compared]:
        want = exact(M[i], Q[i], A[i, :3], b[i, :3])
        assert np.max(np.abs(acceleration[i] - want)) <= 1e-5 * np.max(np.abs(want)), i


@every_definite
def test_no_success_misses_a_row(formulation):
    check_made_up(formulation, 64, 0, 5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@every_formulation
def test_no_success_misses_a_row_in_thousands_of_mechanisms(formulation, seed):
    check_made_up(formulation, 4096, seed + 1, 50)


def test_the_batch_decides_for_each_member():
    """A member that needs the finer decision changes nothing about its neighbours, to the last bit."""
    plain = ((1, 1), (0, 1), [[1, 1e-7], [1, 0]], [1, 1])
    light = ((1, 1e-9), (0, 0), [[1, 1], [1, -1]], [2, 0])
    alone = solve(ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()), [plain, plain])[0]
    beside = solve(ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt()), [plain, light])[0]
    assert alone[0].tolist() == beside[0].tolist()
    assert_close(beside[1, :2], np.ones(2), atol=1e-9)


class Turning(eqx.Module):
    """The acceleration of the light mass, with rows that turn with s."""

    def __call__(self, s):
        A = jnp.array([[1.0, 0.0], [1.0, -1.0]]).at[0, 1].set(1 + s)
        terms = ukjax.Terms(jnp.diag(jnp.array([1.0, 1e-9])), jnp.zeros(2), A, jnp.array([2.0, 0.0]))
        return ukjax.UdwadiaKalaba().solve(terms).acceleration[1]


def test_the_gradient_is_that_of_the_rank_that_was_decided():
    # q1'' = q2'' = 2 / (2 + s)
    # Masses nine decades apart cost nine digits of the sixteen, in each mode other ones.
    assert_gradients(Turning(), jnp.asarray(0.0), rtol=1e-6, atol=1e-6)
    assert_close(jax.jit(jax.grad(Turning()))(jnp.asarray(0.0)), jnp.asarray(-0.5), atol=1e-6)


def test_a_factorisation_serves_every_force():
    formulation = ukjax.UdwadiaKalaba()
    rng = np.random.default_rng(1)
    A = jnp.asarray(rng.normal(size=(3, 4))).at[2].set(0.0)
    M, force, b = jnp.diag(jnp.array([1.0, 2.0, 0.5, 1.0])), jnp.asarray(rng.normal(size=4)), jnp.array([1.0, 2.0, 0.0])
    state = jax.jit(formulation.init)(ukjax.Terms(M, jnp.zeros(4), A, b))
    response = jax.jit(formulation.compute)(state, force, b)
    want = jax.jit(formulation.solve)(ukjax.Terms(M, force, A, b))
    assert_close(response.acceleration, want.acceleration, atol=1e-12)
    assert_close(response.constraint_force, want.constraint_force, atol=1e-12)
    assert int(response.rank) == 2
    twice = jax.jit(formulation.compute)(state, 2 * force, 2 * b)
    assert_close(twice.acceleration, 2 * want.acceleration, atol=1e-12)


def test_diagnose_says_what_the_equation_of_motion_does():
    """A row that the rank test once took for rounding, and another command did not."""
    matrix = jnp.array([[1.0, 0.0], [1e-10, 1e-12]])
    rows = ukjax.AccelerationConstraint(lambda q, v, t: matrix, lambda q, v, t: jnp.array([0.0, 1e-12]))
    mechanism = ukjax.Mechanism(falling(), rows)
    found = ukjax.diagnose(mechanism, jnp.zeros(2), jnp.zeros(2))
    motion = ukjax.equation_of_motion(mechanism, jnp.zeros(2), jnp.zeros(2))
    assert int(found.rank) == int(motion.rank) == 2
    assert found.redundant.tolist() == [False, False]
    assert_close(motion.acceleration, jnp.array([0.0, 1.0]), atol=1e-9)
