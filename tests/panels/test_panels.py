"""A dense M by panels, many states at a time: the factors against NumPy, the motion against matrices."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import RESULTS

from ..expand.test_motion import MECHANISMS, OFF, ON, assert_same, motions, states
from ..helpers import assert_close, central_difference, sampled, without_matrices
from ..inside import Limits, eliminate, panel_motion, replaced


@pytest.fixture(autouse=True)
def no_scalar_code():
    """Small mechanisms are too long, and go by panels."""
    with replaced(scalar_code=Limits(0, 0)):
        yield


def with_panels(mechanism, q, v, t):
    """The motions; compiled anew, whatever was compiled with scalar code."""
    asked: list[bool] = []

    def spied(*args):
        asked.append(True)
        return panel_motion(*args)

    of = lambda q, v, t: ukjax.equation_of_motion(mechanism, q, v, t, formulation=ON, throw=False)
    with replaced(panel_motion=spied):
        found = jax.jit(jax.vmap(of))(q, v, t)
    assert asked, "no panels were used"
    return found


@pytest.mark.parametrize(("n", "k"), [(1, 0), (4, 2), (7, 3), (21, 1)])
def test_factors_are_those_of_the_whole_matrix(n, k):
    rng, batch = np.random.default_rng(0), 3
    R = rng.normal(size=(batch, n + k, n + k))
    whole = np.einsum("bij,bkj->bik", R, R) + np.eye(n + k)
    y = rng.normal(size=(batch, n, 2))
    last = lambda x: jnp.moveaxis(jnp.asarray(x), 0, -1)

    @jax.jit
    def found(X, y):
        with jax.numpy_rank_promotion("allow"):
            zero = jnp.zeros((n, batch))
            done = eliminate(X[:n, :n], X[n:, :n], X[n:, n:], zero)
            bound = done.factors.inverse_bound(jnp.ones((n, batch)))
            return done.factors.solve(y), done.left, bound, done.factors.kept

    x, left, bound, kept = (np.moveaxis(np.asarray(z), -1, 0) for z in found(last(whole), last(y)))
    assert kept.all()
    for X, one, want, rest, above in zip(whole, y, x, left, bound, strict=True):
        S, Y = X[:n, :n], X[n:, :n]
        assert_close(want, np.linalg.solve(S, one), rtol=1e-10, atol=1e-12)
        assert_close(rest, X[n:, n:] - Y @ np.linalg.solve(S, Y.T), rtol=1e-10, atol=1e-12)
        upper = np.linalg.cholesky(S).T
        assert above >= np.max(np.sum(np.abs(np.linalg.inv(upper)), axis=1)) * (1 - 1e-12)


def test_a_row_that_depends_on_others_is_left_out():
    rng = np.random.default_rng(0)
    R = rng.normal(size=(9, 12))
    R[6] = R[1] - 2 * R[5]
    S, x = R @ R.T, rng.normal(size=9)
    least = 1e-10 * np.diag(S)[:, None]
    with jax.numpy_rank_promotion("allow"):
        done = eliminate(jnp.asarray(S)[..., None], jnp.zeros((0, 9, 1)), jnp.zeros((0, 0, 1)), jnp.asarray(least))
        found = done.factors.solve(jnp.asarray(S @ x)[:, None, None])[:, 0, 0]
    assert np.flatnonzero(~np.asarray(done.factors.kept)).tolist() == [6]
    assert float(found[6]) == 0.0
    assert_close(S @ found, S @ x, rtol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(MECHANISMS, ["random, redundant"]))
def test_panels_and_matrices_agree(name):
    mechanism, *state = states(name)
    want = motions(mechanism, *state, OFF)
    assert_same(with_panels(mechanism, *state), want)
    one = [x[0] for x in state]
    alone = jax.jit(lambda *x: ukjax.equation_of_motion(mechanism, *x, formulation=ON, throw=False))(*one)
    assert_same(alone, jax.tree_util.tree_map(lambda x: x[0], want))


@pytest.mark.long
def test_batches_of_every_size_need_no_matrices():
    """No state, fewer than a tile, tiles that overlap, batches of batches; parameters that the batch shares, or not."""
    name = "SCARA"
    mechanism, q, v, t = states(name, 70)
    want = motions(mechanism, q, v, t, OFF)
    of = lambda m, q, v, t: ukjax.equation_of_motion(m, q, v, t, formulation=ON, throw=False)
    part = lambda motion, size: jax.tree_util.tree_map(lambda x: x[:size], motion)
    with without_matrices():
        for size in (0, 5, 70):
            assert_same(with_panels(mechanism, q[:size], v[:size], t[:size]), part(want, size))
        nested = jax.jit(jax.vmap(jax.vmap(of, in_axes=(None, 0, 0, 0)), in_axes=(None, 0, 0, 0)))
        got = nested(mechanism, *(x.reshape(7, 10, *x.shape[1:]) for x in (q, v, t)))
        assert_same(jax.tree_util.tree_map(lambda x: x.reshape(70, *x.shape[2:]), got), want)
        several = jax.tree_util.tree_map(lambda x: jnp.stack([x] * 70) if eqx.is_array(x) else x, mechanism)
        assert_same(eqx.filter_jit(eqx.filter_vmap(of))(several, q, v, t), want)


@pytest.mark.long
def test_one_bad_state_changes_no_other():
    """A NaN, and a state so large that its squares overflow, beside good ones: values and gradients."""
    mechanism, q, v, t = states("SCARA")
    bad = q.at[1, 0].set(jnp.nan)
    v = v.at[2].set(1e200)
    got, want = with_panels(mechanism, bad, v, t), motions(mechanism, bad, v, t, OFF)
    good = np.array([0, 3, 4, 5])
    assert_same(*(jax.tree_util.tree_map(lambda x: x[good], x) for x in (got, want)))
    assert (got.result == want.result).all()
    assert int(jnp.sum(got.result == RESULTS.not_finite)) == 2
    pick = jnp.asarray(np.isin(np.arange(6), good))[:, None]
    loss = lambda q, way: jnp.sum(jnp.where(pick, way(mechanism, q, v, t).acceleration, 0.0))
    slope = jax.jit(jax.grad(lambda q: loss(q, with_panels)))(bad)
    by_matrices = jax.jit(jax.grad(lambda q: loss(q, lambda *x: motions(*x, OFF))))(bad)
    assert_close(slope[good], by_matrices[good], rtol=1e-9, atol=1e-9)


def test_a_mass_that_is_none_and_rows_that_contradict_are_reported():
    """Of four states one has a negative mass, one a mass matrix that is not symmetric, and one rows that contradict."""
    twist = jnp.zeros((3, 3)).at[0, 1].set(1.0)
    system = ukjax.System(
        lambda q, t: jnp.diag(jnp.stack([q[0], 1 + q[0], 1 + q[0]])) + q[1] * twist, lambda q, v, t: -q
    )
    twice = ukjax.AccelerationConstraint(lambda q, v, t: jnp.ones((2, 3)), lambda q, v, t: jnp.stack([t, t + q[2]]))
    mechanism = ukjax.Mechanism(system, twice)
    q = jnp.array([[2.0, 0.0, 0.0], [-0.5, 0.0, 0.0], [2.0, 0.3, 0.0], [2.0, 0.0, 0.7]])
    state = q, jnp.zeros((4, 3)), jnp.full(4, 0.5)
    got, want = with_panels(mechanism, *state), motions(mechanism, *state, OFF)
    bad = [RESULTS.mass_not_positive_definite, RESULTS.mass_not_positive_definite, RESULTS.constraints_contradict]
    for i, result in enumerate([RESULTS.successful, *bad]):
        assert bool((got.result == result)[i])
        assert bool((want.result == result)[i])
    assert np.isnan(got.acceleration).all(axis=1).tolist() == [False, True, True, False]
    there = np.array([0, 3])
    assert_close(got.acceleration[there], want.acceleration[there], atol=1e-12)
    assert np.array_equal(got.rank, want.rank)


def loss_at(mechanism, t, way):
    """A number made of all that has a derivative, as a function of the state."""
    n = states("SCARA")[1].shape[1]

    def loss(z):
        motion = ukjax.equation_of_motion(mechanism, z[:n], z[n:], t, formulation=way, throw=False)
        parts = jnp.sin(motion.acceleration), motion.unconstrained_acceleration, jnp.cos(motion.constraint_force)
        return sum(jnp.sum(x) for x in parts)

    return loss


@pytest.mark.long
def test_derivatives_in_every_mode():
    mechanism, q, v, t = states("SCARA")
    z = jnp.concatenate([q[0], v[0]])
    loss, by_matrices = loss_at(mechanism, t[0], ON), loss_at(mechanism, t[0], OFF)
    slope = jax.jit(jax.grad(loss))(z)
    assert_close(slope, jax.jit(jax.jacfwd(loss))(z), rtol=1e-11, atol=1e-11)
    assert_close(slope, jax.jit(jax.grad(by_matrices))(z), rtol=1e-9, atol=1e-9)
    assert_close(slope, central_difference(jax.jit(by_matrices), z, 1e-6)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev], ids=["over reverse", "reverse over reverse"])
def test_second_derivatives(mode):
    mechanism, q, v, t = states("SCARA")
    z = jnp.concatenate([q[0], v[0]])
    got = jax.jit(mode(jax.grad(loss_at(mechanism, t[0], ON))))(z)
    want = jax.jit(jax.jacfwd(jax.grad(loss_at(mechanism, t[0], OFF))))(z)
    assert_close(got, want, atol=1e-9 * (1 + float(jnp.max(jnp.abs(want)))))


@pytest.mark.long
@pytest.mark.parametrize("name", ["random", "robots"])
def test_gradients_of_parameters_that_a_batch_shares(name):
    mechanism, q, v, t = states(name)

    def slope(way):
        def loss(moving, rest):
            of = lambda q, v, t: ukjax.equation_of_motion(
                eqx.combine(moving, rest), q, v, t, formulation=way, throw=False
            )
            return jnp.sum(jnp.sin(jax.vmap(of)(q, v, t).acceleration))

        return eqx.filter_jit(jax.grad(loss))(*eqx.partition(mechanism, eqx.is_inexact_array))

    got, want = (jax.tree_util.tree_leaves(slope(way)) for way in (ON, OFF))
    for x, y in zip(got, want, strict=True):
        assert_close(x, y, atol=1e-9 * (1 + float(jnp.max(jnp.abs(y), initial=0.0))))


@pytest.mark.long
def test_single_precision_and_what_it_would_be_on_a_gpu():
    mechanism, q, v, t = states("SCARA")
    single = jax.tree_util.tree_map(
        lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, (mechanism, q, v, t)
    )
    mechanism, *state = single
    got, want = with_panels(mechanism, *state), motions(mechanism, *state, OFF)
    assert got.acceleration.dtype == jnp.float32
    assert np.array_equal(got.rank, want.rank)
    assert_close(got.acceleration, want.acceleration, atol=1e-4 * float(jnp.max(jnp.abs(want.acceleration))))
    of = lambda q, v, t: ukjax.equation_of_motion(mechanism, q, v, t, formulation=ON, throw=False)
    text = jax.jit(jax.vmap(of)).trace(*state).lower(lowering_platforms=("cuda",)).as_text()
    assert "lapack" not in text


@pytest.mark.long
def test_a_chain_of_twenty_rods_goes_by_panels():
    """In a batch, and with a gradient through a trajectory."""
    from benchmarks import _linkages

    linkage = _linkages.chain(20)
    mechanism, (q, v) = linkage.mechanism(), _linkages.states(linkage, 40)
    t = jnp.zeros(40)
    want = motions(mechanism, q, v, t, OFF)
    of = lambda way: jax.jit(jax.vmap(lambda q, v: ukjax.equation_of_motion(mechanism, q, v, formulation=way)))
    assert_same(of(ukjax.UdwadiaKalaba())(q, v), want, 1e-11)
    ts = np.linspace(0.0, 0.05, 3)

    def end(way):
        run = lambda q: ukjax.simulate(mechanism, q, v[0], ts, formulation=way, rtol=1e-10, atol=1e-10, throw=False)
        return jax.jit(jax.value_and_grad(lambda q: jnp.sum(jnp.sin(run(q).q))))(q[0])

    for got, want in zip(end(ukjax.UdwadiaKalaba()), end(OFF), strict=True):
        assert_close(got, want, rtol=1e-7, atol=1e-7)
