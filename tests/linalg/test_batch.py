"""Batches on the CPU: what is given to LAPACK, and that two devices at a time return."""

import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import n_pendulum

from ..helpers import assert_close, long, random_mechanism
from ..inside import in_tiles, pseudosolve, whiten


CHAIN = n_pendulum.closed(5)


def batched_lapack(f, *args):
    """The LAPACK routines that `f`, over a batch, calls with more than one matrix at a time."""
    program = jax.jit(jax.vmap(f)).lower(*args).as_text()
    calls = re.findall(r"custom_call @((?:lapack|blas)_\w+)\(.*?: \(tensor<([0-9x]*)x[a-z]", program)
    return {name for name, shape in calls if len(shape.split("x")) > 2 and shape.split("x")[0] != "1"}


def test_a_batch_given_to_lapack_is_noticed():
    assert batched_lapack(jnp.linalg.cholesky, jnp.tile(jnp.eye(2), (3, 1, 1))) == {"lapack_dpotrf_ffi"}


@pytest.mark.parametrize("wanted", [True, jnp.asarray(True), jnp.asarray(False)])
def test_tiles_of_a_batch_where_they_are_wanted(wanted):
    """Of ten in tiles of four the last two overlap; each is told its own, and what all share."""
    x, start = jnp.arange(10.0), {"twice": -jnp.ones(10)}
    tiles = jax.jit(
        lambda x, y, wanted: in_tiles(lambda x, y: {"twice": 2 * x + y}, 4, start, (0, None), (x, y), wanted)
    )
    got = tiles(x, jnp.ones(()), wanted)["twice"]
    assert_close(got, 2 * x + 1 if wanted else start["twice"])


def acceleration(q, v):
    return ukjax.equation_of_motion(CHAIN.mechanism, q, v, throw=False).acceleration


def trajectory(q, v):
    ts = jnp.array([0.0, 0.1])
    return ukjax.simulate(CHAIN.mechanism, q, v, ts, projection=ukjax.Projection(), throw=False).q


def assembled(q, v):
    return jnp.concatenate(ukjax.assemble(CHAIN.mechanism, q, v, throw=False))


def diagnosed(q, v):
    found = ukjax.diagnose(CHAIN.mechanism, q, v)
    return found.singular_values, found.mass_condition


def complements(q, v):
    formulation = ukjax.formulation.KernelProjection(kernel=ukjax.formulation.OrthogonalComplement())
    return ukjax.equation_of_motion(CHAIN.mechanism, q, v, formulation=formulation, throw=False).acceleration


PATHS = {
    "acceleration": acceleration,
    "gradient": jax.grad(lambda q, v: jnp.sum(acceleration(q, v))),
    "simulate": trajectory,
    "assemble": assembled,
    "diagnose": diagnosed,
    "kernel": complements,
}


@pytest.mark.parametrize("path", [p if p in ("acceleration", "gradient", "assemble") else long(p) for p in PATHS])
def test_no_batch_is_given_to_lapack(path):
    state = (jnp.tile(x, (100, 1)) for x in (CHAIN.q0, CHAIN.v0))
    assert batched_lapack(PATHS[path], *state) == set()


def test_no_batch_of_weights_is_given_to_lapack():
    free = random_mechanism(1, n=4, m=1)
    target = ukjax.Holonomic(lambda q, t: q[:2])

    def controls(W):
        servo = ukjax.Servo(target, jnp.eye(4), weight=W)
        follow = ukjax.ConstraintFollowing(target, jnp.eye(4), W[:2, :2])
        state = 0.3 * jnp.ones(4), 0.2 * jnp.ones(4)
        return [ukjax.servo_control(free, one, *state, throw=False).u for one in (servo, follow)]

    root = jnp.array(np.random.default_rng(0).normal(size=(5, 4, 4)))
    Ws = root @ root.mT + jnp.eye(4)[None]
    assert batched_lapack(controls, Ws) == set()


@pytest.mark.parametrize("shape", [(4, 4), (16, 17), (30, 20)], ids=["kernel", "one at a time", "tall"])
def test_a_batch_by_svd_is_the_loop_with_its_derivatives(shape):
    rng = np.random.default_rng(1)
    B, y = jnp.array(rng.normal(size=(4, *shape))), jnp.array(rng.normal(size=(4, shape[0])))
    B = B.at[1, 1].set(B[1, 0])  # one deficient
    one = lambda B, y: pseudosolve(ukjax.SVD(), B, y)
    x, rank = jax.jit(jax.vmap(one))(B, y)
    assert_close(x, jnp.array([np.linalg.pinv(b, rcond=1e-8) @ z for b, z in zip(np.asarray(B), y)]), atol=1e-10)
    assert rank.tolist() == [min(shape) - (i == 1 and shape[0] <= shape[1]) for i in range(4)]
    nested = jax.jit(jax.vmap(jax.vmap(lambda B, y: one(B, y)[0])))(B.reshape(2, 2, *shape), y.reshape(2, 2, -1))
    assert_close(nested.reshape(x.shape), x, atol=1e-12)
    slope = lambda B, y: jnp.sum(jnp.sin(one(B, y)[0]))
    second = lambda B, y: jax.grad(lambda s: jnp.sum(jax.grad(slope)(s * B, s * y)))(1.0)
    for f in (jax.grad(slope), second):
        alone = jnp.stack([jax.jit(f)(*z) for z in zip(B[:2], y[:2])])
        assert_close(jax.jit(jax.vmap(f))(B[:2], y[:2]), alone, rtol=1e-7, atol=1e-8)


def test_a_batch_of_large_mass_matrices_is_the_loop():
    root = jnp.array(np.random.default_rng(2).normal(size=(3, 20, 20)))
    Ms = root @ root.mT + jnp.eye(20)[None]
    assert batched_lapack(whiten, Ms) == set()
    for got, want in zip(jax.vmap(whiten)(Ms)[:2], zip(*[whiten(M)[:2] for M in Ms])):
        assert_close(got, jnp.stack(want), atol=1e-12)


TWO_DEVICES = """
import jax, jax.numpy as jnp, numpy as np, ukjax
from jax.sharding import Mesh, PartitionSpec
from models import n_pendulum
jax.config.update("jax_enable_x64", True)
chain = n_pendulum.closed(5)
rng = np.random.default_rng(0)
q, v = chain.q0 + jnp.array(1e-3 * rng.normal(size=(4096, 15))), jnp.array(rng.normal(size=(4096, 15)))
one = lambda q, v: ukjax.equation_of_motion(chain.mechanism, q, v, throw=False).acceleration
tiles = lambda *xs: jax.lax.map(lambda x: jax.vmap(one)(*x), tuple(x.reshape(-1, 256, 15) for x in xs))
mesh, spec = Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")
run = jax.jit(jax.shard_map(tiles, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))
for _ in range(5):
    a = run(q, v).reshape(-1, 15)
assert float(jnp.max(jnp.abs(a[17] - one(q[17], v[17])))) < 1e-9
print("done", len(jax.devices()))
"""


@pytest.mark.long
def test_two_devices_with_the_default_strategy_return():
    # In a process of its own: what can hang here is not to be interrupted from within.
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", TWO_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, env=environment)
    assert done.stdout.split() == ["done", "2"]
