"""What each of several devices does is traced apart from their mesh: for other libraries look at types of arrays."""

import functools as ft

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import pytest

import ukjax

from ..helpers import assert_close, central_difference
from ..inside import barrier, on_each


TS = np.linspace(0.0, 0.5, 4)
A = np.array([[2.0, 0.3], [0.1, 1.5]])


def by_lineax(q):
    """A force that solves for itself: a spring that is not as stiff in all directions."""
    return lx.linear_solve(lx.MatrixLinearOperator(jnp.asarray(A)), -9.0 * q).value


def by_hand(q):
    return jnp.asarray(np.linalg.inv(A)) @ (-9.0 * q)


def by_optimistix(q):
    """One that x + x**3 of is a spring's."""
    newton = optx.Newton(rtol=1e-12, atol=1e-12)
    return optx.root_find(lambda x, q: x**3 + x + 3.0 * q, newton, jnp.zeros(2), args=q).value


def loss(rates, force, devices):
    """Of beads on a ring with these speeds."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: force(q))
    mechanism = ukjax.Mechanism(system, ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None]))
    v0 = jnp.outer(rates, jnp.array([0.0, 1.0]))
    options = {"keep": ("q",), "devices": jax.devices()[:devices], "progress": False}
    return jnp.sum(ukjax.simulate_batch(mechanism, jnp.array([1.0, 0.0]), v0, TS, **options).q[:, -1, 1] ** 2)


@pytest.mark.long
def test_a_force_that_solves_equations_on_two_devices():
    rates = jnp.array([0.5, 1.0, 1.5])
    assert_close(loss(rates, by_lineax, 2), loss(rates, by_hand, 2), rtol=1e-12)


@pytest.mark.parametrize("alone", [True, False])
def test_devices_wait_for_each_other_only_in_a_larger_program(alone):
    """By itself a batch needs no device to know of another, whatever time one takes."""
    share = lambda shared, x: x + barrier(x)
    of = lambda x: on_each(share, jax.devices()[:2], None, x, alone=alone)
    np.testing.assert_array_equal(of(jnp.arange(4)), np.arange(4))
    assert ("pmax" in str(jax.make_jaxpr(of)(jnp.arange(4)))) != alone


@pytest.mark.long
@pytest.mark.parametrize("force", [by_lineax, by_optimistix])
def test_derivatives_through_a_force_that_solves_equations(force):
    """Value and derivatives, forward and reverse, beside those on one and beside differences."""
    rates, along = jnp.array([0.5, 1.0, 1.5]), jnp.array([1.0, -2.0, 0.5])
    alone, both = (ft.partial(loss, force=force, devices=count) for count in (1, 2))
    assert_close(both(rates), alone(rates), rtol=1e-13)
    value, gradient = jax.jit(jax.value_and_grad(both))(rates)
    assert_close(value, alone(rates), rtol=1e-13)
    assert_close(gradient @ along, central_difference(alone, rates)[0] @ along, rtol=1e-7)
    assert_close(jax.jit(lambda x: jax.jvp(both, (x,), (along,))[1])(rates), gradient @ along, rtol=1e-11)
