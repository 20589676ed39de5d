"""Trajectories under a servo against closed forms, and their gradients against finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import cart_pole, flexible_joint, two_mass_spring, unicycle

from ..helpers import STATES, assert_close, assert_gradients, falling, long, rod, run


@pytest.mark.long
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 4.0), (0.0, 0.0), (5.0, 5.0)])
def test_two_mass_spring_off_the_constraint(alpha, beta):
    # e'' + 2 alpha e' + beta^2 e = 0 from e = 0.1, e' = -0.1.
    scenario = two_mass_spring.scenario("inconsistent", alpha, beta)
    got = run(scenario, rtol=1e-10, atol=1e-12)
    t, w = np.asarray(got.t), np.sqrt(complex(beta**2 - alpha**2))
    sine = t if w == 0 else (np.sin(w * t) / w).real
    want = np.exp(-alpha * t) * (0.1 * np.cos(w * t).real + (-0.1 + alpha * 0.1) * sine)
    assert_close(got.q[:, 1] - got.q[:, 0] - 1.0, jnp.asarray(want), atol=1e-8)


@pytest.mark.long
def test_constraint_following_decays_at_its_rate():
    scenario = flexible_joint.scenario(P=0.25, t1=2.0)
    got = run(scenario, rtol=1e-10, atol=1e-10)
    beta = np.asarray(got.v[:, 0] + got.v[:, 1])
    assert_close(beta, 0.9 * np.exp(-np.asarray(got.t) / 0.25), atol=1e-8)
    # Eq. 72 with K (q1 - q2), in NumPy.
    model = flexible_joint.FlexibleJoint()
    for k in (0, 5, 20):
        q, v = np.asarray(got.q[k]), np.asarray(got.v[k])
        D, A = np.asarray(model.inertia(q)), np.ones((1, 2))
        inverse = np.linalg.inv(D)
        load = np.asarray(model.coriolis(q, v[:2])) @ v[:2] + np.asarray(model.gravity(q)) + model.K * (q[:2] - q[2:])
        ideal = A.T @ np.linalg.solve(A @ inverse @ A.T, A @ inverse @ np.asarray(load))
        u = ideal - D @ A.T[:, 0] / 2 * beta[k] / 0.25
        assert_close(got.control[k], jnp.asarray(u), atol=1e-8)


@pytest.mark.parametrize(
    "P",
    [
        long(0.5),
        long(jnp.array([0.5, 0.1])),
        jnp.array([[0.5, 0.1], [0.1, 0.2]]),
    ],
    ids=["scalar", "vector", "matrix"],
)
def test_constraint_following_of_several_rows(P):
    law = ukjax.ConstraintFollowing(ukjax.Nonholonomic(lambda q, v, t: v - jnp.stack([t, jnp.cos(t)])), jnp.eye(2), P)
    got = ukjax.simulate(
        ukjax.Mechanism(falling(3.0)), jnp.zeros(2), jnp.ones(2), [0.0, 0.3, 0.7], servo=law, keep=STATES
    )
    beta = np.asarray(got.v) - np.stack([got.t, np.cos(got.t)], axis=1)
    P = np.broadcast_to(np.asarray(P, float), (2,)) if np.ndim(P) < 2 else np.asarray(P)
    values, vectors = np.linalg.eigh(np.diag(P) if P.ndim == 1 else P)
    for k, t in enumerate([0.0, 0.3, 0.7]):
        assert_close(beta[k], vectors @ np.diag(np.exp(-t / values)) @ vectors.T @ beta[0], atol=1e-7)


@pytest.mark.long
def test_motors_that_drive_the_links():
    """The virtual control of the flexible joint, against the servo of the links; and the motors' error decays."""
    model = flexible_joint.FlexibleJoint(m2=1.3, lc2=0.4, K1=2.0, K2=3.0)
    turning = ukjax.Nonholonomic(lambda q, v, t: (v[0] + v[1])[None])
    law = ukjax.ConstraintFollowing(turning, jnp.eye(2), 0.3)
    wanted = flexible_joint.virtual_control(model, 0.3)
    q, v = jnp.array([0.3, -0.7]), jnp.array([0.4, 1.1])
    assert_close(model.K * wanted(q, v), ukjax.servo_control(model.links(), law, q, v).u, atol=1e-12)

    servo = flexible_joint.motors(model, 0.3, position=4.0, velocity=jnp.array([6.0, 9.0]))
    q0, v0 = jnp.array([0.0, 0.1, 0.0, 0.0]), jnp.array([1.0, -0.1, 0.0, 0.0])
    got = ukjax.simulate(ukjax.Mechanism(model), q0, v0, jnp.linspace(0.0, 1.5, 4), servo=servo, rtol=1e-10, atol=1e-10)
    error = lambda q, v: q[2:] - wanted(q[:2], v[:2])
    rate = lambda q, v, a: jax.jvp(error, (q, v), (v, a))[1]
    e = jax.vmap(error)(got.q, got.v)
    # (d/dt + position) e = psi, and psi decays with the velocity's gain.
    psi0 = rate(got.q[0], got.v[0], got.acceleration[0]) + 4.0 * e[0]
    t, b = np.asarray(got.t)[:, None], np.array([6.0, 9.0])
    psi, e0 = np.asarray(psi0), np.asarray(e[0])
    want = (e0 - psi / (4.0 - b)) * np.exp(-4.0 * t) + psi / (4.0 - b) * np.exp(-b * t)
    assert_close(e, jnp.asarray(want), atol=1e-7)


