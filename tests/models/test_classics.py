"""The classics against closed forms, reduced equations integrated by SciPy, and what theory keeps constant."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import cumulative_simpson, solve_ivp
from scipy.special import ellipeinc

import ukjax
from models import (
    chaplygin_sleigh,
    closed_form,
    ellipsoid,
    moving_pivot,
    n_pendulum,
    rolling_disc,
    rotating_hoop,
    spherical_pendulum,
)

from ..helpers import STATES, assert_close, assert_steady, long, run


G = 9.81
TIGHT = {"solver": diffrax.Dopri8(), "rtol": 1e-12, "atol": 1e-12}


def accurate(scenario, points=41, keep=STATES):
    """The trajectory of a scenario, integrated as tightly as float64 allows."""
    return run(scenario, points, keep=keep, **TIGHT)


def simulate(chain, q0, v0, ts):
    return ukjax.simulate(chain.mechanism(), q0, v0, ts, projection=ukjax.Projection(), keep=STATES, **TIGHT)


def reference(right, y0, ts):
    """y (k, T) of y' = right(t, y), by SciPy."""
    return solve_ivp(right, (ts[0], ts[-1]), y0, "DOP853", ts, rtol=3e-14, atol=1e-14).y


@pytest.mark.long
@pytest.mark.parametrize("speed", [1.5, 4.5])
def test_heights_of_the_spherical_pendulum(speed):
    case = spherical_pendulum.scenario(angle=1.0, speed=speed, t1=5.0)
    trajectory = accurate(case)
    want = spherical_pendulum.height(trajectory.t, -np.cos(1.0), speed)
    assert np.ptp(want) > 0.2
    assert_close(trajectory.q[:, 2], want, atol=1e-9)
    assert_steady(case, trajectory, atol=1e-8)


@pytest.mark.long
def test_the_conical_pendulum():
    speed = spherical_pendulum.conical_speed(1.0)
    trajectory = accurate(spherical_pendulum.scenario(angle=1.0, speed=speed, t1=5.0), keep=None)
    turned = np.sqrt(G / np.cos(1.0)) * np.asarray(trajectory.t)
    want = np.stack([np.sin(1.0) * np.cos(turned), np.sin(1.0) * np.sin(turned), np.full(41, -np.cos(1.0))], axis=1)
    assert_close(trajectory.q, want, atol=1e-9)
    # The rod bears m g / cos(angle).
    assert_close(np.linalg.norm(trajectory.constraint_force, axis=1), np.full(41, G / np.cos(1.0)), rtol=1e-9)


def test_the_pendulum_in_the_wagon():
    case = moving_pivot.scenario("wagon")
    trajectory = accurate(case)
    psi, rate = moving_pivot.exact(trajectory.t, 0.5)
    arm = trajectory.q - jax.vmap(case.mechanism.system.pivot)(trajectory.t)
    assert_close(arm, 0.5 * np.stack([np.sin(psi), -np.cos(psi)], axis=1), atol=1e-9)
    way = trajectory.v - jnp.asarray([[moving_pivot.PULL, 0.0]]) * trajectory.t[:, None]
    assert_close(way, 0.5 * rate[:, None] * np.stack([np.cos(psi), np.sin(psi)], axis=1), atol=1e-8)
    assert_steady(case, trajectory, atol=1e-9)


def test_the_shaken_pendulum_stays_up():
    case = moving_pivot.scenario("upright", t1=2.0)
    d, W, L = 0.05, 100.0, 0.5
    assert (d * W) ** 2 > 2 * G * L
    trajectory = accurate(case)
    right = lambda t, y: [y[1], -(G - d * W**2 * np.cos(W * t)) / L * np.sin(y[0])]
    psi, _ = reference(right, [2.9, 0.0], np.asarray(trajectory.t))
    arm = trajectory.q - jax.vmap(case.mechanism.system.pivot)(trajectory.t)
    assert_close(arm, L * np.stack([np.sin(psi), -np.cos(psi)], axis=1), atol=1e-8)
    assert np.all(arm[:, 1] > 0.45)


