"""Accelerations of every model: the same bits alone, in batches, with vectors of any width, by plain calls."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax import cli

from ..helpers import long
from ..inside import replaced


NAMES = cli.factories("models")[0]
SHORT = ("models.scara:scenario", "models.n_pendulum:closed")


def scenario_of(name):
    module, factory = name.split(":")
    return getattr(__import__(module, fromlist=[factory]), factory)()


@pytest.mark.parametrize("name", [name if name in SHORT else long(name) for name in NAMES])
def test_a_state_has_the_same_bits_however_it_comes(name):
    case = scenario_of(name)
    rng = np.random.default_rng(0)
    q, v = (jnp.asarray(np.asarray(x, float) + 1e-3 * rng.normal(size=(11, len(x)))) for x in (case.q0, case.v0))
    q, v = q.at[0].set(case.q0), v.at[0].set(case.v0)

    def one(q, v):
        found = ukjax.equation_of_motion(case.mechanism, q, v, case.t0, throw=False)
        return found.acceleration, found.rank

    want = [np.asarray(x) for x in jax.jit(jax.vmap(one))(q, v)]
    alone = jax.jit(one)
    for count in (1, 2, 8):
        for x, y in zip(jax.jit(jax.vmap(one))(q[:count], v[:count]), want, strict=True):
            assert np.asarray(x).tobytes() == y[:count].tobytes()
    for k in (0, 10):
        for x, y, z in zip(alone(q[k], v[k]), one(q[k], v[k]), want, strict=True):
            # In a program of its own the mechanism is constant, as here, and in a plain call it is an argument.
            assert np.asarray(x).tobytes() == z[k].tobytes()
            np.testing.assert_allclose(y, z[k], rtol=1e-9, atol=1e-9)
    jax.clear_caches()
    with replaced(vector_width=lambda: 4):
        for x, y in zip(jax.jit(jax.vmap(one))(q, v), want, strict=True):
            assert np.asarray(x).tobytes() == y.tobytes()
