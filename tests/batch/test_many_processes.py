"""A batch on more than one process, and on two devices again and again: the same numbers, an end, and no waiting."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "batch.md").read_text()
# The program of the page, which every process runs; what it prints is compared.
(PROGRAM,) = re.findall(r"```python\n(# gradient\.py\n.*?)```", PAGE, re.DOTALL)
AGAIN = "\nwhile True:\n    jax.block_until_ready(step(v0, lengths))\n    print('again', flush=True)\n"


def free_port():
    with socket.socket() as at:
        at.bind(("localhost", 0))
        return str(at.getsockname()[1])


def started(program, count):
    """`count` processes of a program, each of one device."""
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_ENABLE_X64": "1"}
    command = [sys.executable, "-u", "-c", program, f"localhost:{port}", str(count)]
    return [
        subprocess.Popen([*command, str(i)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(count)
    ]


def numbers(shown):
    """What a process found."""
    return np.array([float(x) for x in re.findall(r"[-\d.]+e[-+]\d+", shown)])


@pytest.mark.long
def test_two_processes_find_what_one_does():
    found = []
    for count in (1, 2):
        ended = [process.communicate(timeout=300) for process in started(PROGRAM, count)]
        found += [numbers(shown) for shown, _ in ended]
        assert all(x.shape == (3,) for x in found), ended
    one, *two = found
    for other in two:
        np.testing.assert_allclose(other, one, rtol=1e-13, atol=1e-15)


@pytest.mark.long
@pytest.mark.parametrize("dies", [0, 1])
def test_where_one_dies_the_other_says_so(dies):
    """Killed in the middle of its work, be it the one that the others look to or another."""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(process) for process in started(PROGRAM + AGAIN, 2)]
        for process in processes:
            stack.callback(process.kill)
        while "again" not in (line := processes[dies].stdout.readline()):
            assert line, processes[dies].stderr.read()
        processes[dies].kill()
        begin = time.monotonic()
        _, said = processes[1 - dies].communicate(timeout=60)
        assert time.monotonic() - begin < 60
        assert processes[1 - dies].returncode != 0
        assert "another task died" in said or "Gloo" in said, said


FIFTY = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 2)
import lineax as lx
import ukjax
from models import n_pendulum

END, SIZE = (0.6, 0.0), 512
chain = n_pendulum.Chain(m=np.ones(5), L=np.full(5, 0.2), end=END)
mechanism, rng = chain.mechanism(), np.random.default_rng(0)
angles = n_pendulum.arc(5, 0.2, END)[None] + 0.02 * rng.normal(size=(SIZE, 5))
q, v = jax.vmap(chain.state)(jnp.asarray(angles), jnp.asarray(0.1 * rng.normal(size=(SIZE, 5))))
formulation = ukjax.UdwadiaKalaba({strategy}())

def loss(v, q):
    made = ukjax.simulate_batch(
        mechanism, q, v, np.array([0.0, 0.005, 0.01]), formulation=formulation, rtol=1e-6, atol=1e-6,
        projection=ukjax.Projection(), keep=("q",),
    )
    okay = made.result == ukjax.RESULTS.successful
    return jnp.sum(jnp.where(okay, jnp.sum(jnp.sin(made.q[:, -1]), axis=-1), 0.0))

step = jax.jit(jax.value_and_grad(loss))
for i in range(50):
    # In every other run a state that is no configuration, and fails.
    value, slopes = step(v, q.at[7 * i].set(jnp.nan) if i % 2 else q)
    assert bool(jnp.isfinite(value)) and bool(jnp.all(jnp.isfinite(slopes))), i
print("done")
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy", ["ukjax.SVD", "ukjax.pseudoinverse.RowGramSchmidt", "ukjax.pseudoinverse.Jacobi", "lx.SVD"]
)
def test_fifty_runs_return(strategy):
    """The closed chain of five rods in absolute coordinates, 512 trajectories, value and gradient, in tiles of 64 on
    two devices, under a limit of time. As users run them: unoptimised, as the other tests, they take three times as
    long."""
    shown = subprocess.run(
        [sys.executable, "-c", FIFTY.replace("{strategy}", strategy)], capture_output=True, text=True, timeout=500,
        env={**os.environ, "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert shown.stdout.strip() == "done", shown.stderr
