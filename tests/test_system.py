"""Systems from functions and from energies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models.scara import Scara

from .helpers import assert_close, random_state


def scara_energies(s):
    """T and V of the SCARA from the motion of its centres of mass: knows nothing of M, C, G."""
    at = lambda r, a: jnp.array([-r * jnp.sin(a), r * jnp.cos(a)])
    bodies = (
        (s.m1, s.Iz1, lambda q: at(s.r1, q[0]), 1),
        (s.m2, s.Iz2, lambda q: at(s.l1, q[0]) + at(s.r2, q[0] + q[1]), 2),
        (s.m3, s.Iz3, lambda q: at(s.l1, q[0]) + at(s.l2, q[0] + q[1]), 3),
        (s.m4, s.Iz4, lambda q: at(s.l1, q[0]) + at(s.l2, q[0] + q[1]), 3),
    )

    def kinetic(q, v, t):
        total = s.m4 * v[3] ** 2 / 2
        for m, I, centre, joints in bodies:
            speed = jax.jvp(centre, (q,), (v,))[1]
            total = total + m * (speed @ speed) / 2 + I * jnp.sum(v[:joints]) ** 2 / 2
        return total

    return kinetic, lambda q, t: s.m4 * s.g * q[3]


def test_lagrangian_reproduces_the_printed_mass_coriolis_and_gravity_of_the_scara():
    scara = Scara()
    system = ukjax.LagrangianSystem(*scara_energies(scara))
    terms = eqx.filter_jit(lambda s, q, v, t: (s.mass(q, t), s.force(q, v, t)))
    for seed in range(5):
        q, v, t = random_state(seed, 4)
        (M, Q), (printed_M, printed_Q) = terms(system, q, v, t), terms(scara, q, v, t)
        assert_close(M, printed_M, atol=1e-12)
        assert_close(Q, printed_Q, atol=1e-11)
    assert_close(
        eqx.filter_jit(system.energy)(q, v, t), v @ scara.mass(q, t) @ v / 2 + scara.m4 * scara.g * q[3], atol=1e-12
    )


def test_lagrangian_with_time_dependent_kinetic_energy():
    # Bead on a rod that turns at w(t) = a t about the vertical: r'' = (a t)^2 r, with no constraint left.
    a, m = 0.7, 2.0
    kinetic = lambda q, v, t: m * (v[0] ** 2 + (a * t * q[0]) ** 2) / 2
    system = ukjax.LagrangianSystem(kinetic, lambda q, t: jnp.zeros(()))
    q, v, t = jnp.array([1.3]), jnp.array([0.2]), jnp.asarray(0.9)
    assert_close(system.force(q, v, t) / m, (a * t) ** 2 * q, atol=1e-12)

    # A frame shaken by s(t) adds a term linear in v, whose time derivative is the inertia force -m s''.
    shaken = lambda q, v, t: m * jnp.sum((v + jnp.cos(t)) ** 2) / 2
    system = ukjax.LagrangianSystem(shaken, lambda q, t: 5.0 * q[0], lambda q, v, t: -0.5 * v)
    assert_close(system.force(q, v, t), m * jnp.sin(t)[None] - 5.0 - 0.5 * v, atol=1e-12)
    assert_close(system.mass(q, t), m * jnp.eye(1), atol=1e-12)

    # Mass that changes with time (a bucket that fills): the term M' v.
    filling = ukjax.LagrangianSystem(lambda q, v, t: (1 + t) * v @ v / 2, lambda q, t: jnp.zeros(()))
    assert_close(filling.force(q, v, t), -v, atol=1e-12)


def test_subclass_with_parameters_as_leaves_and_system_from_functions():
    scara = Scara()
    assert len(jax.tree_util.tree_leaves(scara)) == 14
    system = ukjax.System(scara.mass, scara.force)  # bound methods keep their leaves, of which there is one each
    assert len(jax.tree_util.tree_leaves(system)) == 14
    q, v, t = random_state(0, 4)
    assert_close(jax.jit(lambda s: s.force(q, v, t))(system), scara.force(q, v, t), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ukjax.System(jnp.eye(2), lambda q, v, t: v), r"mass must be a function mass\(q, t\)"),
        (lambda: ukjax.System(lambda q, t: jnp.eye(2), None), r"force must be a function force\(q, v, t\)"),
        (lambda: ukjax.LagrangianSystem(1.0, lambda q, t: 0.0), r"kinetic must be a function kinetic\(q, v, t\)"),
    ],
)
def test_what_is_not_a_function_is_refused(make, match):
    with pytest.raises(TypeError, match=match):
        make()


def test_an_energy_must_be_a_scalar():
    system = ukjax.LagrangianSystem(lambda q, v, t: v**2, lambda q, t: jnp.zeros(()))
    with pytest.raises(ValueError, match=r"kinetic\(q, v, t\) must return an array of shape \(\), but returned shape"):
        system.mass(jnp.ones(2), jnp.asarray(0.0))
    assert np.isfinite(system.potential(jnp.ones(2), jnp.asarray(0.0)))
