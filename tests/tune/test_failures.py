"""Where a simulation fails a tuning does not go, and it stops when it has converged."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import pytest
from jaxtyping import Array, Float

import ukjax

from ..helpers import assert_close, assert_gradients, standard_promotion
from ..inside import failures_as_nan


@pytest.fixture(autouse=True)
def promotion():
    with standard_promotion():
        yield


class Oscillator(ukjax.AbstractSystem):
    """A mass on a spring: x = cos(sqrt(k / m) t) from rest at 1."""

    m: Float[Array, ""]  # [kg]
    k: Float[Array, ""]  # [N/m]

    def mass(self, q, t):
        return self.m[None, None]

    def force(self, q, v, t):
        return -self.k * q


TS = jnp.linspace(0.0, 1.0, 4)
MASS, BUDGET = "negative mass", "step budget"
START, END = 2.0, 0.3  # [kg]


class Miss(eqx.Module):
    """Residuals (4,) of the path of an oscillator, from the closed form of that with the mass 0.3 kg.

    With a negative mass the simulation fails; or with one below 0.15 kg it exhausts a budget of 24 steps.
    """

    region: str
    throw: bool

    def __call__(self, x):
        m, budget = (x, 250) if self.region == MASS else (jnp.maximum(x, 0.01), 24)
        mechanism = ukjax.Mechanism(Oscillator(m, jnp.ones_like(x)))
        path = ukjax.simulate(mechanism, jnp.ones(1), jnp.zeros(1), TS, max_steps=budget, throw=self.throw)
        jax.debug.callback(lambda okay: VISITS.append(bool(np.all(okay))), jnp.all(jnp.isfinite(path.q)))
        return path.q[:, 0] - jnp.cos(jnp.sqrt(1 / END) * TS)


VISITS: list[bool] = []  # whether the simulation succeeded, one for each
OPTIMISERS = {
    "adam": lambda x: optax.adam(optax.exponential_decay(1.5 * x, 1, 0.8)),
    "lbfgs": lambda x: optax.lbfgs(),
    "LevenbergMarquardt": lambda x: ukjax.tuning.LevenbergMarquardt(1e-9),
    "BFGS": lambda x: optimistix.BFGS(1e-10, 1e-10),
    "optimistix's": lambda x: optimistix.LevenbergMarquardt(1e-10, 1e-10),
    "GaussNewton": lambda x: optimistix.GaussNewton(1e-10, 1e-10),
}


CASES = [
    pytest.param(region, name, throw, marks=[] if (region, name, throw) == (MASS, "adam", True) else [pytest.mark.long])
    for region in (MASS, BUDGET)
    for name in OPTIMISERS
    for throw in (True, False)
]


@pytest.mark.parametrize(("region", "name", "throw"), CASES)
def test_a_trial_at_which_the_simulation_fails_is_rejected(region, name, throw):
    VISITS.clear()
    optimizer = OPTIMISERS[name](START)
    got = ukjax.tune(Miss(region, throw), jnp.asarray(START), optimizer, 120, progress=False)
    jax.effects_barrier()
    assert not all(VISITS)
    assert_close(got.params, jnp.asarray(END), rtol=2e-2 if name == "adam" else 1e-6)
    assert np.all(np.isfinite(got.losses))
    assert name == "adam" or got.stopped.startswith("Converged: ")


def roots(x):
    """Residuals of x = 0.1, not finite for a negative x."""
    return jnp.stack([jnp.sqrt(x) - jnp.sqrt(0.1), 0.1 * (x - 0.1)])


def raising(x):
    return roots(eqx.error_if(x, x < 0, "x is negative"))


@pytest.mark.parametrize(
    ("name", "loss"), [("sgd", roots), ("sgd", raising), ("adam", raising), *((name, roots) for name in OPTIMISERS)]
)
def test_a_trial_at_which_the_loss_is_not_finite_is_rejected(name, loss):
    optimizer = optax.sgd(2.0) if name == "sgd" else OPTIMISERS[name](4.0)
    got = ukjax.tune(loss, jnp.asarray(4.0), optimizer, 150, progress=False)
    assert_close(got.params, jnp.asarray(0.1), atol=0.02 if name in ("sgd", "adam") else 1e-6)


@pytest.mark.parametrize("name", ["lbfgs", "LevenbergMarquardt"])
def test_an_error_that_a_search_meets_ends_it_and_is_shown(name):
    with pytest.raises(RuntimeError, match=r"The loss raises an error within step \d. Let it be NaN instead") as raised:
        ukjax.tune(raising, jnp.asarray(4.0), OPTIMISERS[name](4.0), 3, progress=False)
    assert "x is negative" in str(raised.value.__cause__)


@pytest.mark.long
def test_what_was_compiled_before_rejects_within_a_tuning_and_still_raises_after_it():
    loss = jax.jit(Miss(MASS, True))
    bad = jnp.asarray(-1.0)
    with pytest.raises(Exception, match="not symmetric positive definite"):
        jax.block_until_ready(loss(bad))
    ukjax.tune(loss, jnp.asarray(START), optax.sgd(50.0), 1, progress=False)
    with pytest.raises(Exception, match="not symmetric positive definite"):
        jax.block_until_ready(loss(bad))
    with failures_as_nan(True):
        assert not np.isfinite(loss(bad)).all()


@pytest.mark.long
def test_without_a_failure_the_gradient_is_the_same():
    with failures_as_nan(True):
        assert_gradients(lambda x: jnp.sum(Miss(MASS, True)(x) ** 2), jnp.asarray(0.7), rtol=1e-5)


def square(x):
    return jnp.sum((x - 3.0) ** 2)


def test_converges_before_its_steps_are_done():
    sgd = optax.sgd(0.2)
    got = ukjax.tune(square, jnp.zeros(2), sgd, 500, progress=False)
    assert got.stopped.startswith("Converged: a step changes parameters and loss by less than")
    # The error is 3 * 0.6^k, a step two thirds of what it leaves.
    assert len(got.losses) - 1 == int(np.ceil(np.log(3e-10 / 2) / np.log(0.6)))
    assert_close(got.params, jnp.full(2, 3.0), rtol=1e-9)
    loose = ukjax.tune(square, jnp.zeros(2), sgd, 500, rtol=1e-3, atol=1e-3, progress=False)
    assert len(loose.losses) < len(got.losses) / 2
    whole = ukjax.tune(square, jnp.zeros(2), sgd, 100, rtol=None, progress=False)
    assert (len(whole.losses), whole.stopped) == (101, "")
    with pytest.raises(ValueError, match="rtol must not be negative"):
        ukjax.tune(square, jnp.zeros(2), sgd, 5, rtol=-1.0)


def test_a_step_of_no_length_is_no_convergence_unless_the_gradient_leads_nowhere():
    warming_up = optax.sgd(optax.linear_schedule(0.0, 0.2, 5))
    got = ukjax.tune(square, jnp.zeros(2), warming_up, 200, progress=False)
    assert_close(got.params, jnp.full(2, 3.0), rtol=1e-9)
    at_bound = ukjax.tune(square, jnp.zeros(2), optax.sgd(0.2), 50, bounds=(-1.0, 2.0), progress=False)
    assert "points out of the bounds" in at_bound.stopped
    assert_close(at_bound.params, jnp.full(2, 2.0))


def test_minibatches_do_not_converge():
    samples = jnp.array([[3.0, 3.0], [3.0, 3.0], [3.0, 3.0]])
    loss = lambda p, target: jnp.sum((p - target) ** 2)
    options = {"samples": samples, "batch_size": 2, "progress": False}
    assert len(ukjax.tune(loss, jnp.full(2, 3.0), optax.sgd(0.2), 7, **options).losses) == 8
