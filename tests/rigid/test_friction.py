"""Dry friction and stops in joints: closed forms, energy, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, long


TIME, G = jnp.zeros(()), 9.81


def pendulum(effort=None, **options):
    body = rigid.Body(rigid.Inertia(2.0, [0.1, 0.2, 0.3], (0.5, 0.0, 0.0)))
    joints = {"A": rigid.Revolute("ground", "bob", "z", effort)}
    return rigid.Robot({"bob": body}, joints, gravity=(0.0, -G, 0.0), **options)


@pytest.mark.parametrize("planar", [True, long(False)])
def test_friction_of_a_hinge_in_closed_form(planar):
    robot = pendulum(coordinates="absolute", planar=planar)
    q, v = robot.assemble({"A": 0.4}, {"A": 1.5})
    mechanism = robot.mechanism(friction={"A": rigid.Coulomb(0.3, radius=0.05, speed=0.1)})
    free, motion = (ukjax.equation_of_motion(m, q, v) for m in (robot.mechanism(), mechanism))
    # The ideal force is as of the pendulum without friction, along the bob and across it.
    inertia = 0.3 + 2.0 * 0.25
    turning = -2.0 * G * 0.5 * np.cos(0.4) / inertia
    force = 2.0 * np.hypot(-0.5 * 1.5**2 + G * np.sin(0.4), 0.5 * turning + G * np.cos(0.4))
    slowing = 0.3 * 0.05 * force * 1.5 / np.hypot(1.5, 0.1) / inertia
    assert_close(free.acceleration[-1], jnp.asarray(turning), atol=1e-10)
    assert_close(motion.acceleration[-1], jnp.asarray(turning - slowing), atol=1e-10)
    assert_close(motion.constraint_force, free.constraint_force, atol=1e-10)


def slide(**options):
    joints = {"rail": rigid.Prismatic("ground.rail", "block", "x")}
    frames = {"rail": rigid.Frame((0.0, 0.0, 0.0), (0.0, 0.2, 0.0))}
    body = rigid.Body(rigid.Inertia(3.0, [0.1, 0.2, 0.2]))
    return rigid.Robot({"block": body}, joints, frames=frames, coordinates="absolute", **options)


@pytest.mark.long
def test_a_block_on_a_slope_in_closed_form_and_its_gradients():
    robot = slide()
    q, v = robot.assemble({}, {"rail": 0.6})
    rail = jnp.array([np.cos(0.2), 0.0, -np.sin(0.2)])

    def along(mu, v):
        mechanism = robot.mechanism(friction={"rail": rigid.Coulomb(mu, speed=0.01)})
        at = ukjax.equation_of_motion(mechanism, q, v).acceleration[:3]
        return robot.pose(q, "block").R @ at @ rail

    rounded = 0.6 / np.hypot(0.6, 0.01)
    want = lambda mu: G * (np.sin(0.2) - mu * np.cos(0.2) * rounded)
    assert_close(along(0.3, v), jnp.asarray(want(0.3)), atol=1e-10)
    for gradient in (jax.jacfwd, jax.jacrev):
        assert_close(gradient(along)(0.3, v), jnp.asarray(-G * np.cos(0.2) * rounded), atol=1e-9)
        # At rest it is a damper: the slope is that of s at zero.
        slope = gradient(along, argnums=1)(0.3, 0 * v)
        assert_close(slope @ v, jnp.asarray(-0.3 * G * np.cos(0.2) * 0.6 / 0.01), atol=1e-6)


@pytest.mark.long
def test_friction_takes_what_the_energy_loses():
    robot = slide()
    mechanism = robot.mechanism(friction={"rail": rigid.Coulomb(0.5, speed=0.01)})
    q, v = robot.assemble({}, {"rail": 2.0})
    ts = jnp.linspace(0.0, 0.5, 51)
    run = ukjax.simulate(mechanism, q, v, ts, rtol=1e-9, atol=1e-9)
    speed = jax.vmap(lambda q, v: jnp.linalg.norm(robot.velocity(q, v, "block")))(run.q, run.v)
    # It slows evenly but for the rounding of the corner, (0.01 / v)^2 / 2 of it.
    even = 2.0 + G * (np.sin(0.2) - 0.5 * np.cos(0.2)) * ts
    assert_close(speed, even, atol=3e-4)
    energy = jax.vmap(robot.energy)(run.q, run.v)
    way = jax.vmap(lambda q: robot.coordinate(q, "rail"))(run.q)
    assert_close(energy - energy[0], -0.5 * 3.0 * G * np.cos(0.2) * way, atol=1e-3)


def test_stops_in_closed_form():
    limit = rigid.Limit(-0.5, 0.3, stiffness=100.0, damping=2.0)
    for q, v, want in (
        (0.1, 5.0, 0.0),
        (0.4, 0.0, -10.0),
        (0.4, 1.0, -30.0),
        (0.4, -1.0, 0.0),  # on the way back it would pull
        (-0.7, 0.0, 20.0),
        (-0.7, -0.25, 30.0),
    ):
        assert_close(limit.of(jnp.asarray(q), jnp.asarray(v)), jnp.asarray(want), atol=1e-11)
        slope = jax.grad(limit.energy)(jnp.asarray(q))
        assert_close(-slope, limit.of(jnp.asarray(q), jnp.zeros(())), atol=1e-11)


@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_a_pendulum_comes_back_from_its_stop(damping):
    limit = rigid.Limit(-2.0, 0.2, stiffness=3000.0, damping=damping)
    robot = pendulum(rigid.Effort(limit=limit))
    ts = jnp.linspace(0.0, 2.0, 201)
    start = jnp.array([-1.5]), jnp.array([6.0])
    run = ukjax.simulate(robot.mechanism(), *start, ts, rtol=1e-10, atol=1e-10)
    energy = jax.vmap(robot.energy)(run.q, run.v)
    assert 0.2 < float(jnp.max(run.q)) < 0.4
    if damping:
        assert float(energy[-1]) < float(energy[0]) - 1.0
        assert np.all(np.diff(np.asarray(energy)) < 1e-7)
    else:
        assert_close(energy, jnp.full(201, energy[0]), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rigid.Coulomb(-0.1), "coefficient must not be negative"),
        (lambda: rigid.Coulomb(0.1, radius=-1.0), "radius must not be negative"),
        (lambda: rigid.Coulomb(0.1, speed=0.0), "speed must be positive"),
        (lambda: rigid.Limit(1.0, 0.0, 10.0), "upper must not be below lower"),
        (lambda: rigid.Limit(0.0, 1.0, 0.0), "stiffness must be positive"),
        (lambda: rigid.Limit(0.0, 1.0, 1.0, -1.0), "damping must not be negative"),
        (lambda: rigid.Effort(limit=(0.0, 1.0)), "limit must be an instance of Limit"),
        (lambda: pendulum().mechanism(friction={"A": rigid.Coulomb(0.1)}), "friction names 'A', a joint of the tree"),
        (lambda: pendulum().mechanism(friction={"B": rigid.Coulomb(0.1)}), "friction must name joints that are"),
        (lambda: pendulum().mechanism(friction={"A": 0.1}), r"friction\['A'\] must be an instance of Coulomb"),
        (
            lambda: pendulum(coordinates="absolute").mechanism(
                nonideal=lambda q, v, t, ideal: ideal, friction={"A": rigid.Coulomb(0.1)}
            ),
            "nonideal and friction are both given",
        ),
    ],
)
def test_what_does_not_fit_is_named(make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make()
