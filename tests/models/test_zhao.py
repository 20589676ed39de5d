"""The examples of Zhao et al. (2018): spiral, swarm, the three constraints, and the projectile."""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import ukjax
from models import constraint_examples, log_spiral, projectile, swarm

from ..helpers import STATES, assert_close, long, sampled


TIGHT = {"solver": diffrax.Dopri8(), "rtol": 1e-12, "atol": 1e-12}
G = 9.81


def run(scenario, points=41, **options):
    ts = jnp.linspace(scenario.t0, scenario.t1, points)
    mechanism, q0, v0 = scenario.mechanism, scenario.q0, scenario.v0
    options = {"keep": STATES} | TIGHT | options
    return ukjax.simulate(mechanism, q0, v0, ts, projection=scenario.projection, **options)


def drift(scenario, trajectory):
    """By how much each invariant of a scenario varies."""
    along = {name: jax.vmap(f) for name, f in scenario.invariants.items()}
    return {name: float(np.ptp(np.asarray(f(trajectory.q, trajectory.v, trajectory.t)))) for name, f in along.items()}


def integrated(acceleration, q0, v0, ts):
    """Coordinates and rates (T, n) by SciPy."""
    n = len(q0)
    flow = lambda t, y: np.concatenate([y[n:], acceleration(t, y[:n], y[n:])])
    y = solve_ivp(flow, (ts[0], ts[-1]), np.concatenate([q0, v0]), "DOP853", np.asarray(ts), rtol=1e-12, atol=1e-12).y.T
    return y[:, :n], y[:, n:]


# ---- the spiral


def test_spiral_over_the_range_of_the_paper():
    got = run(log_spiral.scenario(), keep=None)
    assert float(got.t[-1]) == 40.0
    assert_close(got.q, log_spiral.exact(got.t), atol=1e-8)
    assert_close(got.constraint_force, log_spiral.exact_force(got.t), atol=1e-8)
    radius = np.asarray(got.q[:, 0])
    assert_close(radius[[0, 20, 40]], np.exp([3.0, 1.0, -1.0]), atol=1e-8)


@pytest.mark.parametrize("gain", [0.0, 2.0])
def test_spiral_off_the_orbit(gain):
    case = log_spiral.scenario("disturbed", gain, gain, t1=20.0)
    got = run(case)
    want = log_spiral.disturbance(got.t, gain, gain)
    assert_close(got.q, log_spiral.exact(got.t, want), atol=1e-8)
    rows = jax.vmap(log_spiral.Spiral().orbit)(got.q, got.t)
    assert_close(rows, want, atol=1e-8)
    if gain == 0.0:  # grows linearly
        assert_close(want[-1], np.array([-2e-3 + 20 * 1e-4, 1e-3 + 20 * 2e-4]), atol=1e-15)


def test_the_disturbed_start_is_off_by_what_it_says():
    spiral, case = log_spiral.Spiral(), log_spiral.scenario("disturbed")
    place, rate = jax.jvp(lambda s: spiral.orbit(case.q0 + s * case.v0, s), (jnp.zeros(()),), (jnp.ones(()),))
    assert_close(place, np.array(log_spiral.OFF[0]), atol=1e-13)
    assert_close(rate, np.array(log_spiral.OFF[1]), atol=1e-13)


def test_bead_on_the_spiral_by_its_angle_alone():
    case = log_spiral.bead()
    got = run(case)
    # T = 1.01 r^2 theta'^2 / 2 and V = g r sin(theta), with r = exp(0.1 theta).
    pull = lambda a: -G * (0.1 * np.sin(a) + np.cos(a)) / (1.01 * np.exp(0.1 * a))
    angle, _ = integrated(lambda t, a, w: -0.1 * w**2 + pull(a), [30.0], [-1.0], got.t)
    assert_close(got.q[:, 1], angle[:, 0], atol=1e-8)
    assert_close(got.q[:, 0], np.exp(0.1 * angle[:, 0]), atol=1e-8)
    assert drift(case, got)["energy [J]"] < 1e-7  # of 406 J of kinetic energy at most


