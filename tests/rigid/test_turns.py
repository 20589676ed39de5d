"""Angles of hinges that are constraints, over any number of turns: closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, long


# Whole numbers of radians beyond a full turn, which look like degrees.
pytestmark = pytest.mark.filterwarnings("ignore:coordinates.* full turn:UserWarning")
TIME = jnp.zeros(())
ABSOLUTE = {"plane": {"coordinates": "absolute", "planar": True}, "space": {"coordinates": "absolute"}}


def disc(moment):
    return rigid.Body(rigid.Inertia(1.0, [0.6 * moment, 0.6 * moment, moment]))


def geared(**options):
    """A wheel that drives another one, which turns 2.5 times slower, the other way; the second has a spring."""
    joints = {
        "fast": rigid.Revolute("ground", "small"),
        "slow": rigid.Revolute("ground.aside", "large", "z", rigid.Effort(stiffness=0.3)),
    }
    frames = {"aside": rigid.Frame((1.0, 0.0, 0.0), (0.0, 0.0, 2.0))}
    gears = {"teeth": rigid.Gear("fast", "slow", [0.4, -2.5])}
    bodies = {"small": disc(0.02), "large": disc(0.5)}
    return rigid.Robot(bodies, joints, frames=frames, gears=gears, gravity=(0.0, 0.0, 0.0), **options)


@pytest.mark.long
@pytest.mark.parametrize("where", ["plane", long("space")])
@pytest.mark.parametrize("held", [long(None), ukjax.Projection()])
def test_geared_wheels_wind_a_spring_up_over_several_turns(where, held):
    robot = geared(**ABSOLUTE[where])
    start = 0.4 - 2.5 * 2.0
    q, v = robot.assemble({"fast": start, "slow": 2.0}, {"fast": -50.0, "slow": 20.0})
    run = ukjax.simulate(robot.mechanism(), q, v, jnp.linspace(0.0, 2.0, 9), projection=held, rtol=1e-10, atol=1e-10)
    # Of the slow wheel: (0.5 + 2.5^2 0.02) s'' = -0.3 s, the gear between them.
    omega = np.sqrt(0.3 / (0.5 + 2.5**2 * 0.02))
    slow = 2.0 * np.cos(omega * run.t) + 20.0 / omega * np.sin(omega * run.t)
    assert np.max(np.abs(slow)) > 4 * np.pi
    assert_close(jax.vmap(lambda q: robot.coordinate(q, "slow"))(run.q), slow, atol=1e-6)
    assert_close(jax.vmap(lambda q: robot.coordinate(q, "fast"))(run.q), 0.4 - 2.5 * slow, atol=1e-6)
    assert float(jnp.max(run.position_residual)) < (1e-12 if held else 1e-7)


@pytest.mark.long
@pytest.mark.parametrize("where", ["plane", long("space")])
def test_springs_and_stops_many_turns_away_in_both_modes_and_in_batches(where):
    def made(stiffness):
        effort = rigid.Effort(stiffness, rest=1.0, limit=rigid.Limit(-10.0, 15.0, 40.0))
        joints = {"A": rigid.Revolute("ground", "wheel", "z", effort)}
        return rigid.Robot({"wheel": disc(0.5)}, joints, gravity=(0.0, 0.0, 0.0), **ABSOLUTE[where])

    def acceleration(stiffness, q):
        robot = made(stiffness)
        return ukjax.equation_of_motion(robot.mechanism(), q, jnp.zeros(robot.layout.n), throw=False).acceleration[-1]

    robot = made(3.0)
    angles = jnp.array([-14.0, -3.5, 2.5, 14.0, 20.0])
    states = jnp.stack([robot.assemble({"A": float(angle)}).q for angle in angles])
    assert_close(jax.vmap(lambda q: robot.coordinate(q, "A"))(states), angles, atol=1e-12)
    beyond = jnp.where(angles < -10.0, angles + 10.0, jnp.where(angles > 15.0, angles - 15.0, 0.0))
    want = (-3.0 * (angles - 1.0) - 40.0 * beyond) / 0.5
    for gradient in (jax.jacfwd, jax.jacrev):
        both = jax.jit(jax.vmap(lambda q, g=gradient: (acceleration(3.0, q), g(acceleration)(3.0, q))))(states)
        assert_close(both[0], want, atol=1e-10)
        assert_close(both[1], -(angles - 1.0) / 0.5, atol=1e-10)


def chain(**options):
    """Two planar rods with frames that are turned, one hinge about an axis that leads down."""
    ends = {"in": rigid.Frame((0.1, 0.0, 0.0), (0.0, 0.0, 2.5)), "out": rigid.Frame((0.5, 0.2, 0.0), (0.0, 0.0, -2.8))}
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.1), ends) for name in ("a", "b")}
    joints = {"A": rigid.Revolute("ground.at", "a.in"), "B": rigid.Revolute("a.out", "b.in", (0.0, 0.0, -2.0))}
    return rigid.Robot(bodies, joints, frames={"at": rigid.Frame((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))}, **options)


@pytest.mark.parametrize("where", [long("plane"), long("space")])
def test_the_angle_is_the_one_it_was_set_to(where):
    robot, tree = chain(**ABSOLUTE[where]), chain()
    for angles in ({"A": 9.0, "B": -20.0}, {"A": -3.2, "B": 3.1}):
        q, v = robot.assemble(angles, {"A": 0.3, "B": -0.7})
        for name, angle in angles.items():
            assert_close(robot.coordinate(q, name), jnp.asarray(angle), atol=1e-12)
            rate = jax.jvp(lambda q, n=name: robot.coordinate(q, n), (q,), (robot.mechanism().rates(q, v, TIME),))[1]
            assert_close(rate, jnp.asarray({"A": 0.3, "B": -0.7}[name]), atol=1e-12)
        assert_close(robot.position(q, "b.out"), tree.position(tree.assemble(angles).q, "b.out"), atol=1e-12)


def parallelogram(**options):
    """A linkage whose crank and rocker turn together, with a spring in the hinge that closes it."""
    rod = lambda length: rigid.Body(rigid.Inertia(1.0, 0.1), {"tip": rigid.Frame((length, 0.0, 0.0))})
    joints = {
        "A": rigid.Revolute("ground", "crank"),
        "B": rigid.Revolute("crank.tip", "coupler"),
        "C": rigid.Revolute("ground.pivot", "rocker"),
        "D": rigid.Revolute("rocker.tip", "coupler.tip", "z", rigid.Effort(stiffness=2.0)),
    }
    bodies = {"crank": rod(0.4), "coupler": rod(1.0), "rocker": rod(0.4)}
    return rigid.Robot(bodies, joints, frames={"pivot": rigid.Frame((1.0, 0.0, 0.0))}, gravity=(0.0,) * 3, **options)


@pytest.mark.long
@pytest.mark.parametrize("options", [{"planar": True}, long({}), long(ABSOLUTE["plane"])])
def test_a_hinge_that_closes_a_loop_goes_on_turning(options):
    robot = parallelogram(**options)
    q, v = robot.assemble({"A": 9.7, "B": -9.7, "C": 9.7}, keep=["A"])
    assert_close(robot.coordinate(q, "D"), jnp.asarray(-9.7), atol=1e-9)
    # All three rods turn or go along: I + m l^2 of the coupler; the spring pulls the crank back by 9.7 rad.
    assert_close(robot.energy(q, v), jnp.asarray(2.0 * 9.7**2 / 2), atol=1e-8)
    acceleration = ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration
    rate = jax.jvp(lambda q: robot.coordinate(q, "A"), (q,), (acceleration,))[1]
    assert_close(rate, jnp.asarray(-2.0 * 9.7 / (0.1 + 0.1 + 1.0 * 0.4**2)), atol=1e-8)


def twice(**options):
    """A wheel on two hinges about one axis, which is a vector: the second closes a loop."""
    axis = (0.0, 0.0, -1.0)
    return {"A": rigid.Revolute("ground", "wheel", axis), "again": rigid.Revolute("ground", "wheel", axis, **options)}


@pytest.mark.parametrize("used", [long("gear"), long("effort"), long("turns")])
def test_a_hinge_in_a_loop_in_space_counts_its_turns_where_they_matter(used):
    bodies = {name: rigid.Body(rigid.Inertia(1.0, 0.2)) for name in ("wheel", "slow")}
    options = {
        "effort": (twice(effort=rigid.Effort(3.0)), {}),
        "gear": (twice(), {"gears": {"teeth": rigid.Gear("B", "again", 0.5)}}),
        "turns": (twice(), {"turns": "again"}),
    }
    joints, more = options[used]
    joints = {**joints, "B": rigid.Revolute("ground", "slow", "x", rigid.Effort(3.0))}
    robot = rigid.Robot(bodies, joints, gravity=(0.0, 0.0, 0.0), **more)
    assert robot.names[0] == ("A [rad]", "B [rad]", "again [rad]")
    assert robot.names[1] == ("A [rad/s]", "B [rad/s]")
    start = {"A": 16.0, "again": 16.0, "B": 8.0}
    q, v = robot.assemble(start, {"A": 1.5, "again": 1.5, "B": 0.75}, keep=["A", "again"])
    for name, angle in start.items():
        assert_close(robot.coordinate(q, name), jnp.asarray(angle), atol=1e-10)
    acceleration = ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration
    # The spring of B pulls the wheel back through the gear; else each goes by itself.
    want = {
        "effort": [-3.0 * 16.0 / 0.2, -3.0 * 8.0 / 0.2],
        "gear": [-0.5 * 3.0 * 8.0 / (0.2 + 0.25 * 0.2), -0.25 * 3.0 * 8.0 / (0.2 + 0.25 * 0.2)],
        "turns": [0.0, -3.0 * 8.0 / 0.2],
    }
    assert_close(acceleration, jnp.array(want[used]), atol=1e-7)
    assert_close(robot.mechanism().rates(q, v, TIME), jnp.array([1.5, 0.75, 1.5]), atol=1e-12)
    # An entry that has drifted by less than half a turn does not matter, and goes where it should when q moves.
    drifted = q + jnp.array([0.0, 0.0, 2.0])
    assert_close(robot.coordinate(drifted, "again"), jnp.asarray(16.0), atol=1e-10)
    moved = robot.mechanism().retract(drifted, jnp.array([0.5, 0.25]), TIME)
    assert_close(moved, q + jnp.array([0.5, 0.25, 0.5]), atol=1e-10)


@pytest.mark.parametrize("where", [long("plane"), long("space")])
def test_a_users_row_on_a_coordinate_turns_a_wheel_round_and_round(where):
    joints = {"A": rigid.Revolute("ground", "wheel")}
    robot = rigid.Robot({"wheel": disc(0.5)}, joints, gravity=(0.0, 0.0, 0.0), **ABSOLUTE[where])
    turning = ukjax.Holonomic(lambda q, t: (robot.coordinate(q, "A") - 3.0 * t**2)[None])
    mechanism = robot.mechanism({"turning": turning})
    run = ukjax.simulate(mechanism, *robot.assemble(), jnp.linspace(0.0, 2.0, 5), projection=ukjax.Projection())
    assert_close(jax.vmap(lambda q: robot.coordinate(q, "A"))(run.q), 3.0 * run.t**2, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: rigid.Robot({"wheel": disc(1.0)}, twice()).coordinate(jnp.zeros(1), "again"),
            r"turns of the hinge 'again', which closes a loop, are not counted.* turns=\['again'\]",
        ),
        (lambda: rigid.Robot({"wheel": disc(1.0)}, twice(), turns="wheel"), "turns must name joints that are a Revol"),
        (
            lambda: geared(coordinates="absolute").coordinate(jnp.zeros(14), "fast"),
            r"q must have shape \(16,\), with an entry for the turns",
        ),
    ],
)
def test_what_cannot_be_counted_is_named(make, match):
    with pytest.raises(ValueError, match=match):
        make()
