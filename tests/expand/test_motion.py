"""The motion as scalar code is the motion: values, rank, verdict and derivatives, alone and in a batch."""

import dataclasses
import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import coordinated_robots, parallelogram, scara, spherical_pendulum, unicycle
from ukjax import RESULTS

from .. import helpers
from ..helpers import (
    Falling,
    assert_close,
    central_difference,
    falling,
    long,
    pendulum,
    random_mechanism,
    rod,
    sampled,
    without_matrices,
)
from ..inside import evaluations


ON, OFF = ukjax.UdwadiaKalaba(expand=True), ukjax.UdwadiaKalaba(expand=False)
MECHANISMS = {
    "SCARA": lambda: (scara.scenario().mechanism, scara.scenario().q0),
    "robots": lambda: (coordinated_robots.scenario().mechanism, coordinated_robots.scenario().q0),
    "spherical pendulum": lambda: (spherical_pendulum.scenario().mechanism, spherical_pendulum.scenario().q0),
    "unicycle": lambda: (unicycle.scenario().mechanism, unicycle.scenario().q0),
    "random": lambda: (random_mechanism(3), jnp.zeros(5)),
    "random, redundant": lambda: (random_mechanism(3, copies=2), jnp.zeros(5)),
    "free": lambda: (ukjax.Mechanism(falling()), jnp.zeros(2)),
    "redundant": lambda: (pendulum(2), jnp.array([1.0, 0.0])),
}


@ft.cache
def states(name, size=6):
    mechanism, q0 = MECHANISMS[name]()
    rng = np.random.default_rng(0)
    n = q0.shape[0]
    q, v = q0[None] + 0.2 * jnp.asarray(rng.normal(size=(size, n))), jnp.asarray(rng.normal(size=(size, n)))
    return mechanism, q, v, jnp.asarray(rng.normal(size=size))


@eqx.filter_jit
def motions(mechanism, q, v, t, formulation):
    of = lambda q, v, t: ukjax.equation_of_motion(mechanism, q, v, t, formulation=formulation, throw=False)
    return jax.vmap(of)(q, v, t)


def assert_same(got, want, tolerance=1e-12):
    for name in ("acceleration", "unconstrained_acceleration", "constraint_force"):
        x, y = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
        assert_close(x, y, atol=tolerance * (1 + np.max(np.abs(y), initial=0.0)))
    assert np.array_equal(got.rank, want.rank)
    assert bool(jnp.all(got.result == want.result))


SHORT = ("SCARA",)


@pytest.mark.parametrize("name", sampled(MECHANISMS, SHORT))
def test_on_and_off_agree(name):
    mechanism, *state = states(name)
    assert_same(motions(mechanism, *state, ON), motions(mechanism, *state, OFF))
    alone = eqx.filter_jit(ukjax.equation_of_motion)(mechanism, *(x[0] for x in state), formulation=ON, throw=False)
    assert_same(alone, jax.tree_util.tree_map(lambda x: x[0], motions(mechanism, *state, OFF)))


@pytest.mark.parametrize("name", list(map(long, MECHANISMS)))
def test_gradients_on_and_off_agree(name):
    """With respect to the state, and to all parameters, which the whole batch shares."""
    mechanism, q, v, t = states(name)

    @eqx.filter_jit
    def gradients(mechanism, q, v, formulation):
        def loss(moving, rest):
            mechanism, q, v = eqx.combine(moving, rest)
            motion = motions(mechanism, q, v, t, formulation)
            return jnp.sum(jnp.sin(motion.acceleration)) + 1e-2 * jnp.sum(jnp.cos(motion.constraint_force))

        moving, rest = eqx.partition((mechanism, q, v), eqx.is_inexact_array)
        along = jax.tree_util.tree_map(jnp.cos, moving)
        reverse = jax.grad(loss)(moving, rest)
        return reverse, jax.jvp(lambda moving: loss(moving, rest), (moving,), (along,))[1], along

    (got, forward, along), (want, *_) = gradients(mechanism, q, v, ON), gradients(mechanism, q, v, OFF)
    helpers.assert_same_gradients(got, want, forward, along)