def test_with_the_printed_inertia_the_bead_runs_away():
    case = log_spiral.printed_bead()
    got = run(case)

    def literal(t, q, v):
        """Eq. 36 with M = I, in NumPy."""
        r, a = q
        free = np.array([r * v[1] ** 2 - G * np.sin(a), (-2 * v[0] * v[1] - G * np.cos(a)) / r])
        A, b = np.array([[1.0, -0.1 * np.exp(0.1 * a)]]), 0.01 * np.exp(0.1 * a) * v[1] ** 2
        return free + np.linalg.pinv(A) @ (b - A @ free)

    want, _ = integrated(literal, np.asarray(case.q0), np.asarray(case.v0), got.t)
    assert_close(got.q, want, atol=1e-7)
    energy = jax.vmap(case.observables["energy [J]"])(got.q, got.v, got.t)
    assert float(jnp.ptp(energy)) > 100.0
    with pytest.raises(RuntimeError, match=r"at t = 0\.4559"):
        run(log_spiral.printed_bead(t1=1.0))


@pytest.mark.long
def test_on_the_orbit_the_inertia_changes_nothing_but_the_unit_of_the_force():
    q, v, t = jnp.array([2.0, 7.0]), jnp.array([0.3, -0.4]), jnp.zeros(())
    orbit = ukjax.Holonomic(log_spiral.Spiral().orbit)
    systems = [ukjax.Mechanism(model, orbit) for model in (projectile.PrintedPolar(), projectile.Polar())]
    printed, physical = (ukjax.equation_of_motion(system, q, v, t) for system in systems)
    assert_close(printed.acceleration, physical.acceleration, atol=1e-12)
    assert_close(physical.constraint_force, printed.constraint_force * jnp.array([1.0, 4.0]), atol=1e-12)
    forces = [system.system.cartesian(q, motion.constraint_force) for system, motion in
              zip(systems, (printed, physical))]  # fmt: skip
    assert_close(*forces, atol=1e-12)


# ---- the swarm


@functools.cache
def together(N=5, start="consistent", kappa=0.0, t1=10.0):
    case = swarm.scenario(N, start, kappa, t1)
    return case, run(case, 201)


def beta(trajectory):
    return np.asarray(jax.vmap(swarm.Gathering().beta)(trajectory.q, trajectory.v, trajectory.t))


def centred(q):
    places = np.asarray(q).reshape(*np.shape(q)[:-1], -1, 2)
    return places - places.mean(axis=-2, keepdims=True)


def test_swarm_as_printed_keeps_its_error():
    case, got = together(start="arbitrary", t1=5.0)
    error = beta(got)
    assert np.linalg.norm(error[0]) > 40.0
    assert_close(error, np.broadcast_to(error[0], error.shape), atol=1e-8)
    centroid = np.asarray(jax.vmap(case.observables["centroid x, y [m]"])(got.q, got.v, got.t))
    moving = error[0].reshape(5, 2).mean(axis=0)
    assert_close(centroid, centroid[0][None] + np.asarray(got.t)[:, None] * moving[None], atol=1e-8)


def test_swarm_stabilised():
    case, got = together(start="arbitrary", kappa=2.0, t1=5.0)
    error, t = beta(got), np.asarray(got.t)[:, None]
    assert_close(error, error[:1] * np.exp(-2.0 * t), atol=1e-8)
    assert np.linalg.norm(error[-1]) < 0.01
    centroid = np.asarray(jax.vmap(case.observables["centroid x, y [m]"])(got.q, got.v, got.t))
    moving = error[0].reshape(5, 2).mean(axis=0)
    assert_close(centroid, centroid[:1] + (1 - np.exp(-2.0 * t)) / 2 * moving[None], atol=1e-8)


def test_swarm_by_its_velocities_alone():
    """On the constraint it is a gradient flow, of first order."""

    def flow(t, y):
        places = y.reshape(5, 2)
        slope = np.zeros((5, 2))
        for i in range(5):
            for j in range(5):
                if i != j:
                    apart = places[i] - places[j]
                    slope[i] += apart * (1 - 0.5 / np.linalg.norm(apart))
        return -slope.ravel()

    case, got = together()
    want = solve_ivp(flow, (0.0, 10.0), np.asarray(case.q0), "DOP853", np.asarray(got.t), rtol=1e-12, atol=1e-12).y.T
    assert_close(got.q, want, atol=1e-8)


