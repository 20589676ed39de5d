"""A solve that shows its progress is the same solve, in portions."""

import re

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import scara

from ..helpers import STATES, central_difference, pendulum
from ..inside import PORTION


TS = jnp.linspace(0.0, 40.0, 7)
METER = diffrax.TextProgressMeter(minimum_increase=0.05)
Q0, V0 = jnp.array([-1.0, 0.0]), jnp.array([0.0, 0.3])


def simulated(v0=V0, progress=METER, **settings):
    given = {"keep": STATES, "throw": False, **settings}
    return ukjax.simulate(pendulum(), Q0, v0, TS, progress=progress, **given)


def shares(text):
    return [float(x) for x in re.findall(r"([\d.]+)%", text)]


@pytest.mark.parametrize(
    "settings", [{}, {"projection": ukjax.Projection()}, {"solver": diffrax.Dopri8(), "dt0": 0.01}]
)
def test_same_bits_and_all_steps(settings, capsys):
    want, got = simulated(progress=False, **settings), simulated(**settings)
    assert int(want.stats["num_steps"]) > 3 * PORTION
    jax.tree_util.tree_map(np.testing.assert_array_equal, got, want)
    shown = shares(capsys.readouterr().out)
    assert shown == sorted(shown)
    assert shown[0] == 0.0
    assert shown[-1] == 100.0
    assert len(shown) > 3


@pytest.mark.parametrize("most", [PORTION - 1, PORTION, PORTION + 1, 2 * PORTION])
def test_a_budget_of_steps_ends_it(most):
    want, got = simulated(progress=False, max_steps=most), simulated(max_steps=most)
    jax.tree_util.tree_map(np.testing.assert_array_equal, got, want)
    assert int(got.stats["num_steps"]) == most
    assert got.result == ukjax.RESULTS.max_steps_reached


def test_a_run_that_fails_ends_where_it_fails():
    """A bead whose force is NaN from a speed on."""

    class Bead(ukjax.AbstractSystem):
        def mass(self, q, t):
            return jnp.eye(1)

        def force(self, q, v, t):
            return jnp.where(v < 3.0, 0.1 * jnp.ones(1) - 9.0 * jnp.sin(40.0 * q), jnp.nan)

    bead = ukjax.Mechanism(Bead())
    runs = [
        ukjax.simulate(bead, [0.0], [1.0], TS, progress=x, throw=False, rtol=1e-10, atol=1e-10) for x in (False, METER)
    ]
    jax.tree_util.tree_map(np.testing.assert_array_equal, *runs)


def test_within_jit_and_a_batch(capsys):
    vs = jnp.array([[0.0, 0.3], [0.0, 2.0], [0.0, 0.0]])
    want = jax.jit(jax.vmap(lambda v: simulated(v, False).q))(vs)
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda v: simulated(v).q))(vs), want)
    jax.effects_barrier()
    assert shares(capsys.readouterr().out)[-1] == 100.0


def test_a_derivative():
    last = lambda progress: lambda v: jnp.sum(simulated(v, progress).q[2] ** 2)
    gradient = jax.grad(last(METER))(V0)
    np.testing.assert_array_equal(gradient, jax.grad(last(False))(V0))
    np.testing.assert_allclose(gradient, central_difference(last(False), V0)[0], rtol=1e-5, atol=1e-4)


@pytest.mark.long
def test_with_servos():
    case = scara.scenario()
    settings = {"servo": case.servo, "throw": False}
    runs = [
        ukjax.simulate(case.mechanism, case.q0, case.v0, jnp.linspace(0, 5, 4), progress=x, **settings)
        for x in (False, METER)
    ]
    jax.tree_util.tree_map(np.testing.assert_array_equal, *runs)