class TwoRods(eqx.Module):
    """Two rows that are one where q[0] = 0."""

    def __call__(self, q, t):
        return jnp.stack([q[1] + q[0] ** 2, q[1] - q[0] ** 2])


def three_rods(q, t):
    """Three rows that are one where q[0] = 0, each on its way elsewhere."""
    return jnp.stack([q[1] + q[0] ** 2, q[1] - q[2] * q[0] ** 2, 2 * q[1] + q[0] * q[2]])


@pytest.mark.long
@pytest.mark.parametrize(("rows", "twice"), [(three_rods, False), long(TwoRods(), True), long(three_rods, True)])
def test_derivatives_where_scalar_code_is_certain_of_none_or_of_the_value_only(rows, twice):
    """Beside states where it is; second derivatives `twice`."""
    system, at = Falling(jnp.asarray(2.0), jnp.asarray(9.81), 3), jnp.array([[0.4, 0.16, 1.0], [0.0, 0.0, 1.0]])
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(rows))

    def slopes(way):
        def accelerations(mechanism, q):
            return jnp.sin(motions(mechanism, q, 0.1 + 0 * q, 0 * q[:, 0], way).acceleration)

        loss = lambda mechanism, q: jnp.sum(accelerations(mechanism, q))
        along = jax.jvp(lambda q: accelerations(mechanism, q), (at,), (jnp.cos(at),))[1]
        second = jax.hessian(loss, argnums=1)(mechanism, at[1:2]) if twice else None
        return jax.grad(loss, argnums=(0, 1))(mechanism, at), along, second

    got, want = (jax.jit(slopes, static_argnums=0)(way) for way in (ON, OFF))
    for x, y in zip(*(jax.tree_util.tree_leaves(x) for x in (got, want)), strict=True):
        assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_the_gradient_is_that_of_differences_and_the_second_derivative_too():
    mechanism, q, v, t = states("random")
    of = lambda z: jnp.sum(
        jnp.sin(ukjax.equation_of_motion(mechanism, z[:5], z[5:], t[0], formulation=ON, throw=False).acceleration)
    )
    z = jnp.concatenate([q[0], v[0]])
    slope = jax.jit(jax.grad(of))
    assert_close(slope(z), central_difference(jax.jit(of), z, 1e-6)[0], rtol=1e-6, atol=1e-6)
    numeric = central_difference(slope, z, 1e-5)
    assert_close(jax.jit(jax.jacfwd(jax.grad(of)))(z), numeric, rtol=1e-5, atol=1e-4)
    assert_close(jax.jit(jax.jacrev(jax.grad(of)))(z), numeric, rtol=1e-5, atol=1e-4)


@pytest.mark.long
def test_in_a_batch_one_bad_state_changes_no_other():
    """A singular configuration, no mass, a NaN and a contradiction, each reported as it is without scalar code."""

    def mass(q, t):
        return jnp.diag(jnp.stack([q[2], jnp.ones(()), jnp.ones(())]))

    system = ukjax.System(mass, lambda q, v, t: -q)
    pushed = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(3)[2:], lambda q, v, t: q[:1] * 0 + 1.0)
    again = ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(3)[2:], lambda q, v, t: 1.0 + v[2:] * 0 + t)
    mechanism = ukjax.Mechanism(system, [ukjax.Holonomic(TwoRods()), pushed, again])
    good = jnp.array([0.4, 0.3, 1.2])
    q = jnp.stack([good, good.at[0].set(0.0), good.at[2].set(-1.0), good.at[1].set(jnp.nan), good, good])
    v, t = jnp.full((6, 3), 0.1).at[1, 0].set(0.0), jnp.array([0.0, 0.0, 0.0, 0.0, 0.5, 0.0])
    got, want = motions(mechanism, q, v, t, ON), motions(mechanism, q, v, t, OFF)
    assert bool(jnp.all(got.result == want.result))
    assert got.rank.tolist() == want.rank.tolist()
    names = ["successful", "successful", "mass_not_positive_definite", "not_finite", "constraints_contradict"]
    for i, name in enumerate(names):
        assert bool((got.result == getattr(RESULTS, name))[i]), name
    for i in (0, 1, 4, 5):
        assert_close(got.acceleration[i], want.acceleration[i], rtol=1e-11, atol=1e-11)
    assert np.all(np.isnan(got.acceleration[2:4]))

    def loss(q):
        accelerations = motions(mechanism, q, v, t, ON).acceleration
        return jnp.sum(jnp.where(jnp.array([True, False, False, False, False, True])[:, None], accelerations, 0.0))

    gradient = jax.jit(jax.grad(loss))(q)
    assert np.all(np.isfinite(gradient[jnp.array([0, 5])]))
    alone = jax.jit(jax.grad(lambda x: jnp.sum(motions(mechanism, x[None], v[:1], t[:1], OFF).acceleration)))(good)
    assert_close(gradient[5], alone, rtol=1e-9, atol=1e-9)


