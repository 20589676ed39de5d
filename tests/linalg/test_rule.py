"""The derivative rules stay in force where a loop is differentiated in reverse mode and then once more."""

import jax
import jax.numpy as jnp
import pytest

import ukjax
from tests.helpers import assert_close, central_difference, long

from ..inside import pseudoinverse, pseudosolve, whiten


def repeatedly(step):
    """A smooth function of what three passes of `step` through a scan leave."""

    def f(x):
        y, _ = jax.lax.scan(lambda y, _: (step(x, y), None), x[:2], None, length=3)
        return jnp.sum(jnp.sin(y))

    return f


def rows(x, y):
    """A 2 x 2 matrix whose singular values coincide, whatever x."""
    c, s = jnp.cos(x[0] + y[1]), jnp.sin(x[0] + y[1])
    return x[1] * jnp.array([[c, -s], [s, c]])


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda x, y: pseudosolve(ukjax.SVD(), rows(x, y), y + x[2])[0], id="solve by SVD"),
        long(
            lambda x, y: pseudosolve(ukjax.pseudoinverse.RowGramSchmidt(), rows(x, y), y + x[2])[0], id="solve by rows"
        ),
        long(lambda x, y: pseudoinverse(ukjax.SVD(), rows(x, y))[0] @ (y + x[2]), id="inverse by SVD"),
        pytest.param(lambda x, y: whiten(x[1] * jnp.eye(2) + jnp.outer(y, y))[1] @ (y + x[2]), id="Cholesky"),
    ],
)
def test_second_derivatives_of_a_loop(step):
    f, x = repeatedly(step), jnp.array([0.4, 1.3, 0.2])
    want = central_difference(jax.jit(jax.grad(f)), x)
    assert_close(jax.jit(jax.jacfwd(jax.grad(f)))(x), want, rtol=1e-6, atol=1e-7)
    assert_close(jax.jit(jax.jacfwd(jax.jacfwd(f)))(x), want, rtol=1e-6, atol=1e-7)
