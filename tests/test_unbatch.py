"""LAPACK is called for one matrix after the other in what several devices of a CPU do."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.lax import linalg

from .helpers import assert_close
from .inside import LAPACK, unbatch_lapack


A = np.random.default_rng(0).normal(size=(5, 3, 3)) + 3.0 * np.eye(3)
B = np.random.default_rng(1).normal(size=(5, 3))


def by_lineax(a, b):
    return lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.SVD()).value


def in_a_loop(a, b):
    """Until it is small, or ten times, which differs from state to state."""
    going = lambda carry: (carry[0] < 10) & (jnp.linalg.norm(carry[1]) > 0.1)
    return jax.lax.while_loop(going, lambda carry: (carry[0] + 1, jnp.linalg.solve(a, carry[1])), (0, b))[1]


def in_a_branch(a, b):
    return jax.lax.cond(b[0] > 0.0, lambda: jnp.linalg.qr(a)[1] @ b, lambda: jnp.linalg.cholesky(a @ a.T) @ b)


def in_a_scan(a, b):
    step = lambda x, _: (jnp.linalg.eigh(a + a.T)[1] @ x, jnp.linalg.svd(a)[1])
    x, values = jax.lax.scan(step, b, None, length=3)
    return x + values[-1]


@pytest.mark.parametrize("function", [by_lineax, in_a_loop, in_a_branch, in_a_scan, jnp.linalg.solve])
def test_the_same_without_a_batch(function):
    """Values and derivatives; and no call of LAPACK has a batch in what is made of them."""

    def derivative(a, b):
        return jax.jvp(jax.vmap(function), (a, b), (b[:, :, None] * a, 2.0 * b))

    made = jaxpr_as_fun(unbatch_lapack(jax.make_jaxpr(derivative)(A, B)))
    assert_close(made(A, B), list(derivative(A, B)), rtol=1e-12)
    assert batches(derivative)
    assert not batches(made)


def batches(function):
    """Calls of LAPACK and BLAS in its program that have the batch."""
    lines = jax.jit(function).lower(A, B).as_text().splitlines()
    calls = [line for line in lines if "custom_call @lapack" in line or "custom_call @blas" in line]
    assert calls
    return [line for line in calls if f"tensor<{len(A)}x3x3" in line]


def test_what_calls_no_lapack_is_left_alone():
    for function, x in ((lambda x: jnp.sin(x) @ x, B[0]), (jnp.linalg.svd, A[0])):
        closed = jax.make_jaxpr(function)(x)
        assert unbatch_lapack(closed) is closed


def test_names_of_jax():
    """What JAX calls these operations, in the version that is there."""
    named = {name.removesuffix("_p") for name in dir(linalg) if name.endswith("_p")}
    assert {"svd", "lu", "qr", "eigh", "cholesky", "triangular_solve"} <= LAPACK & named
    assert named - LAPACK <= {"lu_pivots_to_permutation", "tridiagonal_solve", "cholesky_update", "symmetric_product"}