@pytest.mark.parametrize("W", [long(2.0), 5.0])
def test_the_bead_on_the_hoop(W):
    case = rotating_hoop.scenario(W=W, t1=5.0)
    trajectory = accurate(case)
    theta, _ = reference(lambda t, y: [y[1], (W**2 * np.cos(y[0]) - G) * np.sin(y[0])], [0.3, 0.0], trajectory.t)
    assert_close(jax.vmap(case.mechanism.system.theta)(trajectory.q, trajectory.t), theta, atol=1e-9)
    assert_steady(case, trajectory, atol=1e-8)
    # It climbs only where the hoop turns faster than sqrt(g / R).
    assert bool(np.max(theta) > 0.31) == (W**2 > G)


def test_where_the_bead_rests():
    theta = rotating_hoop.equilibrium(W=5.0)
    assert_close(np.cos(theta), np.float64(G / 25.0), rtol=1e-12)
    assert rotating_hoop.equilibrium(W=2.0) == 0.0
    case = rotating_hoop.scenario(W=5.0, theta=theta, t1=5.0)
    trajectory = accurate(case)
    angles = jax.vmap(case.mechanism.system.theta)(trajectory.q, trajectory.t)
    assert_close(angles, np.full(41, theta), atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("N", [1, 3])
def test_hanging_rods_by_their_angles(N):
    """Lagrange's equations of N uniform rods in absolute angles psi from the downward vertical."""
    m, L, ts = np.linspace(1.0, 2.0, N), np.linspace(0.7, 0.4, N), np.linspace(0.0, 2.0, 41)
    model = n_pendulum.Chain(m, L)
    psi0, rate0 = np.linspace(1.0, 0.4, N), np.linspace(-0.5, 1.0, N)
    q0, v0 = model.state(jnp.asarray(psi0 - np.pi / 2), jnp.asarray(rate0))
    trajectory = simulate(model, q0, v0, ts)
    # Rod k's middle hangs on all rods before it and on half of itself: share[k, i] of rod i.
    share = np.tri(N) - np.eye(N) / 2
    inertia = np.einsum("k,ki,kj,i,j->ij", m, share, share, L, L)

    def right(t, y):
        psi, rate = y[:N], y[N:]
        between = psi[:, None] - psi[None]
        M = inertia * np.cos(between) + np.diag(m * L**2 / 12)
        Q = -(inertia * np.sin(between)) @ rate**2 - G * (m @ share) * L * np.sin(psi)
        return np.concatenate([rate, np.linalg.solve(M, Q)])

    want = reference(right, np.concatenate([psi0, rate0]), ts)
    assert_close(trajectory.q[:, 2::3], want[:N].T - np.pi / 2, atol=1e-8)
    assert_close(trajectory.v[:, 2::3], want[N:].T, atol=1e-7)
    energy = jax.vmap(model.energy)(trajectory.q, trajectory.v, trajectory.t)
    assert_close(energy, np.full(41, energy[0]), atol=1e-9)


def test_one_rod_in_closed_form():
    case = n_pendulum.scenario(N=1, t1=5.0)
    trajectory = accurate(case)
    psi, rate = closed_form.pendulum(trajectory.t, np.pi / 2, 0.0, np.sqrt(1.5 * G / 1.5))
    assert_close(trajectory.q[:, 2], psi - np.pi / 2, atol=1e-9)
    assert_close(trajectory.v[:, 2], rate, atol=1e-9)


@pytest.mark.long
def test_rods_without_gravity_keep_their_angular_momentum():
    model = n_pendulum.Chain(g=0.0)
    q0, v0 = model.state(jnp.asarray([0.2, 1.0, -0.4]), jnp.asarray([1.0, -2.0, 3.0]))
    trajectory = simulate(model, q0, v0, np.linspace(0.0, 2.0, 41))
    momentum = jax.vmap(model.momentum)(trajectory.q, trajectory.v, trajectory.t)
    assert_close(momentum, np.full(41, momentum[0]), atol=1e-10)


@pytest.mark.long
def test_the_closed_chain():
    N = 5
    case = n_pendulum.closed(N=N, t1=2.0)
    start, end = case.mechanism.system.tips(case.q0)
    assert_close(end[-1], np.array([1.0, 0.4]), atol=1e-12)
    assert_close(start[0], np.zeros(2), atol=1e-14)
    trajectory = accurate(case, keep=None)
    assert_steady(case, trajectory, atol=1e-9)
    assert np.max(trajectory.position_residual) < 1e-13
    assert np.max(np.abs(trajectory.v)) > 0.5
    assert np.all(trajectory.rank == 2 * N + 2)


@pytest.mark.long
def test_three_rods_between_pivots_are_a_four_bar_linkage():
    case = n_pendulum.closed(N=3)
    assert ukjax.diagnose(case.mechanism, case.q0, case.v0).degrees_of_freedom == 1


@pytest.mark.parametrize(("N", "x", "match"), [(2, 1.0, "at least 3 rods"), (5, 2.5, "less than their length apart")])
def test_chains_that_cannot_be_closed(N, x, match):
    with pytest.raises(ValueError, match=match):
        n_pendulum.closed(N=N, x=x)


def test_a_chain_has_rods():
    for make in (n_pendulum.scenario, n_pendulum.closed):
        with pytest.raises(ValueError, match="N must be the number of rods, an integer of at least 1, but is 0"):
            make(N=0)


def test_a_chain_needs_a_mass_for_each_length():
    with pytest.raises(ValueError, match="m and L must be one mass and one length per rod"):
        n_pendulum.Chain([1.0, 1.0], [1.0])


def test_the_chaplygin_sleigh_in_closed_form():
    case = chaplygin_sleigh.scenario()
    trajectory = accurate(case, 2001)
    theta, u, w = chaplygin_sleigh.exact(trajectory.t, *chaplygin_sleigh.START)
    assert_close(trajectory.q[:, 2], theta, atol=1e-9)
    assert_close(trajectory.v[:, 2], w, atol=1e-9)
    along = np.stack([np.cos(theta), np.sin(theta)], axis=1)
    edge = cumulative_simpson(u[:, None] * along, x=np.asarray(trajectory.t), axis=0, initial=0.0)
    assert_close(trajectory.q[:, :2], edge + 0.4 * along, atol=1e-9)
    assert_steady(case, trajectory, atol=1e-10)
    # It has turned round: from backwards to forwards.
    assert u[0] == pytest.approx(-1.0)
    assert u[-1] > 0.99 * np.sqrt(2 * case.invariants["energy [J]"](case.q0, case.v0, 0.0) / 2.0)


@pytest.mark.long
def test_the_disc_rolls_round_a_circle():
    lean, heading = 0.3, -1.0
    case = rolling_disc.scenario(lean, heading, nudge=0.0)
    trajectory = accurate(case, keep=None)
    roll = float(case.mechanism.system.circling(lean, heading))
    angles = np.stack([heading * trajectory.t, np.full(41, lean), roll * trajectory.t], axis=1)
    assert_close(trajectory.q[:, 3:], angles, atol=1e-9)
    speed = 0.5 * (roll + heading * np.sin(lean))
    radius = speed / heading
    turned = heading * np.asarray(trajectory.t)
    # The heading starts along x, and the centre beside the contact.
    way = radius * np.stack([np.sin(turned), 1 - np.cos(turned)], axis=1)
    assert_close(trajectory.q[:, :2] - case.q0[None, :2], way, atol=1e-9)
    # The plane bears the weight, and turns the disc: m v W towards the centre of the circle.
    assert_close(trajectory.constraint_force[:, 2], np.full(41, G), rtol=1e-9)
    sideways = np.linalg.norm(trajectory.constraint_force[:, :2], axis=1)
    assert_close(sideways, np.full(41, abs(speed * heading)), rtol=1e-8)


@pytest.mark.long
def test_the_disc_by_the_equations_of_newton_and_euler():
    """In the frame e1, e2, e3, with the force at the contact eliminated: alpha, w1, w2, w3, psi, phi, x, y."""
    m, R, A, D = 1.0, 0.5, 0.125, 0.0625
    case = rolling_disc.scenario()
    trajectory = accurate(case)

    def right(t, y):
        alpha, w1, w2, w3, psi = y[:5]
        heading = w3 / np.cos(alpha)
        d1 = ((A + m * R**2) * w2 * w3 - D * w3**2 * np.tan(alpha) + m * G * R * np.sin(alpha)) / (D + m * R**2)
        d2 = -m * R**2 * w1 * w3 / (A + m * R**2)
        d3 = w1 * (D * w3 * np.tan(alpha) - A * w2) / D
        e1 = np.array([np.cos(psi), np.sin(psi)])
        e2 = np.cos(alpha) * np.array([-np.sin(psi), np.cos(psi)])
        return [w1, d1, d2, d3, heading, w2 - w3 * np.tan(alpha), *(R * (w2 * e1 - w1 * e2))]

    psi, alpha, phi = case.v0[3:]
    s, c = np.sin(0.3), np.cos(0.3)
    want = reference(right, [0.3, alpha, phi + psi * s, psi * c, 0.0, 0.0, *case.q0[:2]], np.asarray(trajectory.t))
    got = trajectory.q[:, jnp.array([4, 3, 5, 0, 1])]
    assert np.ptp(want[0]) > 0.05
    assert_close(got, want[[0, 4, 5, 6, 7]].T, atol=1e-8)
    assert_steady(case, trajectory, atol=1e-9)


def test_forces_of_the_disc_agree_with_its_energy():
    """The force written out is Lagrange's for the kinetic energy of the rotations about e1, e2, e3."""
    model = rolling_disc.RollingDisc()

    def kinetic(q, v, t):
        s, c = jnp.sin(q[4]), jnp.cos(q[4])
        turning = model.D * (v[4] ** 2 + (v[3] * c) ** 2) + model.A * (v[5] + v[3] * s) ** 2
        return (model.m * v[:3] @ v[:3] + turning) / 2

    by_energy = ukjax.LagrangianSystem(kinetic, lambda q, t: model.m * model.g * q[2])
    rng = np.random.default_rng(4)
    q, v, t = jnp.array(rng.normal(size=6)), jnp.array(rng.normal(size=6)), jnp.zeros(())
    terms = eqx.filter_jit(lambda system: (system.mass(q, t), system.force(q, v, t)))
    for printed, derived, atol in zip(terms(model), terms(by_energy), (1e-14, 1e-13), strict=True):
        assert_close(printed, derived, atol=atol)


def test_geodesics_keep_joachimsthal_and_speed():
    case = ellipsoid.scenario(t1=15.0)
    trajectory = accurate(case)
    assert_steady(case, trajectory, atol=1e-9)
    assert np.ptp(trajectory.q[:, 2]) > 0.5


def test_the_geodesic_along_an_ellipse():
    """Round the equator: at unit speed the arc from the long axis, a E(e) by parts, is the time."""
    case = ellipsoid.scenario(heading=0.0, t1=6.0)
    trajectory = accurate(case)
    a, b = 1.5, 1.0
    longitude = np.unwrap(np.arctan2(trajectory.q[:, 1] / b, trajectory.q[:, 0] / a))
    # d arc = sqrt(a^2 sin^2 + b^2 cos^2) du = a sqrt(1 - e^2 sin^2(w)) dw, with w = u + pi / 2.
    e2 = 1 - (b / a) ** 2
    arc = a * (ellipeinc(longitude + np.pi / 2, e2) - ellipeinc(np.pi / 2, e2))
    assert_close(arc, np.asarray(trajectory.t), atol=1e-9)
    assert_close(trajectory.q[:, 2], np.zeros(41), atol=1e-12)


def test_a_great_circle_and_gravity():
    model = ellipsoid.Ellipsoid(axes=(2.0, 2.0, 2.0))
    q0, v0 = model.start(*(jnp.asarray(x) for x in (0.3, -0.4, 1.1, 1.5)))
    mechanism = ukjax.Mechanism(model, ukjax.Holonomic(model.surface))
    ts = np.linspace(0.0, 8.0, 41)
    trajectory = ukjax.simulate(mechanism, q0, v0, ts, projection=ukjax.Projection(), **TIGHT, keep=STATES)
    turned = 1.5 / 2.0 * ts[:, None]
    want = np.cos(turned) * np.asarray(q0)[None] + np.sin(turned) * np.asarray(v0)[None] * 2.0 / 1.5
    assert_close(trajectory.q, want, atol=1e-9)
    heavy = ellipsoid.scenario(g=G, t1=3.0)
    assert list(heavy.invariants) == ["energy [J]"]
    assert_steady(heavy, accurate(heavy), atol=1e-9)


def test_starts_by_name():
    with pytest.raises(ValueError, match="start must be one of upright, wagon, but is 'sideways'"):
        moving_pivot.scenario("sideways")
