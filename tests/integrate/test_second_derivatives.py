"""Second derivatives of every field of a trajectory, with respect to every kind of leaf."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

import ukjax
from tests.helpers import FORMULATIONS, Distance, Falling, assert_close, central_difference, falling


pytestmark = pytest.mark.long


class Steered(eqx.Module):
    """phi of a servo: the first coordinate is to follow a curve."""

    rate: Array

    def __call__(self, q, t):
        return (q[0] - 0.6 * jnp.cos(self.rate * t))[None]


class Case(eqx.Module):
    """A particle in space on a rod, with friction, pushed along x by a servo: all there is to differentiate."""

    system: Falling
    length: Array
    gains: ukjax.Baumgarte
    servo_rate: Array
    servo_gains: ukjax.Baumgarte
    friction: Array
    q0: Array
    v0: Array
    ts: Array

    def mechanism(self):
        rod = ukjax.Holonomic(Distance(self.length), self.gains)
        friction = lambda q, v, t, force: -self.friction * jnp.sqrt(1 + force @ force) * v
        return ukjax.Mechanism(self.system, [rod], friction)

    def servo(self):
        return ukjax.Servo(
            ukjax.Holonomic(Steered(self.servo_rate), self.servo_gains), jnp.array([[1.0], [0.0], [0.0]])
        )


CASE = Case(
    falling(m=1.3, n=3),
    jnp.asarray(1.0),
    ukjax.Baumgarte(4.0, 9.0),
    jnp.asarray(1.1),
    ukjax.Baumgarte(3.0, 5.0),
    jnp.asarray(0.1),
    jnp.array([0.6, 0.1, -0.79]),
    jnp.array([0.1, 0.3, 0.2]),
    jnp.array([0.1, 0.2, 0.3]),
)
FLAT, UNRAVEL = ravel_pytree(CASE)
FIELDS = ("q", "v", "acceleration", "constraint_force", "nonideal_force", "control")


def weighted(arrays):
    """Something smooth in which every entry has a weight of its own."""
    flat = jnp.concatenate([jnp.ravel(x) for x in arrays])
    return jnp.sum(jnp.sin(flat / 3) * jnp.cos(jnp.linspace(0.5, flat.shape[0] - 0.5, flat.shape[0])))


def of_trajectory(x, formulation, servo):
    case = UNRAVEL(x)
    got = ukjax.simulate(
        case.mechanism(),
        case.q0,
        case.v0,
        case.ts,
        servo=case.servo() if servo else None,
        formulation=formulation,
        rtol=1e-10,
        atol=1e-10,
        max_steps=255,
        throw=False,
    )
    return weighted([getattr(got, name) for name in FIELDS if getattr(got, name) is not None])


def of_acceleration(x, formulation):
    case = UNRAVEL(x)
    got = ukjax.equation_of_motion(case.mechanism(), case.q0, case.v0, case.ts[0], formulation=formulation, throw=False)
    return weighted([got.acceleration, got.constraint_force, got.nonideal_force])


def assert_second_derivatives(f, *, atol):
    want = central_difference(jax.jit(jax.grad(f)), FLAT)
    assert np.max(np.abs(want)) > 0.1
    for mode in (jax.grad, jax.jacfwd):
        got = jax.jit(jax.jacfwd(mode(f)))(FLAT)
        assert np.all(np.isfinite(got))
        assert_close(got, want, rtol=1e-5, atol=atol)


@pytest.mark.parametrize(
    "formulation", [ukjax.UdwadiaKalaba, ukjax.formulation.RangeSpace, ukjax.formulation.PennestriDeFalco]
)
def test_of_a_trajectory(formulation):
    assert_second_derivatives(lambda x: of_trajectory(x, formulation(), servo=False), atol=1e-5)


def test_of_a_controlled_trajectory():
    assert_second_derivatives(lambda x: of_trajectory(x, ukjax.UdwadiaKalaba(), servo=True), atol=1e-5)


@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_of_one_acceleration(formulation):
    assert_second_derivatives(lambda x: of_acceleration(x, formulation()), atol=1e-6)
