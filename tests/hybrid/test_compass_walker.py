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


def compass(beta, law=False):
    """The walker of two rods, where the foot that touches the ground stays: q = (hip, one foot, other foot).

    The x-axis points down the slope. A foot touches the ground when it is ahead: where the legs pass each other the one
    that swings is below the ground.
    """
    masses = jnp.stack([jnp.ones_like(beta), beta, beta])
    weight = jnp.outer(masses, jnp.array([np.sin(SLOPE), -np.cos(SLOPE)])).reshape(-1)
    system = ukjax.System(lambda q, t: jnp.diag(jnp.repeat(masses, 2)), lambda q, v, t: weight)
    foot = {"one": slice(2, 4), "other": slice(4, 6)}
    rods = {
        name: ukjax.Holonomic(lambda q, t, s=s: jnp.sum((q[:2] - q[s]) ** 2)[None] - 1.0) for name, s in foot.items()
    }
    stays = {name: ukjax.Nonholonomic(lambda q, v, t, s=s: v[s]) for name, s in foot.items()}

    def mode(stands, swings):
        ahead = lambda q: q[foot[swings]] - q[foot[stands]]
        height = lambda q, v, t: jnp.maximum(q[foot[swings]][1], 0.1 - ahead(q)[0])
        heel = ukjax.Event(height, swings, impact=ukjax.Impact(stays[swings]) if law else None)
        return ukjax.Mode(ukjax.Mechanism(system, rods | {"ground": stays[stands]}), {"heel": heel})

    return {"one": mode("one", "other"), "other": mode("other", "one")}


def standing(x):
    """q and v of two rods at the beginning of a step, one foot at the origin and the other behind it."""
    th, w = x
    r = (1 - jnp.cos(2 * th)) * w
    places = lambda th, u: jnp.stack(
        [-jnp.sin(th), jnp.cos(th), 0 * th, 0 * th, jnp.sin(u) - jnp.sin(th), jnp.cos(th) - jnp.cos(u)]
    )
    return jax.jvp(places, (th, -th), (w, w - r))


def compass_step(x, beta):
    run = ukjax.simulate_hybrid(compass(beta), *standing(x), TS, max_events=1, keep="q", throw=False, **TIGHT)
    (x, y), (vx, vy) = run.event_q[0, :2] - run.event_q[0, 4:], run.event_v[0, :2]
    return jnp.stack([jnp.arctan2(-x, y), x * vy - y * vx])


@pytest.mark.long
def test_the_cycle_of_two_rods_with_light_feet():
    """Constraints do the impact; with ever lighter feet it is the simplest walker."""
    both = jax.jit(lambda x, beta: (compass_step(x, beta), jax.jacfwd(compass_step)(x, beta)))
    cycles = {}
    for beta in (1e-2, 1e-3, 1e-4):
        x, J = cycle(lambda x, beta=beta: both(x, jnp.asarray(beta)), jnp.asarray(PUBLISHED), 5)
        assert_close(scipy.optimize.root(lambda x, beta=beta: exact_step(x, beta) - x, x, tol=1e-13).x, x, atol=1e-10)
        assert_close(J, slopes_of(lambda x, beta=beta: exact_step(x, beta), x), atol=1e-7)
        assert np.all(np.abs(np.linalg.eigvals(J)) < 0.6)
        cycles[beta] = x
    rate = (cycles[1e-4] - PUBLISHED) / 1e-4
    assert_close(cycles[1e-3], PUBLISHED + 1e-3 * rate, atol=1e-6)
    assert_close((cycles[1e-3] - PUBLISHED) / (cycles[1e-4] - PUBLISHED), np.full(2, 10.0), atol=0.02)


@pytest.mark.long
def test_two_rods_walk():
    """Five steps on the cycle, where an impact names what the next mode holds anyway."""
    beta = 1e-3
    x = jnp.asarray(scipy.optimize.root(lambda x: exact_step(x, beta) - x, PUBLISHED, tol=1e-13).x)
    run = ukjax.simulate_hybrid(compass(jnp.asarray(beta), True), *standing(x), jnp.linspace(0.0, 20.0, 41), **TIGHT)
    assert [mode for _, mode, _ in run.happened()] == ["one", "other", "one", "other", "one"]
    times, length = np.array([t for t, *_ in run.happened()]), 2 * np.sin(x[0])
    assert np.ptp(np.diff(times, prepend=0.0)) < 2e-8
    assert_close(run.event_q[:5, 0], np.arange(0.5, 5) * length, atol=2e-8)
    assert_close(jnp.max(run.event_q[:5, 2::2], axis=1), np.arange(1.0, 6) * length, atol=2e-8)
    assert float(jnp.max(jnp.abs(run.event_q[:5, 3::2]))) < 2e-8
    assert_close(jnp.hypot(*run.event_v[:5, :2].T), np.full(5, -x[1]), atol=2e-8)
    assert float(jnp.max(run.position_residual)) < 2e-8
