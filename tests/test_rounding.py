"""Sizes of rounding errors, and rows that are nothing else, in constraints that a user writes."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from .helpers import assert_close, assert_gradients
from .inside import rounding_errors


EPS = float(np.finfo(float).eps)
TENTHS = np.array([0.1, 0.2, -0.3])


@jax.custom_jvp
def cubed(x):
    return x**3


cubed.defjvp(lambda x, dx: (cubed(x[0]), 3.0 * x[0] ** 2 * dx[0]))
# Each of these is zero but for rounding errors, with terms of the size of x.
CANCELLING = {
    "literals": lambda x: 0.1 * x + 0.2 * x - 0.3 * x,
    "an array": lambda x: jnp.sum(TENTHS * x),
    "a function of a function": jax.jit(lambda x: jax.jit(lambda y: 0.1 * y + 0.2 * y)(x) - 0.3 * x),
    "a rule of its own": lambda x: cubed(0.1 * x) - x**3 / 1000.0,
    "inputs": lambda x: (x + 1.0) * (x - 1.0) - x**2 + 1.0,
    "a loop": lambda x: jax.lax.scan(lambda y, c: (y + c * x, None), 0.0 * x, jnp.asarray(TENTHS))[0],
}


@pytest.mark.parametrize("way", CANCELLING)
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_they_are_some_last_digits_of_the_terms_however_these_cancel(way, scale):
    f = CANCELLING[way]
    x = jnp.asarray(0.7 if way in ("a rule of its own", "inputs") else 0.7 * scale)
    size = float(x) ** 3 / 1000 if way == "a rule of its own" else float(x)
    found = float(rounding_errors(f, x))
    assert abs(float(f(x))) < found < 1e4 * EPS * size * (3 if way == "inputs" else 1)


def test_what_is_exact_has_none_and_what_is_not_cancelled_has_its_own():
    found = rounding_errors(lambda x, k: (0.0 * x, x, jnp.sin(x), k), jnp.array([0.5, 0.0]), jnp.asarray(2))
    assert_close(found[0], jnp.zeros(2))
    assert 0 < float(found[1][0]) < 1e4 * EPS
    assert_close(found[1][1], jnp.asarray(0.0))
    assert_close(found[3], jnp.zeros(()))


# A linkage of two rods whose end is held, in a plane whose axes are given by decimal fractions; three more rows vanish.
SYSTEM = ukjax.System(lambda q, t: 2.0 * jnp.eye(3), lambda q, v, t: jnp.array([1.0, 2.0, 3.0]))
Q, V = jnp.array([0.5021310, -0.86730719, 1.0]), jnp.array([1.0, -0.7, 2.0])


def gap(q):
    x = jnp.cos(q[0]) + 0.5 * jnp.cos(q[1]) - 1.2
    y = jnp.sin(q[0]) + 0.5 * jnp.sin(q[1]) - 0.1
    return x, y


def rows(scales, off=0.0):
    def phi(q, t):
        x, y = gap(q)
        u, w = 0.6 * x, 0.8 * x
        more = [0.1 * x + 0.2 * x - 0.3 * x, 0.8 * u - 0.6 * w, 1.1 * y + 2.2 * y - 3.3 * y + off * t**2]
        return jnp.stack([0.36 * x + 0.64 * x, y, *more]) * scales

    return ukjax.Holonomic(phi)


PLAIN = ukjax.Mechanism(SYSTEM, ukjax.Holonomic(lambda q, t: jnp.stack(gap(q))))
SCALES = [np.ones(5), np.full(5, 1e9), np.full(5, 1e-9), 10.0 ** np.array([12, -12, 9, -9, 3])]
SCALES += [10.0 ** np.array([-12, 12, 12, 12, 12]), 10.0 ** np.array([3, 0, -12, 6, 12])]


def test_places_and_zeros_are_known_where_a_program_is_changed():
    """They stay what they are, so that a scalar program need not take them for numbers like others."""
    places, factors, x = jnp.array([2, 0, 1, 1]), jnp.array([0.0, 1.5, 2.0, 0.0]), jnp.array([3.0, 5.0, 7.0])
    found = []

    def lowered(function, *inputs):
        constants = [one.shape == (4,) and not isinstance(one, jax.core.Tracer) for one in inputs]
        assert sum(constants) == 2
        others = [jnp.full_like(one, 4) if c else one for one, c in zip(inputs, constants, strict=True)]
        found.append(function(*others)[0])
        return function

    got = jax.jit(lambda x: (rounding_errors(lambda x: x[places] * factors, x, lowered=lowered), found)[1])(x)
    assert_close(got[0], x[places] * jnp.array([0.0, 4.0, 4.0, 0.0]))


def test_a_program_with_a_random_key_and_single_precision():
    """A key is no number, and stays what it is; changes have the precision of what they change."""
    key, x = jax.random.key(0), jnp.ones(3, jnp.float32)
    errors = rounding_errors(lambda x: x - jax.random.uniform(key, (3,), jnp.float32) * x, x)
    assert errors.dtype == jnp.float32
    assert np.all((errors > 0) & (errors < 1e-4))


@ft.partial(jax.jit, static_argnames="batched")
def motion(scales, batched=False):
    def one(v):
        found = ukjax.equation_of_motion(ukjax.Mechanism(SYSTEM, rows(scales)), Q, v, throw=False)
        return found.acceleration, found.rank, found.result == ukjax.RESULTS.successful

    return jax.vmap(one)(jnp.stack([V, 2.0 * V, 0.0 * V])) if batched else one(V)


@pytest.mark.parametrize("batched", [False, True])
def test_rows_of_rounding_errors_are_none_whatever_their_unit(batched):
    plain = lambda v: ukjax.equation_of_motion(PLAIN, Q, v).acceleration
    right = jnp.stack([plain(V), plain(2.0 * V), plain(0.0 * V)]) if batched else plain(V)
    for scales in SCALES:
        acceleration, rank, okay = motion(jnp.asarray(scales), batched)
        assert okay.all()
        assert (rank == 2).all()
        assert_close(acceleration, right, rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_their_gradient_is_that_without_them():
    def acceleration(constraint):
        return lambda q: ukjax.equation_of_motion(ukjax.Mechanism(SYSTEM, constraint), q, V, throw=False).acceleration[
            0
        ]

    all_rows = acceleration(rows(jnp.asarray(SCALES[0])))
    assert_gradients(all_rows, Q)
    assert_close(jax.grad(all_rows)(Q), jax.grad(acceleration(PLAIN.constraints[0]))(Q), rtol=1e-8)


@jax.jit
def assembled(scales, off, t):
    mechanism = ukjax.Mechanism(SYSTEM, rows(scales, off))
    found = ukjax.equation_of_motion(mechanism, Q, V, throw=False)
    return *ukjax.assemble(mechanism, Q + 0.01, V, t, throw=False), found.result == ukjax.RESULTS.successful


@pytest.mark.long
def test_a_state_is_assembled_and_diagnosed_as_without_them():
    right = ukjax.assemble(PLAIN, Q + 0.01, V)
    for scales in SCALES[2:]:
        q, v, okay = assembled(jnp.asarray(scales), 0.0, 0.0)
        assert okay
        assert_close(q, right.q, atol=1e-10)
        assert_close(v, right.v, atol=1e-10)
    found = ukjax.diagnose(ukjax.Mechanism(SYSTEM, rows(jnp.asarray(SCALES[3]))), right.q, right.v)
    assert int(found.rank) == 2
    assert float(found.constraint_condition) < 10


def test_a_row_that_asks_for_what_nothing_can_do_is_refused():
    for scale in (1e-9, 1.0, 1e9):
        for off in (1e-6, -1e-3):
            q, _, okay = assembled(jnp.full(5, scale), off, 1.0)
            assert not okay
            assert jnp.isnan(q).all()
    with pytest.raises(RuntimeError, match="row 4 by 1e-06"):
        ukjax.assemble(ukjax.Mechanism(SYSTEM, rows(jnp.ones(5), 1e-6)), Q, V, 1.0)


@jax.jit
def beside_a_vanishing_row(parts, scale):
    """Of a batch, with parts that are known to nobody while it is compiled: 0.1 y + 0.2 y - (0.1 + 0.2) y."""

    def phi(q, t):
        x, y = gap(q)
        return jnp.stack([x, scale * (parts[0] * y + parts[1] * y - parts[2] * y)])

    def one(v):
        mechanism = ukjax.Mechanism(SYSTEM, ukjax.Holonomic(phi))
        found = ukjax.equation_of_motion(mechanism, Q, v, throw=False)
        return found.acceleration, found.rank, found.result == ukjax.RESULTS.successful

    return jax.vmap(one)(jnp.stack([V, 2.0 * V, 0.0 * V]))


def test_in_a_batch_a_row_that_vanishes_is_none_however_long_it_is_written():
    alone = ukjax.Mechanism(SYSTEM, ukjax.Holonomic(lambda q, t: gap(q)[0][None]))
    right = jnp.stack([ukjax.equation_of_motion(alone, Q, k * V).acceleration for k in (1.0, 2.0, 0.0)])
    for scale in (1e-12, 1.0, 1e12, 1e16, 1e20):
        acceleration, rank, okay = beside_a_vanishing_row(jnp.array([0.1, 0.2, 0.1 + 0.2]), jnp.asarray(scale))
        assert okay.all()
        assert (rank == 1).all()
        assert_close(acceleration, right, rtol=1e-9, atol=1e-12)
    # With other parts it is a row.
    assert (beside_a_vanishing_row(jnp.array([0.1, 0.2, 0.4]), jnp.asarray(1e16))[1] == 2).all()
