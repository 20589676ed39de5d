"""Many trajectories: `simulate_batch` on as many devices as there are cores, beside `jax.vmap` of `simulate`.

What is compared runs in processes of its own, for a process has the devices that it began with: vmap, which uses one,
is to have all cores for that. They take turns, round after round, and the least of each is kept, for a machine is not
as fast at one time as at another. What the cores give that a machine says it has is measured too: processes of one
device each, with a share of the batch each, at the same time.

`python -m benchmarks._batch CASE WAY DEVICES SHARE SHARES` is one of them: it runs once, and again for every line it is
given.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import n_pendulum
from models.scara import scenario


HEADER = (
    "batch",
    "each",
    "beside jax.vmap(simulate)",
    "beside one device",
    "a process for each core, beside one device",
)
# Of a case, after what each has compiled: at least two rounds.
SECONDS, ROUNDS = 120.0, 40


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
    "uneven10000": lambda: _uneven(10_000),
}


def rows(
    say: Callable[[str], None], names: Sequence[str] = tuple(CASES), seconds: float = SECONDS
) -> list[tuple[str, ...]]:
    """Cells of the table; `say` is told what is being measured."""
    return [_row(name, say, seconds) for name in names]


def _row(name: str, say: Callable[[str], None], seconds: float) -> tuple[str, ...]:
    what, cores = CASES[name]().what, os.cpu_count() or 1
    ways = {
        f"{cores} devices": [("batch", cores, 0, 1)],
        "one device": [("batch", 1, 0, 1)],
        "a process for each core": [("batch", 1, i, cores) for i in range(cores)],
        "jax.vmap(simulate)": [("vmap", 1, 0, 1)],
    }
    with contextlib.ExitStack() as stack:
        contestants: list[list[_Process]] = []
        for way, processes in ways.items():
            say(f"{what}: compiling for {way}")
            contestants.append([stack.enter_context(_Process(name, *one)) for one in processes])
        least, begin, rounds = [math.inf] * len(ways), time.perf_counter(), 0
        while rounds < 2 or (rounds < ROUNDS and time.perf_counter() - begin < seconds):
            rounds += 1
            say(f"{what}: round {rounds}")
            least = [min(best, _together(some)) for best, some in zip(least, contestants, strict=True)]
        batch = contestants[0][0]
    ours, alone, apart, vmap = least
    return (
        f"{what}; {batch.mean:.0f} steps on average, {batch.most} at most; {rounds} rounds",
        f"{1e3 * ours / batch.count:.3f} ms, {batch.count / ours:.0f} a second",
        f"{vmap / ours:.1f} times as fast ({1e3 * vmap / batch.count:.2f} ms)",
        f"{alone / ours:.2f} times as fast",
        f"{alone / apart:.2f} times as fast",
    )


class _Process:
    """A way of making the trajectories of a case, or a share of them, compiled and waiting to be told."""

    def __init__(self, name: str, way: str, devices: int, share: int, shares: int):
        command = [sys.executable, "-m", "benchmarks._batch", name, way, *map(str, (devices, share, shares))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.count, self.mean, self.most = self._said()

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.communicate()

    def tell(self) -> None:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)

    def took(self) -> float:
        """Seconds of the run that it was told to make."""
        return self._said()

    def _said(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.communicate()
            raise RuntimeError(f"A process of the benchmark ended early: {self.process.args}")
        return json.loads(line)


def _together(processes: Sequence[_Process]) -> float:
    """Seconds until all are done that begin at the same time."""
    for process in processes:
        process.tell()
    return max([process.took() for process in processes])


def _run(name: str, way: str, share: int, shares: int) -> None:
    """Says how many trajectories there are, and their steps; and after every line how many seconds a run took."""
    case = CASES[name]()
    q0, v0 = (x[share::shares] if np.ndim(x) == 2 else x for x in (case.q0, case.v0))
    if way == "batch":
        run = lambda: ukjax.simulate_batch(case.mechanism, q0, v0, case.ts, progress=False, **case.options)
    else:
        one = lambda q0, v0: ukjax.simulate(case.mechanism, q0, v0, case.ts, throw=False, **case.options)
        vmap = jax.jit(jax.vmap(one, tuple(0 if np.ndim(x) == 2 else None for x in (q0, v0))))
        run = lambda: vmap(q0, v0)
    steps = np.asarray(jax.block_until_ready(run()).stats["num_steps"])
    print(json.dumps([len(steps), float(np.mean(steps)), int(np.max(steps))]), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", int(sys.argv[3]))
    warnings.simplefilter("ignore", ukjax.FailedTrajectories)  # some of 10,000 begin where rows contradict each other
    _run(sys.argv[1], sys.argv[2], int(sys.argv[4]), int(sys.argv[5]))
