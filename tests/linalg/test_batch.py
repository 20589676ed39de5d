"""Batches on the CPU: what is given to LAPACK, and that two devices at a time return."""

import re

import jax
import jax.numpy as jnp
import pytest

import ukjax
from models import n_pendulum

from ..helpers import random_mechanism


CHAIN = n_pendulum.closed(5)


def batched_lapack(f, *args):
    """The LAPACK routines that `f`, over a batch, calls with more than one matrix at a time."""
    program = jax.jit(jax.vmap(f)).lower(*args).as_text()
    calls = re.findall(r"custom_call @((?:lapack|blas)_\w+)\(.*?: \(tensor<([0-9x]*)x[a-z]", program)
    return {name for name, shape in calls if len(shape.split("x")) > 2 and shape.split("x")[0] != "1"}


def acceleration(q, v):
    return ukjax.equation_of_motion(CHAIN.mechanism, q, v, throw=False).acceleration


def trajectory(q, v):
    ts = jnp.array([0.0, 0.1])
    return ukjax.simulate(CHAIN.mechanism, q, v, ts, projection=ukjax.Projection(), throw=False).q


def assembled(q, v):
    return jnp.concatenate(ukjax.assemble(CHAIN.mechanism, q, v, throw=False))


def diagnosed(q, v):
    return ukjax.diagnose(CHAIN.mechanism, q, v).singular_values


def driven(weight):
    def control(q, v):
        servo = ukjax.Servo(ukjax.Holonomic(lambda q, t: q[:2]), jnp.eye(4), weight=weight * jnp.eye(4))
        follow = ukjax.ConstraintFollowing(servo.constraint, jnp.eye(4), weight * jnp.eye(2))
        free = random_mechanism(1, n=4, m=1)
        return [ukjax.servo_control(free, one, q, v, throw=False).u for one in (servo, follow)]

    return control


PATHS = {
    "acceleration": acceleration,
    "gradient": jax.grad(lambda q, v: jnp.sum(acceleration(q, v))),
    "simulate": trajectory,
    "assemble": assembled,
    "diagnose": diagnosed,
}


@pytest.mark.parametrize("path", PATHS)
def test_no_batch_is_given_to_lapack(path):
    state = (jnp.tile(x, (100, 1)) for x in (CHAIN.q0, CHAIN.v0))
    assert batched_lapack(PATHS[path], *state) == set()
