"""RATTLE with forces that depend on velocities, and what it saves between its steps."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from experiments import rattle_orders
from models import spherical_pendulum

from ..helpers import assert_close, assert_gradients, long, pendulum, rod


RESIDUALS = ("q", "v", "position_residual", "velocity_residual")


def by_rattle(mechanism, q0, v0, ts, h, keep=("q", "v"), **options):
    return ukjax.simulate(
        mechanism, q0, v0, ts, solver=ukjax.Rattle(), stepsize_controller=diffrax.ConstantStepSize(), dt0=h, keep=keep,
        **options,
    )  # fmt: skip


def charged(field, drag):
    """A charge on a sphere, its row twice, in a magnetic field along z that grows with x, and with a drag along x."""

    def force(q, v, t):
        magnetic = field * (1 + q[0]) * jnp.array([v[1], -v[0], 0.0])
        return jnp.array([0.0, 0.0, -9.81]) + magnetic - drag * v * jnp.array([1.0, 0.0, 0.0])

    return ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(3), force), [rod(), rod()])


@pytest.mark.parametrize("case", list(map(long, rattle_orders.CASES)), ids=lambda case: case.name)
def test_order_two(case):
    """Against the equations in NumPy by SciPy: at the end, and at a time that is no multiple of a step."""
    found = rattle_orders.measured(case)
    np.testing.assert_allclose(found.orders, 2.0, atol=0.02)
    np.testing.assert_allclose(found.orders_between, 2.0, atol=0.05)
    assert found.off < 1e-13


@pytest.mark.long
def test_a_step_back_undoes_a_step():
    """With the field and the drag turned around, as time is: the method is its own adjoint."""
    ts = jnp.array([0.0, 1.0])
    run = jax.jit(lambda q, v, sign: by_rattle(charged(3.0 * sign, 0.7 * sign), q, v, ts, 0.03, throw=False))
    q0, v0 = jnp.array([0.6, 0.0, -0.8]), jnp.array([0.0, 1.2, 0.0])
    there = run(q0, v0, 1.0)
    assert float(jnp.linalg.norm(there.q[-1] - q0)) > 0.1
    back = run(there.q[-1], -there.v[-1], -1.0)
    assert_close(back.q[-1], q0, atol=1e-12)
    assert_close(-back.v[-1], v0, atol=1e-12)
    # Steps of 0.03 s do not fit: 34 of one length do.
    assert int(there.stats["num_steps"]) == 34


@pytest.mark.long
def test_energy_in_a_magnetic_field_does_not_drift():
    """A field does no work; over 20 000 and 40 000 steps, half the step, a quarter of the error."""
    q0, v0, largest = jnp.array([0.6, 0.0, -0.8]), jnp.array([0.0, 1.2, 0.0]), []
    for h, count in ((0.01, 20_000), (0.005, 40_000)):
        got = by_rattle(charged(3.0, 0.0), q0, v0, jnp.linspace(0.0, 200.0, 2001), h, max_steps=count + 2)
        energy = np.asarray(jnp.sum(got.v**2, axis=1) / 2 + 9.81 * got.q[:, 2])
        off = np.abs(energy - energy[0])
        assert np.max(off[-200:]) < 1.2 * np.max(off[:201])
        largest.append(np.max(off))
    assert largest[0] / largest[1] == pytest.approx(4.0, rel=0.1)


def test_saved_states_lie_on_the_constraints_and_change_nothing():
    """At times that are no multiples of the step; the energy there is as near as at the steps."""
    scenario = spherical_pendulum.scenario()
    energy = next(f for name, f in scenario.invariants.items() if "energy" in name)
    start = scenario.q0, scenario.v0
    run = jax.jit(lambda ts, h=0.01: by_rattle(scenario.mechanism, *start, ts, h, RESIDUALS, throw=False))
    steps, between = jnp.linspace(0.0, 2.0, 201), jnp.linspace(0.0, 2.0, 201).at[1:-1].add(0.0037)
    at, of = run(steps), run(between)
    assert float(jnp.max(of.position_residual)) < 1e-14
    assert float(jnp.max(of.velocity_residual)) < 1e-14
    assert_close(of.q[-1], at.q[-1])
    assert_close(of.v[-1], at.v[-1])
    off = lambda run: np.max(np.abs(np.asarray(jax.vmap(energy)(run.q, run.v, run.t)) - energy(at.q[0], at.v[0], 0.0)))
    assert off(of) < 1.05 * off(at)
    # Between the steps it is the same motion: one of 64 times as many steps shows it.
    errors = lambda got, ts: float(jnp.max(jnp.abs(got.q - run(ts, 0.01 / 64).q)))
    assert errors(of, between) < 1.05 * errors(at, steps)


def test_a_force_that_jumps_is_told():
    """Coulomb's friction as a sign: at rest no speed agrees with it."""
    sticking = ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: 0.3 - jnp.sign(v))
    with pytest.raises(RuntimeError, match="a force jumps where a speed changes its sign"):
        by_rattle(ukjax.Mechanism(sticking), [0.0], [0.1], [0.0, 1.0], 0.01)


@pytest.mark.long
def test_gradients():
    """By the forces and the state, at the end and between two steps; a batch is the loop."""
    ts = jnp.array([0.0, 0.23, 0.5])

    def end(x):
        q, v = jnp.array([0.6, 0.0, -0.8]), x["v"] * jnp.array([0.0, 1.0, 0.0])
        got = by_rattle(charged(x["field"], x["drag"]), q, v, ts, 0.05, throw=False)
        return jnp.sum(jnp.sin(got.q + 2 * got.v) * jnp.arange(1.0, 10.0).reshape(3, 3))

    x = {"field": jnp.asarray(3.0), "drag": jnp.asarray(0.8), "v": jnp.asarray(1.2)}
    assert_gradients(end, x)
    several = jax.tree_util.tree_map(lambda x: x * jnp.array([1.0, 0.5, 1.5]), x)
    together = jax.jit(jax.vmap(jax.grad(end)))(several)
    alone = jax.jit(jax.grad(end))
    for i in range(3):
        one = alone(jax.tree_util.tree_map(lambda x, i=i: x[i], several))
        for name, value in one.items():
            assert_close(together[name][i], value, rtol=1e-9, atol=1e-11)


@pytest.mark.long
def test_dragging_a_pendulum_to_rest():
    """Where speeds are nothing but rounding errors, they agree with the forces all the same."""
    bob = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81]) - 30.0 * v)
    hanging = ukjax.Mechanism(bob, pendulum(2).constraints)
    run = by_rattle(hanging, [0.6, -0.8], [0.0, 0.0], np.array([0.0, 60.0]), 0.01)
    assert_close(run.q[-1], np.array([0.0, -1.0]), atol=1e-7)