def test_five_robots_settle_in_a_pentagon():
    _, got = together(t1=20.0)
    assert np.max(np.abs(beta(got))) < 1e-8
    places = centred(got.q[-1])
    radius = np.linalg.norm(places, axis=1)
    assert_close(radius, np.full(5, 0.1 / np.tan(np.pi / 10)), atol=1e-8)
    angles = np.sort(np.arctan2(places[:, 1], places[:, 0]))
    assert_close(np.diff(angles), np.full(4, 2 * np.pi / 5), atol=1e-7)
    assert_close(np.float64(swarm.circumradius(5)), np.float64(0.1 / np.tan(np.pi / 10)), atol=1e-15)


@pytest.mark.parametrize("N", [2, 3, 5, 12])
def test_on_a_regular_polygon_nobody_moves(N):
    angle = 2 * np.pi * np.arange(N) / N
    q = swarm.circumradius(N) * np.stack([np.cos(angle), np.sin(angle)], axis=1).ravel()
    assert_close(swarm.Gathering().gradient(jnp.array(q)), np.zeros(2 * N), atol=1e-14)


@pytest.mark.parametrize("N", [5, long(3), long(20)])
def test_robots_never_collide_and_come_together(N):
    """d' >= 1 - N d for every pair while beta = 0, and d' <= N - 1 - N d."""
    case, got = together(N)
    decay, first = np.exp(-N * np.asarray(got.t))[:, None], swarm.distances(case.q0)[None]
    distance = swarm.distances(got.q)
    assert np.all(distance >= 1 / N + (first - 1 / N) * decay - 1e-9)
    assert np.all(distance <= 1 - 1 / N + (first - 1 + 1 / N) * decay + 1e-9)
    assert distance.min() > 1 / N
    center = jax.vmap(case.observables["centroid x, y [m]"])(got.q, got.v, got.t)
    assert_close(center, jnp.broadcast_to(center[:1], center.shape), atol=1e-9)
    assert max(drift(case, got).values()) < 1e-9


def test_off_the_constraint_robots_can_collide():
    """Two robots, beta = +-1 m/s along their line: d' = -1 - 2 d, and d = 0 at ln(2 d(0) + 1) / 2."""
    model, first = swarm.Gathering(), 3.0
    q0 = jnp.array([0.0, 0.0, first, 0.0])
    v0 = jnp.array([1.0, 0.0, -1.0, 0.0]) - model.gradient(q0)
    pair = ukjax.Mechanism(swarm.Swarm([2.0, 2.0]), ukjax.Nonholonomic(model.beta))
    meet = np.log(2 * first + 1) / 2
    with pytest.warns(ukjax.InconsistentStart):
        got = ukjax.simulate(pair, q0, v0, jnp.linspace(0.0, 0.999 * meet, 21), **TIGHT)
    want = (first + 0.5) * np.exp(-2 * np.asarray(got.t)) - 0.5
    assert_close(swarm.distances(got.q)[:, 0], want, atol=1e-8)
    assert want[-1] < 2e-3


@pytest.mark.long
def test_masses_of_the_swarm_change_the_forces_and_not_the_motion():
    case = swarm.scenario(3, "arbitrary")
    heavy = ukjax.Mechanism(swarm.Swarm([1.0, 5.0, 20.0]), case.mechanism.constraints)
    one, other = (ukjax.equation_of_motion(m, case.q0, case.v0) for m in (case.mechanism, heavy))
    assert_close(one.acceleration, other.acceleration, atol=1e-12)
    ratio = jnp.repeat(jnp.array([1.0, 5.0, 20.0]) / 2, 2)
    assert_close(other.constraint_force, ratio * one.constraint_force, atol=1e-10)


# ---- examples 2 to 4


