"""Derivatives with respect to the times, and times that do not increase."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import ukjax
from tests.helpers import STATES, assert_close, assert_gradients, falling, long


class Oscillator(ukjax.AbstractSystem):
    """x'' = -w^2 x + a t, of unit mass."""

    w: Array
    a: Array

    def mass(self, q, t):
        return jnp.eye(1)

    def force(self, q, v, t):
        return -(self.w**2) * q + self.a * t

    def solution(self, q0, v0, t0, t):
        steady = lambda t: self.a * t / self.w**2
        c, s = jnp.cos(self.w * (t - t0)), jnp.sin(self.w * (t - t0))
        return steady(t) + (q0 - steady(t0)) * c + (v0 - self.a / self.w**2) / self.w * s


class Start(eqx.Module):
    system: Oscillator
    q0: Array
    v0: Array
    ts: Array

    def simulated(self, **options):
        return ukjax.simulate(
            ukjax.Mechanism(self.system), self.q0, self.v0, self.ts, rtol=1e-10, atol=1e-10, **options
        )

    def loss(self, **options):
        return smooth(self.simulated(**options).q[:, 0])

    def exact(self):
        return smooth(self.system.solution(self.q0[0], self.v0[0], self.ts[0], self.ts))


def smooth(q):
    """Something with other weights for every saved time, and not linear."""
    return jnp.sum(jnp.sin(q) * jnp.arange(1.0, 1.0 + q.shape[0]))


START = Start(
    Oscillator(jnp.asarray(2.0), jnp.asarray(0.7)),
    jnp.array([0.4]),
    jnp.array([-0.3]),
    jnp.array([0.3, 0.7, 0.75, 1.4]),
)
FLAT, UNRAVEL = ravel_pytree(START)


@pytest.mark.long
def test_first_derivatives_with_respect_to_the_times_against_a_closed_form():
    want = jax.grad(lambda x: UNRAVEL(x).exact())(FLAT)
    loss = lambda x: UNRAVEL(x).loss()
    assert_close(jax.jit(jax.grad(loss))(FLAT), want, atol=1e-8)
    assert_close(jax.jit(jax.jacfwd(loss))(FLAT), want, atol=1e-8)


@pytest.mark.long
@pytest.mark.parametrize("mode", [jax.jacrev, jax.jacfwd], ids=["over reverse", "over forward"])
def test_second_derivatives_with_respect_to_the_times_against_a_closed_form(mode):
    """Also mixed ones, with the parameters and the initial state, in either order."""
    want = jax.hessian(lambda x: UNRAVEL(x).exact())(FLAT)
    assert_close(jax.jit(jax.jacfwd(mode(lambda x: UNRAVEL(x).loss())))(FLAT), want, atol=1e-6)
    count = START.ts.shape[0]
    split = lambda others, ts: UNRAVEL(jnp.concatenate([others, ts])).loss()
    mixed = jax.jit(jax.jacfwd(mode(split, argnums=0), argnums=1))(FLAT[:-count], FLAT[-count:])
    assert_close(mixed, want[:-count, -count:], atol=1e-6)


@pytest.mark.long
def test_how_far_a_free_fall_gets():
    """dh/dT is the velocity at T, to the last digit; and the time of the start shifts the whole motion."""

    def fallen(t0, t1):
        ts = jnp.stack([t0, t1])
        return ukjax.simulate(ukjax.Mechanism(falling()), jnp.zeros(2), jnp.zeros(2), ts, keep=STATES).q[-1, 1]

    times = jnp.asarray(0.1), jnp.asarray(1.0)
    for derivative in (jax.grad, jax.jacfwd):
        first, last = jax.jit(derivative(fallen, argnums=(0, 1)))(*times)
        assert_close(last, np.asarray(-9.81 * 0.9), rtol=1e-13)
        assert_close(first, np.asarray(9.81 * 0.9), rtol=1e-10)


class Stretching(eqx.Module):
    """phi of a rod whose length grows."""

    rate: Array

    def __call__(self, q, t):
        return (q @ q - (1 + self.rate * t) ** 2)[None]


def hauled(ts, **options):
    """A pendulum on a rod that grows, started consistently at ts[0]; a sum over all fields."""
    rate, angle = jnp.asarray(0.3), 0.7
    mechanism = ukjax.Mechanism(falling(), ukjax.Holonomic(Stretching(rate)))
    along = jnp.array([jnp.sin(angle), -jnp.cos(angle)])
    got = ukjax.simulate(mechanism, (1 + rate * ts[0]) * along, rate * along, ts, rtol=1e-11, atol=1e-11, **options)
    return (
        smooth(got.q[:, 0]) + smooth(got.v[:, 1]) + smooth(got.acceleration[:, 0]) + smooth(got.constraint_force[:, 1])
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="drifting"),
        long({"projection": ukjax.Projection()}, id="projected"),
    ],
)
def test_times_of_a_constrained_motion_against_central_differences(options):
    assert_gradients(lambda ts: hauled(ts, **options), jnp.array([0.2, 0.5, 0.9]), rtol=1e-6, atol=1e-7)


def test_times_that_do_not_increase_fail_as_data_when_traced():
    run = jax.jit(lambda ts: eqx.tree_at(lambda s: s.ts, START, ts).simulated(throw=False))
    good = run(START.ts)
    assert good.result == ukjax.RESULTS.successful
    for ts in ([1.4, 0.7, 0.3, 0.1], [0.3, 0.7, 0.7, 1.4], [0.3, 0.7, 0.5, 1.4], [0.3, np.nan, 0.5, 1.4], [np.nan] * 4):
        bad = run(jnp.array(ts))
        assert bad.result == ukjax.RESULTS.times_do_not_fit
        assert_close(bad.q[0], START.q0)
        assert np.all(np.isnan(bad.q[1:]))
        assert np.all(np.isnan(bad.acceleration[1:]))
    together = jax.vmap(run)(jnp.stack([START.ts, START.ts[::-1]]))
    assert_close(together.q[0], good.q, atol=1e-12)
    assert np.all(np.isnan(together.q[1, 1:]))
    with pytest.raises(Exception, match="ts must increase strictly"):
        jax.jit(lambda ts: eqx.tree_at(lambda s: s.ts, START, ts).simulated().q)(START.ts[::-1]).block_until_ready()
