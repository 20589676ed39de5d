"""Further classics: against closed forms, and what theory keeps constant."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import ukjax
from models import (
    atwood,
    car_with_trailer,
    charged_particle,
    elastic_pendulum,
    foucault,
    snakeboard,
    spherical_pendulum,
    torus,
)

from ..helpers import assert_close, assert_steady
from .test_classics import accurate


def test_atwoods_machine_and_both_tensions():
    case = atwood.scenario()
    model = case.mechanism.system
    a, g = model.acceleration(), model.g
    found = ukjax.equation_of_motion(case.mechanism, case.q0, case.v0, reactions=True)
    assert_close(found.acceleration, jnp.stack([-a, a, a / model.R]), rtol=1e-13)
    tensions = jnp.stack([found.multipliers["first"][0], found.multipliers["second"][0]])
    assert_close(tensions, jnp.stack([model.m1 * (g - a), model.m2 * (g + a)]), rtol=1e-13)
    assert_close((tensions[0] - tensions[1]) * model.R, model.J * a / model.R, rtol=1e-12)
    trajectory = accurate(case)
    assert_close(trajectory.q[:, 1], a * trajectory.t**2 / 2, atol=1e-10)
    assert_steady(case, trajectory, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("w", [0.1, -0.7])
def test_foucaults_pendulum_is_the_spherical_one_seen_from_the_ground(w):
    case = foucault.scenario(w=w, t1=8.0)
    trajectory = accurate(case)
    outside = spherical_pendulum.scenario(angle=0.4, speed=w * np.sin(0.4), t1=8.0)
    want, turn = accurate(outside).q, w * np.asarray(trajectory.t)
    x, y = want[:, 0], want[:, 1]
    back = jnp.stack([x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn), want[:, 2]], axis=1)
    assert_close(trajectory.q, back, atol=1e-8)
    assert_steady(case, trajectory, atol=1e-8)


@pytest.mark.long
def test_an_elastic_pendulum_up_and_down_is_an_oscillator():
    """Its spring has no mass, and M is singular."""
    case = elastic_pendulum.scenario(aside=0.0, t1=5.0)
    model, trajectory = case.mechanism.system, accurate(case)
    want = model.rest() + 0.2 * jnp.cos(jnp.sqrt(model.k / model.m) * trajectory.t)
    assert_close(trajectory.q[:, 2], want, atol=1e-9)
    assert_steady(case, trajectory, atol=1e-8)


@pytest.mark.long
def test_an_elastic_pendulum_trades_up_and_down_for_a_swing():
    """Near k / m = 4 g / l0, here three of them: the rest length grows to 4/3, whose swing is at half the rate."""
    case = elastic_pendulum.scenario()
    trajectory = accurate(case, points=401)
    assert_steady(case, trajectory, atol=1e-7)
    assert jnp.max(jnp.abs(trajectory.q[:, 0])) > 10 * case.q0[0]


@pytest.mark.long
@pytest.mark.parametrize("latitude", [0.0, 0.3, -1.2])
def test_a_parallel_is_gone_round_at_the_cyclotrons_rate(latitude):
    case = charged_particle.scenario()
    model = case.mechanism.system
    c, s, w = np.cos(latitude), np.sin(latitude), -3.0
    ts = jnp.linspace(0.0, 4.0, 21)
    run = ukjax.simulate(
        case.mechanism, [c, 0.0, s], [0.0, w * c, 0.0], ts, projection=ukjax.Projection(), rtol=1e-12, atol=1e-12
    )
    assert_close(run.q, jnp.stack([c * jnp.cos(w * ts), c * jnp.sin(w * ts), s + 0 * ts], axis=1), atol=1e-8)
    assert float(model.eB / model.m) == -w
    assert_steady(case, accurate(case), atol=1e-8)


@pytest.mark.long
def test_geodesics_of_a_torus():
    assert_steady(torus.scenario(), accurate(torus.scenario()), atol=1e-8)
    case = torus.scenario(heading=1e-4, t1=6.0)
    trajectory, model = accurate(case), case.mechanism.system
    rate = jnp.sqrt((model.a + model.b) / model.b) / (model.a + model.b)
    assert_close(trajectory.q[:, 2], 1e-4 / rate * jnp.sin(rate * trajectory.t), atol=1e-10)


@pytest.mark.long
def test_a_trailer_comes_to_follow_a_smaller_circle():
    case = car_with_trailer.scenario()
    model, trajectory = case.mechanism.system, accurate(case)
    assert_steady(case, trajectory, atol=1e-4)  # of 8 kJ and more
    R = float(model.l / jnp.tan(model.delta))
    centre = jnp.array([0.0, R])
    assert_close(jnp.linalg.norm(trajectory.q[:, :2] - centre[None], axis=1), np.full(41, R), atol=1e-7)
    assert_close(jnp.linalg.norm(model.axle(trajectory.q[-1]) - centre), np.sqrt(R**2 - 9.0), atol=1e-6)
    slides = jnp.stack([model.wheels(*state) for state in zip(trajectory.q, trajectory.v, trajectory.t, strict=True)])
    assert_close(slides, jnp.zeros((41, 3)), atol=1e-10)


@pytest.mark.parametrize("lead", [0.6, pytest.param(np.pi / 2, marks=pytest.mark.long)])
def test_a_snakeboard_goes_ahead_by_an_integral_over_its_gait(lead):
    case = snakeboard.scenario(lead=lead, t1=2.0)
    model, trajectory = case.mechanism.system, accurate(case)
    m, J, Jr, l = (float(x) for x in (model.m, model.J, model.Jr, model.l))
    psi_a, phi = lambda t: -0.7 * 16.0 * np.sin(4.0 * t), lambda t: 0.5 * np.sin(4.0 * t + lead)
    root = lambda t: np.sqrt(m + J * (np.tan(phi(t)) / l) ** 2)
    push = lambda t: -Jr * psi_a(t) * np.tan(phi(t)) / (l * root(t))
    want = np.array([quad(push, 0.0, t, epsabs=1e-13, epsrel=1e-13)[0] / root(t) for t in np.asarray(trajectory.t)])
    theta, v = trajectory.q[:, 2], trajectory.v
    assert_close(v[:, 0] * jnp.cos(theta) + v[:, 1] * jnp.sin(theta), want, atol=1e-8)
    assert_close(v[:, 1] * jnp.cos(theta) - v[:, 0] * jnp.sin(theta), np.zeros(41), atol=1e-10)
    assert_close(v[:, 2], want * np.tan(phi(np.asarray(trajectory.t))) / l, atol=1e-8)
    assert np.all(want[20:] > 0.3) if lead < 1 else np.ptp(want) > 0.1