@pytest.mark.long
def test_constraint_following_on_a_constrained_mechanism():
    """A bead on a rod: only what the rod leaves is controlled."""
    mechanism = ukjax.Mechanism(falling(2.0), rod())
    spin = ukjax.Nonholonomic(lambda q, v, t: (q[0] * v[1] - q[1] * v[0] - 2.0)[None])
    law = ukjax.ConstraintFollowing(spin, jnp.eye(2), 0.2)
    got = ukjax.simulate(
        mechanism,
        [1.0, 0.0],
        [0.0, 0.0],
        [0.0, 0.1, 0.5],
        servo=law,
        projection=ukjax.Projection(),
        rtol=1e-10,
        atol=1e-10,
        keep=STATES,
    )
    rate = got.q[:, 0] * got.v[:, 1] - got.q[:, 1] * got.v[:, 0]
    assert_close(rate - 2.0, -2.0 * jnp.exp(-got.t / 0.2), atol=1e-8)
    assert np.max(got.position_residual) < 1e-12


@pytest.mark.long
def test_unicycle_tracks_without_slipping():
    got = run(unicycle.scenario(3.0, 3.0, t1=6.0), 13, rtol=1e-10, atol=1e-10)
    model, path = unicycle.Unicycle(), unicycle.Eight()
    error = np.asarray(jax.vmap(model.point)(got.q) - jax.vmap(path)(got.t))
    rate = -np.asarray(jax.jacfwd(path)(jnp.asarray(0.0)))  # at rest
    t = np.asarray(got.t)[:, None]
    assert_close(error, (error[0] + (rate + 3.0 * error[0]) * t) * np.exp(-3.0 * t), atol=1e-7)
    assert np.max(got.velocity_residual) < 1e-12
    # A point on the axle cannot be moved sideways.
    on_axle = unicycle.Unicycle(d=0.0)
    with pytest.raises(RuntimeError, match="out of reach"):
        ukjax.servo_control(
            ukjax.Mechanism(on_axle, ukjax.Nonholonomic(on_axle.slip)),
            unicycle.tracking(on_axle, path), jnp.array([0.0, 0.3, 0.0]), jnp.zeros(3),
        )  # fmt: skip


@pytest.mark.long
def test_cart_pole_swings_up():
    got = run(cart_pole.scenario(), 201)
    model = cart_pole.CartPole()
    psi = np.asarray(jax.vmap(model.off_orbit)(got.q, got.v))
    assert psi[0] < -1.9
    assert np.max(np.abs(psi[160:])) < 0.01
    # On the orbit that ends upright, every swing comes close to it.
    assert np.max(-np.cos(np.asarray(got.q[100:, 1]))) > 0.99
    assert np.max(np.abs(got.q[:, 0])) < 2.0
    assert np.max(np.abs(got.control)) <= 10.0


@pytest.mark.long
def test_gradients_of_a_closed_loop():
    """With respect to gains, masses, stiffness, actuation and `free`, forward and reverse, against differences."""
    q0, v0 = jnp.array([0.0, 1.1]), jnp.array([1.0, 0.9])

    def loss(inputs):
        model, gains, actuation, free, weight = inputs
        servo = ukjax.Servo(ukjax.Holonomic(model.stretched, gains), actuation, free, weight=weight)
        got = ukjax.simulate(
            ukjax.Mechanism(model), q0, v0, jnp.linspace(0.0, 0.6, 4), servo=servo, rtol=1e-12, atol=1e-12
        )
        return jnp.sum(jnp.sin(got.q)) + jnp.sum(jnp.square(got.control)) / 1000

    model = two_mass_spring.TwoMassSpring()
    actuation, free, weight = jnp.array([[1.0, 0.3], [0.1, -0.5]]), jnp.array([0.5, 2.0]), jnp.array([1.0, 2.0])
    inputs = (model, ukjax.Baumgarte(6.0, 30.0), actuation, free, weight)
    assert_gradients(loss, inputs, rtol=1e-6, atol=1e-7)
