"""The linearisation of every scenario of the models against differences of its trajectories."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import ukjax

from ..helpers import sampled
from ..models.test_models import FACTORIES


STEP = 1e-5
DRIVEN = ("Particle on a logarithmic spiral", "SCARA robot on a helix")
GAUSS = np.array([0.5 - np.sqrt(3) / 6, 0.5 + np.sqrt(3) / 6])


def transition(A, T):
    """How the states at the end depend on those at the start, from A at Gauss's two times: Magnus, O(T^5)."""
    first, second = np.asarray(A)
    return scipy.linalg.expm(T / 2 * (first + second) + np.sqrt(3) / 12 * T**2 * (second @ first - first @ second))


@pytest.mark.filterwarnings("ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sampled(sorted(FACTORIES), []))
def test_against_differences_of_trajectories(name):
    case = FACTORIES[name]()
    mechanism, t0 = case.mechanism, jnp.asarray(case.t0, float)
    q0, v0 = ukjax.assemble(mechanism, case.q0, case.v0, t0)
    states = ukjax.analysis.independent(mechanism, q0, v0, t0)
    options = {"servo": case.servo, "formulation": case.formulation, "throw": False}
    start = ukjax.analysis.linearize(
        mechanism, q0, v0, t0, states=states, servo=case.servo, formulation=case.formulation
    )
    if case.name in DRIVEN:  # every coordinate is prescribed: nothing is left to change
        assert start.A.shape == (0, 0)
        return
    fastest = max(np.max(np.abs(np.linalg.eigvals(np.asarray(start.A))), initial=0.0), 5.0)
    T = 0.05 / fastest
    ts = t0 + T * jnp.array([0.0, *GAUSS, 1.0])

    def run(d):
        q, v = q0 + d[: q0.shape[0]], v0 + d[q0.shape[0] :]
        exact = {"rtol": 1e-12, "atol": 1e-12, "keep": ("q", "v"), "projection": ukjax.Projection()}
        return ukjax.simulate(mechanism, q, v, ts, **options, **exact)

    ways = STEP * start.directions.T
    along = jax.jit(jax.vmap(run))(jnp.concatenate([0 * ways[:1], ways, -ways]))
    assert bool(jnp.all(along.result == ukjax.RESULTS.successful))
    at = lambda q, v, t: ukjax.analysis.linearize(mechanism, q, v, t, states=states, **options)
    linear = jax.jit(jax.vmap(at))(along.q[0, 1:3], along.v[0, 1:3], ts[1:3])
    want = jax.vmap(jax.vmap(states, (0, 0, None)), (0, 0, None))(along.q, along.v, t0)
    k = len(ways)
    # By the change that there was at the start, which the projection may have made of the one that was asked for.
    before, after = ((want[1 : k + 1, i] - want[k + 1 :, i]).T / (2 * STEP) for i in (0, -1))
    got = transition(linear.A, T)
    size = np.max(np.abs(want[0, 0])) + 1.0
    np.testing.assert_allclose(got @ before, after, rtol=0.0, atol=1e-6 * max(size, np.max(np.abs(after))))
    # And the rate of that change, of which the transition is nearly one.
    rates = (after - before) / T
    atol = 1e-6 * max(size * fastest, np.max(np.abs(rates), initial=0.0))
    np.testing.assert_allclose((got @ before - before) / T, rates, rtol=0.0, atol=atol)
