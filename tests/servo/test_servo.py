"""What a servo is made of: senseless arguments, and the names of its controls."""

import jax.numpy as jnp
import pytest

import ukjax
from models import coordinated_robots, two_mass_spring

from ..helpers import SIDE, falling, rod


def spring(**options):
    model = two_mass_spring.TwoMassSpring()
    return ukjax.Servo(ukjax.Holonomic(model.stretched), [[1.0], [0.0]], **options)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ukjax.Servo("follow", jnp.eye(2)), TypeError, "constraint must be an instance of AbstractConstraint"),
        (lambda: ukjax.Servo(SIDE, jnp.ones(2)), ValueError, r"actuation must have shape \(n, p\)"),
        (lambda: ukjax.Servo(SIDE, jnp.zeros((2, 0))), ValueError, r"actuation must have shape \(n, p\)"),
        (lambda: ukjax.Servo(SIDE, [[jnp.nan], [0.0]]), ValueError, "actuation must be finite"),
        (lambda: spring(weight=-1.0), ValueError, "weight must be a vector or a square matrix"),
        (lambda: spring(weight=[-1.0]), ValueError, "weight must be positive"),
        (lambda: spring(weight=[[1.0, 2.0], [2.0, 1.0]]), ValueError, "weight must be symmetric positive definite"),
        (lambda: spring(limits=5.0), ValueError, "limits must be a pair"),
        (lambda: spring(limits=(1.0, -1.0)), ValueError, "lower <= upper"),
        (lambda: spring(free=1.0), ValueError, r"free must have shape \(p,\)"),
        (lambda: spring(reading="literal"), ValueError, "reading must be one of 'least_norm', 'self_consistent'"),
        (lambda: spring(exact=1), TypeError, "exact must be True or False"),
        (lambda: spring(pseudoinverse="SVD"), TypeError, "pseudoinverse must be an instance"),
        (lambda: spring(consistency_rtol=-1.0), ValueError, "consistency_rtol must not be negative"),
        (lambda: ukjax.ConstraintFollowing(SIDE, jnp.eye(2), 0.0), ValueError, "P must be positive"),
        (
            lambda: ukjax.ConstraintFollowing(rod(1.0, ukjax.Baumgarte(1.0)), jnp.eye(2), 1.0),
            ValueError, "must have no stabilization",
        ),
    ],
)  # fmt: skip
def test_senseless_servos_are_named(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    ("servo", "error", "match"),
    [
        ("servo", TypeError, "servo must be an instance of AbstractServo"),
        ((), ValueError, "servo must hold at least one"),
        ((1,), TypeError, r"servo\[0\] must be an instance"),
        (ukjax.Servo(SIDE, jnp.ones((3, 1))), ValueError, r"actuation must return an array of shape \(2, p\)"),
        (ukjax.Servo(SIDE, lambda q, t: jnp.ones(2)), ValueError, r"actuation\(q, t\) must return"),
        (ukjax.Servo(SIDE, jnp.eye(2), free=jnp.ones(3)), ValueError, "free must return an array of shape"),
        (ukjax.Servo(SIDE, jnp.eye(2), weight=jnp.ones(3)), ValueError, "weight must return an array of shape"),
        (ukjax.Servo(SIDE, jnp.eye(2), limits=(jnp.zeros(3), 1.0)), ValueError, "limits must return an array of shape"),
        (ukjax.ConstraintFollowing(SIDE, jnp.eye(2), jnp.ones(3)), ValueError, "P must return an array of shape"),
        (
            ukjax.ConstraintFollowing(
                ukjax.AccelerationConstraint(lambda q, v, t: jnp.eye(2), lambda q, v, t: jnp.zeros(2)), jnp.eye(2), 1.0
            ),
            ValueError, "velocities",
        ),
    ],
)  # fmt: skip
def test_servos_that_do_not_fit_are_named(servo, error, match):
    for call in (
        lambda: ukjax.servo_control(ukjax.Mechanism(falling()), servo, jnp.zeros(2), jnp.zeros(2)),
        lambda: ukjax.simulate(ukjax.Mechanism(falling()), jnp.zeros(2), jnp.zeros(2), [0.0, 1.0], servo=servo),
    ):
        with pytest.raises(error, match=match):
            call()


def test_a_scenario_names_its_controls():
    scenario = coordinated_robots.scenario()
    assert scenario.controls == tuple(f"u{i} [N m]" for i in range(1, 7))
    with pytest.raises(ValueError, match="controls must be 1 names"):
        ukjax.Scenario(ukjax.Mechanism(falling()), [0.0, 0.0], [0.0, 0.0], 1.0, servo=spring(), controls=("a", "b"))
    with pytest.raises(ValueError, match="there is no servo"):
        ukjax.Scenario(ukjax.Mechanism(falling()), [0.0, 0.0], [0.0, 0.0], 1.0, controls=("a",))
