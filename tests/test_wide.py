"""Programs with wide vectors, and shapes that are remembered."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ukjax._program import _wide, shapes_of, widely_compiled

from .helpers import assert_close


@pytest.fixture
def forgotten():
    _wide.wide_options.cache_clear()
    yield
    _wide.wide_options.cache_clear()


def test_somebody_has_said_how_wide(monkeypatch, forgotten):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_prefer_vector_width=128")
    assert _wide.wide_options() == {}


def test_a_compiler_that_has_no_such_option(monkeypatch, forgotten):
    monkeypatch.setattr(_wide, "WIDTH", "as wide as it goes")  # refused, as an unknown option is
    assert _wide.wide_options() == {}
    assert_close(widely_compiled(lambda x: 2 * x)(jnp.ones(3)), np.full(3, 2.0))


def test_the_same_program_otherwise(forgotten):
    x = jnp.linspace(0.1, 2.0, 1000)
    assert_close(widely_compiled(lambda x: jnp.sqrt(x) / (1 + x))(x), np.sqrt(x) / (1 + x), rtol=1e-15)


class Named(eqx.Module):
    value: jax.Array
    how: object = eqx.field(static=True)


def test_shapes_are_found_once_for_what_differs_in_numbers_only():
    seen = []

    def twice(module, power):
        seen.append(power)
        return jnp.stack([module.value, module.value]) ** power

    for value, how, power, count in (
        (jnp.ones(3), "a", 2, 1), (jnp.zeros(3), "a", 2, 1), (jnp.ones(4), "a", 2, 2), (jnp.ones(4), "b", 2, 3),
        (jnp.ones(4), "b", 2.0, 4), (jnp.ones(4), ["unhashable"], 2, 5),
    ):  # fmt: skip
        assert shapes_of(twice, Named(value, how), power).shape == (2, *value.shape)
        assert len(seen) == count
