"""The helpers of the tests, each broken once on purpose."""

import jax.numpy as jnp
import pytest

from .helpers import assert_close, assert_gradients


def test_assert_close_sees_values_shapes_dtypes_and_nan():
    assert_close(jnp.ones(2), jnp.ones(2))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(jnp.ones(2), jnp.ones(2) + 1e-3, atol=1e-4)
    with pytest.raises(AssertionError, match="shape"):
        assert_close(jnp.ones(1), jnp.ones(()))
    with pytest.raises(AssertionError, match="dtype"):
        assert_close(jnp.ones(1), jnp.ones(1, jnp.float32))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_close(jnp.array([jnp.nan]), jnp.array([jnp.nan]))


def test_assert_gradients_sees_a_wrong_gradient():
    from jax import custom_jvp

    @custom_jvp
    def square(x):
        return x**2

    square.defjvp(lambda x, dx: (square(*x), 3 * x[0] * dx[0]))
    assert_gradients(lambda x: x**2, jnp.asarray(2.0))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_gradients(square, jnp.asarray(2.0))
