"""Programs that are too long for one function, and numbers of several kinds in one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, standard_promotion
from ..inside import replaced
from .test_motion import OFF, ON, assert_same, motions, states


def tangle(operations):
    """A function in which everything depends on what came shortly before: of that many multiplications."""
    rng = np.random.default_rng(0)
    pairs = [rng.integers(max(0, k - 40), k, 2) for k in range(20, 20 + operations)]

    def function(x, xp):
        values = [x[i] for i in range(20)]
        for k, (i, j) in enumerate(pairs):
            values.append((values[i] + 0.1 * (k % 7)) * (values[j] - 0.5) + 0.3)
        return xp.stack(values[-10:])

    return function


@pytest.mark.long
def test_long_programs_end():
    """XLA computes what is shared once for every use, and so ended neither compiling nor running it."""
    function = tangle(1500)
    long = ukjax.expand(lambda x: function(x, jnp), limit=100_000)
    x = np.random.default_rng(1).uniform(0.9, 1.1, size=(150, 20))  # tiles, the last of which overlaps
    assert (long.report(x[0]).operations or 0) > 4000
    got = jax.jit(jax.vmap(long))(jnp.asarray(x))
    assert np.allclose(got, function(x.T, np).T, rtol=1e-9, atol=0)
    assert np.allclose(jax.jit(long)(jnp.asarray(x[0])), got[0], rtol=1e-12, atol=0)


@pytest.mark.long
@replaced(part=300)
def test_programs_in_several_parts_are_what_they_are_in_one():
    mechanism, *state = states("random, redundant")
    want = motions(mechanism, *state, OFF)
    of = lambda *state: ukjax.equation_of_motion(mechanism, *state, formulation=ON, throw=False)
    assert_same(jax.jit(jax.vmap(of))(*state), want)
    assert_same(jax.jit(of)(*(x[0] for x in state)), jax.tree_util.tree_map(lambda x: x[0], want))


@pytest.mark.parametrize("size", [1, 5, 8, 9, 515])
def test_a_program_takes_floats_of_two_kinds_and_truth_values(size):
    """And gives back each as what it is."""

    def function(single, double, flag, shared, known):
        one = jnp.where(known, shared, double)
        return jnp.sin(double) * single, single * 2, flag & (double > 0) & known, jnp.where(flag, one, single)

    single, flag = jnp.arange(1, size + 1, dtype=jnp.float32) / 3, jnp.arange(size) % 3 != 1
    double = jnp.linspace(-1.0, 1.0, size)
    shared = jnp.asarray(0.7), jnp.asarray(True)
    with standard_promotion():
        want = function(single, double, flag, *shared)
        got = jax.jit(jax.vmap(ukjax.expand(function), (0, 0, 0, None, None)))(single, double, flag, *shared)
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype
        assert_close(x, y, rtol=1e-15)
