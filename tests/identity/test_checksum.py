"""Checksums of programs and of functions of Python's."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..edited import imported
from ..inside import checksum_of


def of(function, *examples, **options):
    return checksum_of(jax.make_jaxpr(function)(*(examples or (jnp.ones(3),))), **options)


CHECKED = """
import equinox as eqx


@eqx.filter_jit
def checked(x):
    return eqx.error_if(x, x > 1e6, "far away")
"""


def test_an_error_that_may_be_raised_does_not_tell_where(tmp_path):
    here = imported(tmp_path / "here", {"checking": CHECKED})
    there = imported(tmp_path / "there", {"checking": CHECKED}, ("checking", "import equinox", "\n\nimport equinox"))
    one = of(here.checked, jnp.ones(()))
    jax.clear_caches()  # equinox traces its part of it once in a process
    assert one == of(there.checked, jnp.ones(()))
    higher = imported(tmp_path / "higher", {"checking": CHECKED}, ("checking", "1e6", "1e7"))
    assert one != of(higher.checked, jnp.ones(()))


def rule(forwards, factor):
    """x, with a rule that gives it a slope of `factor`."""
    function = (jax.custom_jvp if forwards else jax.custom_vjp)(lambda x: 1.0 * x)
    if forwards:
        function.defjvp(lambda primals, tangents: (function(*primals), factor * tangents[0]))
    else:
        function.defvjp(lambda x: (function(x), None), lambda _, c: (factor * c,))
    return function


@pytest.mark.parametrize("forwards", [True, False])
def test_rules_count_where_derivatives_are_taken(forwards):
    """Also of a function in a loop, which is differentiated later."""
    looped = lambda f: lambda x: jax.lax.fori_loop(0, 3, lambda _, x: f(x), x)
    for wrap in (lambda f: f, looped, jax.jit, jax.checkpoint):
        one, same, other = (wrap(rule(forwards, factor)) for factor in (2.0, 2.0, 3.0))
        assert of(one) == of(other)
        assert of(one, with_rules=True) == of(same, with_rules=True) != of(other, with_rules=True)


def test_programs():
    table = np.linspace(0.1, 0.7, 3)
    base = of(lambda x: jnp.sin(x) + table)
    assert base == of(lambda angle: jnp.sin(angle) + table.copy())
    for other in (
        lambda x: jnp.cos(x) + table,
        lambda x: jnp.sin(x) - table,
        lambda x: jnp.sin(x) + np.nextafter(table, 2.0),
        lambda x: jnp.sin(x) + table.astype(np.float32).astype(x.dtype),
    ):
        assert base != of(other)
    assert of(lambda x: x[0] - x[1]) != of(lambda x: x[1] - x[0])
    assert of(lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)) != of(
        lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x)
    )
    draw = lambda seed: lambda x: x + jax.random.uniform(jax.random.key(seed), (3,), x.dtype)
    assert of(draw(0)) == of(draw(0)) != of(draw(1))
    assert of(lambda x: (jax.debug.print("{}", x), x)[1]) == of(lambda x: x)


def test_functions_of_python():
    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    assert checksum_of(factorial) == checksum_of(factorial)
    assert checksum_of(lambda x: x in {"a", "b"}) != checksum_of(lambda x: x in {"a", "c"})
    one, again, other = (functools.partial(np.add, np.full(2000, x)) for x in (1.0, 1.0, 2.0))
    assert checksum_of(one) == checksum_of(again) != checksum_of(other)
    gain, more = (types.SimpleNamespace(gain=np.full(2000, k)) for k in (1.0, 2.0))
    assert checksum_of(gain) != checksum_of(more)
    of_gain, of_more = (types.MethodType(factorial, x) for x in (gain, more))
    assert checksum_of(of_gain) != checksum_of(of_more)
    assert checksum_of(functools.lru_cache(factorial)) == checksum_of(functools.lru_cache(factorial))
    assert checksum_of(jax.jit(np.sin)) != checksum_of(jax.jit(np.cos))
    assert checksum_of(object()) == checksum_of(object())  # of which nothing is known
    held = [1.0]
    held.append(held)
    assert checksum_of(held) != checksum_of([1.0, [1.0]])
    assert checksum_of({"a": 1, "b": 2.0}) == checksum_of({"b": 2.0, "a": 1}) != checksum_of({"a": 1, "b": 2})
    assert checksum_of(jax.random.key(0)) != checksum_of(jax.random.key(1))
