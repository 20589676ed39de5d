"""What the gradient of every scenario takes to compile, by all numbers of its mechanism, here and in another checkout.

The gradient is that of the last coordinates and speeds, squared and summed, of a run so short that compiling is all
there is. Each scenario has a process of its own for each checkout, in turn here and there, which is ended after
`LIMIT` seconds; the memory is the most that the process has held, with Python and JAX.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ukjax import cli

from ._compile import checkouts_of


HEADER = ("scenario", "here", "there", "ratio", "memory here", "there")
LIMIT = 1500

# Prints processor seconds, and the most memory in bytes; both checkouts know what it uses.
WORKER = """
import importlib, json, resource, sys
import equinox as eqx, jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
import ukjax

def used():
    return resource.getrusage(resource.RUSAGE_SELF)

module, name = sys.argv[1].split(":")
s = getattr(importlib.import_module(module), name)()
ts = jnp.linspace(s.t0, s.t0 + (s.t1 - s.t0) / 1000, 11)

@eqx.filter_jit
@eqx.filter_grad
def gradient(mechanism):
    run = ukjax.simulate(mechanism, s.q0, s.v0, ts, servo=s.servo, formulation=s.formulation,
                         projection=s.projection, throw=False)
    return jnp.sum(run.q[-1] ** 2) + jnp.sum(run.v[-1] ** 2)

start = used()
found = gradient(s.mechanism)
jax.block_until_ready(found)
end = used()
finite = all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree_util.tree_leaves(found))
seconds = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
print(json.dumps([seconds, end.ru_maxrss * 1024, finite]))
"""


def _measured(checkout: Path, scenario: str) -> tuple[float, float] | str:
    """Seconds and bytes, or in words why there are none."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "UKJAX_CACHE": "off"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", WORKER, scenario],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"more than {LIMIT} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["ended"])[-1][:60]
    seconds, memory, is_finite = json.loads(done.stdout.splitlines()[-1])
    return (seconds, memory) if is_finite else "not finite"


def rows(report: Callable[[str], None], against: Path | None = None, only: str = "") -> list[tuple[str, ...]]:
    """A row for each scenario whose name contains `only`."""
    names = [name for name in cli.factories("models")[0] if only in name]
    if not names:
        raise SystemExit(f"--only must be a part of a scenario's name, such as scara, but no name contains {only!r}.")
    checkouts, found = checkouts_of(against), []
    for i, name in enumerate(names):
        values = []
        for checkout in checkouts:
            report(f"{name}, {'there' if values else 'here'} ({i + 1} of {len(names)})")
            values.append(_measured(checkout, name))
        found.append(_row(name.removeprefix("models."), values))
    return found


def _row(name: str, values: list[tuple[float, float] | str]) -> tuple[str, ...]:
    seconds = [x if isinstance(x, str) else f"{x[0]:.1f} s" for x in values]
    memory = ["-" if isinstance(x, str) else f"{x[1] / 1e9:.2f} GB" for x in values]
    known = [x[0] for x in values if not isinstance(x, str)]
    ratio = f"{known[0] / known[1]:.2f}" if len(known) == 2 else ""
    seconds, memory = (x if len(values) == 2 else [*x, ""] for x in (seconds, memory))
    return name, *seconds, ratio, *memory
