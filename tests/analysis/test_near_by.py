"""From a few millimetres beside an unstable equilibrium that one is found, not one that lies far away."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models.n_four_bar import NFourBar

from ..helpers import assert_close


G = 9.81
FAR = 0.28  # where the next equilibria of the saddle are [m]


def of(masses, force, phi):
    system = ukjax.System(lambda q, t: jnp.diag(jnp.array(masses)), lambda q, v, t: force(q))
    return ukjax.Mechanism(system, ukjax.Holonomic(phi))


def saddle():
    """A ball in a saddle: z = (x^2 - y^2) / 2 + y^4 / (4 c^2), which has valleys at y = c and -c."""
    height = lambda x, y: (x**2 - y**2) / 2 + y**4 / (4 * FAR**2)
    weight = lambda q: jnp.array([0.0, 0.0, -G])
    return of([1.0] * 3, weight, lambda q, t: (q[2] - height(q[0], q[1]))[None]), [0.0, 0.0, 0.0]


def double_pendulum():
    """Upright, of two rods (x, y of the middle, angle) with redundant rows."""
    up = lambda angle: jnp.stack([jnp.sin(angle), jnp.cos(angle)])

    def phi(q, t):
        rows = jnp.concatenate([q[:2] - up(q[2]) / 2, q[3:5] - up(q[2]) - up(q[5]) / 2])
        return jnp.concatenate([rows, rows[:2] + rows[2:]])

    weight = lambda q: jnp.array([0.0, -G, 0.0] * 2)
    return of([1.0, 1.0, 0.08] * 2, weight, phi), [0.0, 0.5, 0.0, 0.0, 1.5, 0.0]


def chain():
    """Three rods that stand on each other, by the places of their ends."""

    def phi(q, t):
        ends = jnp.concatenate([jnp.zeros(2), q]).reshape(-1, 2)
        return jnp.sum((ends[1:] - ends[:-1]) ** 2, axis=1) - 1.0

    return of([1.0] * 6, lambda q: jnp.array([0.0, -G] * 3), phi), [0.0, 1.0, 0.0, 2.0, 0.0, 3.0]


def four_bar():
    model = NFourBar(1)
    return ukjax.Mechanism(model, ukjax.Holonomic(model.joints)), model.state(jnp.asarray(np.pi / 2), 0.0)[0]


def bead():
    """At the bottom of a hoop that turns a little faster than it is stable there; seen from the hoop."""
    pull = lambda q: jnp.array([q[0] * G / 0.96, -G])  # the next equilibria are at x = 0.28 and -0.28
    return of([1.0, 1.0], pull, lambda q, t: (q @ q - 1.0)[None]), [0.0, -1.0]


def slider_crank():
    """The crank upright: the weight is at its end."""
    r, l = 0.3, 1.0
    phi = lambda q, t: jnp.stack([r * jnp.cos(q[0]) + l * jnp.cos(q[1]) - q[2], r * jnp.sin(q[0]) + l * jnp.sin(q[1])])
    weight = lambda q: jnp.array([-G * r * jnp.cos(q[0]), 0.0, 0.0])
    return of([0.1, 0.1, 1.0], weight, phi), [np.pi / 2, -np.arcsin(0.3), np.sqrt(1 - 0.09)]


@pytest.mark.long
@pytest.mark.parametrize("make", [saddle, chain, double_pendulum, four_bar, bead, slider_crank])
def test_an_unstable_equilibrium_is_found_from_every_start_near_by(make):
    mechanism, q = make()
    q = jnp.asarray(q, float)
    ways = np.random.default_rng(1).normal(size=(64, len(q)))
    ways *= 0.003 * np.random.default_rng(2).uniform(size=(64, 1)) / np.linalg.norm(ways, axis=1)[:, None]
    find = jax.jit(jax.vmap(lambda start: ukjax.analysis.equilibrium(mechanism, start, throw=False).q))
    assert_close(find(q[None] + ways), jnp.broadcast_to(q, ways.shape), atol=1e-8)