@pytest.mark.parametrize("example", sampled(constraint_examples.STARTS, ["rheonomic"]))
def test_invariants_of_the_examples(example):
    case = constraint_examples.scenario(example)
    got = run(case, rtol=1e-14, atol=1e-14)
    varies = drift(case, got)
    assert len(varies) == (2 if example == "nonholonomic" else 3)
    assert max(varies.values()) < 1e-9, varies
    (x0, _, z0), (vx, _, vz) = (np.asarray(s) for s in (case.q0, case.v0))
    t = np.asarray(got.t)
    assert_close(np.asarray(got.q[:, 0] - got.q[:, 2]), x0 - z0 + (vx - vz) * t + G * t**2 / 2, atol=1e-9)
    assert np.max(np.asarray(got.position_residual)) < 1e-9
    assert np.max(np.asarray(got.velocity_residual)) < 1e-9


@pytest.mark.parametrize("example", constraint_examples.STARTS)
def test_examples_by_their_multiplier(example):
    """m q'' = F + A^T lambda with lambda by hand, through SciPy."""
    case = constraint_examples.scenario(example)

    def acceleration(t, q, v):
        slope = q[2] if example == "nonholonomic" else q[1]
        growth = v[2] if example == "nonholonomic" else v[1]
        push = (G - 2 * growth * v[1]) / (2 + 4 * slope**2)
        return np.array([push, 2 * slope * push, push - G])

    got = run(case)
    q, v = integrated(acceleration, np.asarray(case.q0), np.asarray(case.v0), got.t)
    assert_close(got.q, q, atol=1e-9)
    assert_close(got.v, v, atol=1e-9)


@pytest.mark.parametrize("example", sampled(constraint_examples.STARTS, ["nonholonomic"]))
def test_classification(example):
    case, model = constraint_examples.scenario(example), constraint_examples.Particle()
    as_printed = ukjax.Mechanism(model, constraint_examples.row(model, example))
    assert constraint_examples.kind(as_printed, case.q0, case.v0) == example
    rows = [mechanism.terms(case.q0, case.v0, jnp.zeros(())) for mechanism in (case.mechanism, as_printed)]
    assert_close(rows[0].A, rows[1].A, atol=1e-15)
    assert_close(rows[0].b, rows[1].b, atol=1e-15)


def test_a_row_that_changes_with_time_is_not_scleronomic():
    turning = lambda q, v, t: (v[0] * jnp.cos(t) + v[1] * jnp.sin(t) - q[0] * jnp.sin(t) + q[1] * jnp.cos(t))[None]
    mechanism = ukjax.Mechanism(constraint_examples.Particle(), ukjax.Nonholonomic(turning))
    assert constraint_examples.kind(mechanism, jnp.zeros(3), jnp.ones(3)) == "rheonomic"


def test_lemma_1():
    at = jnp.array([0.3, -0.7, 1.1])
    form = lambda middle: lambda q: jnp.stack([jnp.ones(()), middle(q), jnp.ones(())])
    assert_close(constraint_examples.lemma_1(form(lambda q: 2 * q[1]), at), jnp.asarray(0.0), atol=1e-15)
    assert_close(constraint_examples.lemma_1(form(lambda q: 2 * q[2]), at), jnp.asarray(2.0), atol=1e-15)
    # With all three terms of eq. 11: (y z, 2 x z, 3 x y) gives y z (2 x - 3 x) + 2 x z (3 y - y) + 3 x y (z - 2 z).
    bent = lambda q: jnp.stack([q[1] * q[2], 2 * q[0] * q[2], 3 * q[0] * q[1]])
    assert_close(constraint_examples.lemma_1(bent, at), jnp.asarray(0.0), atol=1e-15)
    other = lambda q: jnp.stack([q[1], q[2], q[0]])
    assert_close(constraint_examples.lemma_1(other, at), jnp.sum(at), atol=1e-15)


def test_only_the_start_tells_the_second_order_forms_apart():
    first, second = (constraint_examples.scenario(name) for name in ("scleronomic", "rheonomic"))
    one = run(first)
    q0, v0, ts = second.q0, second.v0, jnp.linspace(0.0, 3.0, 41)
    with pytest.warns(ukjax.InconsistentStart):
        other = ukjax.simulate(first.mechanism, q0, v0, ts, **TIGHT)  # the wrong mechanism, the right start
    assert_close(other.q, run(second).q, atol=1e-10)
    assert_close(other.q[:, 2] - one.q[:, 2], ts, atol=1e-9)  # the whole motion is carried along at 1 m/s


# ---- the projectile


