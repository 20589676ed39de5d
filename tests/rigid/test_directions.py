"""Loops in space, in any direction: what vanishes there but for rounding errors is no row, and contradicts nothing.

Where the axes of a loop are parallel, some of its rows are zero: exactly in a coordinate plane, and but for rounding
errors elsewhere. The motion does not depend on the direction, which is the check; in a coordinate plane the rows are
compared with others in test_robot.
"""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import rigid

from ..helpers import assert_close, assert_gradients, long, sampled


OKAY = ukjax.RESULTS.successful
LEVEL = np.array([0.0, -9.81, 0.0])


class Place:
    """Where a mechanism is built: turned by R, with its origin at p; `lift` [m] moves one pivot out of its plane."""

    def __init__(self, R=None, p=(0.0, 0.0, 0.0), lift=0.0):
        self.R, self.p, self.lift = np.eye(3) if R is None else R, np.asarray(p, float), lift

    def frame(self, x=0.0, y=0.0, z=0.0, R=None):
        return rigid.Frame(self.p + self.R @ np.array([x, y, z]), self.R if R is None else self.R @ R)

    def robot(self, bodies, joints, frames, **options):
        return rigid.Robot(bodies, joints, frames=frames, gravity=self.R @ LEVEL, **options)


def rod(mass, length):
    inertia = rigid.Inertia.box(mass, (length, 0.03, 0.02), (length / 2, 0.0, 0.0))
    frames = {"tip": rigid.Frame((length, 0.0, 0.0)), "mid": rigid.Frame((0.4 * length, 0.0, 0.0))}
    return rigid.Body(inertia, frames)


def block(mass):
    return rigid.Body(rigid.Inertia.box(mass, (0.1, 0.2, 0.15)))


def four_bar(place, close=rigid.Revolute, twice=False, **options):
    bodies = {"crank": rod(0.4, 0.2), "bar": rod(1.2, 0.6), "arm": rod(1.0, 0.5)}
    joints = {"A": rigid.Revolute("ground.O", "crank"), "B": rigid.Revolute("crank.tip", "bar")}
    joints |= {"C": rigid.Revolute("ground.P", "arm"), "D": close("arm.tip", "bar.tip")}
    joints |= {"again": close("bar.tip", "arm.tip")} if twice else {}
    frames = {"O": place.frame(), "P": place.frame(0.55, z=place.lift)}
    return place.robot(bodies, joints, frames, **options), {"A": 1.0, "B": -0.5, "C": 1.5}


