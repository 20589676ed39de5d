"""What is traced once, what is traced only where it is needed, and what is not computed at all."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum, scara

from ..helpers import assert_close


def circle(counts, scale):
    """A point on a circle; its rows vanish at the centre. `scale` is a list: what is read from it may change."""

    def mass(q, t):
        counts.append("mass")
        return jnp.diag(1.0 + scale[0] * jnp.ones(2))

    system = ukjax.System(mass, lambda q, v, t: scale[0] * jnp.array([0.0, -9.81]))
    return ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None]))


def acceleration(mechanism, q, v):
    return ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration


def test_the_terms_are_traced_once():
    counts = []
    mechanism = circle(counts, [1.0])
    jax.jit(lambda q, v: acceleration(mechanism, q, v)).trace(jnp.array([1.0, 0.0]), jnp.zeros(2))
    assert len(counts) == 1


@pytest.mark.parametrize("as_argument", [False, True])
def test_the_slow_way_is_that_of_the_same_functions_as_the_fast_one(as_argument):
    """At the centre it is compiled when a state comes there first; a list has changed meanwhile."""
    scale = [1.0]
    mechanism, centre = circle([], scale), jnp.zeros(2)

    @eqx.filter_jit
    def of(q, given):
        return acceleration(given if as_argument else mechanism, q, jnp.zeros(2))

    before = of(jnp.array([0.0, 1.0]), mechanism)
    scale[0] = 3.0
    assert_close(of(jnp.array([0.0, 1.0]), mechanism), before)
    # M = 2, Q = (0, -9.81), and no row has a slope: the free motion.
    assert_close(of(centre, mechanism), jnp.array([0.0, -9.81 / 2]), rtol=1e-12)


def outputs_of_machine_code(function, *arguments):
    text = jax.jit(function).lower(*arguments).as_text()
    calls = re.findall(r"custom_call @ukjax_machine_code\(.*?\).*?->\s*(.*)", text)
    return [len(re.findall(r"tensor<", call)) for call in calls]


def test_results_that_are_not_used_are_not_computed():
    case = scara.scenario()
    state = jnp.asarray(case.q0), jnp.asarray(case.v0)
    (every,) = outputs_of_machine_code(lambda *x: ukjax.equation_of_motion(case.mechanism, *x, throw=False), *state)
    (one,) = outputs_of_machine_code(lambda *x: acceleration(case.mechanism, *x), *state)
    # The acceleration, and whether it is certain.
    assert one == 2
    assert every > 5
    assert not outputs_of_machine_code(lambda *x: (acceleration(case.mechanism, *x), 1.0)[1], *state)


def mapped(function):
    return lambda *arrays: jax.vmap(function)(*(x[None] for x in arrays))[0]


WRAPPED = {"checkpoint": jax.checkpoint, "jit": jax.jit, "vmap": mapped}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_derivatives_of_what_is_left(wrapped):
    """The rest is left out before the derivative is taken, or after it."""
    case = n_pendulum.closed()
    q, v = jnp.asarray(case.q0), jnp.asarray(case.v0) + 0.1

    def of(q, v):
        def step(carry, _):
            motion = ukjax.equation_of_motion(case.mechanism, q + carry, v, throw=False)
            return 1e-3 * motion.acceleration, motion.constraint_force

        last, _ = jax.lax.scan(step, jnp.zeros_like(q), length=2)
        return jnp.sum(last**2)

    function = WRAPPED[wrapped](of)
    way = np.random.default_rng(0).normal(size=(2, q.size))
    forward = jax.jvp(function, (q, v), tuple(map(jnp.asarray, way)))[1]
    backward = sum(jnp.vdot(x, y) for x, y in zip(jax.grad(function, argnums=(0, 1))(q, v), way, strict=True))
    h = 1e-5
    numeric = (function(q + h * way[0], v + h * way[1]) - function(q - h * way[0], v - h * way[1])) / (2 * h)
    assert_close(forward, numeric, rtol=1e-6)
    assert_close(backward, forward, rtol=1e-9)


@pytest.mark.long
def test_second_derivatives_of_what_is_left():
    case = scara.scenario()
    q, v = jnp.asarray(case.q0), jnp.asarray(case.v0)
    of = jax.jit(lambda q: jnp.sum(acceleration(case.mechanism, q, v) ** 2))
    both = jax.hessian(of)(q), jax.jacfwd(jax.jacfwd(of))(q)
    assert_close(*both, rtol=1e-8, atol=1e-6 * float(jnp.max(jnp.abs(both[0]))))
