"""Programs with wide vectors, and shapes that are remembered."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from .helpers import assert_close
from .inside import WIDTH, jit_wide_vectors, replaced, shapes_of, wide_options


@pytest.fixture
def forgotten():
    wide_options.cache_clear()
    yield
    wide_options.cache_clear()


BY_ITSELF = {"xla_cpu_prefer_vector_width": WIDTH, "xla_cpu_multi_thread_eigen": False}


@pytest.mark.parametrize("name", BY_ITSELF)
def test_somebody_has_said_how(name, monkeypatch, forgotten):
    assert wide_options(True) == BY_ITSELF
    wide_options.cache_clear()
    monkeypatch.setenv("XLA_FLAGS", f"--{name}=1")
    assert wide_options(True) == {k: v for k, v in BY_ITSELF.items() if k != name}


@replaced(vector="as wide as it goes")  # refused, as an unknown option is
def test_a_compiler_that_has_no_such_option(forgotten):
    assert wide_options(False) == {}
    assert_close(jit_wide_vectors(lambda x: 2 * x, lambda x: False)(jnp.ones(3)), np.full(3, 2.0))


@pytest.mark.parametrize("by_itself", [False, True])
def test_the_same_program_otherwise(by_itself, forgotten):
    x = jnp.linspace(0.1, 2.0, 1000)
    program = jit_wide_vectors(lambda x: jnp.sqrt(x) / (1 + x), lambda x: by_itself)
    assert_close(program(x), np.sqrt(x) / (1 + x), rtol=1e-15)


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
