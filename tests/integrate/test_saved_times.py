"""First and second derivatives by every saved time, of every way to make a motion, against differences."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from tests.helpers import assert_close, central_difference, long


# A pendulum with drag whose support shakes; no time is special to it.
SHAKEN = ukjax.Mechanism(
    ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: 0.3 * jnp.sin(2 * t) - 4.0 * jnp.sin(q) - 0.2 * v)
)
OPTIONS = {
    "rtol": 1e-10, "atol": 1e-10, "solver": diffrax.Dopri8(), "max_steps": 33, "keep": ("q", "v"), "throw": False
}  # fmt: skip
# No saved time is one of a sample, where the motion has a kink, or one of a bounce.
TS = jnp.array([0.2, 0.45, 0.93])
Q0, V0 = jnp.array([[0.6], [0.9]]), jnp.array([[0.4], [0.3]])


def weighted(got):
    x = jnp.concatenate([got.q, got.v], axis=-1)
    return jnp.sum(jnp.sin(x) * jnp.arange(1.0, 1.0 + x.size).reshape(x.shape))


def controller():
    """It sees the time, and remembers half of what it saw of the position."""
    return ukjax.Feedback(
        lambda q, v, t, x: 0.4 * jnp.sin(3 * t) - q - 0.5 * v - 0.2 * x, np.eye(1), memory=[0.1], period=0.07,
        update=lambda q, v, t, x: (x + q) / 2,
    )  # fmt: skip


def simulated(ts):
    return weighted(ukjax.simulate(SHAKEN, Q0[0], V0[0], ts, **OPTIONS))


def sampled(ts):
    return weighted(ukjax.simulate(SHAKEN, Q0[0], V0[0], ts, servo=controller(), **OPTIONS))


def mapped(ts):
    """Every member has times of its own."""
    one = lambda q, v, part: weighted(ukjax.simulate(SHAKEN, q, v, part * ts, servo=controller(), **OPTIONS))
    return jnp.sum(jax.vmap(one)(Q0, V0, jnp.array([1.0, 1.3])))


def batched(ts):
    return weighted(ukjax.simulate_batch(SHAKEN, Q0, V0, ts, progress=False, **OPTIONS))


def batched_and_sampled(ts):
    return weighted(ukjax.simulate_batch(SHAKEN, Q0, V0, ts, servo=controller(), progress=False, **OPTIONS))


def bouncing(ts):
    """A ball in a wind that changes, which has bounced twice before the last time."""
    wind = lambda q, v, t: -9.81 - 0.3 * v + jnp.sin(3 * t)
    ball = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), wind))
    bounce = ukjax.Event(lambda q, v, t: q[0], "flies", impact=ukjax.Impact(ukjax.Holonomic(lambda q, t: q), 0.8))
    modes = {"flies": ukjax.Mode(ball, {"bounce": bounce})}
    return weighted(ukjax.simulate_hybrid(modes, [1.0], [0.0], 1.7 * ts, max_events=4, **OPTIONS))


MOTIONS = (simulated, sampled, mapped, batched, batched_and_sampled, bouncing)


def assert_first(derivative, both):
    want = central_difference(lambda ts: both(ts)[0], TS)[0]
    assert np.min(np.abs(want)) > 0.1
    assert_close(derivative, want, atol=1e-5 * np.max(np.abs(want)))


@pytest.mark.parametrize(
    "motion", [m if m is sampled else long(m) for m in MOTIONS], ids=lambda motion: motion.__name__
)
def test_first_derivatives_in_reverse_mode(motion):
    both = jax.jit(jax.value_and_grad(motion))
    assert_first(both(TS)[1], both)


@pytest.mark.long
@pytest.mark.parametrize("motion", MOTIONS, ids=lambda motion: motion.__name__)
def test_first_derivatives_in_forward_mode(motion):
    both = jax.jit(lambda ts: (motion(ts), jax.jacfwd(motion)(ts)))
    assert_first(both(TS)[1], both)


@pytest.mark.long
@pytest.mark.parametrize("motion", MOTIONS, ids=lambda motion: motion.__name__)
def test_second_derivatives(motion):
    """Forward over reverse, as `jax.hessian` has it, is right; reverse mode as the outer one says that it is not."""
    both = jax.jit(lambda ts: (jax.grad(motion)(ts), jax.hessian(motion)(ts)))
    want = central_difference(lambda ts: both(ts)[0], TS)
    # A start at another time has other steps, which differences see: they are not symmetric to more digits.
    assert_close(both(TS)[1], want, atol=4e-5 * np.max(np.abs(want)))
    with pytest.raises(NotImplementedError, match="The outer derivative of a second derivative"):
        jax.jacrev(jax.grad(motion))(TS)


@pytest.mark.long
def test_third_derivatives():
    second = jax.jacfwd(jax.jacfwd(simulated))
    both = jax.jit(lambda ts: (second(ts), jax.jacfwd(second)(ts)))
    want = central_difference(lambda ts: both(ts)[0], TS).reshape(3, 3, 3)
    assert_close(both(TS)[1], want, atol=1e-5 * np.max(np.abs(want)))
