"""An impact on something without mass, which masses carry, by the balance of impulses."""

import jax
import jax.numpy as jnp

import ukjax

from ..helpers import assert_close
from ..inside import after_impact


def test_a_blow_on_a_massless_lever_moves_two_masses_by_their_inertia():
    """s = y1 + y2 comes back with e = 0.5: m1 dy1 = m2 dy2 = the impulse."""
    m, e = jnp.array([1.0, 3.0]), 0.5
    system = ukjax.System(lambda q, t: jnp.diag(jnp.append(m, 0.0)), lambda q, v, t: jnp.zeros(3))
    lever = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q[2] - q[0] - q[1])[None]))
    impact = ukjax.Impact(ukjax.Holonomic(lambda q, t: q[2:]), e)
    v = jnp.array([-1.0, -2.0, -3.0])
    _, got, met = jax.jit(lambda v: after_impact(impact, lever, jnp.zeros(3), v, jnp.zeros(()), False))(v)
    assert bool(met)
    impulse = (1 + e) * 3.0 / jnp.sum(1 / m)
    change = impulse / m
    assert_close(got, v + jnp.append(change, jnp.sum(change)), atol=1e-12)
