"""Shapes that are remembered."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .inside import shapes_of


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
