"""Long functions that a program calls several times: each is a routine, whose numbers are its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..helpers import assert_close
from ..inside import CertainScalars, ScalarStep, replaced
from ..lowering.test_bind import bits


def constant(x, w):
    """A number that is w^2 + w whatever x is, but for rounding."""
    return w * w * jnp.sin(x[0]) ** 2 + (w * w * jnp.cos(x[0]) ** 2 + w)


@jax.jit
def first(x, w):
    for k in range(30):
        x = jnp.sin(x) * constant(x, w) + jnp.roll(x, 1) * (k + 0.3)
        x = x / (1.0 + x * x)
    return x


@jax.jit
def second(x, w):
    for k in range(30):
        x = jnp.cos(x) * constant(x, w) - jnp.roll(x, 2) * (k + 0.7)
        x = x / (1.0 + x * x)
    return x


def twice(state, w):
    x = first(first(state, w) + 1.0, w)
    return second(second(x, w) - 1.0, w)


def step(state, w):
    new = twice(state, w)
    return new, state, (), (), jnp.asarray(False), jnp.asarray(True)


# Programs are compiled at once; or interpreted at first, however short they are.
COMPILED, INTERPRETED = {"long_program": 2**60}, {"long_program": 1, "short_program": 0}


@pytest.mark.parametrize("size", [1, 9])
def test_routines_share_no_number_that_depends_on_their_arguments(size):
    x, w = jnp.asarray(np.random.default_rng(0).normal(size=(size, 3))), jnp.linspace(2.0, 3.0, size)
    found = []
    for way in (COMPILED, INTERPRETED):
        with replaced(**way):
            made = ScalarStep(step, x[0], w[0], most=10_000)
            found.append(jax.jit(jax.vmap(made.operation))(x, w)[0])
    program = made.operation.program.program
    assert len(program.routines) == 2
    assert all(node in program.inputs for node in program.steps if not node.args)
    assert bits(found[0]) == bits(found[1])
    assert_close(found[0], jax.vmap(twice)(x, w), rtol=1e-9)


def scanned(x, w, reverse=False):
    """A loop whose body is long, and one whose body is not; rows of an array enter, and leave, both."""

    def long(x, row):
        x = first(x, row[0] + w)
        return x, x * row

    def short(x, row):
        return x + row, x[0]

    x, ys = jax.lax.scan(long, x, jnp.arange(9.0).reshape(3, 3), reverse=reverse)
    x, z = jax.lax.scan(short, x, ys, reverse=reverse)
    return x, z


@pytest.mark.parametrize("reverse", [False, True])
def test_the_body_of_a_loop_is_written_down_once(reverse):
    x, w = jnp.array([0.3, -1.2, 0.8]), jnp.array(0.4)

    def step(pair, w):
        new = scanned(pair[0], w, reverse)
        return new, pair, (), (), jnp.asarray(False), jnp.asarray(True)

    found = []
    for way in (COMPILED, INTERPRETED):
        with replaced(**way):
            made = ScalarStep(step, (x, jnp.zeros(3)), w, most=10_000)
            found.append(jax.jit(made.operation)(x, jnp.zeros(3), w))
    program = made.operation.program.program
    assert len(program.routines) == 1
    assert len(program.calls) == 3
    assert program.length < 0.6 * program.operations
    assert bits(found[0]) == bits(found[1])
    for got, want in zip(found[0], scanned(x, w, reverse), strict=True):
        assert_close(got, want, rtol=1e-9)


def test_a_counter_tells_places_of_a_large_table():
    """The body of such a loop is written out, so that its places are known."""
    table = jnp.sin(jnp.arange(300.0))

    def counted(x, w):
        return jax.lax.fori_loop(0, 3, lambda k, x: first(x, w) + table[100 * k + 7], x)

    def step(x, w):
        return counted(x, w), x, (), (), jnp.asarray(False), jnp.asarray(True)

    x, w = jnp.array([0.3, -1.2, 0.8]), jnp.array(0.4)
    made = ScalarStep(step, x, w, most=10_000)
    assert not made.operation.program.program.routines
    assert_close(jax.jit(made.operation)(x, w)[0], counted(x, w), rtol=1e-9)


def judged(x, w):
    y = first(x, w[0]) * w[1]
    return y, jnp.sum(y * w), jnp.asarray(True), jnp.all(x < 5.0)


@pytest.mark.long
def test_a_derivative_is_one_program_however_many_ask_for_its_parts():
    x, w, weights = jnp.array([0.3, -1.2, 0.8]), jnp.array([0.4, 0.9, -0.2]), (jnp.array([1.0, 2.0, -3.0]), 0.5)
    piece = CertainScalars(jax.make_jaxpr(judged)(x, w), 10_000)
    whole, part = piece.judged_cotangent((0, 1), (0, 1)), piece.judged_cotangent((1,), (0, 1))
    other = piece.judged_cotangent((1,), (1,))
    assert part.program.graph is whole.program.graph
    assert other.program.graph is not whole.program.graph
    assert part.program.program.length < whole.program.program.length
    (to_x, to_w), given = jax.vjp(lambda x, w: judged(x, w)[:2], x, w)[1](weights), (x, w, *map(jnp.asarray, weights))
    assert_close(jax.jit(whole)(*given)[0], to_x, rtol=1e-9)
    assert_close(jax.jit(part)(*given)[0], to_w, rtol=1e-9)

    # Within another program it is copied, with its doubt.
    def step(w, x, *weights):
        found, smooth = part(x, w, *weights)
        return w + found, w, (), (), ~smooth, jnp.asarray(True)

    for at, new in ((x, w + to_w), (x.at[1].set(6.0), w)):
        made = ScalarStep(step, w, at, *weights, most=10_000)
        (got,) = jax.jit(made.operation)(w, at, *weights)
        assert_close(got, new, rtol=1e-9)
