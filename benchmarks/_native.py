"""Scalar code as machine code, here and, side by side, in another checkout: tracing, compiling, one state, a batch.

Each mechanism is measured in a process of its own for each checkout, in turn here and there; the least of `ROUNDS`
counts. Compiling is what comes after tracing: lowering, machine code, XLA. One state is called within `jax.jit`, as is
q + v, whose time is taken off. A batch has 20 480 states, derivatives 4 096; the first call of each compiles what its
uncertain states need, where it has any. Whatever is called again is warm: its code is optimised before it is timed.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from . import _measure
from ._compile import checkouts_of


HEADER = ("mechanism", "what", "here", "there", "there / here")
ROUNDS = 2
CASES = {
    "SCARA": "scara",
    "closed chain of five rods": "rods",
    "parallelogram (redundant rows)": "parallelogram",
    "coordinated robots, control": "robots",
    "arm of 7 joints": "arm",
    "tree of 30 joints": "tree",
}
WHATS = ("trace", "compile", "plain call: first", "plain call: again", "one state in jit", "batch: first call",
         "batch, a state", "Jacobian: compile", "Jacobian: first call", "Jacobian, a state",
         "value and gradient: compile", "value and gradient: first call", "value and gradient, a state")  # fmt: skip

# Prints the seconds of each of `WHATS`; both checkouts know what it uses.
WORKER = (
    f"""
import json, sys, time
from collections.abc import Callable
from typing import Any

{inspect.getsource(_measure.warm)}
"""
    + """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
import ukjax
from benchmarks import _trees
from models import coordinated_robots, n_pendulum, parallelogram, scara
from ukjax import rigid

which, servo = sys.argv[1], None
if which in ("arm", "tree"):
    tree = _trees.trees()[which == "tree"]
    mechanism, n = rigid.from_mjcf(tree.text).mechanism(), len(tree.parents)
    q, v = jnp.linspace(-0.5, 0.7, n), jnp.linspace(0.3, -0.4, n)
else:
    case = {"scara": scara.scenario, "rods": n_pendulum.closed, "parallelogram": parallelogram.scenario,
            "robots": coordinated_robots.scenario}[which]()
    mechanism, q, v = case.mechanism, jnp.asarray(case.q0, float), jnp.asarray(case.v0, float)
    servo = case.servo if which == "robots" else None

def one(q, v):
    if servo is not None:
        return ukjax.servo_control(mechanism, servo, q, v, throw=False).u
    return ukjax.equation_of_motion(mechanism, q, v, throw=False).acceleration

def first(call):
    start = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - start

def least(call, seconds=1.0):
    warm(lambda: first(call))
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        best = min(best, first(call))
    return best

def compiled(function, *arguments):
    start = time.perf_counter()
    traced = jax.jit(function).trace(*arguments)
    middle = time.perf_counter()
    program = traced.lower().compile()
    return middle - start, time.perf_counter() - middle, program

sums = jax.jit(lambda q, v: q[: v.size] + v)
jax.block_until_ready((sums(q, v), jnp.linalg.svd(jnp.eye(3))))
random = np.random.default_rng(0)
Q, V = (jnp.asarray(x + 1e-3 * random.normal(size=(20480, x.size))) for x in (q, v))
trace, compile_s, batch = compiled(jax.vmap(one), Q, V)
found = [trace, compile_s]
found += [first(lambda: one(q, v)), least(lambda: one(q, v))]
alone = jax.jit(one)
alone(q, v)
found += [max(least(lambda: alone(q, v)) - least(lambda: sums(q, v)), 0.0)]
found += [first(lambda: batch(Q, V)), least(lambda: batch(Q, V)) / len(Q)]
jacobian = jax.jacfwd(one, argnums=(0, 1))
gradient = jax.value_and_grad(lambda q, v: jnp.sum(one(q, v) ** 2), argnums=(0, 1))
some = Q[:4096], V[:4096]
for function in (jacobian, gradient):
    _, compile_s, program = compiled(jax.vmap(function), *some)
    found += [compile_s, first(lambda: program(*some)), least(lambda: program(*some)) / 4096]
print(json.dumps(found))
"""
)


def _measured(checkout: Path, case: str) -> list[float]:
    environment = {**os.environ, "PYTHONPATH": str(checkout), "UKJAX_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER, case], cwd=checkout, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{case} in {checkout} has ended with an error:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def rows(report: Callable[[str], None], against: Path | None = None, only: str = "") -> list[tuple[str, ...]]:
    """A row for each figure of each mechanism whose name contains `only`."""
    names = [name for name in CASES if only.lower() in name.lower()]
    if not names:
        raise SystemExit(f"--only must be a part of one of {', '.join(CASES)}, but is {only!r}.")
    checkouts, found = checkouts_of(against), []
    for name in names:
        best: list[list[float]] = [[] for _ in checkouts]
        for turn in range(ROUNDS):
            for i, checkout in enumerate(checkouts):
                report(f"{name}, {'there' if i else 'here'} ({turn + 1} of {ROUNDS})")
                new = _measured(checkout, CASES[name])
                best[i] = list(map(min, best[i] or new, new))
        found += [_row(name, what, [each[k] for each in best]) for k, what in enumerate(WHATS)]
    return found


def _row(name: str, what: str, values: list[float]) -> tuple[str, ...]:
    there = values[1] if len(values) == 2 else None
    ratio = "" if there is None or not values[0] else f"{there / values[0]:.1f}"
    return name, what, _shown(values[0]), "" if there is None else _shown(there), ratio


def _shown(seconds: float) -> str:
    for unit, size, digits in (("s", 0.1, 2), ("ms", 1e-3, 1), ("µs", 1e-6, 1)):
        if seconds >= size:
            scale = {"s": 1.0, "ms": 1e3, "µs": 1e6}[unit]
            return f"{seconds * scale:.{digits}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"
