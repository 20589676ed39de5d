"""The batch of every scenario of the models is what they are one by one, in value and gradient."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import sampled
from ..models.test_models import FACTORIES


SHARES = jnp.array([1.0, 0.95, 0.9])  # of the speeds at the start
# Where 1e-12 is less than what rounding makes of the loop itself, compiled with LLVM's optimisations and without. The
# governor has a stiff spring, so that stability makes the steps, 280 of them, whose sizes are sensitive to rounding: on
# an AMD EPYC (Zen 5) accelerations by `jax.vmap(simulate)` differ by 6e-9 of g from those by `simulate`, one after the
# other. The arm's tool has moments of 2e-4 kg m^2: there a derivative of `jax.vmap(simulate)` by one of them differs by
# 3e-10 rad per kg m^2.
ROUNDED, ROUNDED_GRADIENTS = {"governor:scenario"}, {"six_joint_arm:scenario"}
optimised = ft.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 3})


def ways(case, ts):
    """A batch, and `jax.vmap`: of the mechanism and the speeds of each trajectory."""
    options = {"servo": case.servo, "formulation": case.formulation, "projection": case.projection, "max_steps": 400}
    loop = lambda mechanism, v0: jax.vmap(
        lambda v0: ukjax.simulate(mechanism, case.q0, v0, ts, throw=False, **options)
    )(v0)
    batch = lambda mechanism, v0: ukjax.simulate_batch(mechanism, case.q0, v0, ts, lanes=1, **options)
    return loop, batch


def equal(got, want, again=None):
    """To 1e-12; or, if that is more, to ten times that by which what is wanted differs if it is made in another way."""
    again = want if again is None else again
    for (path, a), b, c in zip(
        jax.tree_util.tree_leaves_with_path(got), *map(jax.tree_util.tree_leaves, (want, again)), strict=True
    ):
        if a.size:
            largest = lambda x: np.max(np.abs(x), initial=0.0, where=np.isfinite(x))
            with np.errstate(invalid="ignore"):  # of what is infinite either way
                otherwise = np.asarray(b, float) - np.asarray(c, float)
            tolerance = max(1e-12, 1e-12 * largest(b), 10.0 * largest(otherwise))
            np.testing.assert_allclose(a, b, rtol=0.0, atol=tolerance, err_msg=jax.tree_util.keystr(path))


@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories", "ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sampled(sorted(FACTORIES), []))
def test_values(name):
    case = FACTORIES[name]()
    ts = jnp.linspace(case.t0, case.t0 + 0.02 * (case.t1 - case.t0), 3)
    loop, batch = ways(case, ts)
    v0 = SHARES[:, None] * case.v0[None]
    got, want = (eqx.filter_jit(way)(case.mechanism, v0) for way in (batch, loop))
    equal(got.q, want.q)
    equal(got, want, optimised(loop)(case.mechanism, v0) if name in ROUNDED else None)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ukjax.FailedTrajectories", "ignore::ukjax.InconsistentStart")
@pytest.mark.parametrize("name", sorted(FACTORIES))
def test_gradients(name):
    case = FACTORIES[name]()
    ts = jnp.linspace(case.t0, case.t0 + 0.005 * (case.t1 - case.t0), 2)
    v0 = SHARES[:2, None] * case.v0[None]

    def gradient(way, jit=eqx.filter_jit):  # compiling takes most of the time
        of = lambda both: jnp.sum(jnp.sin(way(*both).q[:, -1]))
        found = jit(eqx.filter_grad(of))((case.mechanism, v0))
        jax.clear_caches()  # Stewart's platform has 12,000 kernels, of which a process can map no two programs.
        return found

    loop, batch = ways(case, ts)
    again = gradient(loop, optimised) if name in ROUNDED_GRADIENTS else None
    equal(gradient(batch), gradient(loop), again)
