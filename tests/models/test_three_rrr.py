"""The 3RRR mechanism: modules, levels, motion and inverse dynamics, against a model that shares no code with it."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import planar_mechanisms, rr_leg
from models import three_rrr as model

from ..helpers import STATES, assert_close, assert_gradients
from . import three_rrr_by_hand as by_hand


@pytest.fixture(scope="module")
def hierarchy():
    mechanism = model.three_rrr(model.TORQUES).add(model.loop_again())
    q, v = model.state(*model.STARTS["vertical"])
    return mechanism, q, v


def levels(mechanism, q, v):
    """The motion at every level, from the modules on their own to the mechanism."""
    found = [ukjax.modular.ModularLevel.start(mechanism, q, v)]
    for number in range(2, mechanism.depth + 1):
        level = found[-1]
        rank, force = 0, jnp.zeros_like(q)
        for coupled in (c for c in mechanism.constraints if c.level == number):
            level = level.enforce(coupled)
            rank, force = rank + level.rank, force + level.force
        found.append(level)
    return found


@pytest.fixture(scope="module")
def climbed(hierarchy):
    return levels(*hierarchy)


def test_starts_are_closed(hierarchy):
    mechanism, q, v = hierarchy
    whole = mechanism.mechanism()
    errors = eqx.filter_jit(lambda m: (m.position_error(q, jnp.zeros(())), m.velocity_error(q, v, jnp.zeros(()))))
    for error in errors(whole):
        assert_close(error, np.zeros(17), atol=1e-14)
    # Every elbow on the left; three of the eighteen are the platform.
    assert_close(q[:5], jnp.array([-1.75585852, -0.58528617, 0.33342161, 0.27902482, -2.91329384]), atol=1e-8)
    for start in model.STARTS:
        assert model.scenario(start, redundant=True).formulation.levels == (9, 6, 2)
    with pytest.raises(ValueError, match="start must be one of horizontal, vertical, torques"):
        model.scenario("upside")


@pytest.mark.long
def test_the_projector_loses_the_freedoms_that_the_paper_counts(climbed):
    assert [round(float(jnp.trace(level.projector)), 10) for level in climbed] == [18.0, 9.0, 3.0, 3.0]
    assert climbed[-1].rank == 0  # the loop again


@pytest.mark.long
def test_levels_are_one_shot(hierarchy, climbed):
    mechanism, q, v = hierarchy
    whole = mechanism.mechanism()
    for number, level in enumerate(climbed[1:], start=2):
        want = ukjax.equation_of_motion(mechanism.upto(number).mechanism(), q, v)
        size = float(jnp.max(jnp.abs(want.acceleration)))
        assert_close(level.acceleration, want.acceleration, atol=1e-12 * size)
    recursive = ukjax.equation_of_motion(
        whole, q, v, formulation=ukjax.formulation.Recursive(mechanism.levels, expand=False)
    )
    assert_close(recursive.acceleration, want.acceleration, atol=1e-12 * size)
    assert recursive.rank == want.rank == 15


@pytest.mark.long
def test_every_level_adds_at_right_angles(hierarchy, climbed):
    """What a level changes is orthogonal, in the metric of M, to what it leaves free: Gauss's compulsions add up."""
    mechanism, q, _ = hierarchy
    M = np.asarray(mechanism.mass(q, jnp.zeros(())))
    squared = lambda a, b: (np.asarray(a) - np.asarray(b)) @ M @ (np.asarray(a) - np.asarray(b))
    steps, compulsion = [], []
    for lower, upper in itertools.pairwise(climbed):
        change = M @ np.asarray(upper.acceleration - lower.acceleration)
        assert np.max(np.abs(np.asarray(upper.projector).T @ change)) <= 1e-10 * max(1.0, np.max(np.abs(change)))
        steps.append(squared(upper.acceleration, lower.acceleration))
        compulsion.append(squared(upper.acceleration, climbed[0].acceleration))
    assert_close(np.array(compulsion), np.cumsum(steps), rtol=1e-11)


@pytest.mark.long
def test_energy_is_kept_at_every_level():
    """No constraint of any level works: modules, legs and mechanism each keep T + V, on different motions."""
    mechanism = model.three_rrr()
    q, v = model.state(*model.STARTS["vertical"])
    ts = jnp.linspace(0.0, 0.25, 6)
    energies, ends = [], []
    for level in (1, 2, 3):
        part = mechanism.upto(level).mechanism()
        path = ukjax.simulate(part, q, v, ts, rtol=1e-11, atol=1e-11, keep=STATES)
        energies.append(jax.jit(jax.vmap(lambda q, v: model.energy(mechanism, q, v)))(path.q, path.v))
        ends.append(path.q[-1])
    for energy in energies:
        assert_close(energy, jnp.full(6, energies[0][0]), atol=1e-9)
    assert float(jnp.max(jnp.abs(ends[0] - ends[1]))) > 1e-2
    assert float(jnp.max(jnp.abs(ends[1] - ends[2]))) > 1e-2


