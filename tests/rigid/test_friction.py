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
    # What presses, along the bob and across it, is as the pendulum moves with friction.
    inertia = 0.3 + 2.0 * 0.25
    turning = slowed = -2.0 * G * 0.5 * np.cos(0.4) / inertia
    for _ in range(30):
        force = 2.0 * np.hypot(-0.5 * 1.5**2 + G * np.sin(0.4), 0.5 * slowed + G * np.cos(0.4))
        slowed = turning - 0.3 * 0.05 * force * 1.5 / np.hypot(1.5, 0.1) / inertia
    assert_close(free.acceleration[-1], jnp.asarray(turning), atol=1e-10)
    assert_close(motion.acceleration[-1], jnp.asarray(slowed), atol=1e-10)
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


ANGLE, RATE = 1.0, 0.6
ROD = {"floor": 0.8 * np.cos(ANGLE), "wall": 0.8 * np.sin(ANGLE)}


def ladder(**options):
    """A rod between a block on a floor (3 kg) and one on a wall (1 kg)."""
    block = lambda mass: rigid.Body(rigid.Inertia(mass, 0.01))
    joints = {
        "floor": rigid.Prismatic("ground", "low", "x"),
        "wall": rigid.Prismatic("ground", "high", "y"),
        "rod": rigid.Distance("low", "high", 0.8),
    }
    options = {"coordinates": "absolute", "planar": True, **options}
    robot = rigid.Robot({"low": block(3.0), "high": block(1.0)}, joints, gravity=(0.0, -G, 0.0), **options)
    rates = {"floor": RATE, "wall": -RATE / np.tan(ANGLE)}
    return robot, *robot.assemble(ROD, rates, keep=["floor"])


def by_newton(floor, wall):
    """The acceleration of the block on the floor, the unknowns being x'', y'', and the push F of the rod.

    The block on the wall goes down: its friction, wall F cos, acts upwards.
    """
    c, s = np.cos(ANGLE), np.sin(ANGLE)
    rates = RATE**2 + (RATE / np.tan(ANGLE)) ** 2
    A = jnp.array([[3.0, 0.0, floor * s - c], [0.0, 1.0, -s - wall * c], [c, s, 0.0]])
    return jnp.linalg.solve(A, jnp.array([-3.0 * G * floor, -G, -rates / 0.8]))[0]


@pytest.mark.parametrize(("planar", "most"), [long(True, 1), long(True, 3), long(False, 3)])
def test_friction_that_changes_what_presses_on_its_own_joint_and_on_another(planar, most):
    robot, q, v = ladder(planar=planar)

    def slowed(floor, wall):
        friction = {"floor": rigid.Coulomb(floor, speed=1e-9), "wall": rigid.Coulomb(wall, speed=1e-9)}
        mechanism = robot.mechanism(friction=friction)
        return ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration[0]

    floor, wall = jnp.array([0.0, 0.4, 1.5, 0.4]), jnp.array([0.0, 0.0, 0.3, 0.9])
    orders = lambda f: (jax.value_and_grad(f), jax.jacfwd(f), jax.jacfwd(jax.jacrev(f)))[:most]
    found = jax.jit(lambda f, w: [jax.vmap(one)(f, w) for one in orders(slowed)])(floor, wall)
    wanted = [jax.vmap(one)(floor, wall) for one in orders(by_newton)]
    for got, want in zip(*map(jax.tree_util.tree_leaves, (found, wanted)), strict=True):
        assert_close(got, want, atol=1e-7 * (1 + float(jnp.max(jnp.abs(want)))))


@pytest.mark.long
def test_a_joint_that_jams_is_a_failure():
    robot, q, v = ladder()
    of = lambda mu: ukjax.equation_of_motion(
        robot.mechanism(friction={"floor": rigid.Coulomb(mu, speed=1e-9)}), q, v, throw=False
    )
    # Without a solution once friction takes more of the rod's push than that gives: c (c - mu s) / 3 + s^2 = 0.
    c, s = np.cos(ANGLE), np.sin(ANGLE)
    jams = (c + 3 * s**2 / c) / s
    near = of(0.99 * jams)
    assert near.result == ukjax.RESULTS.successful
    assert_close(near.acceleration[0], by_newton(0.99 * jams, 0.0), atol=1e-5 * abs(float(by_newton(0.99 * jams, 0.0))))
    for mu in (1.01 * jams, 3 * jams):
        assert of(mu).result == ukjax.RESULTS.not_finite


@pytest.mark.long
@pytest.mark.parametrize(("push", "turn"), [long(0.0, 1.5), long(2.0, 0.1), (2.0, -1.5)])
def test_a_slide_is_pressed_by_a_moment_at_two_places(push, turn):
    load = {"load": rigid.Load("block", (0.0, push, 0.0), (0.0, 0.0, turn))}
    joints = {"rail": rigid.Prismatic("ground", "block", "x")}
    body = {"block": rigid.Body(rigid.Inertia(3.0, 0.1))}
    options = {"gravity": (0.0, 0.0, 0.0), "coordinates": "absolute", "planar": True, "forces": load}
    robot = rigid.Robot(body, joints, **options)
    q, v = robot.assemble({}, {"rail": 0.6})
    of = lambda **given: ukjax.equation_of_motion(
        robot.mechanism(friction={"rail": rigid.Coulomb(0.4, speed=1e-9, **given)}), q, v, throw=False
    )
    pressed = abs(push / 2 + turn / 0.2) + abs(push / 2 - turn / 0.2)
    assert_close(of(length=0.2).acceleration[0], jnp.asarray(-0.4 * pressed / 3.0), atol=1e-9)
    assert_close(of(length=np.inf).acceleration[0], jnp.asarray(-0.4 * abs(push) / 3.0), atol=1e-9)
    if push:
        assert_close(of().acceleration[0], jnp.asarray(-0.4 * abs(push) / 3.0), atol=1e-9)
    else:
        assert of().result == ukjax.RESULTS.not_finite


@pytest.mark.long
def test_a_slide_that_nothing_presses_on_goes_on():
    joints = {"rail": rigid.Prismatic("ground", "block", "x")}
    body = {"block": rigid.Body(rigid.Inertia(3.0, 0.1))}
    options = {"gravity": (0.0, 0.0, 0.0), "coordinates": "absolute", "planar": True}
    robot = rigid.Robot(body, joints, **options)
    q, v = robot.assemble({}, {"rail": 0.6})
    motion = ukjax.equation_of_motion(robot.mechanism(friction={"rail": rigid.Coulomb(0.4)}), q, v)
    assert_close(motion.acceleration, jnp.zeros(3), atol=1e-14)


@pytest.mark.long
def test_friction_of_a_hinge_that_closes_a_loop_in_the_coordinates_of_joints():
    from .test_robot import GUESS, RATES, four_bar

    found = []
    for options in ({"planar": True}, {"planar": True, "coordinates": "absolute"}):
        robot = four_bar(**options)
        q, v = robot.assemble(GUESS, RATES, keep=["A"])
        mechanism = robot.mechanism(friction={"D": rigid.Coulomb(0.5, radius=0.1)})
        a = ukjax.equation_of_motion(mechanism, q, v).acceleration
        found.append(jax.jvp(lambda q, v, r=robot: r.velocity(q, v, "coupler.tip"), (q, v), (v, a))[1])
    assert_close(found[0], found[1], atol=1e-8)


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
        (lambda: rigid.Coulomb(0.1, length=0.0), "length must be positive"),
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
