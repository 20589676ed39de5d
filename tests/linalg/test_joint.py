"""Symmetric systems of several unknowns: derivatives where only some of what is given depends on something."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import assert_close
from ..inside import solve_jointly


S = jnp.array([[3.0, 0.5, 1.0], [0.5, -2.0, 0.3], [1.0, 0.3, 4.0]])
FIXED = jnp.array([0.7])


def solution(s, x, y):
    S_of = lambda s: s * S
    whole = lambda z: tuple(jnp.split(S_of(s) @ jnp.concatenate(z), [2]))
    found = lambda z: tuple(jnp.split(jnp.linalg.solve(jax.lax.stop_gradient(S_of(s)), jnp.concatenate(z)), [2]))
    return jnp.concatenate(solve_jointly(whole, (x, y), found))


@pytest.mark.parametrize(
    ("which", "of"),
    [
        ("the first side", lambda z: solution(1.0, z * jnp.ones(2), FIXED)),
        ("the second side", lambda z: solution(1.0, jnp.ones(2), z * FIXED)),
        ("both", lambda z: solution(1.0, z * jnp.ones(2), z**2 * FIXED)),
        ("the matrix", lambda z: solution(z, jnp.ones(2), FIXED)),
        ("all", lambda z: solution(z, z * jnp.ones(2), jnp.sin(z) * FIXED)),
    ],
)
def test_both_modes_alone_and_in_a_batch(which, of):
    closed = {
        "the first side": lambda z: np.append(z * np.ones(2), FIXED),
        "the second side": lambda z: np.append(np.ones(2), z * FIXED),
        "both": lambda z: np.append(z * np.ones(2), z**2 * FIXED),
        "the matrix": lambda z: np.append(np.ones(2), FIXED) / z,
        "all": lambda z: np.append(np.ones(2), np.sin(z) / z * FIXED),
    }[which]
    zs, h = np.array([0.8, 1.7]), 1e-5
    want = np.array([np.linalg.solve(S, closed(z + h) - closed(z - h)) / (2 * h) for z in zs])
    assert_close(jax.vmap(of)(jnp.asarray(zs)), np.array([np.linalg.solve(S, closed(z)) for z in zs]), rtol=1e-12)
    for slope in (jax.jacrev, jax.jacfwd):
        assert_close(jax.vmap(slope(of))(jnp.asarray(zs)), want, rtol=1e-8, atol=1e-9)
    total = jax.jit(jax.grad(lambda zs: jnp.sum(jax.vmap(of)(zs)[:, 0])))(jnp.asarray(zs))
    assert_close(total, want[:, 0], rtol=1e-8, atol=1e-9)