def slider_crank(place):
    bodies = {"crank": rod(0.4, 0.2), "bar": rod(1.2, 0.6), "block": block(2.0)}
    joints = {"A": rigid.Revolute("ground.O", "crank"), "B": rigid.Revolute("crank.tip", "bar")}
    joints |= {"C": rigid.Prismatic("ground.O", "block"), "D": rigid.Revolute("block", "bar.tip")}
    if place.lift:
        joints["C"] = rigid.Prismatic("ground.P", "block")
    frames = {"O": place.frame(), "P": place.frame(z=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 1.0, "B": -1.3, "C": 0.7}


def trammel(place):
    """A rod whose ends slide along two lines."""
    bodies = {"low": block(1.0), "high": block(2.0), "rod": rod(1.5, 0.8)}
    joints = {"A": rigid.Prismatic("ground.O", "low", "x"), "B": rigid.Prismatic("ground.P", "high", "y")}
    joints |= {"C": rigid.Revolute("low", "rod"), "D": rigid.Revolute("high", "rod.tip")}
    frames = {"O": place.frame(), "P": place.frame(z=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 0.5, "B": 0.6, "C": 2.2}


def yoke(place):
    """A crank whose pin slides in a yoke that slides on the ground."""
    bodies = {"crank": rod(0.4, 0.2), "pin": block(0.3), "yoke": block(2.0)}
    joints = {"A": rigid.Revolute("ground.O", "crank"), "B": rigid.Revolute("crank.tip", "pin")}
    joints |= {"C": rigid.Prismatic("ground.P", "yoke", "x"), "D": rigid.Prismatic("yoke", "pin", "y")}
    frames = {"O": place.frame(), "P": place.frame(z=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 1.0, "B": -1.0, "C": 0.1}


def parallelogram(place):
    """Three cranks of the same length below one bar."""
    bodies = {"one": rod(0.4, 0.3), "two": rod(0.5, 0.3), "three": rod(0.6, 0.3), "bar": rod(1.2, 1.0)}
    joints = {"A": rigid.Revolute("ground.O", "one"), "B": rigid.Revolute("ground.P", "two")}
    joints |= {"C": rigid.Revolute("ground.Q", "three"), "D": rigid.Revolute("one.tip", "bar")}
    joints |= {"E": rigid.Revolute("two.tip", "bar.mid"), "F": rigid.Revolute("three.tip", "bar.tip")}
    frames = {"O": place.frame(), "P": place.frame(0.4), "Q": place.frame(1.0, z=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 1.0, "B": 1.0, "C": 1.0, "D": -1.0}


def shafts(place):
    """Two shafts at an angle with a cardan joint between them, one of whose ends is the loop."""
    tilt = np.array([[np.cos(0.5), 0, np.sin(0.5)], [0, 1, 0], [-np.sin(0.5), 0, np.cos(0.5)]])
    bodies = {"one": rod(0.4, 0.3), "two": rod(0.5, 0.4)}
    joints = {"A": rigid.Revolute("ground.O", "one"), "B": rigid.Revolute("ground.P", "two")}
    joints["C"] = rigid.Universal("one", "two", "x", "y")
    frames = {"O": place.frame(), "P": place.frame(R=tilt, y=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 0.4, "B": 0.4}


def five_bar(place):
    bodies = {"a": rod(0.4, 0.5), "b": rod(0.5, 0.6), "c": rod(0.6, 0.5), "d": rod(0.7, 0.6)}
    joints = {"A": rigid.Revolute("ground.O", "a"), "B": rigid.Revolute("a.tip", "b")}
    joints |= {"C": rigid.Revolute("ground.P", "c"), "D": rigid.Revolute("c.tip", "d")}
    joints["E"] = rigid.Revolute("b.tip", "d.tip")
    frames = {"O": place.frame(), "P": place.frame(0.4, z=place.lift)}
    return place.robot(bodies, joints, frames), {"A": 2.0, "B": -1.0, "C": 1.2, "D": 0.9}


def sarrus(place):
    """Two chains of three parallel axes, in planes at right angles to each other: a plate that goes up and down."""
    quarter = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    at = {"one": rigid.Frame((0.5, 0.0, 0.0)), "two": rigid.Frame((0.0, 0.5, 0.0), quarter)}
    bodies = {"a": rod(0.4, 0.5), "b": rod(0.5, 0.5), "c": rod(0.6, 0.5), "d": rod(0.7, 0.5)}
    bodies["plate"] = rigid.Body(rigid.Inertia.box(2.0, (1.0, 1.0, 0.1)), at)
    joints = {"A": rigid.Revolute("ground.O", "a", "y"), "B": rigid.Revolute("a.tip", "b", "y")}
    joints |= {"C": rigid.Revolute("b.tip", "plate.one", "y"), "D": rigid.Revolute("ground.P", "c", "y")}
    joints |= {"E": rigid.Revolute("c.tip", "d", "y"), "F": rigid.Revolute("d.tip", "plate.two", "y")}
    # Out of its plane such a chain is carried along; turned by as much it is not.
    twist = np.array([[1.0, -place.lift, 0.0], [place.lift, 1.0, 0.0], [0.0, 0.0, 1.0]]) / np.hypot(1.0, place.lift)
    twist[2, 2] = 1.0
    frames = {"O": place.frame(0.5), "P": place.frame(0.0, 0.5, R=twist @ quarter)}
    start = {"A": -1.0, "B": -1.1, "C": 2.1, "D": -1.0, "E": -1.1}
    return place.robot(bodies, joints, frames), start


LOOPS = {
    "four-bar": four_bar,
    "four-bar, a ball closes it": ft.partial(four_bar, close=rigid.Spherical),
    "four-bar, closed twice": ft.partial(four_bar, twice=True),
    "slider-crank": slider_crank,
    "trammel": trammel,
    "yoke": yoke,
    "parallelogram": parallelogram,
    "cardan shafts": shafts,
    "five-bar": five_bar,
    "Sarrus": sarrus,
}


def directions(count, seed=0):
    rng = np.random.default_rng(seed)
    turns = [np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(count)]
    return [R * np.linalg.det(R) for R in turns], rng.normal(size=(count, 3))


def stacked(robots):
    """The same robot in several places, as one with a batch in front."""
    return jax.tree_util.tree_map(lambda *xs: jnp.stack(xs), *robots)


def start_of(build):
    """A consistent state, which is the same in all places."""
    robot, near = build(Place())
    return robot.assemble(near, {"A": 2.0}, keep=["A"])


@eqx.filter_jit
def motions(robots, q, v):
    def motion(robot):
        found = ukjax.equation_of_motion(robot.mechanism(), q, v, throw=False)
        return found.acceleration, found.rank, found.result == OKAY

    return jax.vmap(motion)(robots)


@eqx.filter_jit
def assemblies(robots, q, v):
    return jax.vmap(lambda robot: tuple(ukjax.assemble(robot.mechanism(), q, v, throw=False)))(robots)


def check(name, count):
    build = LOOPS[name]
    q, v = start_of(build)
    turns, places = directions(count)
    robots = stacked([build(Place(R, p))[0] for R, p in zip([np.eye(3), *turns], [np.zeros(3), *places], strict=True)])
    accelerations, ranks, okay = motions(robots, q, v)
    assert okay.all()
    assert_close(ranks, jnp.broadcast_to(ranks[0], ranks.shape))
    size = 1 + float(jnp.max(jnp.abs(accelerations[0])))
    assert_close(accelerations, jnp.broadcast_to(accelerations[0], accelerations.shape), atol=1e-10 * size)
    # A little off, they are assembled where they were.
    again = assemblies(robots, q + 1e-3, v)
    first = [jnp.broadcast_to(x[0], x.shape) for x in again]
    assert_close(again[0], first[0], atol=1e-9)
    assert_close(again[1], first[1], atol=1e-8)
    # With a pivot a little out of its plane they can't be.
    aside = stacked([build(Place(R, p, lift=1e-6))[0] for R, p in zip(turns, places, strict=True)])
    for x in assemblies(aside, q, v):
        assert np.isnan(x).all()


@pytest.mark.long
@pytest.mark.parametrize("name", sampled(LOOPS, ["four-bar, closed twice"]))
def test_a_loop_moves_alike_in_every_direction(name):
    check(name, 7)


@pytest.mark.long
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_moves_alike_in_a_thousand_directions(name):
    check(name, 1000)


@pytest.mark.parametrize("coordinates", ["joint", long("absolute")])
def test_a_tilted_four_bar_has_the_acceleration_of_a_level_one(coordinates):
    """By multipliers, at the same state in the plane: -29.567474825968944 rad/s^2 for thin rods."""
    thin = lambda mass, l: rigid.Body(rigid.Inertia(mass, [1e-4, mass * l**2 / 12, mass * l**2 / 12], (l / 2, 0, 0)),
                                      {"tip": rigid.Frame((l, 0, 0))})  # fmt: skip
    bodies = {"crank": thin(0.4, 0.2), "bar": thin(1.2, 0.6), "arm": thin(1.0, 0.5)}
    place = Place(directions(1, 3)[0][0])
    joints = {"A": rigid.Revolute("ground.O", "crank"), "B": rigid.Revolute("crank.tip", "bar")}
    joints |= {"C": rigid.Revolute("ground.P", "arm"), "D": rigid.Revolute("arm.tip", "bar.tip")}
    frames = {"O": place.frame(), "P": place.frame(0.55)}
    robot = place.robot(bodies, joints, frames, coordinates=coordinates)
    q, v = robot.assemble({"A": 1.0, "B": -0.5, "C": 1.5}, {"A": 2.0}, keep=["A"])
    turning = lambda q: robot.coordinate(q, "A")
    found = ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration
    if coordinates == "joint":
        assert_close(found[0], -29.567474825968944, atol=1e-9)
    else:
        angle = ukjax.Holonomic(lambda q, t: turning(q)[None])
        J, b = angle.rows(q, v, jnp.zeros(()), robot.kinematics)
        assert_close((J @ found - b)[0], -29.567474825968944, atol=1e-9)
    assert_close(turning(q), 1.0, atol=1e-12)


@pytest.mark.long
def test_gradients_in_a_tilted_plane():
    R = directions(1, 5)[0][0]
    q, v = start_of(four_bar)

    def acceleration(m):
        robot = eqx.tree_at(lambda r: r.bodies["bar"].inertia.mass, four_bar(Place(R))[0], m)
        return ukjax.equation_of_motion(robot.mechanism(), q, v, throw=False).acceleration @ jnp.array([1.0, 2.0, 3.0])

    assert_gradients(acceleration, jnp.asarray(1.2))


@pytest.mark.long
def test_rows_that_contradict_by_a_small_part_of_their_terms_are_refused():
    """The bar may not leave the plane, but is asked to, by a part of the accelerations in the loop."""
    q, v = start_of(four_bar)

    @eqx.filter_jit
    def okay(robot, normal, p, part):
        height = lambda q, t: (normal @ (robot.position(q, "bar.tip") - p) - part * t**2)[None]
        found = ukjax.equation_of_motion(robot.mechanism(ukjax.Holonomic(height)), q, v, throw=False)
        return found.result == OKAY

    for R, p in zip(*directions(3, 7), strict=True):
        at = four_bar(Place(R, p))[0], jnp.asarray(R[:, 2]), jnp.asarray(p)
        assert [bool(okay(*at, jnp.asarray(part))) for part in (0.0, 1e-6, 1e-3)] == [True, False, False]