@pytest.fixture
def seen():
    """Of every scalar program that is evaluated, whether for a batch."""
    with evaluations("scalar_motion") as found:
        yield found


def test_where_it_is_used(seen):
    """By itself with the SVD and without non-ideal forces."""
    q, v = jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])
    batch = jnp.stack([q, q]), jnp.stack([v, v])

    def used(mechanism, in_batch, program=jax.jit, **options):
        seen.clear()
        of = lambda q, v: ukjax.equation_of_motion(mechanism, q, v, throw=False, **options).acceleration
        jax.block_until_ready(program(jax.vmap(of))(*batch) if in_batch else program(of)(q, v))
        return seen[-1:]

    def mechanism(**others):
        return ukjax.Mechanism(falling(), ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None]), **others)

    assert used(mechanism(), True) == [True]
    assert used(mechanism(), False) == [False]
    assert used(mechanism(), False, program=lambda plain: plain, formulation=ON) == [False]
    assert used(mechanism(), True, formulation=OFF) == []
    assert used(mechanism(), True, formulation=ukjax.UdwadiaKalaba(ukjax.pseudoinverse.RowGramSchmidt())) == []
    assert used(mechanism(nonideal=lambda q, v, t, force: -v), True) == []


def test_where_a_trajectory_uses_it(seen):
    """Its steps are loops, of which the scalar program is a part; what is saved is a batch."""
    ts, q = jnp.linspace(0.0, 0.1, 3), jnp.array([1.0, 0.0])
    run = lambda q, keep: ukjax.simulate(pendulum(), q, jnp.zeros(2), ts, throw=False, keep=keep).q
    for keep, batched in ((("q",), set()), (("q", "acceleration"), {True})):
        of = lambda q, keep=keep: run(q, keep)
        plain = of(q)
        assert set(seen) == batched
        seen.clear()
        assert_close(jax.jit(of)(q), plain, atol=1e-12)
        assert set(seen) <= batched  # a program that is known is not evaluated again
        seen.clear()


@pytest.mark.long
def test_rows_that_are_redundant_at_every_state_need_no_matrices():
    """Neither for the motion nor, where one row depends on the others, for its derivative."""
    case = parallelogram.scenario()
    run = case.simulate(jnp.linspace(0.0, 0.5, 6))
    states = run.q[1:], run.v[1:], run.t[1:]

    def found(way):
        of = lambda q, v, t: ukjax.equation_of_motion(case.mechanism, q, v, t, formulation=way, throw=False)
        slopes = jax.grad(lambda *state: jnp.sum(jnp.sin(of(*state).acceleration)), argnums=(0, 1))
        return jax.jit(jax.vmap(lambda *state: (of(*state), slopes(*state))))(*states)

    want, slopes = found(OFF)
    assert set(np.asarray(want.rank).tolist()) == {case.q0.shape[0] - 1}
    with without_matrices():
        got, same_slopes = found(ON)
    assert_same(got, want)
    for x, y in zip(same_slopes, slopes, strict=True):
        assert_close(x, y, atol=1e-10 * (1 + np.max(np.abs(y))))


