"""The batch of every scenario of the models is what they are one by one, in value and gradient."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from ukjax._program import light_jit

from ..helpers import sampled
from ..models.test_models import FACTORIES


SHARES = jnp.array([1.0, 0.95, 0.9])  # of the speeds at the start
# A stiff spring, so that stability makes the steps, 280 of them, and their sizes are sensitive to rounding. On an Intel
# Xeon positions differ by 4e-15 m, speeds by 7e-12, and accelerations by what the stiffness makes of that, 1.4e-9 of g.
TOLERANCES = {"governor:scenario": 1e-8}
# The arm's tool has moments of 2e-4 kg m^2: on an AMD EPYC (Zen 3) a derivative by one of them differs by 2e-12 rad per
# kg m^2, which is 5e-16 rad by the whole of the moment.
TOLERANCES_OF_GRADIENTS = {"six_joint_arm:scenario": 1e-11}


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
    got, want = (eqx.filter_jit(way)(case.mechanism, v0) for way in (batch, loop))
    equal(got.q, want.q, 1e-12)
    equal(got, want, TOLERANCES.get(name, 1e-12))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories", "ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_gradients(name):
    case = FACTORIES[name]()
    ts = jnp.linspace(case.t0, case.t0 + 0.005 * (case.t1 - case.t0), 2)
    v0 = SHARES[:2, None] * case.v0[None]

    def gradient(way):
        of = lambda both: jnp.sum(jnp.sin(way(*both).q[:, -1]))
        found = light_jit(eqx.filter_grad(of))((case.mechanism, v0))  # compiling takes most of the time
        jax.clear_caches()  # Stewart's platform has 12,000 kernels, of which a process can map no two programs.
        return found

    loop, batch = ways(case, ts)
    equal(gradient(batch), gradient(loop), TOLERANCES_OF_GRADIENTS.get(name, 1e-12))
