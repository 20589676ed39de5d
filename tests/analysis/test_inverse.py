"""Inverse dynamics: what makes a motion, against forward dynamics, servos and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import coordinated_robots

from ..helpers import assert_close, assert_gradients, falling, pendulum, random_mechanism, random_state


def test_it_undoes_forward_dynamics():
    """Redundant rows, three actuators that are all needed: the controls come back, and so does the constraint force."""
    mechanism = random_mechanism(3, copies=2)
    q, v, t = random_state(5)
    G, u = np.random.default_rng(2).normal(size=(5, 2)), jnp.array([1.3, -0.4])
    motion = ukjax.equation_of_motion(mechanism, q, v, t, applied=jnp.asarray(G) @ u)
    got = ukjax.analysis.inverse_dynamics(mechanism, G, q, v, motion.acceleration, t)
    assert_close(got.u, u, atol=1e-9)
    assert_close(got.constraint_force, motion.constraint_force, atol=1e-8)
    assert float(jnp.linalg.norm(got.missed)) < 1e-9
    assert set(got.multipliers) == {"constraints[0]", "constraints[1]"}


def test_it_undoes_forward_dynamics_where_the_mass_is_singular():
    """Two masses that carry a massless point between them, on which one of the controls acts."""
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 3.0, 0.0])), lambda q, v, t: -q)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q[2] - q[0] - q[1] ** 2)[None]))
    q, v, u = jnp.array([0.3, 0.5, 0.55]), jnp.array([0.2, -1.0, -0.8]), jnp.array([0.7, -0.4])
    G = jnp.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    motion = ukjax.equation_of_motion(mechanism, q, v, applied=G @ u)
    got = ukjax.analysis.inverse_dynamics(mechanism, G, q, v, motion.acceleration)
    assert_close(got.u, u, atol=1e-12)
    assert_close(got.constraint_force, motion.constraint_force, atol=1e-12)


def test_of_redundant_actuators_the_smallest():
    """As the servo does it, which is least-norm too."""
    robots = coordinated_robots.CoordinatedRobots()
    mechanism, servo = robots.mechanism(), robots.servo(5.0, 5.0)
    q, v = jnp.array(coordinated_robots.START), jnp.zeros(5)
    control = ukjax.servo_control(mechanism, servo, q, v, 0.0)
    G = np.array(coordinated_robots.ACTUATION)
    a = ukjax.equation_of_motion(mechanism, q, v, applied=jnp.asarray(G) @ control.u).acceleration
    assert_close(ukjax.analysis.inverse_dynamics(mechanism, G, q, v, a).u, control.u, atol=1e-9)


def test_gradients_and_batches():
    def held(length):  # the torque-free force that holds a pendulum out
        q = length * jnp.array([0.6, -0.8])
        mechanism = ukjax.Mechanism(falling(2.0), [ukjax.Holonomic(lambda q, t: (q @ q - length**2)[None])] * 2)
        return ukjax.analysis.inverse_dynamics(
            mechanism, np.array([[1.0], [0.0]]), q, jnp.zeros(2), jnp.zeros(2), throw=False
        ).u[0]

    # H cos = m g sin of the angle from the vertical: H = m g 0.6 / 0.8.
    assert float(held(jnp.asarray(1.3))) == pytest.approx(2.0 * 9.81 * 0.75, abs=1e-9)
    assert_gradients(held, jnp.asarray(1.3))
    many = jax.jit(jax.vmap(held))(jnp.array([0.5, 1.0]))
    assert_close(many, jnp.full(2, 2.0 * 9.81 * 0.75), atol=1e-9)


def test_what_cannot_be_made():
    q, rest = jnp.array([0.0, -1.0]), jnp.zeros(2)
    with pytest.raises(RuntimeError, match="The constraints do not allow this acceleration"):
        ukjax.analysis.inverse_dynamics(pendulum(), np.eye(2), q, rest, jnp.array([0.0, 1.0]))
    with pytest.raises(RuntimeError, match="No control of these actuators"):
        ukjax.analysis.inverse_dynamics(ukjax.Mechanism(falling()), np.array([[1.0], [0.0]]), q, rest, rest)
    with pytest.raises(ValueError, match="acceleration must return an array of shape"):
        ukjax.analysis.inverse_dynamics(pendulum(), np.eye(2), q, rest, jnp.zeros(3))
    with pytest.raises(ValueError, match=r"acceleration must be finite, but acceleration\[0\] is nan"):
        ukjax.analysis.inverse_dynamics(pendulum(), np.eye(2), q, rest, jnp.array([jnp.nan, 0.0]))
    with pytest.raises(ValueError, match="non-ideal force"):
        ukjax.analysis.inverse_dynamics(
            ukjax.Mechanism(falling(), nonideal=lambda q, v, t, force: -v), np.eye(2), q, rest, rest
        )
