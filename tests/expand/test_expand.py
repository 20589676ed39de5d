"""`ukjax.expand`: any function of small arrays as scalar code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, assert_gradients


def turned(q, shift=0.0):
    """A rotation about z, and then one about x, of a vector, and the product's trace; mostly zeros and ones."""
    c, s = jnp.cos(q), jnp.sin(q)
    zero, one = jnp.zeros(()), jnp.ones(())
    about_z = jnp.stack([jnp.stack([c[0], -s[0], zero]), jnp.stack([s[0], c[0], zero]), jnp.stack([zero, zero, one])])
    about_x = jnp.stack([jnp.stack([one, zero, zero]), jnp.stack([zero, c[1], -s[1]]), jnp.stack([zero, s[1], c[1]])])
    R = about_x @ about_z
    return {"place": R @ jnp.array([1.0, 2.0, 3.0]) + shift, "trace": jnp.trace(R)}


Q = jnp.array([0.3, -0.7])


def test_it_is_the_same_function_and_tells_how_much_it_takes():
    fast = ukjax.expand(turned)
    got, want = fast(Q, 0.5), turned(Q, 0.5)
    assert set(got) == set(want)
    for name in want:
        assert_close(got[name], want[name], rtol=1e-14)
    report = fast.report(Q)
    assert report.operations is not None
    assert report.operations < 40  # two products of 3 x 3 matrices are 90 alone
    assert report.kept == ()
    assert report.reason == ""


@pytest.mark.long
def test_in_a_batch_and_differentiated():
    fast, many = ukjax.expand(turned), jnp.stack([Q, 2 * Q, 3 * Q])
    loss = lambda f: lambda q: jnp.sum(jnp.sin(f(q)["place"])) + f(q)["trace"] ** 2
    assert_close(jax.jit(jax.vmap(loss(fast)))(many), jax.vmap(loss(turned))(many), rtol=1e-13)
    assert_close(jax.jit(jax.vmap(jax.grad(loss(fast))))(many), jax.vmap(jax.grad(loss(turned)))(many), rtol=1e-12)
    assert_close(jax.jit(jax.hessian(loss(fast)))(Q), jax.hessian(loss(turned))(Q), rtol=1e-12)
    assert_gradients(loss(fast), Q, rtol=1e-6, atol=1e-6)


def test_what_is_no_array_is_part_of_the_function_and_what_is_traced_an_argument():
    power = ukjax.expand(lambda x, n, what: x**n if what == "power" else x)
    assert_close(power(Q, 3, "power"), Q**3)
    closed_over = lambda scale: ukjax.expand(lambda q: scale * jnp.sin(q))(Q)
    assert_close(jax.jit(jax.jacfwd(closed_over))(2.0), jnp.sin(Q))


@pytest.mark.parametrize("power", [-13, -9, -8, -1, 0, 2, 8, 9])
def test_whole_powers(power):
    """Those of the Lennard-Jones force are large and negative."""
    force = lambda q: 1.5 * jax.lax.integer_pow(q, power)
    assert_close(ukjax.expand(force)(Q), force(Q), rtol=1e-14)


def test_what_is_left_as_it_is_says_why():
    shown = []

    def with_effects(q):
        jax.debug.callback(lambda x: shown.append(float(x)), q[0])
        return 2 * q

    fast = ukjax.expand(with_effects)
    assert_close(jax.jit(fast)(Q), 2 * Q)
    jax.effects_barrier()
    assert shown == [float(Q[0])]
    assert fast.report(Q) == ukjax.Expansion(None, (), "it has effects")
    long = ukjax.expand(turned, limit=3)
    assert_close(long(Q)["trace"], turned(Q)["trace"])
    assert "operations" in long.report(Q).reason
    large = ukjax.expand(lambda x: jnp.sum(x))
    assert_close(large(jnp.ones(20_000)), 20_000.0)
    assert "large" in large.report(jnp.ones(20_000)).reason
    kept = ukjax.expand(lambda x: jnp.sin(jnp.sort(x)) + 1).report(jnp.ones(3))
    assert kept.kept == ("sort",)
    assert kept.reason == ""


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: ukjax.expand(3.0), TypeError, "function must be a function"),
        (
            lambda: ukjax.expand(lambda q: (q, "a"))(Q),
            TypeError,
            "must return a tree of arrays, but there is 'a' in it",
        ),
        (lambda: ukjax.expand(turned, limit=0), ValueError, "limit"),
        (lambda: ukjax.expand(turned, limit=2.5), (TypeError, ValueError), "limit"),
    ],
)
def test_nonsense_is_named(make, error, match):
    with pytest.raises(error, match=match):
        make()


def test_numpy_arrays_and_numbers():
    assert_close(ukjax.expand(lambda x, y: x + y)(np.array([1.0, 2.0]), 3.0), np.array([4.0, 5.0]))


def test_what_depends_on_the_platform_only_in_how_it_is_done_is_scalar_code():
    """As `jnp.diag` of a matrix does: with it left to arrays a batch would not run in one loop."""
    report = ukjax.expand(lambda x: jnp.diag(x) * 2).report(jnp.ones((3, 3)))
    assert (report.operations, report.kept) == (3, ())
    x = jnp.arange(18.0).reshape(2, 3, 3)
    want = 2 * np.diagonal(x, axis1=1, axis2=2)
    assert np.array_equal(jax.jit(jax.vmap(ukjax.expand(lambda x: jnp.diag(x) * 2)))(x), want)
