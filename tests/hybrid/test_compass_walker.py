"""A compass that walks down a slope: its cycle, found by Newton's method with derivatives through its steps.

th: angle of the standing leg to the slope's normal; u: that of the swinging leg; phi = th - u; w = th'.
Legs of length one without mass, a mass of one at the hip, beta at each foot, gravity one.

The walker without mass at its feet is Garcia, Chatterjee, Ruina & Coleman (1998), "The simplest walking model".
"""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.optimize

import ukjax

from ..helpers import assert_close, central_difference


SLOPE = 0.009
PUBLISHED = np.array([0.200310900544287, -0.199832473004977])  # th and w at the beginning of a step of the cycle
TIGHT = {"rtol": 1e-11, "atol": 1e-11}
TS = jnp.array([0.0, 5.0])


def simplest(then=None):
    """The walker without mass at its feet: th, phi. Of two places where phi = 2 th, the rising one is no scuffing."""

    def force(q, v, t):
        fall = jnp.sin(q[0] - SLOPE)
        return jnp.stack([fall, fall + (v[0] ** 2 - jnp.cos(q[0] - SLOPE)) * jnp.sin(q[1])])

    def strike(q, v, t):
        c = jnp.cos(2 * q[0])
        return jnp.stack([-q[0], -2 * q[0]]), c * v[0] * jnp.stack([jnp.ones(()), 1 - c])

    heel = ukjax.Event(lambda q, v, t: q[1] - 2 * q[0], then, direction="rising", impact=strike)
    legs = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), force))
    return {"walks": ukjax.Mode(legs, {"heel": heel})}


def start(x):
    return jnp.stack([x[0], 2 * x[0]]), x[1] * jnp.stack([jnp.ones(()), 1 - jnp.cos(2 * x[0])])


def step(x):
    """From the beginning of a step to that of the next."""
    run = ukjax.simulate_hybrid(simplest(), *start(x), TS, max_events=1, keep="q", throw=False, **TIGHT)
    return jnp.stack([run.event_q[0, 0], run.event_v[0, 0]])


def exact_step(x, beta):
    """The same by Lagrange's equations in th and u, and the balance of angular momentum, by SciPy."""

    def rates(_, y):
        th, u, w, r = y
        c, s = np.cos(th - u), np.sin(th - u)
        M = [[1 + beta, -beta * c], [-c, 1.0]]
        a = np.linalg.solve(M, [(1 + beta) * np.sin(th - SLOPE) + beta * s * r**2, -np.sin(u - SLOPE) - s * w**2])
        return [w, r, *a]

    touches = lambda _, y: -y[0] - y[1]
    touches.terminal, touches.direction = True, 1.0
    run = ft.partial(scipy.integrate.solve_ivp, rates, method="DOP853", rtol=1e-12, atol=1e-13)
    # After 3 s the legs have passed each other.
    before = run((0.0, 3.0), [x[0], -x[0], x[1], np.cos(2 * x[0]) * x[1]]).y[:, -1]
    th, _, w, _ = run((3.0, 5.0), before, events=touches).y_events[0][0]
    return np.array([-th, np.cos(2 * th) / (1 + beta * np.sin(2 * th) ** 2) * w])


def cycle(both, x, count):
    """The state that a step repeats, by Newton's method with its exact derivative, and that derivative there."""
    for _ in range(count):
        after, J = both(x)
        x = x - jnp.linalg.solve(J - jnp.eye(2), after - x)
    return x, both(x)[1]


def slopes_of(f, x):
    """Differences, with the error of the second order, which is large here, taken out."""
    near, far = (central_difference(f, x, h) for h in (1e-4, 2e-4))
    return (4 * near - far) / 3


def test_the_simplest_walker_stays_on_its_cycle():
    run = ukjax.simulate_hybrid(simplest("walks"), *start(jnp.asarray(PUBLISHED)), jnp.linspace(0.0, 20.0, 3), **TIGHT)
    times = np.array([t for t, *_ in run.happened()])
    assert len(times) == 5
    assert_close(times / np.arange(1, 6), np.full(5, 3.88246), atol=5e-6)
    assert_close(run.event_q[:5], np.tile(PUBLISHED[0] * np.array([1.0, 2.0]), (5, 1)), atol=1e-10)
    assert_close(run.event_v[:5, 0], np.full(5, PUBLISHED[1]), atol=1e-10)


@pytest.mark.long
def test_the_cycle_of_the_simplest_walker():
    x, J = cycle(jax.jit(lambda x: (step(x), jax.jacfwd(step)(x))), jnp.array([0.2, -0.2]), 5)
    assert_close(x, PUBLISHED, atol=1e-11)
    assert_close(jax.jit(jax.jacrev(step))(x), J, atol=1e-11)
    assert_close(J, slopes_of(jax.jit(step), x), atol=1e-7)
    assert_close(J, slopes_of(lambda x: exact_step(x, 0.0), x), atol=1e-7)
    # Smaller than one: what is off the cycle a little comes back to it.
    assert np.all(np.abs(np.linalg.eigvals(J)) < 0.6)
    run, off = jax.jit(step), jnp.asarray(PUBLISHED) + 1e-3
    for _ in range(12):
        off = run(off)
    assert_close(off, PUBLISHED, atol=1e-5)