class DependentRows(eqx.Module):
    """Nine rows, some more that are made of two of them, of other lengths, and four that are zero at every state."""

    C: jax.Array
    W: jax.Array
    # Of rows that are zero by numbers that scalar code does not know.
    scale: jax.Array

    def __call__(self, q, t):
        phi = jnp.sin(self.C @ q)
        more = jnp.geomspace(0.1, 20.0, len(self.W)) * (self.W @ phi[3:5])
        return jnp.concatenate([phi, more, self.scale * jnp.cos(q[:3]), jnp.zeros(1)])


def with_dependent_rows(count):
    rng, n = np.random.default_rng(count), 10
    K, C, W = (jnp.asarray(rng.normal(size=shape)) for shape in ((n, n), (9, n), (count, 2)))
    mass = lambda q, t: jnp.eye(n) + jnp.outer(jnp.cos(K @ q), jnp.cos(K @ q))
    rows = ukjax.Holonomic(DependentRows(C, W, jnp.zeros(3)))
    return ukjax.Mechanism(ukjax.System(mass, lambda q, v, t: jnp.sin(K @ q) - v), rows)


@pytest.mark.parametrize("count", [2, long(3)])
def test_derivatives_of_several_rows_that_depend_on_others(count):
    """Two of twelve rows and more need no matrices, nor do rows that are zero.

    The multipliers of least norm share the constraint force.
    """
    mechanism, rng = with_dependent_rows(count), np.random.default_rng(1)
    q, v, weights = (jnp.asarray(rng.normal(size=10)) for _ in range(3))

    def found(way):
        def loss(q, v, mechanism):
            motion = ukjax.equation_of_motion(mechanism, q, v, formulation=way, throw=False)
            return weights @ (jnp.sin(motion.acceleration) + motion.constraint_force), motion.rank

        slopes, rank = eqx.filter_jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(q, v, mechanism)
        along = eqx.filter_jit(
            lambda q, v, mechanism: jax.jvp(lambda *x: loss(*x, mechanism)[0], (q, v), (v, weights))[1]
        )(q, v, mechanism)
        assert int(rank) == 9
        return *slopes, along

    want = found(OFF)
    with without_matrices():
        got = found(ON)
    if count > 2:
        assert not np.allclose(got[0], want[0])  # by matrices, which were in the way
        got = found(ON)
    for x, y in zip(got, want, strict=True):
        assert_close(x, y, atol=1e-10 * (1 + np.max(np.abs(y))))


@pytest.mark.long
def test_a_large_mechanism_goes_by_matrices():
    many = ukjax.Mechanism(falling(n=40), [ukjax.Holonomic(lambda q, t: jnp.cumsum(jnp.sin(jnp.cumsum(q)))[:30])])
    q = 0.1 * jnp.ones((2, 40))
    got, want = motions(many, q, q, jnp.zeros(2), ON), motions(many, q, q, jnp.zeros(2), OFF)
    assert_close(got.acceleration, want.acceleration, rtol=1e-11, atol=1e-11)


def test_a_row_is_one_however_short_unless_it_is_zero():
    """Beside another: its unit is as good as any. What is nothing but rounding errors is in tests/test_rounding.py."""
    matrix = lambda q, v, t: jnp.diag(jnp.stack([jnp.ones_like(q[0]), q[0]]))
    row = ukjax.AccelerationConstraint(matrix, lambda q, v, t: jnp.zeros_like(q))
    q = jnp.zeros((5, 2)).at[:, 0].set(jnp.array([0.0, 1e-20, 1e-16, 1e-12, 1.0]))
    got, want = (motions(ukjax.Mechanism(falling(), row), q, 0 * q, q[:, 1], way) for way in (ON, OFF))
    assert_same(got, want)
    assert got.rank.tolist() == [1, 2, 2, 2, 2]


