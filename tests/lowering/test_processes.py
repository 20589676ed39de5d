"""Machine code in threads that compile at a time, in buffers that are given away, and in several processes."""

import concurrent.futures
import multiprocessing
import os
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ukjax
from models import scara

from ..helpers import assert_close


def bits(tree):
    return [np.asarray(x).tobytes() for x in jax.tree_util.tree_leaves(tree)]


def test_several_threads_compile_at_a_time():
    """Different programs, and the same one."""
    x, found = jnp.asarray(np.random.default_rng(0).normal(size=(50, 3))), {}

    def compile_and_call(k):
        function = ukjax.expand(lambda x: jnp.sin(x) * (k % 4 + 0.5) + x[::-1] / (2 + x**2))
        found[k] = bits(jax.jit(jax.vmap(function))(x))

    threads = [threading.Thread(target=compile_and_call, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for k in range(4):
        assert found[k] == found[k + 4]
        want = np.sin(x) * (k + 0.5) + x[:, ::-1] / (2 + x**2)
        assert_close(np.frombuffer(found[k][0]).reshape(x.shape), want, rtol=1e-13, atol=1e-14)


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("size", [3, 20_000])
def test_donated_buffers(size):
    """The results may lie where the arguments were."""
    function = jax.vmap(ukjax.expand(lambda q, v: (q + v[::-1] * q[0], v - q)))
    q, v = (jnp.asarray(x) for x in np.random.default_rng(0).normal(size=(2, size, 3)))
    want = bits(jax.jit(function)(q, v))
    donating = jax.jit(function, donate_argnums=(0, 1))
    copies = jnp.array(q), jnp.array(v)
    assert bits(donating(*copies)) == want
    assert copies[0].is_deleted()


def acceleration_bits(_):
    jax.config.update("jax_enable_x64", True)  # which a spawned process does not inherit
    case = scara.scenario()
    q = jnp.asarray(case.q0)[None] + 0.01 * jnp.arange(10.0)[:, None]
    of = jax.vmap(lambda q: ukjax.equation_of_motion(case.mechanism, q, jnp.asarray(case.v0), throw=False).acceleration)
    return bits(jax.jit(of)(q))


@pytest.mark.long
def test_in_spawned_processes():
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        assert list(processes.map(acceleration_bits, range(2))) == [acceleration_bits(0)] * 2


DISTRIBUTED = """
    import sys
    import jax
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
    import jax.numpy as jnp, numpy as np, ukjax
    from models import n_pendulum
    case = n_pendulum.closed()
    every = np.asarray(case.q0) + 0.01 * np.random.default_rng(0).normal(size=(20, len(case.q0)))
    of = jax.vmap(lambda q: ukjax.equation_of_motion(case.mechanism, q, jnp.asarray(case.v0), throw=False).acceleration)
    mesh = jax.make_mesh((2,), ("batch",))
    place = jax.NamedSharding(mesh, jax.P("batch"))
    q = jax.make_array_from_callback(every.shape, place, lambda where: every[where])
    program = jax.jit(of, out_shardings=place).lower(q).compile()
    assert "all-gather" not in program.as_text()
    (part,) = program(q).addressable_shards
    alone = jax.jit(of)(every)
    assert part.data.shape == (10, len(case.q0))
    assert np.array_equal(part.data, alone[part.index])
    print("the same bits")
"""


@pytest.mark.long
def test_a_batch_over_two_processes():
    """By `jax.distributed`: each process computes its part."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script = textwrap.dedent(DISTRIBUTED)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", script, port, str(k)],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for k in range(2)
    ]
    for process in both:
        out, error = process.communicate(timeout=120)
        assert "the same bits" in out, error
