"""What scalar code takes for equal: what is so for every argument, and nothing else, whatever the unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close


def program(f, count=2):
    """f of so many scalars as scalar code: how many operations it has, and the function."""
    found = ukjax.expand(f, limit=10_000)
    operations = found.report(*[jnp.zeros(())] * count).operations
    assert operations is not None
    return operations, lambda *args: found(*map(jnp.asarray, args))


SAME = {
    "distributivity": (lambda x, y: (x + y) ** 2 - x * x - 2 * x * y - y * y, 0.0),
    "the circle": (lambda x, y: jnp.cos(x * y) ** 2 + jnp.sin(x * y) ** 2, 1.0),
    "sums of angles": (lambda x, y: jnp.cos(x + y) - jnp.cos(x) * jnp.cos(y) + jnp.sin(x) * jnp.sin(y), 0.0),
    "twice an angle": (lambda x, y: jnp.sin(2 * x) - 2 * jnp.sin(x) * jnp.cos(x) + 0 * y, 0.0),
    "even and odd": (lambda x, y: jnp.cos(x - y) - jnp.cos(y - x) + jnp.sin(x - y) + jnp.sin(y - x), 0.0),
    "decimals": (lambda x, y: (0.1 * x + 0.2 * x - 0.3 * x) * y, 0.0),
    "a tiny number first": (
        lambda x, y: 5 * 2.0**-60 * x * y - 5 * 2.0**-60 * y * x + 2.5 * x - x - 1.5 * x,
        0.0,
    ),
    "thirds": (lambda x, y: x / 3 + (2.0 / 3.0) * x - x + 0 * y, 0.0),
    "a fixed angle": (lambda x, y: (np.cos(0.3) * x) ** 2 + (np.sin(0.3) * x) ** 2 - x * x + 0 * y, 0.0),
    "a fixed angle, its sine first": (
        lambda x, y: (np.sin(0.3) * x) ** 2 + (np.cos(0.3) * x) ** 2 - x * x + 0 * y,
        0.0,
    ),
    "a fixed angle of a degree": (lambda x, y: (np.sin(0.02) * x) ** 2 + (np.cos(0.02) * x) ** 2 - x * x + 0 * y, 0.0),
    "exponentials": (lambda x, y: jnp.exp(x - y) * jnp.exp(y - x), 1.0),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_constant_is_found_to_be(name):
    f, value = SAME[name]
    count, found = program(lambda x, y: [f(x, y)])
    assert count <= 2  # the inputs
    assert_close(found(0.3, 0.7)[0], jnp.asarray(value))


def left_by_rounding(c):
    """A sum that is zero on paper, of constants (7,)."""
    return sum(0.7 * x for x in c) - 0.7 * sum(c)


@pytest.mark.parametrize("mantissa", [0.5, 0.75])
def test_a_number_is_not_taken_for_what_rounding_leaves_of_a_sum_of_constants(mantissa):
    """Three units of a last digit, zero on paper, and a mass of 1.5 kg have the same mantissa."""
    several = np.random.default_rng(0).uniform(1.0, 9.0, (1000, 7))
    c = next(c for c in several if abs(np.frexp(left_by_rounding(c))[0]) == mantissa)

    def f(x, y):
        none = left_by_rounding([jnp.asarray(value) for value in c])
        return x * none + 4 * mantissa * y * x, 8 * mantissa * x

    _, found = program(f)
    assert_close(found(0.3, 0.7)[0], jnp.asarray(4 * mantissa * 0.3 * 0.7), atol=1e-13)
    assert_close(found(0.3, 0.7)[1], jnp.asarray(8 * mantissa * 0.3), atol=1e-13)


@pytest.mark.parametrize("exponent", range(-30, 31, 6))
def test_small_and_large_coefficients_make_no_two_things_equal(exponent):
    c = 10.0**exponent
    functions = [
        lambda x, y: jnp.cos(c * x),
        lambda x, y: jnp.cos(c * x) - jnp.cos(2 * c * x),
        lambda x, y: jnp.sin(c * x) / c,
        lambda x, y: jnp.exp(-c * c * x * x),
        lambda x, y: (x + c * y) - x,
        lambda x, y: c * x * y + 1.0,
        lambda x, y: x / (1.0 + c * y),
        lambda x, y: (1.0 + c) * x - c * y,
        lambda x, y: jnp.cos(x) * c + jnp.sin(y) / c,
    ]
    _, found = program(lambda x, y: [f(x, y) for f in functions])
    for x, y in ((0.4, 1.3), (1e-12, 1e12), (1e12, 3e-7), (0.7 / c, 2.0 / c), (1e8, 1e8)):
        want = [f(jnp.asarray(x), jnp.asarray(y)) for f in functions]
        for k, (a, b) in enumerate(zip(found(x, y), want, strict=True)):
            terms = abs(float(b)) + (abs(x) if k == 4 else 0.0) + (abs((1 + c) * x) + abs(c * y) if k == 7 else 0.0)
            if np.isnan(a) and max(abs(c * x), abs(2 * c * x), abs(x), abs(y)) > 1e8:
                continue  # an angle of so many turns is no number here: the slow way is asked then
            both = np.array([a, b])
            assert np.all(np.isnan(both)) or np.ptp(both) <= 1e-12 * terms + 2e-15, (k, x, y)


@pytest.mark.parametrize("base", [2.0, 3.0, 10.0])
def test_powers_are_no_two_the_same(base):
    """Whatever the size of the field is: that of 2^61 - 1 elements takes 2^61 for one."""
    powers = [base**k for k in range(-150, 151)]
    _, found = program(lambda x: [c * x for c in powers], 1)
    assert_close(jnp.stack(found(0.7)), 0.7 * jnp.array(powers), rtol=1e-15)
    _, found = program(lambda x: [(2.0**k) * x - x for k in (60, 61, 122, -61)], 1)
    assert_close(jnp.stack(found(0.7)), 0.7 * (2.0 ** jnp.array([60.0, 61.0, 122.0, -61.0]) - 1), rtol=1e-15)


def test_a_force_that_turns_once_in_twelve_years():
    """q'' = 1e-15 cos(w t), alone and in a batch, where the cosine was taken for one."""
    rate, t = 1.68e-8, 1e8
    force = lambda q, v, t: jnp.stack([1e-15 * jnp.cos(rate * t), 0.0 * t])
    guided = ukjax.Mechanism(ukjax.System(lambda q, t: jnp.eye(2), force), ukjax.Holonomic(lambda q, t: q[1:]))
    zero = jnp.zeros(2)
    acceleration = lambda t: ukjax.equation_of_motion(guided, zero, zero, t, throw=False).acceleration[0] * 1e15
    batch = jax.jit(jax.vmap(acceleration))(jnp.array([t, 0.0]))
    assert_close(batch, jnp.array([np.cos(rate * t), 1.0]), rtol=1e-12)
    slope = jax.jit(jax.vmap(jax.grad(acceleration)))(jnp.array([t]))
    assert_close(slope, jnp.array([-rate * np.sin(rate * t)]), rtol=1e-9)


OTHERS = {
    "x.at[i].apply(f)": lambda x: x.at[0].apply(jnp.cos),
    "x.at[i].apply(f), several": lambda x: x.at[jnp.array([0, 1])].apply(lambda y: y * y + 1.0),
    "infinity as an integer": lambda x: x + jnp.array([np.inf, -np.inf]).astype(jnp.int32).astype(float),
    "zero times infinity": lambda x: x + 0.0 * jnp.asarray(np.inf),
    "zero times no number": lambda x: x * (jnp.asarray(np.nan) * 0.0),
    "a whole number as an exponent": lambda x: jax.lax.pow(x, np.array([2, 3])),
    "a product with a type of its own": lambda x: jnp.stack(
        [jnp.dot(x.astype(jnp.float32), x.astype(jnp.float32), preferred_element_type=jnp.float64)] * 2
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_sum_and_no_product_is_left_to_jax(name):
    f, x = OTHERS[name], jnp.array([0.5, 0.3])
    want = f(x)
    np.testing.assert_allclose(np.asarray(ukjax.expand(f)(x)), np.asarray(want), rtol=1e-15)
