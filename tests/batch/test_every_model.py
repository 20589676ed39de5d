"""The batch of every scenario of the models is what they are one by one, in value and gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import sampled
from ..models.test_models import FACTORIES


SHARES = jnp.array([1.0, 0.95, 0.9])  # of the speeds at the start


def ways(case, ts):
    """A batch, and `jax.vmap`: of the mechanism and the speeds of each trajectory."""
    options = {"servo": case.servo, "formulation": case.formulation, "projection": case.projection, "max_steps": 400}
    loop = lambda mechanism, v0: jax.vmap(
        lambda v0: ukjax.simulate(mechanism, case.q0, v0, ts, throw=False, **options)
    )(v0)
    batch = lambda mechanism, v0: ukjax.simulate_batch(mechanism, case.q0, v0, ts, lanes=1, **options)
    return loop, batch


def equal(got, want, tolerance):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree_util.tree_leaves(want), strict=True):
        if a.size:
            size = np.max(np.abs(b), initial=1.0, where=np.isfinite(b))
            np.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance * size, err_msg=jax.tree_util.keystr(path))


@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories", "ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sampled(sorted(FACTORIES), []))
def test_values(name):
    case = FACTORIES[name]()
    ts = jnp.linspace(case.t0, case.t0 + 0.02 * (case.t1 - case.t0), 3)
    loop, batch = ways(case, ts)
    v0 = SHARES[:, None] * case.v0[None]
    equal(eqx.filter_jit(batch)(case.mechanism, v0), eqx.filter_jit(loop)(case.mechanism, v0), 1e-12)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories", "ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_gradients(name):
    case = FACTORIES[name]()
    ts = jnp.linspace(case.t0, case.t0 + 0.005 * (case.t1 - case.t0), 2)
    v0 = SHARES[:2, None] * case.v0[None]

    def gradient(way):
        of = lambda both: jnp.sum(jnp.sin(way(*both).q[:, -1]))
        return eqx.filter_jit(eqx.filter_grad(of))((case.mechanism, v0))

    loop, batch = ways(case, ts)
    equal(gradient(batch), gradient(loop), 1e-12)
