"""Jacobians of motions for many states: what depends on the state alone is computed once for all directions."""

import functools as ft

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax

from ..helpers import assert_close, pendulum, random_mechanism
from ..inside import evaluations


RANDOM = np.random.default_rng(4)
PLAIN = ukjax.UdwadiaKalaba(expand=False)


@ft.cache
def states(size, n=5):
    return tuple(jnp.asarray(RANDOM.normal(size=shape)) for shape in ((size, n), (size, n), (size,)))


def acceleration(q, v, t, mechanism=random_mechanism(3), formulation=None):
    options = {} if formulation is None else {"formulation": formulation}
    return ukjax.equation_of_motion(mechanism, q, v, t, throw=False, **options).acceleration


@pytest.fixture
def seen():
    """Of every derivative along several directions that is evaluated, whether the states are a batch."""
    with evaluations("directions_of_motion") as found:
        yield found


@pytest.mark.parametrize("way", [jax.jacfwd, jax.jacrev])
def test_a_member_of_a_batch_has_the_bits_that_it_has_alone(way, seen):
    """Of 11 states, which fill no whole number of vectors, one with a number that is none; and of two states."""
    of_one = way(acceleration, (0, 1, 2))
    q, v, t = states(11)
    q = q.at[4, 1].set(jnp.nan)
    alone = [jax.jit(of_one)(*(x[i] for x in (q, v, t))) for i in range(11)]
    for some in (slice(None), slice(2)):
        seen.clear()
        found = jax.jit(jax.vmap(of_one))(q[some], v[some], t[some])
        assert seen == [True]
        for k, got in enumerate(found):
            np.testing.assert_array_equal(got, np.stack([x[k] for x in alone])[some])
    assert np.all(np.isfinite(np.asarray(alone[3][0])))
    assert np.any(np.asarray(alone[3][0]))


@pytest.mark.long
def test_states_whose_derivatives_are_left_to_matrices():
    """A pendulum whose row is written twice, of no length in two states; and rows of rank one of three."""
    mechanism = pendulum(2)
    q = jnp.asarray(RANDOM.normal(size=(9, 2))).at[3].set(0.0).at[7].set(0.0)
    v = jnp.asarray(RANDOM.normal(size=(9, 2)))
    t = jnp.zeros(9)
    for way in (jax.jacfwd, jax.jacrev):
        got, want = (
            jax.jit(jax.vmap(way(lambda q, v, t, how=how: acceleration(q, v, t, mechanism, how), (0, 1))))(q, v, t)
            for how in (None, PLAIN)
        )
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, rtol=1e-11, atol=1e-11)


def along(q, v, t, dq, dv):
    return jax.jvp(lambda q, v: acceleration(q, v, t), (q, v), (dq, dv))[1]


def test_directions_of_each_state_and_those_that_all_share():
    """Along other axes too, within two batches of states, and for a batch of directions of a batch of states."""
    q, v, t = states(12)
    dq, dv = jnp.asarray(RANDOM.normal(size=(5, 3))), jnp.asarray(RANDOM.normal(size=(12, 3, 5)))
    directions = jax.vmap(along, (None, None, None, 1, 0), 1)
    got = jax.jit(jax.vmap(directions, (0, 0, 0, None, 0)))(q, v, t, dq, dv)
    each = [[along(q[i], v[i], t[i], dq[:, k], dv[i, k]) for k in range(3)] for i in range(2)]
    assert got.shape == (12, 5, 3)
    for i in range(2):
        assert_close(got[i], np.stack(each[i], axis=1), rtol=1e-13, atol=1e-13)
    nested = jax.vmap(jax.vmap(directions, (0, 0, 0, None, 0)), (0, 0, 0, None, 0))
    rows = [x.reshape(3, 4, *x.shape[1:]) for x in (q, v, t, dv)]
    again = jax.jit(nested)(*rows[:3], dq, rows[3])
    np.testing.assert_array_equal(again.reshape(got.shape), got)
    outside = jax.vmap(jax.vmap(along, (0, 0, 0, None, 0)), (None, None, None, 1, 1), 2)
    assert_close(jax.jit(outside)(q, v, t, dq, dv), got, rtol=1e-13, atol=1e-13)


@pytest.mark.long
def test_further_derivatives_and_transposes():
    """Hessians of a batch in all four pairs of modes, gradients by directions, and the transpose of a Jacobian."""
    q, v, t = states(9)

    def one(how):
        return lambda q, v, t: acceleration(q, v, t, formulation=how)

    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            got, want = (jax.jit(jax.vmap(outer(inner(one(how), (0, 1)))))(q, v, t) for how in (None, PLAIN))
            for a, b in zip(got, want, strict=True):
                assert_close(a, b, rtol=1e-9, atol=1e-9)
    dq, dv = jnp.asarray(RANDOM.normal(size=(3, 5))), jnp.asarray(RANDOM.normal(size=(3, 5)))

    def pushed(dq, dv):
        return jax.vmap(lambda q, v, t: jax.vmap(lambda dq, dv: along(q, v, t, dq, dv))(dq, dv))(q, v, t)

    weights = jnp.asarray(RANDOM.normal(size=(9, 3, 5)))
    (on_dq, on_dv) = jax.linear_transpose(pushed, dq, dv)(weights)
    J_q, J_v = jax.vmap(jax.jacfwd(one(PLAIN), (0, 1)))(q, v, t)
    assert_close(on_dq, jnp.einsum("sdi,sij->dj", weights, J_q), rtol=1e-10, atol=1e-10)
    assert_close(on_dv, jnp.einsum("sdi,sij->dj", weights, J_v), rtol=1e-10, atol=1e-10)
    slopes = jax.jit(jax.grad(lambda dq, dv: jnp.sum(jnp.sin(pushed(dq, dv))), (0, 1)))(dq, dv)
    bent = jnp.cos(jnp.einsum("sij,dj->sdi", J_q, dq) + jnp.einsum("sij,dj->sdi", J_v, dv))
    assert_close(slopes[0], jnp.einsum("sdi,sij->dj", bent, J_q), rtol=1e-10, atol=1e-10)
    assert_close(slopes[1], jnp.einsum("sdi,sij->dj", bent, J_v), rtol=1e-10, atol=1e-10)
