"""Long functions that a program calls several times: each is a routine, whose numbers are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import assert_close
from ..inside import ScalarStep


def constant(x, w):
    """A number that is w^2 + w whatever x is, but for rounding."""
    return w * w * jnp.sin(x[0]) ** 2 + (w * w * jnp.cos(x[0]) ** 2 + w)


@jax.jit
def first(x, w):
    for k in range(30):
        x = jnp.sin(x) * constant(x, w) + jnp.roll(x, 1) * (k + 0.3)
        x = x / (1.0 + x * x)
    return x


@jax.jit
def second(x, w):
    for k in range(30):
        x = jnp.cos(x) * constant(x, w) - jnp.roll(x, 2) * (k + 0.7)
        x = x / (1.0 + x * x)
    return x


def twice(state, w):
    x = first(first(state, w) + 1.0, w)
    return second(second(x, w) - 1.0, w)


def step(state, w):
    new = twice(state, w)
    return new, state, (), (), jnp.asarray(False), jnp.asarray(True)


@pytest.mark.parametrize("size", [1, 9])
def test_routines_share_no_number_that_depends_on_their_arguments(size):
    x, w = jnp.asarray(np.random.default_rng(0).normal(size=(size, 3))), jnp.linspace(2.0, 3.0, size)
    made = ScalarStep(step, x[0], w[0], most=10_000)
    program = made.operation.program.program
    assert len(program.routines) == 2
    assert all(node in program.inputs for node in program.steps if not node.args)
    assert_close(jax.jit(jax.vmap(made.operation))(x, w)[0], jax.vmap(twice)(x, w), rtol=1e-9)
