"""What it takes to compile the simulation of every scenario, here and, side by side, in another checkout.

Processor seconds from the call to the first result, of runs so short that compiling is all there is; of each scenario
the least of `ROUNDS`, in turn here and there. One process each, whose programs are forgotten after every scenario.
"""

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ukjax import cli


HEADER = ("scenario", "here", "there", "ratio")
ROUNDS = 2

# Takes names of scenarios and answers with seconds; both checkouts know what it uses.
WORKER = """
import importlib, inspect, resource, sys, types
from ukjax.cli import _app
# Compiles as the command does, which since November 2026 looks at what it is asked for.
context = types.SimpleNamespace(invoked_subcommand="simulate")
_app.common(*[context][: len(inspect.signature(_app.common).parameters)])
import jax, jax.numpy as jnp, ukjax

def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

def once(s, ts):
    start = seconds()
    run = ukjax.simulate(s.mechanism, s.q0, s.v0, ts, servo=s.servo, formulation=s.formulation,
                         projection=s.projection, throw=False)
    jax.block_until_ready(run.q)
    return seconds() - start

for line in sys.stdin:
    module, name = line.strip().split(":")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        print("nan", flush=True)
        continue
    s = factory()
    ts = jnp.linspace(s.t0, s.t0 + (s.t1 - s.t0) / 1000, 101)
    jax.clear_caches()
    first = once(s, ts)
    print(first - once(s, ts), flush=True)
"""


class _Worker:
    """A checkout of the project at work in a process of its own."""

    def __init__(self, checkout: Path):
        # Nothing is kept: another checkout, or a run before, would be found compiled.
        environment = {**os.environ, "PYTHONPATH": str(checkout), "UKJAX_CACHE": "off"}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen([sys.executable, "-c", WORKER], cwd=checkout, env=environment, **pipes)

    def seconds(self, scenario: str) -> float:
        """NaN if this checkout has no such scenario."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{scenario}\n")
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"The process that compiles {scenario} has ended; its error stands above.")
        return float(line)


@contextlib.contextmanager
def _workers(*checkouts: Path) -> Iterator[list[_Worker]]:
    with contextlib.ExitStack() as stack:
        workers = []
        for checkout in checkouts:
            workers.append(_Worker(checkout))
            stack.enter_context(workers[-1].process)
            stack.callback(workers[-1].process.kill)
        yield workers


def checkouts_of(against: Path | None) -> list[Path]:
    """This checkout, and the one to compare with, if there is one."""
    if against is not None and not (against / "ukjax" / "__init__.py").is_file():
        raise SystemExit(f"--against must be a checkout of ukjax, but there is no ukjax package in {against}.")
    return [Path(__file__).parents[1], *([] if against is None else [against.resolve()])]


def rows(report: Callable[[str], None], against: Path | None = None, only: str = "") -> list[tuple[str, ...]]:
    """A row for each scenario whose name contains `only`, and one for the sum of those that both checkouts have."""
    report("imports")
    names = [name for name in cli.factories("models")[0] if only in name]
    if not names:
        raise SystemExit(f"--only must be a part of a scenario's name, such as scara, but no name contains {only!r}.")
    with _workers(*checkouts_of(against)) as workers:
        best = {name: [math.inf] * len(workers) for name in names}
        for turn in range(ROUNDS):
            for i, name in enumerate(names):
                report(f"{name} ({turn * len(names) + i + 1} of {ROUNDS * len(names)})")
                best[name] = [min(w.seconds(name), old) for old, w in zip(best[name], workers, strict=True)]
    both = [values for values in best.values() if all(map(math.isfinite, values))]
    total = [math.fsum(values[i] for values in both) for i in range(len(workers))]
    cells = [(name.removeprefix("models."), values) for name, values in best.items()]
    return [_row(name, values) for name, values in [*cells, ("all", total)]]


def _row(name: str, values: Sequence[float]) -> tuple[str, ...]:
    cells = [f"{x:.1f} s" if math.isfinite(x) else "-" for x in values]
    ratio = f"{values[0] / values[1]:.2f}" if len(values) == 2 and math.isfinite(values[1]) and values[1] else ""
    return (name, cells[0], cells[1] if len(cells) == 2 else "", ratio)