@pytest.mark.long
@pytest.mark.parametrize("start", ["horizontal", "torques"])
def test_motion_agrees_with_lagrange_multipliers_in_other_coordinates(start):
    scenario = model.scenario(start, redundant=True)
    torques, g, t1 = ((0.0, 0.0, 0.0), 0.0, 5.0) if start == "horizontal" else (model.TORQUES, model.G, 0.3)
    ts = np.linspace(0.0, t1, 26)
    got = ukjax.simulate(
        scenario.mechanism, scenario.q0, scenario.v0, jnp.asarray(ts), formulation=scenario.formulation,
        projection=scenario.projection, rtol=1e-11, atol=1e-11, keep=STATES)  # fmt: skip
    want, _ = by_hand.trajectory(scenario.q0, scenario.v0, ts, g, torques)
    assert_close(np.stack([by_hand.from_modules(q) for q in got.q]), want, atol=1e-8)
    assert float(jnp.max(got.position_residual)) < 1e-12


@pytest.mark.long
def test_inverse_dynamics_is_virtual_work():
    scenario = model.driven(t1=1.0)
    ts = jnp.linspace(0.0, 1.0, 6)
    got = ukjax.simulate(
        scenario.mechanism, scenario.q0, scenario.v0, ts, servo=scenario.servo, formulation=scenario.formulation,
        projection=scenario.projection, rtol=1e-10, atol=1e-10,
    )  # fmt: skip
    path = model.Path()
    assert_close(got.q[:, -3:], jax.vmap(path)(ts), atol=1e-8)
    for q, v, a, u in zip(got.q, got.v, got.acceleration, got.control, strict=True):
        s, ds = by_hand.from_modules(q), by_hand.rates_from_modules(q, v)
        dds = np.concatenate([np.asarray(a)[[1, 6, 11]], np.zeros(9), np.asarray(a)[-3:]])
        # The bars' accelerations follow from the platform's by the loops, which the hand-written rows know.
        A, b = by_hand.rows(s, ds)
        known = [0, 1, 2, 12, 13, 14]
        dds[3:12] = np.linalg.lstsq(A[:, 3:12], b - A[:, known] @ dds[known], rcond=None)[0]
        assert np.max(np.abs(A @ dds - b)) < 1e-8
        assert_close(np.asarray(u), by_hand.driving_torques(s, ds, dds)(model.G), atol=1e-8)


@pytest.mark.long
def test_gradients_of_the_whole_hierarchy(hierarchy):
    mechanism, q, v = hierarchy
    weights = jnp.asarray(np.random.default_rng(0).normal(size=18))
    formulation = ukjax.formulation.Recursive(mechanism.levels, expand=False)

    def f(mechanism):
        found = ukjax.equation_of_motion(mechanism.mechanism(), q, v, formulation=formulation, throw=False)
        return weights @ found.acceleration

    assert_gradients(f, mechanism, rtol=1e-6, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "levels", "freedoms"),
    [
        (rr_leg.scenario, (3,), 2),
        (planar_mechanisms.slider_crank, (3, 1), 1),
        (planar_mechanisms.five_bar, (6, 2), 2),
        (planar_mechanisms.three_on_a_point, (9, 4), 2),
    ],
)
def test_planar_mechanisms_of_one_module(make, levels, freedoms):
    scenario = make()
    found = ukjax.diagnose(scenario.mechanism, scenario.q0, scenario.v0)
    assert found.degrees_of_freedom == freedoms
    assert scenario.formulation.levels == levels
    t = jnp.zeros(())
    assert float(jnp.max(jnp.abs(scenario.mechanism.position_error(scenario.q0, t)))) < 1e-14
    assert float(jnp.max(jnp.abs(scenario.mechanism.velocity_error(scenario.q0, scenario.v0, t)))) < 1e-14
    path = ukjax.simulate(
        scenario.mechanism, scenario.q0, scenario.v0, jnp.linspace(0.0, 0.3, 4), formulation=scenario.formulation,
        projection=scenario.projection, rtol=1e-10, atol=1e-10, keep=STATES)  # fmt: skip
    (energy,) = scenario.invariants.values()
    values = jnp.stack([energy(q, v, t) for q, v in zip(path.q, path.v, strict=True)])
    assert_close(values, jnp.full(4, values[0]), atol=1e-8)


@pytest.mark.long
def test_the_slider_crank_is_the_one_of_the_textbooks():
    """One freedom: M(theta) theta'' from the kinetic energy in theta alone, by finite differences in NumPy."""
    scenario = planar_mechanisms.slider_crank()
    q, v = np.asarray(scenario.q0), np.asarray(scenario.v0)
    l1, l2, y = 0.4, 0.35, -0.1

    def positions(theta):
        phi = -np.arcsin((l1 * np.sin(theta) - y) / l2)
        return phi, l1 * np.cos(theta) + by_hand.C2 * np.cos(phi), l1 * np.sin(theta) + by_hand.C2 * np.sin(phi)

    def inertia(theta, h=1e-4):
        dphi, dx, dy = ((np.array(positions(theta + h)) - np.array(positions(theta - h))) / (2 * h)).tolist()
        return by_hand.I1 + 9 * by_hand.J + by_hand.M2 * (dx**2 + dy**2) + by_hand.I2 * dphi**2

    def potential(theta):
        return 9.81 * (by_hand.M1 * by_hand.C1 * np.sin(theta) + by_hand.M2 * positions(theta)[2])

    slope = lambda f, x, h=1e-4: (f(x + h) - f(x - h)) / (2 * h)
    theta, omega = q[1], v[1]
    assert np.isclose(positions(theta)[0], q[4])
    want = (-slope(potential, theta) - 0.5 * slope(inertia, theta) * omega**2) / inertia(theta)
    got = ukjax.equation_of_motion(scenario.mechanism, scenario.q0, scenario.v0, formulation=scenario.formulation)
    assert np.isclose(got.acceleration[1], want, rtol=1e-6)
