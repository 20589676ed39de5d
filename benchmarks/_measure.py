"""Timing: compile and run apart, the output blocked on."""

import math
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Timing(NamedTuple):
    """Seconds to compile, the median of the runs after (of `race` the least), and bytes beside arguments and result."""

    compile_s: float
    run_s: float
    output: Any
    memory: int


def measure(function: Callable, *args: Any, repeats: int = 20, seconds: float = 1.0) -> Timing:
    """Compiles `function` ahead of time and times it on `args`: `repeats` runs, or as many as fit into `seconds`."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    compile_s = time.perf_counter() - start
    run = lambda: jax.block_until_ready(compiled(*args))
    output = warm(run)
    once = timeit.timeit(run, number=1)
    runs = [once, *timeit.repeat(run, number=1, repeat=min(repeats, max(2, int(seconds / once))))]
    return Timing(compile_s, statistics.median(runs), output, _memory(compiled))


def warm(run: Callable[[], Any], seconds: float = 1.0) -> Any:
    """Calls until the process is at rest after some seconds of it: code that is called often is optimised meanwhile."""
    patience = time.perf_counter() + 60.0
    while True:
        end, output = time.perf_counter() + seconds, run()
        while time.perf_counter() < end:
            run()
        busy = time.process_time()
        time.sleep(0.05)
        if time.process_time() - busy < 0.01 or time.perf_counter() > patience:
            return output


def race(*contestants: tuple[Any, ...], rounds: int = 300) -> list[Timing]:
    """Times each `(function, *args)` in turn, round after round, and keeps the least: for ratios on a busy machine."""
    timings, runs = [], []
    for function, *args in contestants:
        start = time.perf_counter()
        compiled = jax.jit(function).lower(*args).compile()
        compile_s = time.perf_counter() - start
        runs.append(lambda compiled=compiled, args=args: jax.block_until_ready(compiled(*args)))
        timings.append(Timing(compile_s, math.inf, warm(runs[-1]), _memory(compiled)))
    for _ in range(rounds):
        timings = [
            timing._replace(run_s=min(timing.run_s, timeit.timeit(run, number=1))) for timing, run in zip(timings, runs)
        ]
    return timings


def least(function: Callable[[], Any], rounds: int, number: int = 1) -> float:
    """Least seconds of a call, when it is warm."""
    warm(function)
    return min(timeit.repeat(function, number=number, repeat=rounds)) / number


def _memory(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


def fresh(code: str, repeats: int = 3) -> float:
    """Median seconds of `code` in an interpreter of its own."""
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        runs.append(time.perf_counter() - start)
    return statistics.median(runs)
