"""Scalar programs as machine code: the values of JAX, at every width, for any number of states and all dtypes."""

import gc
import re
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from ..helpers import long
from ..inside import Row, compiled_kernel, kernel, replaced
from .code import machine_code


RANDOM = np.random.default_rng(2)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e30, -1e-30]


def of_floats(x, y):
    return [
        x + y, x - y, x * y, x / y, -x, jnp.abs(x), jnp.sign(x), jnp.maximum(x, y), jnp.minimum(x, y), jnp.floor(x),
        jnp.ceil(x), jnp.round(x), lax.round(x), jnp.sqrt(x), lax.rsqrt(x), lax.rem(x, y), jnp.isfinite(x),
        lax.clamp(x.dtype.type(-1), x, x.dtype.type(2)), x**3, x**-2, x < y, x <= y, x == y, x != y, x > y, x >= y,
        jnp.where(x < y, x, y), (x < y) & (x > 0), (x < y) | (x > 0), ~(x < y), (x < y) ^ (x > 0),
        x.astype(jnp.int32), (x > 0).astype(x.dtype), jnp.square(x),
    ]  # fmt: skip


def of_integers(x, y):
    return [
        x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), -x, jnp.abs(x), jnp.sign(x), jnp.maximum(x, y),
        jnp.minimum(x, y), x & y, x | y, x ^ y, ~x, x < y, x == y, x >= y, x.astype(jnp.float32), x**2, x != 0,
        lax.select_n(jnp.clip(x, 0, 2), x, y, -x),
    ]  # fmt: skip


def compared(function, width, *arrays):
    _, found = machine_code(function, width, *arrays)
    want = jax.jit(jax.vmap(lambda *xs: function(*xs)))(*arrays)
    return found, [np.asarray(x) for x in want]


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arithmetic_of_floats_is_that_of_jax(dtype, width):
    x, y = (np.array(v, dtype) for v in zip(*((a, b) for a in SPECIAL for b in SPECIAL), strict=True))
    x, y = (
        np.concatenate([x, RANDOM.normal(size=19).astype(dtype)]),
        np.concatenate([y, RANDOM.normal(size=19).astype(dtype)]),
    )
    for k, (got, want) in enumerate(zip(*compared(of_floats, width, x, y), strict=True)):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=4 * np.finfo(dtype).eps, err_msg=f"result {k}")


@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_arithmetic_of_integers_is_that_of_jax(dtype, width):
    ends = np.iinfo(dtype)
    some = np.array([0, 1, 2, 3, 7, ends.max, ends.min, ends.max - 1], dtype)
    some = np.concatenate([some, -some[1:5]]) if ends.min else some
    x, y = (np.array(v, dtype) for v in zip(*((a, b) for a in some for b in some), strict=True))
    for k, (got, want) in enumerate(zip(*compared(of_integers, width, x, y), strict=True)):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want, err_msg=f"result {k}")


def small_matrix(x, y, s):
    A = jnp.outer(x, x) + jnp.eye(3) * (2.0 + s)
    return jnp.sin(A @ y), A[0, 0] > y[1]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 33])
def test_any_number_of_states_in_rows_has_the_bits_of_one_state(count):
    x, y, s = RANDOM.normal(size=(count, 3)), RANDOM.normal(size=(count, 3)), RANDOM.normal(size=(count,))
    _, wide = machine_code(small_matrix, 8, x, y, s)
    for i in range(count):
        _, one = machine_code(small_matrix, 1, x[i : i + 1], y[i : i + 1], s[i : i + 1])
        for a, b in zip(wide, one, strict=True):
            np.testing.assert_array_equal(a[i], b[0])


def test_a_program_in_parts_has_the_bits_of_one_in_one_piece():
    def swinging(x):
        for k in range(30):
            x = jnp.cos(x[::-1] * (1.0 + k)) + x
        return x, x[0] > x[1]

    x = RANDOM.normal(size=(13, 2))
    _, whole = machine_code(swinging, 8, x)
    for part in (7, 50):
        _, cut = machine_code(swinging, 8, x, part=part)
        for a, b in zip(whole, cut, strict=True):
            np.testing.assert_array_equal(a, b)


def test_arguments_that_all_states_share_are_read_once_for_all():
    x, s = RANDOM.normal(size=(11, 2)), np.array([0.3, -0.7])
    _, (found,) = machine_code(lambda x, s: x @ s + s, 8, x, s, batched=(True, False))
    np.testing.assert_allclose(found, (x @ s)[:, None] + s, atol=1e-15)


