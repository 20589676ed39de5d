"""The helpers of the tests, each broken once on purpose."""

import jax
import jax.numpy as jnp
import pytest

import ukjax

from .helpers import assert_close, assert_gradients, assert_steady, falling, name_of, sampled


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
    @jax.custom_jvp
    def square(x, forward, backward):
        return x**2

    @square.defjvp
    def _(x, dx):
        # A linear map that need not be the transpose of its transpose.
        times = lambda factor: lambda _, d: factor * d
        return square(*x), x[0] * jax.lax.custom_linear_solve(lambda d: d, dx[0], times(x[1]), times(x[2]))

    assert_gradients(lambda x: square(x[0], 2.0, 2.0) + jnp.sin(x[1]), jnp.array([2.0, 0.5]))
    # Wrong in both modes, and in one of them.
    for forward, backward in ((3.0, 3.0), (2.0, 2.0001), (2.0001, 2.0)):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_gradients(lambda x: square(x[0], forward, backward), jnp.array([2.0]))  # noqa: B023


def test_assert_steady_sees_a_drift_and_nothing_to_look_at():
    mechanism, ts = ukjax.Mechanism(falling()), jnp.linspace(0.0, 1.0, 3)
    trajectory = ukjax.simulate(mechanism, [0.0, 0.0], [1.0, 0.0], ts)
    case = lambda **invariants: ukjax.Scenario(mechanism, [0.0, 0.0], [1.0, 0.0], 1.0, invariants=invariants)
    assert_steady(case(speed=lambda q, v, t: v[0]), trajectory, atol=1e-12)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_steady(case(speed=lambda q, v, t: v[0], height=lambda q, v, t: q[1]), trajectory, atol=1e-3)
    with pytest.raises(AssertionError, match="has no invariants"):
        assert_steady(case(), trajectory, atol=1e-3)


def test_sampled_marks_what_is_not_in_the_short_run_and_knows_its_names():
    parameters = sampled([jnp.sin, jnp.cos], ["cos"], name_of)
    assert [(p.id, [mark.name for mark in p.marks]) for p in parameters] == [("sin", ["long"]), ("cos", [])]
    with pytest.raises(AssertionError, match="'tan'"):
        sampled([jnp.sin, jnp.cos], ["tan"], name_of)
    assert [name_of(x) for x in (jnp.sin, ukjax.SVD, ukjax.SVD())] == ["sin", "SVD", "SVD"]
