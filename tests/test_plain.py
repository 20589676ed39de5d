"""Plain calls that are made again with the same objects: the same results and errors, and nothing is kept too long."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import unicycle

from .helpers import assert_close


def pendulum(length=1.0):
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
    return ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: jnp.array([q @ q - length**2])))


Q, V = jnp.array([1.0, 0.0]), jnp.array([0.0, 0.5])


def test_calls_again_with_what_differs_have_their_own_results():
    first, second = pendulum(), pendulum(2.0)
    spinning = ukjax.UdwadiaKalaba(expand=False)
    calls = [
        (first, Q, V, 0.0, {}), (first, Q, 2 * V, 0.0, {}), (second, 2 * Q, V, 0.0, {}),
        (first, np.asarray(Q), [0.0, 0.5], 1, {}),
        (first, Q.astype(jnp.float32), V.astype(jnp.float32), 0.0, {}), (first, Q, V, jnp.asarray(0.3), {}),
        (first, Q, V, 0.0, {"formulation": spinning}), (first, Q, V, 0.0, {"reactions": True}),
        (first, Q, V, 0.0, {"applied": jnp.array([1.0, 2.0])}),
    ]  # fmt: skip
    wanted = [
        jax.jit(lambda q, v, m=mechanism, t=t, o=options: ukjax.equation_of_motion(m, q, v, t, throw=False, **o))(
            jnp.asarray(q), jnp.asarray(v)
        )
        for mechanism, q, v, t, options in calls
    ]
    pairs = list(zip(calls, wanted, strict=True))
    for (mechanism, q, v, t, options), want in (*pairs, *pairs[::-1]):
        got = ukjax.equation_of_motion(mechanism, q, v, t, **options)
        assert_close(got.acceleration, want.acceleration, rtol=1e-5 if got.acceleration.dtype == np.float32 else 1e-13)
        assert (got.multipliers is None) == ("reactions" not in options)


def test_errors_are_those_of_the_first_call():
    mechanism = pendulum()
    ukjax.equation_of_motion(mechanism, Q, V)
    with pytest.raises(ValueError, match=r"q must have shape \(n,\)"):
        ukjax.equation_of_motion(mechanism, jnp.ones((2, 2)), V)
    with pytest.raises(ValueError, match="q must be an array of real numbers"):
        ukjax.equation_of_motion(mechanism, "up", V)
    with pytest.raises(RuntimeError, match="contradict"):
        ukjax.equation_of_motion(mechanism, 0 * Q, V)
    with pytest.raises(RuntimeError, match="finite"):
        ukjax.equation_of_motion(mechanism, Q * jnp.nan, V)
    assert_close(ukjax.equation_of_motion(mechanism, Q, V, throw=False).acceleration, [-0.25, -9.81], rtol=1e-13)


def test_within_a_transformation_it_is_no_plain_call():
    mechanism = pendulum()
    of = lambda q: ukjax.equation_of_motion(mechanism, q, V, throw=False).acceleration[0]
    want = of(Q)
    assert_close(jax.jit(of)(Q), want, rtol=1e-13)
    assert_close(jax.vmap(of)(Q[None])[0], want, rtol=1e-13)
    assert_close(jax.jvp(of, (Q,), (Q,))[1], jax.grad(of)(Q) @ Q, rtol=1e-12)
    # Known arguments within a program become part of it.
    assert_close(jax.jit(lambda x: x * of(Q))(2.0), 2 * want, rtol=1e-13)


def test_a_mechanism_that_is_gone_is_forgotten():
    mechanism = pendulum()
    ukjax.equation_of_motion(mechanism, Q, V)
    gone = weakref.ref(mechanism)
    del mechanism
    gc.collect()
    assert gone() is None
    assert_close(ukjax.equation_of_motion(pendulum(), Q, V).acceleration, [-0.25, -9.81], rtol=1e-13)


def test_controls_again():
    case = unicycle.scenario()
    state = case.q0, case.v0
    first = ukjax.servo_control(case.mechanism, case.servo, *state)
    for t in (0.0, 0.1, 0.0):
        got = ukjax.servo_control(case.mechanism, case.servo, *state, t)
        want = jax.jit(lambda t: ukjax.servo_control(case.mechanism, case.servo, *state, t, throw=False).u)(t)
        assert_close(got.u, want, rtol=1e-12)
    assert_close(got.u, first.u)


def test_a_list_of_servos_that_changes():
    """It is compared by what is in it, as a list can be neither a key nor be referred to weakly."""
    case = unicycle.scenario()
    state = jnp.asarray(case.q0), jnp.asarray(case.v0)
    servos = list(case.servo) if isinstance(case.servo, tuple) else [case.servo]
    first = ukjax.servo_control(case.mechanism, servos, *state, throw=False)
    again = ukjax.servo_control(case.mechanism, servos, *state, throw=False)
    assert_close(again.u, first.u, rtol=0)
    servos.append(servos[0])
    twice = ukjax.servo_control(case.mechanism, servos, *state, throw=False)
    assert twice.u.shape == (2 * first.u.size,)
    servos.clear()
    with pytest.raises(ValueError, match="servo must hold at least one"):
        ukjax.servo_control(case.mechanism, servos, *state)


def test_simulations_again_with_what_differs_have_their_own_results():
    mechanism, other = pendulum(), pendulum(2.0)
    ts, half = jnp.linspace(0.0, 1.0, 5), np.linspace(0.0, 0.5, 5)
    calls = [
        (mechanism, Q, V, ts, {}), (mechanism, Q, 2 * V, ts, {}), (other, 2 * Q, V, ts, {}),
        (mechanism, Q, V, half, {}), (mechanism, Q, V, ts, {"rtol": 1e-4, "atol": 1e-4}),
        (mechanism, Q, V, ts, {"keep": ["q", "v"]}), (mechanism, Q, V, ts, {"projection": ukjax.Projection()}),
        (mechanism, np.asarray(Q), [0.0, 0.5], ts, {}), (mechanism, Q, V, ts, {"dt0": 0.01}),
    ]  # fmt: skip
    wanted = [
        ukjax.simulate(mechanism, q, v, jnp.asarray(times) + 0.0, **options)
        for mechanism, q, v, times, options in calls
    ]
    pairs = list(zip(calls, wanted, strict=True))
    for (mechanism, q, v, times, options), want in (*pairs, *pairs[::-1]):
        got = ukjax.simulate(mechanism, q, v, times, **options)
        assert_close(got.q, want.q)
        assert got.stats["num_steps"] == want.stats["num_steps"]
        assert (got.acceleration is None) == ("keep" in options)
    # An array of NumPy may change: the times are those of now.
    half *= 2
    got = ukjax.simulate(calls[0][0], Q, V, half)
    assert_close(got.q, ukjax.simulate(calls[0][0], Q, V, ts).q, rtol=1e-9)


def test_errors_of_simulations_are_those_of_the_first_call():
    mechanism, ts = pendulum(), jnp.linspace(0.0, 1.0, 5)
    ukjax.simulate(mechanism, Q, V, ts)
    with pytest.raises(ValueError, match="q0 must be finite"):
        ukjax.simulate(mechanism, Q * jnp.nan, V, ts)
    with pytest.raises(ValueError, match="q0 and v0 must have the same shape"):
        ukjax.simulate(mechanism, Q, jnp.zeros(3), ts)
    with pytest.raises(RuntimeError, match="max_steps"):
        ukjax.simulate(mechanism, Q, V, ts, max_steps=2)
    for _ in range(2):
        with pytest.warns(ukjax.InconsistentStart):
            ukjax.simulate(mechanism, 2 * Q, V, ts)
    gone = weakref.ref(mechanism)
    del mechanism
    gc.collect()
    assert gone() is None