def place(case, trajectory):
    return jax.vmap(case.mechanism.system.place)(trajectory.q)


@pytest.mark.parametrize("coordinates", projectile.SYSTEMS)
def test_projectile(coordinates):
    case = projectile.scenario(coordinates)
    got = run(case)
    assert_close(place(case, got), projectile.exact(got.t), atol=1e-9)
    assert drift(case, got)["energy [J]"] < 1e-9


@pytest.mark.parametrize("coordinates", ["cartesian", long("polar")])
def test_bead_on_a_wire(coordinates):
    case = projectile.on_wire(coordinates)
    got = run(case, keep=None)
    assert_close(place(case, got), projectile.exact_on_wire(got.t), atol=1e-9)
    assert drift(case, got)["energy [J]"] < 1e-9
    # The wire bears the part of the weight that is normal to it.
    force = jax.vmap(case.mechanism.system.cartesian)(got.q, got.constraint_force)
    want = G * jnp.sin(1.0) * projectile.Wire().axes()[0]
    assert_close(force, jnp.broadcast_to(want[None], force.shape), atol=1e-8)


def test_with_the_printed_polar_inertia_a_bead_on_a_wire_goes_wrong():
    case = projectile.on_wire("printed")
    got = run(case)
    off = np.linalg.norm(np.asarray(place(case, got) - projectile.exact_on_wire(got.t)), axis=1)
    assert off[-1] > 1.0
    assert drift(case, got)["energy [J]"] > 10.0
    assert np.max(np.asarray(got.position_residual)) < 1e-9  # it does stay on the wire


def test_the_printed_polar_inertia_is_not_the_kinetic_energy():
    q, v = projectile.to_polar(*(jnp.array(x) for x in projectile.START))
    kinetic = lambda model: v @ model.mass(q, jnp.zeros(())) @ v / 2
    assert_close(kinetic(projectile.Polar()), jnp.asarray(4.5), atol=1e-14)
    assert abs(float(kinetic(projectile.PrintedPolar())) - 4.5) > 1.0


def test_the_generalised_inertia_is_that_of_lagrange():
    kinetic = lambda q, v, t: 0.7 * (v[0] ** 2 + (q[0] * v[1]) ** 2)
    want = ukjax.LagrangianSystem(kinetic, lambda q, t: 1.4 * G * q[0] * jnp.sin(q[1]))
    got, q, v, t = projectile.Polar(m=1.4), jnp.array([1.7, 0.6]), jnp.array([-0.8, 1.9]), jnp.zeros(())
    assert_close(got.mass(q, t), want.mass(q, t), atol=1e-14)
    assert_close(got.force(q, v, t), want.force(q, v, t), atol=1e-13)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: projectile.scenario("spherical"), "coordinates must be one of cartesian, polar, printed"),
    (lambda: log_spiral.scenario("here"), "start must be one of paper, disturbed"),
    (lambda: log_spiral.disturbance([0.0], 1.0, 2.0), "beta must equal alpha"),
    (lambda: swarm.scenario(start="here"), "start must be one of consistent, arbitrary"),
    (lambda: swarm.scenario(1), "N must be the number of robots, at least 2"),
    (lambda: constraint_examples.scenario("dynamic"), "example must be one of scleronomic, rheonomic, nonholonomic"),
])  # fmt: skip
def test_bad_arguments_say_what_to_pass(call, message):
    with pytest.raises(ValueError, match=message):
        call()


SCENARIOS = {
    "projectile": projectile.scenario,
    "wire": projectile.on_wire,
    "spiral": log_spiral.scenario,
    "bead": log_spiral.bead,
    "printed bead": log_spiral.printed_bead,
    "swarm": swarm.scenario,
    "example": constraint_examples.scenario,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_drawings_are_points_of_the_plane_or_of_space(name):
    case = SCENARIOS[name]()
    assert "Zhao" in case.source
    force, t = jnp.ones_like(case.q0), jnp.asarray(0.1)
    dimension = 3 if name == "example" else 2
    for link in case.drawing.links.values():
        assert_close(link(case.q0, t).shape[1], dimension)
    for arrow in case.drawing.forces.values():
        at, pull = arrow(case.q0, t, force)
        assert at.shape == pull.shape == (dimension,)
