"""Robots from parts: loops, assembly, reactions, efforts, forces, motors, and what does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import bricard
from ukjax import rigid

from ..helpers import assert_close, long, sampled


TIME = jnp.zeros(())
LENGTHS = (1.0, 0.4, 1.1, 0.8)


def rod(mass, length, width=0.02):
    """Along x, with a frame at its tip; as wide as it takes for a moment about itself."""
    inertia = rigid.Inertia.box(mass, (length, width, width), (length / 2, 0.0, 0.0))
    return rigid.Body(inertia, {"tip": rigid.Frame((length, 0.0, 0.0))})


def four_bar(scale=1.0, **options):
    """Ground, crank, coupler and rocker, in the plane x, y."""
    ground, crank, coupler, rocker = LENGTHS
    return rigid.Robot(
        {"crank": rod(1.0, crank * scale), "coupler": rod(2.0, coupler), "rocker": rod(1.5, rocker)},
        {
            "A": rigid.Revolute("ground", "crank"),
            "B": rigid.Revolute("crank.tip", "coupler"),
            "C": rigid.Revolute("ground.pivot", "rocker"),
            "D": rigid.Revolute("rocker.tip", "coupler.tip"),
        },
        gravity=(0.0, -9.81, 0.0),
        frames={"pivot": rigid.Frame((ground, 0.0, 0.0))},
        **options,
    )


GUESS, RATES = {"A": 0.7, "B": 0.3, "C": 1.5}, {"A": 2.0}
KINDS = {
    "planar, joints": {"planar": True},
    "spatial, joints": {},
    "planar, absolute": {"planar": True, "coordinates": "absolute"},
    "spatial, absolute": {"coordinates": "absolute"},
}
# Coordinates, rows, rank.
SIZES = {"planar, joints": (3, 2, 2), "spatial, joints": (3, 5, 2), "planar, absolute": (9, 8, 8)}
SIZES["spatial, absolute"] = (18, 20, 17)


@pytest.mark.long
@pytest.mark.parametrize("kind", sampled(KINDS, ["planar, joints"]))
def test_a_loop_is_the_same_in_all_coordinates_and_its_redundancy_is_told(kind):
    robot, reference = four_bar(**KINDS[kind]), four_bar(planar=True)
    q, v = robot.assemble(GUESS, RATES, keep=["A"])
    known = reference.assemble(GUESS, RATES, keep=["A"])
    assert_close(robot.coordinate(q, "A"), jnp.asarray(0.7), atol=1e-12)
    assert_close(robot.position(q, "coupler.tip"), reference.position(known.q, "coupler.tip"), atol=1e-10)
    found = ukjax.diagnose(robot.mechanism(), q, v)
    n, rows, rank = SIZES[kind]
    assert (found.coordinates, found.rows, int(found.rank), int(found.degrees_of_freedom)) == (n, rows, rank, 1)
    for name, wrench in reference.reactions(*known).items():
        got = robot.reactions(q, v)[name]
        assert_close(got.force[:2], wrench.force[:2], atol=1e-8)
        assert_close(got.torque[2], wrench.torque[2], atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["spatial, joints", "planar, absolute", "spatial, absolute"])
def test_a_loop_moves_the_same_in_all_coordinates(kind):
    ts, options = jnp.linspace(0.0, 5.0, 26), {"rtol": 1e-11, "atol": 1e-11, "projection": ukjax.Projection()}
    ends = []
    for robot in (four_bar(planar=True), four_bar(**KINDS[kind])):
        q, v = robot.assemble(GUESS, RATES, keep=["A"])
        run = ukjax.simulate(robot.mechanism(), q, v, ts, keep="all", **options)
        ends.append((jax.vmap(lambda q, r=robot: r.position(q, "coupler.tip"))(run.q), robot.reactions_along(run)))
    assert_close(ends[1][0], ends[0][0], atol=1e-8)
    for name, wrench in ends[0][1].items():
        assert_close(ends[1][1][name].force[:, :2], wrench.force[:, :2], atol=2e-6)


def pendulum(**joint):
    body = rigid.Body(rigid.Inertia(2.0, [0.1, 0.2, 0.3], (0.5, 0.0, 0.0)), {"tip": rigid.Frame((1.0, 0.0, 0.0))})
    joints = {"A": rigid.Revolute("ground", "bob", "z", **joint)}
    return rigid.Robot({"bob": body}, joints, gravity=(0.0, -9.81, 0.0))


def test_the_reaction_of_a_pendulum_in_closed_form():
    robot, angle, rate = pendulum(), 0.4, 1.5
    inertia = 0.3 + 2.0 * 0.25
    q, v = jnp.array([angle]), jnp.array([rate])
    want = -2.0 * 9.81 * 0.5 * np.cos(angle) / inertia
    assert_close(ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration, jnp.array([want]), atol=1e-12)
    # m (a - g), seen from the body: along x what turns it, along y what speeds it up.
    along, across = -0.5 * rate**2 + 9.81 * np.sin(angle), 0.5 * want + 9.81 * np.cos(angle)
    force = robot.reactions(q, v)["A"].force
    assert_close(force, jnp.array([2.0 * along, 2.0 * across, 0.0]), atol=1e-12)
    level = jnp.array([along * np.cos(angle) - across * np.sin(angle), along * np.sin(angle) + across * np.cos(angle)])
    assert_close(robot.reactions(q, v, axes="ground")["A"].force[:2], 2.0 * level, atol=1e-12)
    run = ukjax.simulate(robot.mechanism(), q, v, [0.0, 0.1], keep="all")
    assert_close(robot.reactions_along(run, axes="ground")["A"].force[0, :2], 2.0 * level, atol=1e-12)
    assert_close(robot.reactions_along(run, axes="bob.tip")["A"].force[0], force, atol=1e-12)


@pytest.mark.parametrize("coordinates", ["joint", long("absolute")])
def test_a_reaction_has_the_motor_in_it_and_not_what_comes_from_outside(coordinates):
    """Two arms in the plane, at rest: a torque on the second one, by a motor on its joint or from outside."""
    rod = rigid.Body(rigid.Inertia(1.0, 0.1, (0.5, 0.0, 0.0)), {"tip": rigid.Frame((1.0, 0.0, 0.0))})
    joints = {"A": rigid.Revolute("ground", "a"), "B": rigid.Revolute("a.tip", "b")}
    options = {"coordinates": coordinates, "planar": True, "gravity": (0.0, 0.0, 0.0)}
    robot = rigid.Robot({"a": rod, "b": rod}, joints, motors={"drive": rigid.Motor("B", 3.0)}, **options)
    q, v = robot.assemble({"A": 0.4, "B": 0.7})
    torque = {"joint": jnp.array([1.5, 1.5]), "absolute": jnp.zeros(6).at[5].set(1.5)}[coordinates]
    inside, outside = robot.reactions(q, v, motors={"drive": 0.5}), robot.reactions(q, v, applied=torque)
    for found, want in ((inside, 1.5), (outside, 0.0)):
        assert_close(found["B"].torque, jnp.array([0.0, 0.0, want]), atol=1e-10)
        assert_close(found["A"].torque, jnp.zeros(3), atol=1e-10)
    # The second arm's balance about its middle: 0.1 b'' = torque - 0.5 F_y, seen from the arm.
    acceleration = ukjax.equation_of_motion(robot.mechanism(), q, v, applied=torque).acceleration
    turning = acceleration[0] + acceleration[1] if coordinates == "joint" else acceleration[5]
    assert_close(outside["B"].force[1], (1.5 - 0.1 * turning) / 0.5, atol=1e-10)


@pytest.mark.parametrize("coordinates", ["joint", long("absolute")])
def test_the_effort_of_a_joint_in_closed_form(coordinates):
    effort = rigid.Effort(stiffness=3.0, rest=0.1, damping=0.7, armature=0.2)
    tree = pendulum(effort=effort)
    robot = rigid.Robot(tree.bodies, tree.joints, gravity=(0.0, -9.81, 0.0), coordinates=coordinates)
    angle, rate = 0.4, 1.5
    q, v = robot.assemble({"A": angle}, {"A": rate})
    torque = -3.0 * (angle - 0.1) - 0.7 * rate
    want = (-2.0 * 9.81 * 0.5 * np.cos(angle) + torque) / (0.3 + 0.5 + 0.2)
    motion = ukjax.equation_of_motion(robot.mechanism(), q, v)
    assert_close(motion.acceleration[-1], jnp.asarray(want), atol=1e-10)
    carried = robot.reactions(q, v)["A"].torque
    assert_close(carried[2], jnp.asarray(torque - 0.2 * want), atol=1e-10)


def test_springs_and_loads_in_closed_form():
    spring = rigid.Spring("ground.hook", "bob.tip", 5.0, 0.3, 0.4)
    loads = {"spring": spring, "push": rigid.Load("bob.tip", (0.0, 2.0, 0.0), (0.0, 0.0, 0.5), follows=True)}
    tree = pendulum()
    hook = np.array([0.2, 1.5, 0.0])
    robot = rigid.Robot(
        tree.bodies, tree.joints, gravity=(0.0, 0.0, 0.0), frames={"hook": rigid.Frame(hook)}, forces=loads
    )
    angle, rate = 0.4, 1.5
    tip, across = np.array([np.cos(angle), np.sin(angle), 0.0]), np.array([-np.sin(angle), np.cos(angle), 0.0])
    way = hook - tip
    length = np.linalg.norm(way)
    pull = 5.0 * (length - 0.3) + 0.4 * (-rate * across @ way / length)
    want = (pull * (way / length) @ across + 2.0 + 0.5) / (0.3 + 0.5)
    motion = ukjax.equation_of_motion(robot.mechanism(), jnp.array([angle]), jnp.array([rate]))
    assert_close(motion.acceleration, jnp.array([want]), atol=1e-12)


@pytest.mark.long
def test_a_distance_and_a_point_on_a_curve_hold_as_the_joint_does_that_they_replace():
    ground, _, coupler, _ = LENGTHS
    full = four_bar(planar=True)
    q, v = full.assemble(GUESS, RATES, keep=["A"])
    tip, pivot = full.position(q, "coupler.tip"), jnp.array([ground, 0.0, 0.0])
    bodies = {"crank": full.bodies["crank"], "coupler": rod(2.0, coupler)}
    first = {"A": full.joints["A"], "B": full.joints["B"]}
    circle = lambda p: (p - pivot)[:2] @ (p - pivot)[:2] - LENGTHS[3] ** 2
    ends = {
        "rod": rigid.Distance("ground.pivot", "coupler.tip", LENGTHS[3]),
        "circle": rigid.PointOn("ground", "coupler.tip", circle),
    }
    found = []
    for name, end in ends.items():
        robot = rigid.Robot(bodies, {**first, name: end}, frames=full.frames, gravity=(0.0, -9.81, 0.0), planar=True)
        assert_close(robot.position(q[:2], "coupler.tip"), tip, atol=1e-12)
        found.append(ukjax.equation_of_motion(robot.mechanism(), q[:2], v[:2]))
        assert int(found[-1].rank) == 1
        assert_close(robot.mechanism().position_error(q[:2], TIME), jnp.zeros(1), atol=1e-10)
    assert_close(found[0].acceleration, found[1].acceleration, atol=1e-10)
    # A rocker without mass is such a rod.
    light = four_bar(planar=True)
    bodies = {**light.bodies, "rocker": rigid.Body(None, light.bodies["rocker"].frames)}
    massless = rigid.Robot(
        {name: bodies[name] for name in ("crank", "coupler", "rocker")},
        {name: light.joints[name] for name in "ABCD"},
        frames=light.frames, gravity=(0.0, -9.81, 0.0), planar=True,
    )  # fmt: skip
    motion = ukjax.equation_of_motion(massless.mechanism(), q, v)
    assert_close(motion.acceleration[:2], found[0].acceleration, atol=1e-9)


@pytest.mark.parametrize("joint", [long("A"), long("D")])
def test_a_motor_on_a_joint_of_the_tree_or_of_the_loop_follows(joint):
    robot = four_bar(planar=True)
    q, v = robot.assemble(GUESS, keep=["A"])
    angle = lambda q, t: (robot.coordinate(q, "A") - 0.7 - t**2 / 2)[None]
    servo = ukjax.Servo(ukjax.Holonomic(angle), robot.actuation(joint))
    run = ukjax.simulate(robot.mechanism(), q, v, jnp.linspace(0, 1.0, 5), servo=servo, projection=ukjax.Projection())
    assert_close(jax.vmap(lambda q: robot.coordinate(q, "A"))(run.q), 0.7 + run.t**2 / 2, atol=1e-6)
    # What the motor does is the power that the robot takes, whichever joint it sits on.
    rate = jax.vmap(lambda q, v: jax.jvp(lambda q: robot.coordinate(q, joint), (q,), (v,))[1])(run.q, run.v)
    other = ukjax.Servo(ukjax.Holonomic(angle), robot.actuation("A"))
    control = jax.vmap(lambda q, v, t: ukjax.servo_control(robot.mechanism(), other, q, v, t).u)(run.q, run.v, run.t)
    assert_close(run.control[:, 0] * rate, control[:, 0] * run.v[:, 0], atol=1e-6)


@pytest.mark.long
def test_reactions_under_a_motor_on_the_joint_of_the_loop_are_those_in_other_coordinates():
    found = []
    for robot in (four_bar(planar=True), four_bar(planar=True, coordinates="absolute")):
        q, v = robot.assemble(GUESS, keep=["A"])
        angle = lambda q, t, r=robot: (r.coordinate(q, "A") - 0.7 - t**2 / 2)[None]
        servo = ukjax.Servo(ukjax.Holonomic(angle), robot.actuation("D"))
        options = {"servo": servo, "projection": ukjax.Projection(), "keep": "all"}
        run = ukjax.simulate(robot.mechanism(), q, v, jnp.linspace(0, 0.2, 3), **options)
        with pytest.raises(ValueError, match="motors must name those of the 1 controls"):
            robot.reactions_along(run)
        found.append(robot.reactions_along(run, ["D"]))
    for name, wrench in found[0].items():
        assert_close(found[1][name].force, wrench.force, atol=1e-6)
        assert_close(found[1][name].torque, wrench.torque, atol=1e-6)
    assert float(jnp.min(jnp.abs(found[0]["D"].torque[:, 2]))) > 1.0


def test_reactions_beside_other_constraints_are_an_error():
    robot = pendulum()
    mechanism = robot.mechanism({"stop": ukjax.Holonomic(lambda q, t: q - 0.4)})
    run = ukjax.simulate(mechanism, jnp.array([0.4]), jnp.zeros(1), jnp.array([0.0, 0.1]), keep="all")
    with pytest.raises(ValueError, match="none of the robot's, .'stop'."):
        robot.reactions_along(run)
    with pytest.raises(ValueError, match="trajectory has no acceleration"):
        robot.reactions_along(ukjax.simulate(robot.mechanism(), [0.4], [0.0], [0.0, 0.1], keep=("q", "v")))


@pytest.mark.long
def test_gradients_through_a_closed_loop_with_respect_to_a_length_a_mass_and_a_joint():
    ts = jnp.linspace(0.0, 1.0, 6)

    def end(p):
        length, mass, pivot = p
        robot = four_bar(planar=True)
        along = lambda x: jnp.stack([x, 0.0 * x, 0.0 * x])
        inertia = rigid.Inertia(mass, [0.01, 0.02, 0.02], along(length / 2))
        crank = rigid.Body(inertia, {"tip": rigid.Frame(along(length))})
        robot = rigid.Robot(
            {**robot.bodies, "crank": crank}, robot.joints, gravity=(0.0, -9.81, 0.0), planar=True,
            frames={"pivot": rigid.Frame(along(pivot))},
        )  # fmt: skip
        q, v = robot.assemble(GUESS, RATES, keep=["A"])
        options = {"rtol": 1e-10, "atol": 1e-10, "projection": ukjax.Projection(), "throw": False}
        run = ukjax.simulate(robot.mechanism(), q, v, ts, **options)
        return robot.position(run.q[-1], "coupler.tip")[:2]

    p, end = jnp.array([0.4, 1.0, 1.0]), jax.jit(end)
    forward, backward = jax.jit(jax.jacfwd(end))(p), jax.jit(jax.jacrev(end))(p)
    differences = jnp.stack([(end(p + h) - end(p - h)) / 2e-5 for h in 1e-5 * jnp.eye(3)], axis=1)
    assert_close(forward, differences, atol=1e-6)
    assert_close(backward, forward, atol=1e-9)


@pytest.mark.long
def test_bricards_linkage_has_one_degree_of_freedom_and_keeps_its_energy():
    case = bricard.scenario()
    found = ukjax.diagnose(case.mechanism, case.q0, case.v0)
    assert (found.rows, int(found.rank), int(found.degrees_of_freedom)) == (5, 4, 1)
    run = case.simulate(jnp.linspace(0.0, 10.0, 101))
    energy = jax.vmap(case.invariants["energy [J]"])(run.q, run.v, run.t)
    assert_close(energy, jnp.full(101, energy[0]), atol=1e-6)
    assert np.all(np.asarray(run.rank) == 4)
    assert float(jnp.max(run.position_residual)) < 1e-13
    assert float(jnp.max(jnp.abs(run.q))) > 1.0
    # Redundant rows that drift apart within a step make it no shorter: 881 of 1 735 steps were once rejected.
    assert int(run.stats["num_steps"]) < 400


def test_the_energy_is_that_of_gravity_and_springs():
    spring = rigid.Spring("ground.hook", "bob.tip", 5.0, 0.3)
    tree = pendulum(effort=rigid.Effort(stiffness=3.0, rest=0.1))
    hook = {"hook": rigid.Frame((0.2, 1.5, 0.0))}
    robot = rigid.Robot(tree.bodies, tree.joints, gravity=(0.0, -9.81, 0.0), frames=hook, forces={"spring": spring})
    q, v = jnp.array([0.4]), jnp.array([1.5])
    acceleration = ukjax.equation_of_motion(robot.mechanism(), q, v).acceleration
    _, power = jax.jvp(robot.energy, (q, v), (v, acceleration))
    assert_close(power, jnp.zeros(()), atol=1e-12)
    length = np.hypot(np.cos(0.4) - 0.2, np.sin(0.4) - 1.5)
    want = 0.8 * 1.5**2 / 2 + 2 * 9.81 * 0.5 * np.sin(0.4) + 3 * 0.3**2 / 2 + 5 * (length - 0.3) ** 2 / 2
    assert_close(robot.energy(q, v), jnp.asarray(want), atol=1e-12)


BODY = rigid.Body(rigid.Inertia(1.0, 0.1))
ARM = {"A": rigid.Revolute("ground", "arm")}


def one(joint, **options):
    return rigid.Robot({"arm": BODY}, {"A": joint}, **options)


def moves(robot, n_q, n):
    ukjax.equation_of_motion(robot.mechanism(), jnp.zeros(n_q), jnp.zeros(n))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: rigid.Revolute("a", "b", (0.0, 0.0, 0.0)), "axis of the Revolute from 'a' to 'b' has length zero"),
        (lambda: rigid.Revolute("ground", "arm", "w"), 'axis must be "x", "y", "z" or a vector'),
        (lambda: one(rigid.Revolute("ground", "leg")), r"joints\['A'\] names the body 'leg'.*'arm'"),
        (lambda: one(rigid.Revolute("ground.x", "arm")), r"joints\['A'\] names the frame 'ground.x'"),
        (lambda: one(rigid.Revolute("arm", "arm")), "joins 'arm' to itself"),
        (lambda: rigid.Robot({"arm": BODY, "leg": BODY}, ARM), "'leg' hang on nothing"),
        (lambda: one(rigid.Revolute("arm", "ground")), "swap parent and child"),
        (lambda: rigid.Robot({"arm": rigid.Body()}, ARM), r"bodies\['arm'\] is massless"),
        (lambda: rigid.Robot({"a.b": BODY}, {}), "a name must be text"),
        (lambda: rigid.Robot({"ground": BODY}, {}), "a name must be text"),
        (lambda: rigid.Robot([BODY], {}), "bodies must be a mapping"),
        (lambda: rigid.Robot({"arm": 3}, {}), r"bodies\['arm'\] must be an instance of Body"),
        (lambda: one(ARM["A"], coordinates="both"), 'coordinates must be "joint"'),
        (lambda: rigid.Inertia(-1.0), "mass must not be negative"),
        (lambda: rigid.Inertia(1.0, [1.0, 1.0, 3.0]), "moments are impossible"),
        (lambda: rigid.Inertia(1.0, [-1.0, 1.0, 1.0]), "moments must not be negative"),
        (lambda: rigid.Inertia(1.0, np.triu(np.ones((3, 3)))), "moments must be symmetric"),
        (lambda: rigid.Inertia(1.0, center=(1.0, 2.0)), r"center must have shape \(3,\)"),
        (lambda: rigid.Inertia([1.0]), "mass must be a scalar"),
        (lambda: rigid.Inertia.cylinder(1.0, 0.1, 0.2, "w"), 'axis must be "x", "y" or "z"'),
        (lambda: rigid.Frame((0.0, np.nan, 0.0)), "position must be finite"),
        (lambda: rigid.Frame((0.0, 0.0, 0.0), [0.0, 0.0, 0.0, 0.0]), "quaternion of zeros"),
        (lambda: rigid.Frame((0.0, 0.0, 0.0), 2 * np.eye(3)), "must be a rotation matrix"),
        (lambda: rigid.Frame((0.0, 0.0, 0.0), [1.0]), "rotation must be"),
        (lambda: rigid.Distance("a", "b", 0.0), "length must be positive"),
        (lambda: rigid.Screw("a", "b", 0.0), "pitch must be a nonzero number"),
        (lambda: rigid.Planar("a", "b", "w"), 'normal must be "x"'),
        (lambda: rigid.Effort(armature=-1.0), "armature must not be negative"),
        (lambda: rigid.Effort(stiffness=[1.0]), "stiffness must be a scalar"),
        (lambda: rigid.Spring("a", "b", np.nan), "stiffness must be finite"),
        (lambda: four_bar().position(jnp.zeros(3), "crank.top"), "names the frame 'crank.top'"),
        (lambda: four_bar().coordinate(jnp.zeros(3), "E"), "joint must name one with a single coordinate"),
        (lambda: four_bar().coordinate(jnp.zeros(4), "A"), r"q must have shape \(3,\), but has shape \(4,\)"),
        (lambda: four_bar().position(jnp.zeros((2, 3)), "crank"), r"q must have shape \(3,\).*jax.vmap"),
        (lambda: four_bar().energy(jnp.zeros(3), jnp.zeros(2)), r"v must have shape \(3,\), but has shape \(2,\)"),
        (lambda: moves(four_bar(), 2, 2), r"q must have shape \(3,\), but has shape \(2,\)"),
        (lambda: moves(four_bar(), 4, 4), r"q must have shape \(3,\), but has shape \(4,\)"),
        (lambda: moves(one(rigid.Spherical("ground", "arm")), 3, 3), r"q has shape \(3,\).* has 4 coordinates and 3"),
        (lambda: moves(one(rigid.Spherical("ground", "arm")), 4, 4), r"v shape \(4,\).* 4 coordinates and 3 speeds"),
        (lambda: one(rigid.Spherical("ground", "arm"), home={"A": np.zeros(4)}), r"home\['A'\] has a quaternion of"),
        (lambda: one(ARM["A"], turns=3), "turns must be names of joints"),
        (lambda: rigid.from_urdf("<robot/>", floating="yes"), "floating must be True or False"),
        (lambda: four_bar().assemble({"E": 1.0}), "coordinates has 'E'"),
        (lambda: four_bar().assemble({"A": [1.0, 2.0]}), r"coordinates\['A'\] must have shape"),
        (lambda: four_bar().assemble([0.1]), "coordinates must be a mapping"),
        (lambda: four_bar().assemble(jnp.array([0.1, 0.2])), "coordinates must be a mapping"),
        (lambda: four_bar().assemble(rates=np.array([0.1, 0.2])), "rates must be a mapping"),
        (lambda: four_bar().assemble({"A": np.nan}), r"coordinates\['A'\] must be finite"),
        (lambda: four_bar().assemble(keep=["E"]), "keep has 'E'"),
        (lambda: four_bar().actuation(), "names must hold motors or joints"),
        (lambda: one(rigid.Revolute("ground", "arm", "x"), planar=True), "a Revolute, leads out of the plane"),
        (lambda: one(rigid.Prismatic("ground", "arm", (1.0, 0.0, 1.0)), planar=True), "a Prismatic, leads out"),
        (lambda: one(rigid.Spherical("ground", "arm"), planar=True), "a Spherical, leads out of the plane"),
        (lambda: four_bar().actuation("E"), "names must be of motors or joints, but 'E' is none of"),
        (lambda: four_bar().reactions(jnp.zeros(3), jnp.zeros(3), axes="E"), "axes names the body 'E'"),
        (lambda: four_bar().reactions(jnp.zeros(3), jnp.zeros(3), motors={"E": 1.0}), "motors must be of motors"),
        (lambda: four_bar().reactions(jnp.zeros(3), jnp.zeros(3), applied=[1.0]), r"applied must .* shape \(3,\)"),
        (lambda: rigid.Robot({}, {}), "bodies must hold one at least"),
        (lambda: four_bar().actuation(["A"]), r"names must be of motors or joints.* one is \['A'\]"),
        (lambda: rigid.Shape.box((0.1, -0.1, 0.1)), "size must be positive"),
        (lambda: rigid.Shape.cylinder(0.1, 0.0), "length must be positive"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(make, match):
    with pytest.raises((ValueError, TypeError), match=match):
        make()


@pytest.mark.long
def test_a_loop_that_cannot_be_closed_is_named():
    words = r"'D' is open by \d+(\.\d+)? mm, along \(.*\) seen from the ground"
    with pytest.raises(RuntimeError, match=words):
        four_bar(scale=9.0, planar=True).assemble(GUESS)
    with pytest.raises(RuntimeError, match="the position of 'D' .*row 0"):
        four_bar(scale=9.0, planar=True, coordinates="absolute").assemble(GUESS)


def test_lists_will_do_for_coordinates_and_speeds():
    arm = rigid.Robot({"arm": rod(1.0, 0.5)}, {"hip": rigid.Revolute("ground", "arm")}, gravity=(0.0, -9.81, 0.0))
    q, v = jnp.array([1.0]), jnp.array([2.0])
    assert_close(arm.position([1], "arm.tip"), arm.position(q, "arm.tip"))
    assert_close(arm.velocity([1], [2], "arm.tip"), arm.velocity(q, v, "arm.tip"))
    assert_close(arm.energy([1], [2]), arm.energy(q, v))
    assert_close(arm.coordinate([1], "hip"), q[0])
    with pytest.raises(ValueError, match="q must be an array of real numbers"):
        arm.position("1", "arm.tip")