def test_a_batch_of_nothing():
    """Also of a mechanism without rows, whose arrays hold nothing in any batch."""
    empty = jnp.zeros((0, 2))
    for constraints in ((), ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])):
        motion = motions(ukjax.Mechanism(falling(), constraints), empty, empty, jnp.zeros(0), ON)
        assert motion.acceleration.shape == (0, 2)
        assert motion.rank.shape == (0,)


def test_units_change_nothing():
    """Rows and coordinates in any unit: what is certain stays certain, and the answer the same."""
    rng = np.random.default_rng(1)
    M = np.diag([1.0, 2.0, 3.0]) + 0.1
    A, b, Q = rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=3)
    rows, columns = np.array([1e6, 1e-7]), np.array([1e-3, 1.0, 1e4])

    def motion(scale_rows, scale_columns):
        change = np.diag(scale_columns)
        system = ukjax.System(lambda q, t: change @ M @ change + 0 * t, lambda q, v, t: change @ Q + 0 * q)
        matrix, vector = scale_rows[:, None] * A @ change, scale_rows * b
        row = ukjax.AccelerationConstraint(lambda q, v, t: matrix + 0 * t, lambda q, v, t: vector + 0 * t)
        state = jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(2)
        return scale_columns[None] * motions(ukjax.Mechanism(system, row), *state, ON).acceleration

    assert_close(motion(rows, columns), motion(np.ones(2), np.ones(3)), rtol=1e-10)


@pytest.mark.long
def test_batches_of_simulations():
    systems = jax.vmap(lambda m: Falling(m, jnp.asarray(9.81), 2))(jnp.array([1.0, 2.0]))
    ts = jnp.linspace(0.0, 0.5, 4)

    def run(system, formulation=None):
        formulation = formulation or ukjax.UdwadiaKalaba()
        mechanism = ukjax.Mechanism(system, [rod()])
        return ukjax.simulate(mechanism, [1.0, 0.0], [0.0, 0.5], ts, formulation=formulation, throw=False)

    got, want = jax.jit(jax.vmap(run))(systems), jax.jit(jax.vmap(ft.partial(run, formulation=OFF)))(systems)
    assert bool(jnp.all(got.result == RESULTS.successful))
    for name in ("q", "v", "acceleration", "constraint_force"):
        assert_close(getattr(got, name), getattr(want, name), rtol=1e-9, atol=1e-9)
    assert np.array_equal(got.rank, want.rank)


@pytest.mark.parametrize("name", ["random", long("SCARA")])
def test_what_it_would_be_on_a_gpu(name):
    """There is none here: it is lowered, in a batch with its gradient, and alone."""
    mechanism, *state = states(name)
    of = lambda q, v, t: jnp.sum(ukjax.equation_of_motion(mechanism, q, v, t, formulation=ON, throw=False).acceleration)
    for function, at in ((jax.vmap(jax.grad(of)), state), (of, [x[0] for x in state])):
        text = jax.jit(function).trace(*at).lower(lowering_platforms=("cuda",)).as_text()
        assert "stablehlo.multiply" in text


def test_what_is_no_choice_is_named():
    with pytest.raises(ValueError, match="expand must be True, False or None, but is 'yes'"):
        ukjax.UdwadiaKalaba(expand="yes")
    assert dataclasses.replace(ON, expand=False) == OFF


@pytest.mark.parametrize("rows", [0, 1])
def test_a_force_that_is_no_number_is_reported_where_no_row_meets_it(rows):
    system = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.stack([q[0], jnp.log(q[1])]))
    mechanism = ukjax.Mechanism(system, [ukjax.Holonomic(lambda q, t: q[:1])] * rows)
    q = jnp.array([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0]])  # the logarithm: a number, NaN, infinity
    got, want = (motions(mechanism, q, jnp.zeros((3, 2)), jnp.zeros(3), way) for way in (ON, OFF))
    assert bool(jnp.all(got.result == want.result))
    assert (got.result == RESULTS.not_finite).tolist() == [False, True, True]
    assert np.all(np.isnan(got.acceleration[1:]))
