"""The structure-preserving step: order, reversibility, energy, constraints, gradients, and what it does not take."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import closed_form, heavy_top, n_four_bar, parallelogram, spherical_pendulum

from ..helpers import assert_close, assert_gradients, falling, long, pendulum, rod


def steps(mechanism, q0, v0, h, count, saved=2, keep=("q", "v"), **options):
    ts = h * jnp.linspace(0.0, float(count), saved)
    return ukjax.simulate(
        mechanism, q0, v0, ts, solver=ukjax.Rattle(), stepsize_controller=diffrax.ConstantStepSize(), dt0=h, keep=keep,
        max_steps=count + 2, **options,
    )  # fmt: skip


@pytest.mark.long
def test_second_order_against_the_closed_form():
    """A pendulum with a redundant row: halving the step divides the error by four."""
    psi0, errors = 1.2, []
    q0 = jnp.array([np.sin(psi0), -np.cos(psi0)])
    for count in (100, 200, 400):
        got = steps(pendulum(2), q0, jnp.zeros(2), 1.0 / count, count)
        psi = closed_form.pendulum([1.0], psi0, 0.0, np.sqrt(9.81))[0][0]
        errors.append(float(jnp.linalg.norm(got.q[-1] - jnp.array([np.sin(psi), -np.cos(psi)]))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.05)
    assert np.log2(errors[1] / errors[2]) == pytest.approx(2.0, abs=0.05)


def test_it_is_reversible_and_stays_on_the_constraints():
    scenario = spherical_pendulum.scenario()
    there = steps(scenario.mechanism, scenario.q0, scenario.v0, 0.02, 50, keep=("q", "v", "position_residual"))
    back = steps(scenario.mechanism, there.q[-1], -there.v[-1], 0.02, 50)
    assert_close(back.q[-1], scenario.q0, atol=1e-11)
    assert_close(-back.v[-1], scenario.v0, atol=1e-11)
    assert float(jnp.max(there.position_residual)) < 1e-13


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "h"),
    [
        (spherical_pendulum.scenario, 0.01),
        long(parallelogram.scenario, 0.002),
        long(n_four_bar.scenario, 0.002),
    ],
)
def test_energy_swings_by_the_square_of_the_step_and_does_not_drift(make, h):
    """Over 20 000 steps; half the step, a quarter of the error."""
    scenario = make()
    model = scenario.mechanism.system
    energy = next(f for name, f in scenario.invariants.items() if "energy" in name)
    largest = []
    for part in (1, 2):
        got = steps(scenario.mechanism, scenario.q0, scenario.v0, h / part, 20_000 * part, 2001)
        values = np.asarray(jax.vmap(energy)(got.q, got.v, got.t))
        off = np.abs(values - values[0])
        # The last tenth is no worse than the first.
        assert np.max(off[-200:]) < 1.2 * np.max(off[:201]) + 1e-13
        largest.append(np.max(off))
    assert largest[0] / largest[1] == pytest.approx(4.0, rel=0.1)
    assert model is scenario.mechanism.system


def test_friction_keeps_the_order():
    """Linear damping in the plane, without constraints: exact solution exp(-c t)."""
    damped = ukjax.System(lambda q, t: 2.0 * jnp.eye(1), lambda q, v, t: -3.0 * v - 8.0 * q)
    errors = []
    for count in (50, 100):
        got = steps(ukjax.Mechanism(damped), jnp.ones(1), jnp.zeros(1), 1.0 / count, count)
        a, w = 0.75, np.sqrt(4 - 0.75**2)
        errors.append(abs(float(got.q[-1, 0]) - np.exp(-a) * (np.cos(w) + a / w * np.sin(w))))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.long
def test_gradients():
    def end(x):
        mechanism = ukjax.Mechanism(falling(), [rod(x["L"])] * 2)
        q = x["L"] * jnp.array([0.6, -0.8])
        return jnp.sum(steps(mechanism, q, x["v"] * jnp.array([0.8, 0.6]), 0.05, 12).q[-1])

    assert_gradients(end, {"L": jnp.asarray(1.1), "v": jnp.asarray(0.7)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepsize_controller": None, "dt0": None}, "stepsize_controller must be diffrax.ConstantStepSize"),
        ({"projection": ukjax.Projection()}, "projection has no effect with ukjax.Rattle"),
        ({"servo": ukjax.Feedback(lambda q, v, t: v, np.eye(2))}, "servo does not go with ukjax.Rattle"),
        (
            {"mechanism": ukjax.Mechanism(falling(), ukjax.Nonholonomic(lambda q, v, t: v[:1]))},
            "constraints\\[0\\] is not holonomic",
        ),
        (
            {"mechanism": ukjax.Mechanism(ukjax.System(lambda q, t: jnp.diag(1 + q**2), lambda q, v, t: q))},
            "mass matrix that changes with q",
        ),
        (
            {
                "mechanism": ukjax.Mechanism(
                    ukjax.System(lambda q, t: jnp.diag(jnp.array([1.0, 0.0])), lambda q, v, t: q)
                )
            },
            "mass matrix that is not positive definite",
        ),
    ],
)
def test_what_it_does_not_take(change, message):
    given = {"mechanism": pendulum(), "stepsize_controller": diffrax.ConstantStepSize(), "dt0": 0.1, **change}
    mechanism = given.pop("mechanism")
    with pytest.raises(ValueError, match=message):
        ukjax.simulate(mechanism, [0.0, -1.0], [0.0, 0.0], [0.0, 1.0], solver=ukjax.Rattle(), **given)


@pytest.mark.parametrize(
    ("q0", "v0", "h", "name", "message"),
    [
        ([3.0, 0.0], [0.0, 0.0], 0.1, "off_constraints", "The state is off the constraints"),
        ([0.0, -1.0], [3.0, 0.0], 10.0, "step_off_constraints", "found no state on the constraints: it is too long"),
    ],
)
def test_a_start_or_a_step_off_the_constraints_is_told(q0, v0, h, name, message):
    with pytest.raises(RuntimeError, match=message):
        steps(pendulum(2), jnp.array(q0), jnp.array(v0), h, 3)
    failed = steps(pendulum(2), jnp.array(q0), jnp.array(v0), h, 3, throw=False)
    assert bool(failed.result == getattr(ukjax.RESULTS, name))


def test_speeds_that_are_no_rates_and_batches_are_told():
    top = heavy_top.scenario()
    with pytest.raises(ValueError, match="speeds that are no rates"):
        steps(top.mechanism, top.q0, top.v0, 0.1, 2)
    with pytest.raises(ValueError, match=r"goes with jax\.vmap"):
        ukjax.simulate_batch(pendulum(), jnp.zeros((2, 2)), jnp.zeros(2), [0.0, 1.0], solver=ukjax.Rattle())
    with pytest.raises(ValueError, match="iterations must be a positive integer"):
        ukjax.Rattle(0)
