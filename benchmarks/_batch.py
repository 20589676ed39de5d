"""Many trajectories: `simulate_batch` on as many devices as there are cores, beside `jax.vmap` of `simulate`.

What is compared runs in processes of its own, for a process has the devices that it began with: vmap, which uses one,
is to have all cores for that. They take turns, round after round, and the least of each is kept, for a machine is not
as fast at one time as at another. What the cores give that a machine says it has is measured too: processes of one
device each, with a share of the batch each, at the same time. The other table is of a GPU, beside all cores of the
machine that it is in.

`python -m benchmarks._batch CASE WAY DEVICES SHARE SHARES` is one of them, of so many devices of the CPU, or of the GPU
if that is 0: it runs once, and again for every line it is given.
"""

import contextlib
import functools as ft
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
HEADER_OF_GPU = ("batch", "each", "beside jax.vmap(simulate)", "beside all cores of the CPU")
# Of a case, after what each has compiled: at least two rounds.
SECONDS, ROUNDS = 120.0, 40


class Case(NamedTuple):
    """Trajectories of a mechanism from starts (B, n) or (n,), or the gradient of a loss over them."""

    what: str
    mechanism: Any
    q0: Any
    v0: Any
    ts: Any
    options: dict[str, Any]
    gradient: bool = False


def _scara(count: int, seconds: float = 5.0, gradient: bool = False) -> Case:
    case, rng = scenario("printed"), np.random.default_rng(0)
    q0, v0 = (x + 0.1 * rng.normal(size=(count, 4)) for x in (case.q0, case.v0))
    what = f"{count} trajectories of the SCARA, {seconds:g} s, rtol 1e-9"
    what = f"the gradient of a mean over {what}" if gradient else what
    ts = np.linspace(0.0, seconds, round(20 * seconds) + 1)
    return Case(what, case.mechanism, q0, v0, ts, {"rtol": 1e-9, "atol": 1e-9}, gradient)


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
    "gradient": lambda: _scara(512, 1.0, gradient=True),
}
# For a GPU, which takes more of them.
CASES_OF_GPU: dict[str, Callable[[], Case]] = CASES | {
    "scara100000": lambda: _scara(100_000),
    "gradient10000": lambda: _scara(10_000, 1.0, gradient=True),
}


def rows(
    say: Callable[[str], None], names: Sequence[str] = tuple(CASES), seconds: float = SECONDS
) -> list[tuple[str, ...]]:
    """Cells of the table; `say` is told what is being measured."""
    cores = os.cpu_count() or 1
    ways = {
        f"{cores} devices": [("batch", cores, 0, 1)],
        "jax.vmap(simulate)": [("vmap", 1, 0, 1)],
        "one device": [("batch", 1, 0, 1)],
        "a process for each core": [("batch", 1, i, cores) for i in range(cores)],
    }
    found = []
    for name in names:
        *cells, (ours, _, alone, apart) = _measured(name, ways, say, seconds)
        found.append((*cells, f"{alone / ours:.2f} times as fast", f"{alone / apart:.2f} times as fast"))
    return found


def rows_of_gpu(
    say: Callable[[str], None], names: Sequence[str] = tuple(CASES_OF_GPU), seconds: float = 20.0
) -> list[tuple[str, ...]]:
    """Likewise of the table of a GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # its memory is for several processes
    cores = os.cpu_count() or 1
    ways = {
        "the GPU": [("batch", 0, 0, 1)],
        "jax.vmap(simulate) on the GPU": [("vmap", 0, 0, 1)],
        f"{cores} devices of the CPU": [("batch", cores, 0, 1)],
    }
    found = []
    for name in names:
        *cells, (ours, _, cpu) = _measured(name, ways, say, seconds)
        found.append((*cells, f"{cpu / ours:.2f} times as fast"))
    return found


def _measured(name: str, ways: dict[str, list[tuple[Any, ...]]], say: Callable[[str], None], seconds: float) -> Any:
    """The first cells of a row, and the least time of each way, of which the first is ours and the second vmap."""
    what = CASES_OF_GPU[name]().what
    with contextlib.ExitStack() as stack:
        contestants = [[stack.enter_context(_Process(name, *one)) for one in some] for some in ways.values()]
        for way, some in zip(ways, contestants, strict=True):
            say(f"{what}: compiling for {way}")
            for process in some:
                process.compiled()
        least, begin, rounds = [math.inf] * len(ways), time.perf_counter(), 0
        while rounds < 2 or (rounds < ROUNDS and time.perf_counter() - begin < seconds):
            rounds += 1
            say(f"{what}: round {rounds}")
            least = [min(best, _together(some)) for best, some in zip(least, contestants, strict=True)]
        batch = contestants[0][0]
    ours, vmap, *_ = least
    return (
        f"{what}; {batch.mean:.0f} steps on average, {batch.most} at most; {rounds} rounds",
        f"{1e3 * ours / batch.count:.3f} ms, {batch.count / ours:.0f} a second",
        f"{vmap / ours:.1f} times as fast ({1e3 * vmap / batch.count:.2f} ms)",
        least,
    )


class _Process:
    """A way of making the trajectories of a case, or a share of them."""

    def __init__(self, name: str, way: str, devices: int, share: int, shares: int):
        command = [sys.executable, "-m", "benchmarks._batch", name, way, *map(str, (devices, share, shares))]
        env = os.environ | ({"JAX_PLATFORMS": "cpu"} if devices else {})
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.communicate()

    def compiled(self) -> None:
        """Waits until it has run once."""
        self.count, self.mean, self.most = self._said()

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
    case = CASES_OF_GPU[name]()
    q0, v0 = (x[share::shares] if np.ndim(x) == 2 else x for x in (case.q0, case.v0))
    many = ft.partial(ukjax.simulate_batch, case.mechanism, ts=case.ts, **case.options)
    if way == "vmap":
        one = lambda q0, v0: ukjax.simulate(case.mechanism, q0, v0, case.ts, throw=False, **case.options)
        many = jax.jit(jax.vmap(one, tuple(0 if np.ndim(x) == 2 else None for x in (q0, v0))))
    elif not case.gradient:
        many = ft.partial(many, progress=False)

    def whole(start):
        made = many(*start)
        return made, made.stats

    def loss(start):
        made, stats = whole(start)
        okay = (made.result == ukjax.RESULTS.successful)[:, None]
        return jnp.mean(jnp.where(okay, made.q[:, -1] ** 2, 0.0)), stats

    function = jax.jit(jax.grad(loss, has_aux=True)) if case.gradient else whole
    run = lambda: function((q0, v0))
    steps = np.asarray(run()[1]["num_steps"])
    print(json.dumps([len(steps), float(np.mean(steps)), int(np.max(steps))]), flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    case, way, devices, share, shares = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    if devices:
        jax.config.update("jax_num_cpu_devices", devices)
    elif jax.default_backend() == "cpu":
        sys.exit("JAX finds no GPU: pip install 'ukjax[cuda]', or take the table `batch`.")
    warnings.simplefilter("ignore", ukjax.FailedTrajectories)  # some of 10,000 begin where rows contradict each other
    _run(case, way, share, shares)
