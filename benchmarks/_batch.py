"""Many trajectories: `simulate_batch` on as many devices as there are cores, beside `jax.vmap` of `simulate`.

What is compared runs in a process of its own, for a process has the devices that it began with: vmap, which uses one,
is to have all cores for that. `python -m benchmarks._batch CASE WAY DEVICES` measures one.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import n_pendulum
from models.scara import scenario


HEADER = ("batch", "each", "beside jax.vmap(simulate)", "beside one device")
ROUNDS = 3


class Case(NamedTuple):
    """Trajectories of a mechanism from starts (B, n), and `vmap` in tiles of some if that is not a number for all."""

    what: str
    mechanism: Any
    q0: Any
    v0: Any
    ts: Any
    options: dict[str, Any]


def _scara(count: int) -> Case:
    case, rng = scenario("printed"), np.random.default_rng(0)
    q0, v0 = (x + 0.1 * rng.normal(size=(count, 4)) for x in (case.q0, case.v0))
    what = f"{count} trajectories of the SCARA, 5 s, rtol 1e-9"
    return Case(what, case.mechanism, q0, v0, np.linspace(0.0, 5.0, 101), {"rtol": 1e-9, "atol": 1e-9})


def _pendulums(count: int) -> Case:
    chain, rng = n_pendulum.Chain(m=np.ones(2), L=np.ones(2)), np.random.default_rng(0)
    q0, v0 = jax.vmap(chain.state)(jnp.asarray(rng.uniform(-3.0, 0.0, (count, 2))), jnp.zeros((count, 2)))
    what = f"{count} double pendulums in absolute coordinates, 5 s"
    return Case(what, chain.mechanism(), q0, v0, np.linspace(0.0, 5.0, 101), {})


def _uneven(count: int) -> Case:
    """One in a hundred goes round twenty times as fast: a bead on a ring, which takes twenty times the steps."""
    system = ukjax.System(mass=lambda q, t: jnp.eye(2), force=lambda q, v, t: jnp.array([0.0, -9.81]))
    ring = ukjax.Holonomic(lambda q, t: (q @ q - 1.0)[None])
    rate = np.where(np.arange(count) % 100 == 50, 200.0, 10.0)
    v0 = rate[:, None] * np.array([0.0, 1.0])
    what = f"{count} beads on a ring, one in a hundred twenty times as fast"
    return Case(what, ukjax.Mechanism(system, ring), np.array([1.0, 0.0]), v0, np.linspace(0.0, 5.0, 11), {})


CASES: dict[str, Callable[[], Case]] = {
    "scara": lambda: _scara(512),
    "scara10000": lambda: _scara(10_000),
    "pendulums": lambda: _pendulums(10_000),
    "uneven": lambda: _uneven(2_000),
}


def rows(say: Callable[[str], None]) -> list[tuple[str, ...]]:
    """Cells of the table; `say` is told what is being measured."""
    found = []
    for name, make in CASES.items():
        what = make().what
        cores = os.cpu_count() or 1
        say(f"{what}: simulate_batch on {cores} devices")
        ours = _apart(name, "batch", cores)
        say(f"{what}: on one")
        alone = _apart(name, "batch", 1)
        say(f"{what}: jax.vmap(simulate)")
        vmap = _apart(name, "vmap", 1)
        each = f"{1e3 * ours['each']:.3f} ms, {1 / ours['each']:.0f} a second"
        steps = f"{ours['mean']:.0f} steps on average, {ours['most']} at most"
        beside = f"{vmap['each'] / ours['each']:.1f} times as fast ({1e3 * vmap['each']:.2f} ms)"
        found.append((f"{what}; {steps}", each, beside, f"{alone['each'] / ours['each']:.2f} times as fast"))
    return found


def _apart(name: str, way: str, devices: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks._batch", name, way, str(devices)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _measured(name: str, way: str) -> dict[str, Any]:
    """Seconds of a trajectory, the least of some runs, and steps."""
    case = CASES[name]()
    if way == "batch":
        run = lambda: ukjax.simulate_batch(case.mechanism, case.q0, case.v0, case.ts, progress=False, **case.options)
    else:
        one = lambda q0, v0: ukjax.simulate(case.mechanism, q0, v0, case.ts, throw=False, **case.options)
        axes = tuple(0 if np.ndim(x) == 2 else None for x in (case.q0, case.v0))
        vmap = jax.jit(jax.vmap(one, axes))
        run = lambda: vmap(case.q0, case.v0)
    got = jax.block_until_ready(run())
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - begin)
    steps = np.asarray(got.stats["num_steps"])
    return {"each": min(seconds) / len(steps), "mean": float(np.mean(steps)), "most": int(np.max(steps))}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
    print(json.dumps(_measured(*sys.argv[1:3])))