@pytest.mark.parametrize("size", [3, 8, 13])
@pytest.mark.parametrize(("width", "dtype"), [(1, np.float64), (8, np.float64), (8, np.float32)])
def test_directions_of_each_state(size, width, dtype):
    """Directions that all states share, and those of each; what states share; numbers of a direction, or of none."""
    x, w = RANDOM.normal(size=(size, 2)).astype(dtype), RANDOM.normal(size=(size, 5, 3)).astype(dtype)
    s, d = RANDOM.normal(size=2).astype(dtype), RANDOM.normal(size=(5, 2)).astype(dtype)
    k = RANDOM.integers(0, 9, size=5).astype(np.int32)

    def function(x, s, d, w, k):
        return (
            jnp.sin(x * s) @ d + jnp.tanh(w),
            jnp.where(k > 4, d, s),
            (x @ d > 0) & (k > 2),
            jnp.exp(x),
            w[1] * k.astype(w.dtype),
            s,
        )

    flags, directions = (True, False, False, True, False), (False, False, True, True, True)
    _, found = machine_code(function, width, x, s, d, w, k, batched=flags, directions=directions)
    one = jax.vmap(function, (None, None, 0, 0, 0))
    want = jax.vmap(one, (0, None, None, 0, None))(x, s, d, w, k)
    for got, value in zip(found, want, strict=True):
        assert got.dtype == value.dtype
        np.testing.assert_allclose(got, value, rtol=30 * np.finfo(dtype).eps, atol=3 * np.finfo(dtype).eps)


def test_what_is_cut_into_parts_needs_few_slots():
    """A slot is used again when no later part reads its number."""

    def swinging(x):
        for k in range(1500):
            x = jnp.stack([x[1] * x[0] / 2 + 0.0001 * k, jnp.where(x[0] > 0.1, x[1], -x[0])])
        return x

    program, (found,) = machine_code(swinging, 8, RANDOM.uniform(-1, 1, (9, 2)), part=50)
    rows = [Row(2, np.dtype(float))], [Row(2, np.dtype(float)), Row(1, np.dtype(bool))]
    text = kernel(program, *rows, 8, part=50).text
    rooms = [int(x) for x in re.findall(r"%(?:kept|room) = alloca \[(\d+) x i64\]", text)]
    assert program.length > 4000
    assert len(rooms) > 1
    assert sum(rooms) < 20 * 8
    # A program that needs more registers than a stack may have is compiled.
    for largest, count in ((2**19, 1), (500, 0)):
        with replaced(largest_stack=largest):
            assert len(kernel(program, *rows, 8, interprets=True).interpreters) == count
    assert np.all(np.isfinite(found))


def test_a_factor_of_many_subtracted_products_is_negated_once():
    program, (found,) = machine_code(lambda x: x[1:] - x[0] * x[:0:-1], 8, x := RANDOM.normal(size=(9, 20)))
    text = kernel(program, [Row(20, np.dtype(float))], [Row(19, np.dtype(float))], 8).text
    assert text.count("@llvm.fma.v8f64(") > 19
    assert text.count("fneg <8 x double>") == 1
    np.testing.assert_allclose(found, x[:, 1:] - x[:, :1] * x[:, :0:-1], rtol=1e-14, atol=1e-14)


def test_code_is_shared_and_freed_with_its_last_user():
    program, _ = machine_code(lambda x: x * 1.2345678, 1, np.ones((1, 1)))
    printed = kernel(program, [Row(1, np.dtype(float))], [Row(1, np.dtype(float))], 1)
    first = compiled_kernel(printed)
    assert compiled_kernel(printed) is first
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_two_threads_may_compile_at_once():
    found = {}

    def work(k):
        x = np.full((9, 1), float(k))
        found[k] = machine_code(lambda x, k=k: jnp.exp(x) * k, 8, x)[1][0][0, 0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_allclose([found[k] for k in range(8)], [np.exp(k) * k for k in range(8)], rtol=1e-15)


@pytest.mark.parametrize("count", [100, long(1000)])
def test_many_functions_in_one_process(count):
    x = np.ones((1, 1))
    for k in range(count):
        assert machine_code(lambda x, k=k: x + k, 1, x)[1][0][0, 0] == 1.0 + k
