"""Rows of constraints by automatic differentiation, and Baumgarte's terms."""

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array

import ukjax

from .helpers import STATES, assert_close, rod


Q, V, T = jnp.array([0.6, -0.8]), jnp.array([0.5, 0.3]), jnp.asarray(0.4)


def test_holonomic_rows_by_hand():
    constraint = ukjax.Holonomic(lambda q, t: jnp.array([q @ q - t**2, q[0] * q[1] - jnp.sin(t)]))
    A, b = constraint.rows(Q, V, T)
    assert_close(A, jnp.array([[2 * Q[0], 2 * Q[1]], [Q[1], Q[0]]]), atol=1e-15)
    assert_close(b, jnp.array([2 - 2 * V @ V, -jnp.sin(T) - 2 * V[0] * V[1]]), atol=1e-15)
    assert_close(constraint.position_error(Q, T), jnp.array([1 - T**2, Q[0] * Q[1] - jnp.sin(T)]), atol=1e-15)
    rate = jnp.array([2 * Q @ V - 2 * T, V[0] * Q[1] + V[1] * Q[0] - jnp.cos(T)])
    assert_close(constraint.velocity_error(Q, V, T), rate, atol=1e-15)


def test_nonholonomic_rows_by_hand_nonlinear_in_v():
    constraint = ukjax.Nonholonomic(lambda q, v, t: jnp.array([v @ v - q[0] * t, v[0] * q[1] - t]))
    A, b = constraint.rows(Q, V, T)
    assert_close(A, jnp.array([[2 * V[0], 2 * V[1]], [Q[1], 0.0]]), atol=1e-15)
    assert_close(b, jnp.array([V[0] * T + Q[0], 1 - V[0] * V[1]]), atol=1e-15)
    assert constraint.position_error(Q, T).shape == (0,)


def test_acceleration_constraint_is_taken_as_it_is():
    constraint = ukjax.AccelerationConstraint(lambda q, v, t: jnp.array([[1.0, 2.0]]), lambda q, v, t: v[:1])
    A, b = constraint.rows(Q, V, T)
    assert_close(A, jnp.array([[1.0, 2.0]]))
    assert_close(b, V[:1])
    assert constraint.position_error(Q, T).shape == constraint.velocity_error(Q, V, T).shape == (0,)


@pytest.mark.parametrize(
    "gains",
    [
        (3.0, 5.0),
        (jnp.array([3.0, 1.0]), jnp.array([5.0, 2.0])),
        (jnp.array([[3.0, 1.0], [-2.0, 4.0]]), jnp.array([[5.0, 2.0], [0.5, 1.0]])),
    ],
    ids=["scalar", "rows", "matrix"],
)
def test_baumgarte_takes_its_terms_from_b(gains):
    phi = lambda q, t: jnp.array([q @ q - 1.1, q[0] - t])
    plain, held = ukjax.Holonomic(phi), ukjax.Holonomic(phi, ukjax.Baumgarte(*gains))
    times = lambda gain, x: gain @ x if jnp.ndim(gain) == 2 else gain * x
    correction = times(gains[0], plain.velocity_error(Q, V, T)) + times(gains[1], plain.position_error(Q, T))
    assert_close(held.rows(Q, V, T)[1], plain.rows(Q, V, T)[1] - correction, atol=1e-15)

    psi = lambda q, v, t: jnp.array([v @ v - 1.1, v[0] - t])
    plain, held = ukjax.Nonholonomic(psi), ukjax.Nonholonomic(psi, ukjax.Baumgarte(gains[0]))
    assert_close(held.rows(Q, V, T)[1], plain.rows(Q, V, T)[1] - times(gains[0], psi(Q, V, T)), atol=1e-15)


def test_classic_gains_and_leaves():
    classic = ukjax.Baumgarte.classic(3.0, 4.0)
    assert_close(classic.damping, jnp.asarray(6.0))
    assert_close(classic.stiffness, jnp.asarray(16.0))
    assert len(jax.tree_util.tree_leaves(rod(1.0, classic))) == 1 + 2  # length and gains


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ukjax.Holonomic(3.0), TypeError, r"phi must be a function phi\(q, t\)"),
        (lambda: ukjax.Nonholonomic(None), TypeError, r"psi must be a function psi\(q, v, t\)"),
        (lambda: ukjax.AccelerationConstraint(jnp.eye(2), None), TypeError, "matrix must be a function"),
        (lambda: rod(1.0, 5.0), TypeError, "stabilization must be a ukjax.Baumgarte"),
        (lambda: ukjax.Baumgarte(jnp.ones((2, 3)), 1.0), ValueError, "damping must be a scalar or have shape"),
        (lambda: ukjax.Baumgarte(1.0, jnp.nan), ValueError, "stiffness must be finite"),
        (lambda: ukjax.Baumgarte("high", 1.0), ValueError, "damping must be an array of real numbers"),
        (
            lambda: ukjax.Nonholonomic(lambda q, v, t: v, ukjax.Baumgarte(1.0, 2.0)),
            ValueError,
            "no position to return to. Pass ukjax.Baumgarte",
        ),
    ],
)
def test_bad_arguments(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("constraint", "match"),
    [
        (ukjax.Holonomic(lambda q, t: q @ q - 1), r"phi\(q, t\) must return an array of shape \(m,\).*\[None\]"),
        (
            ukjax.Holonomic(lambda q, t: None),
            r"phi\(q, t\) must return an array of shape \(m,\), but returned NoneType",
        ),
        (ukjax.Nonholonomic(lambda q, v, t: v[None]), r"psi\(q, v, t\) must return an array of shape \(m,\)"),
        (
            ukjax.AccelerationConstraint(lambda q, v, t: jnp.ones((1, 3)), lambda q, v, t: jnp.ones(1)),
            r"matrix\(q, v, t\) must return an array of shape \(m, 2\), but returned shape \(1, 3\)",
        ),
        (
            ukjax.AccelerationConstraint(lambda q, v, t: jnp.ones((1, 2)), lambda q, v, t: jnp.ones(2)),
            r"vector\(q, v, t\) must return an array of shape \(1,\), but returned shape \(2,\)",
        ),
        (rod(1.0, ukjax.Baumgarte(jnp.ones(3), 1.0)), r"damping of ukjax.Baumgarte has shape \(3,\), but .* 1 rows"),
        (rod(1.0, ukjax.Baumgarte(1.0, jnp.eye(2))), r"stiffness of ukjax.Baumgarte has shape \(2, 2\), but .* 1 rows"),
    ],
)
def test_wrong_shapes_from_a_persons_functions(constraint, match):
    with pytest.raises(ValueError, match=match):
        constraint.rows(Q, V, T)


class Pinned(ukjax.AbstractSystem):
    """A particle on as many equal circles as `rods` says, which is a leaf and no array."""

    length: Array
    rods: int

    def mass(self, q, t):
        return jnp.eye(2)

    def force(self, q, v, t):
        return jnp.array([0.0, -9.81])

    def on_circles(self, q, t):
        return jnp.concatenate([(q @ q - self.length**2)[None] for _ in range(self.rods)])


def test_a_number_that_is_no_array_stays_one():
    system = Pinned(jnp.asarray(1.0), 2)
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(system.on_circles))
    q, v = ukjax.assemble(mechanism, jnp.array([0.5, -0.8]), jnp.zeros(2))
    assert_close(q @ q, jnp.asarray(1.0), atol=1e-12)
    got = ukjax.simulate(mechanism, q, v, jnp.array([0.0, 0.1]), keep=STATES)
    assert_close(got.position_residual, jnp.zeros(2), atol=1e-8)
