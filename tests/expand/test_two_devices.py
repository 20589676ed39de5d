"""The batch that never returned: two devices of one CPU, with the default formulation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


RUNS = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_cpu_use_fusion_emitters=false"
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import ukjax
from models import n_pendulum

END, SIZE = (0.6, 0.0), 4096
chain = n_pendulum.Chain(m=np.ones(5), L=np.full(5, 0.2), end=END)
mechanism, rng = chain.mechanism(), np.random.default_rng(0)

def one(q, v):
    of = lambda q, v: jnp.sum(jnp.sin(ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration))
    return jax.value_and_grad(of, argnums=(0, 1))(q, v)

mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
part = jax.sharding.PartitionSpec("i")
shared = jax.shard_map(jax.vmap(one), mesh=mesh, in_specs=(part, part), out_specs=part)
angles = n_pendulum.arc(5, 0.2, END)[None] + 0.02 * rng.normal(size=(SIZE, 5))
q, v = jax.vmap(chain.state)(jnp.asarray(angles), jnp.asarray(0.1 * rng.normal(size=(SIZE, 5))))
compiled = jax.jit(shared).lower(q, v).compile()
for i in range(50):
    # In every other run a state that is left to matrices.
    value, slopes = compiled(q.at[7 * i].set(0.0) if i % 2 else q, v)
    assert bool(jnp.all(jnp.isfinite(value) | (jnp.arange(SIZE) == 7 * i)))
print("done")
"""


@pytest.mark.long
def test_fifty_runs_return():
    """The closed chain of five rods, 12 rows of 15, value and gradient, 4 096 states: under a limit of time."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    shown = subprocess.run(
        [sys.executable, "-c", RUNS], check=True, capture_output=True, text=True, timeout=500, env=environment
    )
    assert shown.stdout.strip() == "done"
