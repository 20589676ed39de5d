"""Jacobians in many directions, and what only some states need."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

from ..helpers import assert_close, long
from ..inside import FEW_STATES, EvalForm, Traceable, directional, evaluated_where_needed, guarded_by, replaced


rng = np.random.default_rng(0)
J = jnp.asarray(rng.normal(size=(6, 3, 4)))


def linear(J, x):
    return directional(jnp.tanh(J), x)


def plain(J, x):
    return jnp.tanh(J) @ x


@pytest.mark.parametrize("way", [jax.jacfwd, jax.jacrev])
def test_jacobians_are_the_matrix(way):
    x = jnp.asarray(rng.normal(size=(6, 4)))
    got = jax.jit(jax.vmap(way(linear, argnums=1)))(J, x)
    assert_close(got, jnp.tanh(J), rtol=1e-15)
    by_J = jax.jit(jax.vmap(way(linear)))(J, x)
    assert_close(by_J, jax.vmap(jax.jacfwd(plain))(J, x), rtol=1e-14, atol=1e-15)
    second = jax.jit(jax.vmap(way(way(linear, argnums=0), argnums=1)))(J, x)
    assert_close(second, jax.vmap(jax.jacfwd(jax.jacfwd(plain), argnums=1))(J, x), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(
    "directions",
    [
        np.eye(4),
        2 * np.eye(4),
        np.eye(4)[::-1],
        np.eye(4)[:2],
        np.ones((4, 4)),
        rng.normal(size=(7, 4)),
        np.zeros((4, 4)),
    ],
)
def test_any_directions(directions):
    """As many as there are coordinates, fewer or more, the basis or not: for all states, and for each its own."""
    x = jnp.asarray(directions)
    each = jax.vmap(linear, (None, 0))
    want = jnp.einsum("bij,dj->bdi", jnp.tanh(J), x)
    assert_close(jax.jit(jax.vmap(each, (0, None)))(J, x), want, rtol=1e-14, atol=1e-15)
    assert_close(jax.vmap(jax.vmap(linear, (0, None)), (None, 0), 1)(J, x), want, rtol=1e-14, atol=1e-15)
    own = jnp.stack([x * k for k in range(6)])
    assert_close(jax.jit(jax.vmap(each))(J, own), jnp.einsum("bij,bdj->bdi", jnp.tanh(J), own), rtol=1e-14, atol=1e-15)
    assert_close(each(J[0], x), want[0], rtol=1e-14, atol=1e-15)


def test_a_matrix_that_is_not_finite_in_another_column():
    """What is asked for along the basis is a column, whatever the others are."""
    broken = J.at[2, 1, 3].set(jnp.nan)
    got = jax.jit(jax.vmap(jax.jacfwd(directional, argnums=1)))(broken, jnp.zeros((6, 4)))
    assert int(jnp.sum(jnp.isnan(got))) == 1


def mended(x, y):
    """y**2, or where the first of x is negative sin(x) y: found in another way, and so are its derivatives."""
    like = jax.ShapeDtypeStruct((3,), x.dtype)
    slow = jax.make_jaxpr(lambda x, y: [jnp.sin(x) * y])(like, like)
    needed = x[0] < 0
    return guarded_by(Traceable.of(slow))(needed, needed, x, y, y**2)[0]


def literal(x, y):
    return jnp.where(x[0] < 0, jnp.sin(x) * y, y**2)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.9])
@replaced(gathered=20)
def test_what_a_gpu_gathers(share):
    """The states that need it, a tile at a time: none, fewer than a tile has, and more; and the whole if most do."""
    rng, seen = np.random.default_rng(1), []
    needed = jnp.asarray(rng.random(700) < share)
    x, y = jnp.asarray(rng.normal(size=(700, 3))), jnp.asarray(rng.normal(size=3))

    def slow(needed, x, y):
        jax.debug.callback(seen.append, needed)
        return [jnp.where(needed, jnp.sin(x) @ y, x[0])]

    closed = jax.make_jaxpr(slow)(needed[0], x[0], y)
    passed = lambda needed, x, y: [x[0]]
    form = EvalForm((True, True, False), on_cpu=False)
    of = lambda *arrays: evaluated_where_needed(form, 0, jaxpr_as_fun(closed), passed, closed.out_avals, arrays)
    (got,) = jax.block_until_ready(jax.jit(of)(needed, x, y))
    jax.effects_barrier()
    assert_close(got, jnp.where(needed, jnp.sin(x) @ y, x[:, 0]), rtol=1e-14, atol=1e-15)
    few = jnp.sum(needed) <= 700 // FEW_STATES
    assert len(seen) == (20 * -(-jnp.sum(needed) // 20) if few else 700)


@pytest.mark.parametrize("size", [4, long(600)])
def test_what_few_states_need_in_every_direction(size):
    """Jacobians in both modes, of a batch, and of it the derivatives: in directions that share a state, or do not."""
    x, y = (jnp.asarray(rng.uniform(0.1, 1.0, size=(size, 3))) for _ in range(2))
    x = x.at[1].multiply(-1.0)
    for way in (jax.jacfwd, jax.jacrev):
        got, want = (jax.jit(jax.vmap(way(f, (0, 1))))(x, y) for f in (mended, literal))
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, rtol=1e-14, atol=1e-15)
    total = lambda f: lambda x, y: jnp.sum(jnp.sin(jax.vmap(jax.jacfwd(f, (0, 1)))(x, y)[1]))
    for k in (0, 1):
        found, meant = (jax.jit(jax.grad(total(f), k))(x, y) for f in (mended, literal))
        assert_close(found, meant, rtol=1e-13, atol=1e-14)
    ways = jnp.asarray(rng.normal(size=(5, 3)))
    push = lambda f: jax.vmap(lambda d: jax.vmap(lambda x, y: jax.jvp(f, (x, y), (d, d * x))[1])(x, y))(ways)
    assert_close(jax.jit(push, static_argnums=0)(mended), push(literal), rtol=1e-14, atol=1e-15)
    pull = lambda f: jax.grad(lambda x, w: jnp.sum(jax.vmap(lambda x, y: jax.vmap(
        lambda d: jax.jvp(f, (x, y), (d, d * y))[1])(w))(x, y) ** 2), (0, 1))(x, ways)  # fmt: skip
    for a, b in zip(pull(mended), pull(literal), strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-13)
