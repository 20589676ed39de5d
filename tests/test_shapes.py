"""What is remembered of a function that is traced: shapes, and the places that it closes over."""

import equinox as eqx
import jax
import jax.numpy as jnp

from .helpers import assert_close
from .inside import hoist, shapes_of


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


def test_places_that_a_function_closes_over_are_known():
    """Numbers become arguments, which may be others; places in arrays do not, and equal ones are equal."""
    places, factors, many, x = jnp.array([2, 0]), jnp.array([2.0, 3.0]), jnp.arange(20_000) % 3, jnp.arange(3.0)
    first, second = (hoist(lambda x: x[places] * factors + x[many][:2], x) for _ in range(2))
    assert [y.shape for y in first.constants] == [(2,), (20_000,)]
    assert jax.tree_util.tree_structure(eqx.filter(first, eqx.is_array)).num_leaves == 2
    assert first.places == second.places
    assert hash(first.places) == hash(second.places)
    other = eqx.tree_at(lambda f: f.constants[0], first, 10 * factors)
    for function, factor in ((first, 1), (other, 10)):
        assert_close(eqx.filter_jit(function)(x), x[places] * factor * factors + x[:2])
