"""Steps backwards of trajectories with a projection are one loop, although they are longer than a step forwards."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import ukjax
from models import n_pendulum

from ..helpers import assert_close, central_difference, flat_gradient
from ..inside import Limits, replaced, reversed_steps


@pytest.mark.parametrize("most", [8000, 6000])
def test_they_may_be_as_long_as_a_derivative(most):
    """A step forwards has some 5,000 operations, one backwards 7,700."""
    case, made = n_pendulum.closed(3), []
    parts, form = jax.tree_util.tree_flatten(eqx.filter(case.mechanism, eqx.is_inexact_array))
    static = eqx.filter(case.mechanism, eqx.is_inexact_array, inverse=True)
    ts = jnp.linspace(0.0, 0.3, 4)

    def noted(*args):
        made.append(reversed_steps(*args) is not None)
        return reversed_steps(*args)

    def last(parts):
        mechanism, settings = eqx.combine(jax.tree_util.tree_unflatten(form, parts), static), {"max_steps": most}
        settings |= {"projection": ukjax.Projection(), "keep": ("q",), "throw": False, "rtol": 1e-9}
        return jnp.sum(ukjax.simulate(mechanism, case.q0, case.v0, ts, **settings).q[-1] ** 2)

    with replaced(scalar_code=Limits(most, 64_000), steps_back=noted):
        gradient = jax.grad(last)(parts)
    assert made == [True]
    assert_close(flat_gradient(gradient), central_difference(last, parts)[0], rtol=1e-5, atol=1e-6)
