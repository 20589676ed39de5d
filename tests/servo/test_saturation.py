"""Controls that meet their limits: motions and derivatives where a saturated control has a kink."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, assert_gradients, central_difference


CART = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(1), lambda q, v, t: jnp.zeros(1)))
X = jnp.array([1.0, 2.0, 2.0])  # the limit [N], the gain [N/m], the place at the start [m]; the mass is 1 kg
TS = jnp.array([0.0, 1.1, 4.0])
TOLERANCES = [1e-6, 1e-8, 1e-10]


def cart(x, tolerance=1e-8):
    """u = -k q between the limits, from rest."""
    controller = ukjax.Feedback(lambda q, v, t: -x[1] * q, np.eye(1), limits=(-x[0], x[0]))
    return ukjax.simulate(
        CART, x[2:], jnp.zeros(1), TS, servo=controller, rtol=tolerance, atol=tolerance, keep=("q", "v"), throw=False
    )


def ends(got):
    return jnp.concatenate([got.q[1:, 0], got.v[1:, 0]])


def exact(x):
    """While saturated it falls towards its place, then swings with the frequency of the gain, then is saturated again.

    The first time is in the first of these parts, the second one in the last.
    """
    limit, k, q0 = x
    w, edge = np.sqrt(k), limit / k
    v1 = -np.sqrt(2 * limit * (q0 - edge))
    radius, phase = np.hypot(edge, v1 / w), np.arctan2(-v1 / w, edge)
    through = (np.arccos(-edge / radius) - phase) / w
    v2, rest = -radius * w * np.sin(w * through + phase), TS[2] + v1 / limit - through
    assert rest > 0
    assert TS[1] < -v1 / limit
    q = [q0 - limit * TS[1] ** 2 / 2, -edge + v2 * rest + limit * rest**2 / 2]
    return np.array([*q, -limit * TS[1], v2 + limit * rest])


SLOPES = central_difference(exact, X)


def test_a_saturated_cart_against_the_closed_form():
    """Also at a loose tolerance the derivative is that of the motion; and it takes few steps more."""
    both = jax.jit(lambda x, tolerance: (cart(x, tolerance), jax.jacrev(lambda x: ends(cart(x, tolerance)))(x)))
    for tolerance in TOLERANCES:
        got, slopes = both(X, tolerance)
        assert_close(ends(got), exact(X), atol=tolerance)
        assert_close(slopes, SLOPES, atol=10 * tolerance + 1e-7)
        assert int(got.stats["num_steps"]) < 60


@pytest.mark.long
def test_forwards_and_in_batches():
    assert_close(jax.jit(jax.jacfwd(lambda x: ends(cart(x))))(X), SLOPES, atol=1e-7)
    several = jnp.stack([X, 1.1 * X])
    assert_close(jax.jit(jax.vmap(jax.jacrev(lambda x: ends(cart(x)))))(several)[0], SLOPES, atol=1e-7)

    def batch(several):
        controller = lambda x: ukjax.Feedback(lambda q, v, t: -x[1] * q, np.eye(1), limits=(-x[0], x[0]))
        got = ukjax.simulate_batch(
            CART, lambda x: x[2:], jnp.zeros(1), TS, samples=several, servo=controller, keep=("q", "v"), progress=False
        )
        return jnp.concatenate([got.q[:, 1:, 0], got.v[:, 1:, 0]], axis=1)

    assert_close(batch(several)[0], exact(X), atol=1e-8)
    weights = jnp.arange(1.0, 5.0)
    gradient = jax.jit(jax.grad(lambda several: batch(several)[0] @ weights))(several)
    assert_close(gradient, np.stack([weights @ SLOPES, np.zeros(3)]), atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("adjoint", [diffrax.DirectAdjoint(), diffrax.RecursiveCheckpointAdjoint()])
def test_other_adjoints(adjoint):
    def end(x):
        controller = ukjax.Feedback(lambda q, v, t: -x[1] * q, np.eye(1), limits=(-x[0], x[0]))
        got = ukjax.simulate(
            CART, x[2:], jnp.zeros(1), TS, servo=controller, adjoint=adjoint, max_steps=64, keep=("q", "v"), throw=False
        )
        return ends(got)

    assert_close(jax.jit(jax.jacrev(end))(X), SLOPES, atol=1e-6)


@pytest.mark.long
def test_of_a_mode():
    """In a hybrid simulation, with a saturated control in one of its modes only."""

    def end(x):
        controller = ukjax.Feedback(lambda q, v, t: -x[1] * q, np.eye(1), limits=(-x[0], x[0]))
        late = ukjax.Event(lambda q, v, t: 4.0 - t, "free")
        modes = {"held": ukjax.Mode(CART, {"late": late}, servo=controller), "free": ukjax.Mode(CART, {})}
        got = ukjax.simulate_hybrid(modes, x[2:], jnp.zeros(1), TS.at[2].add(1.0), keep=("q", "v"), throw=False)
        return ends(got)

    rests = lambda y: np.array([y[0], y[1] + y[3], y[2], y[3]])
    assert_close(end(X), rests(exact(X)), atol=1e-7)
    assert_close(jax.jit(jax.jacrev(end))(X), np.stack([rests(x) for x in SLOPES.T], axis=1), atol=1e-6)


@pytest.mark.long
def test_two_controls_with_a_memory_and_one_sided_limits():
    """On a pendulum with a redundant row; the integral of its error winds up. Against differences."""
    bob = ukjax.System(lambda q, t: jnp.eye(2), lambda q, v, t: jnp.array([0.0, -9.81]))
    rod = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])

    def end(x):
        law = lambda q, v, t, m: jnp.array([-x["k"] * (q[0] - 0.3) - 3.0 * v[0] - m[0], 4.0 * jnp.sin(5 * t)])
        controller = ukjax.Feedback(
            law, np.eye(2), limits=(jnp.array([-4.0, -jnp.inf]), jnp.stack([x["most"], jnp.asarray(2.5)])),
            memory=[0.0], rates=lambda q, v, t, m: 6.0 * (q[:1] - 0.3),
        )  # fmt: skip
        got = ukjax.simulate(
            ukjax.Mechanism(bob, [rod, rod]), [0.8, -0.6], x["v"] * jnp.array([0.6, 0.8]), jnp.array([0.0, 0.8, 1.9]),
            servo=controller, rtol=1e-9, atol=1e-9, keep=("q", "v", "control", "memory"), throw=False,
        )  # fmt: skip
        return jnp.sum(jnp.sin(got.q + got.v)) + jnp.sum(got.memory)

    assert_gradients(end, {"k": jnp.asarray(30.0), "most": jnp.asarray(3.0), "v": jnp.asarray(0.5)}, rtol=3e-6)
