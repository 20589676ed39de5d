"""Models of `ukjax.rigid`: against closed forms, published figures, and independent derivations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import simpson, solve_ivp

import ukjax
from experiments.bicycle_stability import published
from models import (
    coordinated_robots,
    delta,
    five_bar_leg,
    governor,
    heavy_top,
    hoeken,
    rolling_disc,
    scara,
    six_joint_arm,
    slider_crank,
    spatial_chain,
    stewart,
    whipple_bicycle,
)
from ukjax import rigid

from ..helpers import assert_close, long


TIME = jnp.zeros(())
TIGHT = {"rtol": 1e-11, "atol": 1e-11, "projection": ukjax.Projection()}


def drift(function, run):
    """Greatest change of a quantity along a trajectory, relative to its size."""
    values = jax.vmap(function)(run.q, run.v, run.t)
    return float(jnp.max(jnp.abs(values - values[0])) / jnp.maximum(1.0, jnp.abs(values[0])))


@pytest.mark.long
def test_the_bicycle_has_the_published_eigenvalues():
    bicycle = whipple_bicycle.robot()
    mechanism, n_q = bicycle.mechanism(), bicycle.layout.n_q

    def change(x):
        q, v = x[:n_q], x[n_q:]
        return jnp.concatenate([mechanism.rates(q, v, TIME), ukjax.equation_of_motion(mechanism, q, v).acceleration])

    def off(x):
        q, v = x[:n_q], x[n_q:]
        gaps = mechanism.position_error(q, TIME), mechanism.velocity_error(q, v, TIME)
        return jnp.concatenate([*gaps, (q[3:7] @ q[3:7] - 1)[None]])

    both = jax.jit(lambda x: (off(x), jax.jacfwd(change)(x), jax.jacfwd(off)(x)))
    for speed in (0.0, 1.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0):
        # How it moves depends neither on its place nor on the angles of its wheels, so this is constant.
        gap, J, G = both(jnp.concatenate(whipple_bicycle.straight(bicycle, speed)))
        assert_close(gap, jnp.zeros_like(gap), atol=1e-12)
        _, sizes, along = np.linalg.svd(np.asarray(G))
        assert np.sum(sizes > 1e-9) == len(gap) == 9 + 1 - 1  # the three rows of a wheel, twice, the heights' rates
        free = along[len(gap) :].T
        found = np.linalg.eigvals(free.T @ np.asarray(J) @ free)
        for wanted in published(speed):
            assert np.min(np.abs(found - wanted)) < 1e-8


def test_the_disc_of_parts_is_the_one_by_hand():
    model = rolling_disc.RollingDisc()
    disc = rolling_disc.from_parts(model)
    by_hand = rolling_disc.scenario(nudge=0.5).mechanism
    compare = jax.jit(
        lambda q, v: (
            ukjax.equation_of_motion(by_hand, q, v),
            ukjax.equation_of_motion(disc.mechanism(), *rolling_disc.parts_state(model, q, v)),
        )
    )
    for lean, rates in ((0.3, (-1.0, 0.5, 4.0)), (-0.7, (2.0, -0.3, -1.0)), (0.0, (0.0, 0.0, 3.0))):
        q, v = model.state(jnp.asarray(lean), jnp.array(rates))
        theirs, ours = compare(q, v)
        R, (w, dw) = disc.pose(rolling_disc.parts_state(model, q, v)[0], "disc").R, (ours, ours.acceleration)
        spin = rolling_disc.parts_state(model, q, v)[1]
        at_center = R @ (dw[:3] + jnp.cross(spin[3:], spin[:3]))
        assert_close(at_center, theirs.acceleration[:3], atol=1e-12)
        assert int(w.rank) == 3


@pytest.mark.long
def test_the_disc_of_parts_keeps_its_energy_and_goes_where_the_one_by_hand_goes():
    scenario, model = rolling_disc.scenario(), rolling_disc.RollingDisc()
    disc, ts = rolling_disc.from_parts(model), jnp.linspace(0.0, 5.0, 201)
    start = rolling_disc.parts_state(model, scenario.q0, scenario.v0)
    run = ukjax.simulate(disc.mechanism(), *start, ts, keep="all", **TIGHT)
    assert drift(disc.energy, run) < 1e-9
    by_hand = ukjax.simulate(scenario.mechanism, scenario.q0, scenario.v0, ts, **TIGHT)
    assert_close(run.q[:, :3], by_hand.q[:, :3], atol=1e-8)
    # The plane carries what gravity does not: m (r'' - g), seen from the disc.
    R = jax.vmap(lambda q: disc.pose(q, "disc").R)(run.q)
    speeds = jnp.einsum("tij,tj->ti", R, run.v[:, :3])
    forces = jnp.einsum("tij,tj->ti", R, disc.reactions_along(run)["rim"].force)
    momentum = model.m * (speeds[-1] - speeds[0])
    weight = model.m * jnp.array([0.0, 0.0, -9.81])
    impulse = simpson(np.asarray(forces), x=np.asarray(ts), axis=0) + 5.0 * weight
    assert_close(impulse, momentum, atol=1e-4)


def height_of_slider(ts):
    """The governor's by an independent derivation: Lagrange's equations of its symmetric motion."""
    L, w, p, s, ball = 1.0, 0.01, 0.05, 0.1, 5.0
    m, slider = 3000.0 * L * w**2, 3000.0 * s**3
    along, across = m * w**2 / 6, m * (L**2 + w**2) / 12
    about_pivot = across + m * L**2 / 4 + ball * L**2

    def spin_inertia(b):
        c, other = np.cos(b), np.sin(b)
        rod = m * (p + L / 2 * c) ** 2 + along * other**2 + across * c**2
        return m * w**2 / 6 + slider * s**2 / 6 + 2 * (rod + ball * (p + L * c) ** 2)

    def slope(b):
        c, other = np.cos(b), np.sin(b)
        rod = -m * (p + L / 2 * c) * L * other + 2 * (along - across) * other * c
        return 2 * (rod - 2 * ball * (p + L * c) * L * other)

    momentum = spin_inertia(np.pi / 6) * 2 * np.pi

    def change(t, y):
        b, z, db, dz = y
        # From the slider's side to the rod's middle.
        out, up = p + L / 2 * np.cos(b) - s / 2, L - L / 2 * np.sin(b) - z
        d_out, d_up = -L / 2 * np.sin(b) * db, -L / 2 * np.cos(b) * db - dz
        l = np.hypot(out, up)
        pull = 8e5 * (l - 0.5) + 4e4 * (out * d_out + up * d_up) / l
        on_rod = -pull * (out * -L / 2 * np.sin(b) + up * -L / 2 * np.cos(b)) / l
        falling = 9.81 * (m * L / 2 + ball * L) * np.cos(b)
        turning = slope(b) * (momentum / spin_inertia(b)) ** 2 / 4
        return [db, dz, (turning + falling + on_rod) / about_pivot, 2 * pull * up / l / slider - 9.81]

    start = [np.pi / 6, 0.5, 0.0, 0.0]
    return solve_ivp(change, (0.0, ts[-1]), start, "Radau", ts, rtol=1e-11, atol=1e-11).y[1]


@pytest.mark.long
def test_the_governor_against_an_integration_of_its_own():
    scenario, ts = governor.scenario(), jnp.linspace(0.0, 3.0, 31)
    run = ukjax.simulate(scenario.mechanism, scenario.q0, scenario.v0, ts, rtol=1e-9, atol=1e-9, max_steps=60_000)
    assert_close(governor.HEIGHT + run.q[:, 1], height_of_slider(np.asarray(ts)), atol=1e-6)


def test_the_top_keeps_energy_and_momenta_and_precesses_evenly():
    scenario = heavy_top.scenario()
    lean, spin = jnp.asarray(0.5), 150.0
    even = heavy_top.even(lean, spin)
    ts = jnp.linspace(0.0, 2.0, 21)
    run = ukjax.simulate(scenario.mechanism, *heavy_top.state(lean, even, spin), ts, **TIGHT)
    for function in scenario.invariants.values():
        assert drift(function, run) < 1e-9
    lengths = jnp.sum(run.q**2, axis=1)
    assert_close(lengths, jnp.ones_like(lengths), atol=1e-14)
    axis = jax.vmap(lambda q: scenario.observables["axis x, y, z"](q, None, TIME))(run.q)
    # It starts towards -y, and goes round about the vertical.
    turn = even * ts
    around = jnp.stack([jnp.sin(lean) * jnp.sin(turn), -jnp.sin(lean) * jnp.cos(turn)], axis=1)
    assert_close(axis[:, :2], around, atol=1e-8)


def test_the_piston_in_closed_form():
    engine, r, l = slider_crank.robot(), 0.15, 0.5
    for angle in (0.8, 2.5, -1.0):
        q, v = engine.assemble({"A": angle, "B": -1.3 * angle, "slide": 0.6}, {"A": 3.0}, keep=["A"])
        root = np.sqrt(l**2 - (r * np.sin(angle)) ** 2)
        assert_close(engine.coordinate(q, "slide"), jnp.asarray(r * np.cos(angle) + root), atol=1e-10)
        speed = -r * np.sin(angle) * (1 + r * np.cos(angle) / root) * 3.0
        assert_close(v[2], jnp.asarray(speed), atol=1e-9)


@pytest.mark.long
def test_hoekens_tip_in_closed_form_and_how_straight_it_goes():
    linkage, r = hoeken.robot(), 0.2
    heights = []
    for angle in np.linspace(0.6 * np.pi, 1.4 * np.pi, 5):
        q, _ = hoeken.start(linkage, angle, 1.0)
        B, C = r * np.array([np.cos(angle), np.sin(angle)]), np.array([2 * r, 0.0])
        # D is as far from B as from C.
        way = C - B
        out = np.array([-way[1], way[0]]) / np.linalg.norm(way)
        D = (B + C) / 2 + np.sqrt((2.5 * r) ** 2 - way @ way / 4) * out
        P = np.asarray(linkage.position(q, "coupler.P")[:2])
        assert_close(P, 2 * D - B, atol=1e-9)
        heights.append(P[1])
    assert np.ptp(heights) < 0.01 * r


@pytest.mark.long
def test_the_delta_moves_its_platform_where_three_spheres_meet():
    robot, angles = delta.robot(), np.array([0.1, 0.4, 0.6])
    center = delta.center(angles)
    rough = {"free": [0.0, 0.0, -0.6, 1.0, 0.0, 0.0, 0.0]}
    rough |= {f"motor{name}": angle for name, angle in zip(delta.ARMS, angles, strict=True)}
    q, v = robot.assemble(rough, {"motor1": 1.0}, keep=[f"motor{name}" for name in delta.ARMS])
    assert_close(robot.position(q, "platform"), jnp.asarray(center), atol=1e-9)
    assert_close(robot.pose(q, "platform").R, jnp.eye(3), atol=1e-9)
    first = np.array([1e-6, 0.0, 0.0])
    slope = (delta.center(angles + first) - delta.center(angles - first)) / 2e-6
    assert_close(robot.velocity(q, v, "platform"), jnp.asarray(slope), atol=1e-7)
    found = ukjax.equation_of_motion(robot.mechanism(), q, v)
    assert int(found.rank) == 6


@pytest.mark.long
def test_the_legs_of_the_stewart_platform_have_the_lengths_of_its_pose():
    robot = stewart.robot()
    q, v = robot.assemble({"slide1": 0.05, "slide2": 0.02, "slide5": -0.04})
    at = robot.pose(q, "platform")
    slides = jnp.stack([robot.coordinate(q, f"slide{name}") for name in stewart.LEGS])
    assert_close(slides, stewart.lengths(at.p, at.R), atol=1e-9)
    found = ukjax.diagnose(robot.mechanism(), q, v)
    assert (found.rows, int(found.rank), int(found.degrees_of_freedom)) == (15, 15, 6)


@pytest.mark.long
def test_the_motors_of_the_stewart_platform_do_what_its_weight_asks():
    scenario = stewart.scenario(sway=0.0, tilt=0.0)
    control = ukjax.servo_control(scenario.mechanism, scenario.servo, scenario.q0, 0 * scenario.v0).u
    # Level and at rest: by symmetry each leg carries the same, and together what the platform and they weigh.
    assert_close(control, jnp.full(6, control[0]), atol=1e-9)
    lift = lambda z: stewart.lengths(jnp.array([0.0, 0.0, 1.0]) * z, jnp.eye(3))
    rate = jax.jacfwd(lift)(jnp.asarray(stewart.HEIGHT))
    robot = scenario.mechanism.system
    height = jax.jacfwd(lambda z: robot.energy(raised(robot, z), jnp.zeros(robot.layout.n)))(stewart.HEIGHT)
    assert_close(control @ rate, height, atol=1e-6)


def raised(robot, z):
    """The platform level at a height: every leg leans otherwise, and is as long as it must be."""
    below, above = (jnp.asarray(x) for x in stewart.anchors())
    found = []
    for i, name in enumerate(stewart.LEGS):
        R = robot.frames[f"foot{name}"].pose.R
        way = R.T @ (above[i] + jnp.array([0.0, 0.0, 1.0]) * z - below[i])
        # First about x, then about y: the cylinder's z is (sin b, -sin a cos b, cos a cos b).
        length = jnp.linalg.norm(way)
        a, b = jnp.arctan2(-way[1], way[2]), jnp.arcsin(way[0] / length)
        start = jnp.linalg.norm(above[i] + jnp.array([0.0, 0.0, stewart.HEIGHT]) - below[i])
        leg = {f"foot{name}": jnp.stack([a, b]), f"slide{name}": (length - start)[None]}
        if i == 0:
            # The platform stays level: its ball turns back what the foot turned.
            pose = robot.pose(robot_state(robot, leg), f"rod{name}")
            leg[f"ball{name}"] = rigid.Frame((0.0, 0.0, 0.0), pose.R.T).quaternion
        found.append(leg)
    return robot_state(robot, {k: v for leg in found for k, v in leg.items()})


def robot_state(robot, values):
    rest = {"foot": jnp.zeros(2), "slid": jnp.zeros(1), "ball": jnp.array([1.0, 0.0, 0.0, 0.0])}
    return jnp.concatenate([values.get(joint, rest[joint[:4]]) for joint in robot.layout.tree])


@pytest.mark.parametrize("N", [1, long(3)])
def test_the_chain_in_space_keeps_energy_and_momentum_about_the_vertical(N):
    chain = spatial_chain.robot(N)
    q, v = chain.assemble(spatial_chain.along([0.3] * N, np.linspace(0.0, 2.0, N)))
    v = v + jnp.linspace(-1.0, 1.0, len(v))
    run = ukjax.simulate(chain.mechanism(), q, v, jnp.linspace(0.0, 1.0, 6), rtol=1e-11, atol=1e-11)
    assert drift(chain.energy, run) < 1e-8

    def momentum(q, v, t):
        # The generalised momentum along a turn of all about the vertical, which the first ball alone does.
        turning = jnp.zeros_like(v).at[:3].set(chain.pose(q, "rod1").R[2])
        return turning @ chain.mass(q, t) @ v

    assert drift(momentum, run) < 1e-8


@pytest.mark.long
def test_the_closed_chain_in_space_moves_as_in_absolute_coordinates():
    chain = spatial_chain.robot(3, closed=True)
    whole = rigid.Robot(chain.bodies, chain.joints, frames=chain.frames, coordinates="absolute")
    rough = spatial_chain.along([-1.0, 0.0, 1.0], [0.3] * 3)
    ts, ends = jnp.linspace(0.0, 1.0, 6), []
    q, _ = chain.assemble(rough)
    for robot in (chain, whole):
        own = chain.layout.tree
        given = {joint: q[slice(*node.q)] for joint, node in zip(own, chain.layout.nodes, strict=True)}
        run = ukjax.simulate(robot.mechanism(), *robot.assemble(given), ts, **TIGHT)
        ends.append(jax.vmap(lambda q, r=robot: r.position(q, "rod2.end"))(run.q))
        assert drift(robot.energy, run) < 1e-8
    assert_close(ends[1], ends[0], atol=1e-8)


def test_the_arm_has_the_poses_of_its_table():
    arm = six_joint_arm.robot(payload=2.0)
    angles = np.array([0.3, -1.0, 1.2, -0.5, 0.7, 2.0])
    T = np.eye(4)
    for angle, d, a, twist in zip(angles, six_joint_arm.D, six_joint_arm.A, six_joint_arm.TWIST, strict=True):
        c, s, ct, st = np.cos(angle), np.sin(angle), np.cos(twist), np.sin(twist)
        T = T @ [[c, -s * ct, s * st, a * c], [s, c * ct, -c * st, a * s], [0, st, ct, d], [0, 0, 0, 1]]
    found = arm.pose(jnp.asarray(angles), "tool.end")
    assert_close(found.R, T[:3, :3], atol=1e-12)
    assert_close(found.p, T[:3, 3], atol=1e-12)
    # What holds it still is the slope of its potential energy, in which the payload has its part.
    rest = jnp.zeros(6)
    slope = jax.grad(lambda q: arm.energy(q, rest))(jnp.asarray(angles))
    assert_close(-arm.force(jnp.asarray(angles), rest, TIME), slope, atol=1e-10)
    lighter = jax.grad(lambda q: six_joint_arm.robot().energy(q, rest))(jnp.asarray(angles))
    height = jax.grad(lambda q: arm.position(q, "tool.end")[2])(jnp.asarray(angles))
    assert_close(slope - lighter, 2.0 * 9.81 * height, atol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("name", ["swinging", "standing"])
def test_the_motors_of_the_leg_do_the_work_that_its_energy_gains(name):
    scenario = getattr(five_bar_leg, name)(t1=0.3)
    leg, ts = scenario.mechanism.system, jnp.linspace(0.0, 0.3, 301)
    run = scenario.simulate(ts, keep="all", rtol=1e-10, atol=1e-10)
    assert float(jnp.max(jnp.abs(run.servo_position_residual))) < 1e-8
    energy = jax.vmap(leg.energy)(run.q, run.v, run.t)
    power = jnp.sum(run.control * (run.v @ leg.actuation()), axis=1)
    assert_close(jnp.trapezoid(power, ts), energy[-1] - energy[0], atol=1e-5)


def test_the_scara_of_parts_is_the_one_by_hand():
    model = scara.Scara()
    point = lambda m, Iz, at=(0.0, 0.0, 0.0): rigid.Inertia(m, jnp.stack([Iz, Iz, Iz]), at)
    along_y = lambda length: jnp.stack([jnp.zeros(()), length, jnp.zeros(())])
    bodies = {
        "1": rigid.Body(point(model.m1, model.Iz1, along_y(model.r1)), {"end": rigid.Frame(along_y(model.l1))}),
        "2": rigid.Body(point(model.m2, model.Iz2, along_y(model.r2)), {"end": rigid.Frame(along_y(model.l2))}),
        "3": rigid.Body(point(model.m3, model.Iz3)),
        "tool": rigid.Body(point(model.m4, model.Iz4)),
    }
    joints = {f"q{i + 1}": rigid.Revolute(("ground", "1.end", "2.end")[i], str(i + 1)) for i in range(3)}
    robot = rigid.Robot(bodies, {**joints, "q4": rigid.Prismatic("3", "tool", "z")})
    rng = np.random.default_rng(0)
    for _ in range(3):
        q, v = jnp.asarray(rng.normal(size=4)), jnp.asarray(rng.normal(size=4))
        assert_close(robot.mass(q, TIME), model.mass(q, TIME), atol=1e-13)
        assert_close(robot.force(q, v, TIME), model.force(q, v, TIME), atol=1e-13)
        assert_close(robot.position(q, "tool"), model.tool(q), atol=1e-14)


@pytest.mark.long
def test_the_coordinated_robots_of_parts_are_those_by_hand():
    scenario = coordinated_robots.scenario()
    model = coordinated_robots.CoordinatedRobots()
    bar = rigid.Body(rigid.Inertia(1.0, 1.0, (0.5, 0.0, 0.0)), {"end": rigid.Frame((1.0, 0.0, 0.0))})
    ends = ["ground", *(f"link{i}.end" for i in range(1, 6))]
    joints = {f"u{i + 1}": rigid.Revolute(ends[i], f"link{i + 1}") for i in range(5)}
    joints["u6"] = rigid.Revolute("ground.right", "link5.end")
    signs = {"u4": -1.0, "u5": -1.0}
    robot = rigid.Robot(
        {f"link{i}": bar for i in range(1, 6)},
        joints,
        gravity=(0.0, -9.8, 0.0),
        frames={"right": rigid.Frame((3.0, 0.0, 0.0))},
        motors={name: rigid.Motor(name, signs.get(name, 1.0)) for name in joints},
        planar=True,
    )
    q, v = scenario.q0, jnp.zeros(5)
    relative = lambda x: jnp.diff(x, prepend=0.0)
    off = lambda q, t: model.off_path(jnp.cumsum(q), t)
    path = ukjax.Servo(ukjax.Holonomic(off), robot.actuation())
    ours = ukjax.servo_control(robot.mechanism(), path, relative(q), relative(v))
    theirs = ukjax.servo_control(model.mechanism(), model.servo(), q, v)
    assert_close(ours.u, theirs.u, atol=1e-9)
    free = ukjax.equation_of_motion(robot.mechanism(), relative(q), relative(v))
    by_hand = ukjax.equation_of_motion(model.mechanism(), q, v)
    assert_close(jnp.cumsum(free.acceleration), by_hand.acceleration, atol=1e-10)
