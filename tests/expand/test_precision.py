"""Single precision is computed in the same way as double."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import scara, simple_pendulum

from ..helpers import assert_close, standard_promotion, without_matrices


def test_single_precision_needs_no_matrices():
    """Of a state that double precision is certain of; and it is as exact as it can be."""
    case = scara.scenario()
    noise = 0.01 * np.random.default_rng(0).normal(size=(2, 6, 4))
    q, v = np.asarray(case.q0)[None] + noise[0], np.asarray(case.v0)[None] + noise[1]

    def motions(dtype):
        mechanism = jax.tree_util.tree_map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, case.mechanism)
        way = ukjax.UdwadiaKalaba(expand=True)
        of = lambda q, v: ukjax.equation_of_motion(mechanism, q, v, jnp.zeros((), dtype), formulation=way, throw=False)
        return jax.jit(jax.vmap(of))(jnp.asarray(q, dtype), jnp.asarray(v, dtype))

    want = motions(jnp.float64)
    with without_matrices():
        got = motions(jnp.float32)
    assert bool(jnp.all(got.result == ukjax.RESULTS.successful))
    assert np.array_equal(got.rank, want.rank)
    assert_close(
        got.acceleration.astype(float), want.acceleration, atol=1e-4 * float(jnp.max(jnp.abs(want.acceleration)))
    )


@pytest.mark.long
def test_a_mechanism_made_before_double_precision_was_switched_on():
    """Its parameters are single, its states double: derivatives of a projected run are those of doubles throughout."""
    case = simple_pendulum.scenario()
    cast = lambda dtype: jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, case.mechanism)
    single = cast(jnp.float32)
    double = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, single)

    def end(mechanism, q):
        run = ukjax.simulate(mechanism, q, case.v0, jnp.array([0.0, 0.5]), projection=ukjax.Projection())
        return jnp.sum(run.q[-1])

    with standard_promotion():
        got = jax.value_and_grad(lambda q: end(single, q))(case.q0)
    assert got[0].dtype == got[1].dtype == jnp.float64
    for x, y in zip(got, jax.value_and_grad(lambda q: end(double, q))(case.q0), strict=True):
        assert_close(x, y, atol=1e-6)
