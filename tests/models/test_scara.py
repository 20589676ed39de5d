"""The SCARA robot against the paper's hand-derived equations, SciPy, and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models.scara import STARTS, Scara, helix, scenario

from ..helpers import STATES, assert_close, assert_gradients, long, random_state
from . import scara_by_hand as hand


TS = jnp.linspace(0.0, 20.0, 201)


@eqx.filter_jit
def run(case, keep=STATES):
    return ukjax.simulate(case.mechanism, case.q0, case.v0, TS, rtol=1e-11, atol=1e-12, keep=keep)


@pytest.mark.parametrize("seed", range(10))
def test_automatic_rows_are_the_hand_derived_ones(seed):
    q, v, t = random_state(seed, 4)
    for gains in ((0.0, 0.0), (0.5, 200.0)):
        A, b = scenario("consistent", *gains).mechanism.constraints[0].rows(q, v, t)
        A_hand, b_hand = hand.rows(np.asarray(q), np.asarray(v), float(t), *gains)
        assert_close(A, A_hand, atol=1e-12)
        assert_close(b, b_hand, atol=1e-12)
    assert_close(Scara().mass(q, t), hand.mass(np.asarray(q)), atol=1e-14)
    assert_close(Scara().force(q, v, t), hand.force(np.asarray(q), np.asarray(v)), atol=1e-14)


@pytest.mark.parametrize("gains", [long((0.0, 0.0)), (0.5, 200.0)], ids=["plain", "baumgarte"])
@pytest.mark.parametrize("start", ["printed_velocities", long("printed")])
def test_trajectory_agrees_with_scipy_and_with_the_exact_decay(start, gains):
    case = scenario(start, *gains)
    got = run(case)
    want = hand.integrate(*(np.array(x) for x in STARTS[start]), np.asarray(TS), *gains)
    assert_close(got.q, want[:, :4], atol=1e-8)
    assert_close(got.v, want[:, 4:], atol=1e-8)

    # A is invertible, so each row of Phi obeys Phi'' + d Phi' + k Phi = 0 whatever M and Q are.
    d, k = gains
    w = np.sqrt(k - d**2 / 4) if k else 1.0
    t = np.asarray(TS)[:, None]
    p, r = hand.errors(*(np.array(x) for x in STARTS[start]), 0.0)
    decay = np.exp(-d * t / 2) * (p * np.cos(w * t) + (r + d * p / 2) / w * np.sin(w * t)) if k else p + r * t
    phi = np.array([hand.errors(q, v, s)[0] for q, v, s in zip(got.q, got.v, TS)])
    assert_close(phi, decay, atol=1e-8)
    assert_close(got.position_residual, np.linalg.norm(phi, axis=1), atol=1e-12)


@pytest.mark.long
def test_headline_drifts_of_the_paper():
    drifting, held = (run(scenario("printed_velocities", *gains)) for gains in ((0.0, 0.0), (0.5, 200.0)))
    error = lambda trajectory: np.asarray(jax.vmap(Scara().tool)(trajectory.q) - jax.vmap(helix)(TS))
    x, y, z = np.max(np.abs(error(drifting)), axis=0)
    assert abs(z - 0.01) < 1e-8  # printed 0.01
    assert abs(x - 1.09e-3) < 1e-5  # printed 8e-4, which it reaches at 14.6 s
    assert abs(y - 2.05e-4) < 1e-6  # printed 7e-3, which is the integrator's
    assert np.max(np.abs(error(held))) < 4e-5
    assert float(held.position_residual[-1]) < 1e-6


def test_on_the_helix_the_joints_are_the_inverse_kinematics():
    got = run(scenario("consistent", 0.0, 0.0), keep=None)
    assert_close(got.q, jax.vmap(lambda t: Scara().joints(helix(t)))(TS), atol=1e-9)
    assert int(got.rank.min()) == int(got.rank.max()) == 4
    # Constraint forces: by inverse dynamics, M q'' - Q, with nothing of A and b.
    inverse = [
        hand.mass(q) @ a - hand.force(q, v) for q, v, a in zip(*map(np.asarray, (got.q, got.v, got.acceleration)))
    ]
    assert_close(got.constraint_force, np.array(inverse), atol=1e-11)
    assert_close(got.constraint_force[:, 3], jnp.full(201, 0.5 * 9.81), atol=1e-9)
    assert np.max(np.abs(got.constraint_force[:, 2])) < 1e-9


@pytest.mark.long
def test_gradients_with_respect_to_every_leaf_of_the_mechanism_and_the_initial_state():
    case = scenario("printed", 0.5, 200.0)
    ts = jnp.linspace(0.0, 0.5, 6)

    def loss(inputs):
        mechanism, q0, v0 = inputs
        trajectory = ukjax.simulate(mechanism, q0, v0, ts, rtol=1e-12, atol=1e-13)
        return jnp.sum(jnp.sin(3 * trajectory.q)) + jnp.sum(trajectory.constraint_force**2) / 100

    inputs = (case.mechanism, case.q0, case.v0)
    assert len(jax.tree_util.tree_leaves(inputs)) == 14 + 2 + 2  # of the mechanism, tied; the gains; the start
    assert_gradients(loss, inputs, rtol=1e-6, atol=1e-7)


def test_scenario_refuses_an_unknown_start():
    with pytest.raises(ValueError, match="start must be one of consistent, printed_velocities, printed"):
        scenario("there")


def test_scenario_within_a_program():
    """As a study traces it, once for all of its gains: the path is drawn all the same."""
    made = []
    jax.eval_shape(lambda: made.append(scenario("printed")))
    np.testing.assert_allclose(made[0].drawing.scenery["helix"][-1], helix(20.0), rtol=1e-14)
