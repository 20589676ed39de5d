"""Where the time goes: the SCARA's acceleration, alone, in a batch, differentiated, and along a trajectory.

Each program is compiled and run once before; then JAX's profiler tells how long each operation of the compiled program
took without those inside of it. An operation is named by what of the source it came from.
"""

import collections
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models.scara import scenario

from . import _measure


HEADER = ("program", "run", "of it", "operations", "which")
SIZE, MOST = 20_480, 4


def rows(report: Callable[[str], None], size: int = SIZE, motion: float = 5.0) -> list[tuple[str, ...]]:
    found = []
    for name, function, args in _programs(size, motion):
        report(name)
        found += _profile(name, function, *args)
    return found


def _programs(size: int, motion: float) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    case = scenario("printed")
    noise = 0.1 * np.random.default_rng(0).normal(size=(size, 4))
    q, v = case.q0[None] + jnp.asarray(noise), jnp.broadcast_to(case.v0, (size, 4))

    def acceleration(q, v):
        return ukjax.equation_of_motion(case.mechanism, q, v, throw=False)

    def slope(q, v):
        return jax.value_and_grad(lambda q, v: jnp.sum(acceleration(q, v).acceleration ** 2), argnums=(0, 1))(q, v)

    def end(q, v):
        ts = np.array([0.0, motion])
        return ukjax.simulate(case.mechanism, q, v, ts, rtol=1e-9, atol=1e-9, keep=("q",), throw=False).q[-1]

    last = jax.value_and_grad(lambda q, v: jnp.sum(end(q, v) ** 2), argnums=(0, 1))
    yield "one acceleration", acceleration, (case.q0, case.v0)
    yield f"a batch of {size:,}", jax.vmap(acceleration), (q, v)
    yield f"a batch of {size:,}, value and gradient", jax.vmap(slope), (q, v)
    yield f"a trajectory of {motion:g} s", end, (case.q0, case.v0)
    yield f"a trajectory of {motion:g} s, value and gradient", last, (case.q0, case.v0)


def _profile(name: str, function: Callable[..., Any], *args: Any) -> Iterator[tuple[str, ...]]:
    (timing,) = _measure.race((function, *args), rounds=5)
    compiled = jax.jit(function).lower(*args).compile()
    source = dict(re.findall(r'%?([\w.-]+) = [^\n]*metadata={op_name="([^"]*)"', compiled.as_text() or ""))
    jax.block_until_ready(compiled(*args))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*args))
        (file,) = Path(folder).rglob("*.xplane.pb")
        own = _own_times(jax.profiler.ProfileData.from_file(str(file)), source)
    total = sum(seconds for seconds, _ in own.values())
    largest = sorted(own.items(), key=lambda item: -item[1][0])[:MOST]
    for i, (what, (seconds, count)) in enumerate(largest):
        run = f"{1e3 * timing.run_s:,.2f} ms" if i == 0 else ""
        yield (name if i == 0 else "", run, f"{seconds / max(total, 1e-12):.0%}", f"{count:,}", what)


def _own_times(profile: Any, source: dict[str, str]) -> dict[str, tuple[float, int]]:
    """Seconds and number of the operations, by where they come from, without those that run inside of them."""
    found: dict[str, tuple[float, int]] = collections.defaultdict(lambda: (0.0, 0))
    for line in (line for plane in profile.planes for line in plane.lines):
        around: list[tuple[float, str]] = []  # of what is under way: its end, and its name
        for event in sorted((e for e in line.events if e.name in source), key=lambda e: (e.start_ns, -e.duration_ns)):
            while around and around[-1][0] <= event.start_ns:
                around.pop()
            what, seconds = _shortened(source[event.name]), 1e-9 * event.duration_ns
            found[what] = found[what][0] + seconds, found[what][1] + 1
            if around:
                outer = around[-1][1]
                found[outer] = found[outer][0] - seconds, found[outer][1]
            around.append((event.start_ns + event.duration_ns, what))
    return found


def _shortened(source: str) -> str:
    """The last words of a path through the source, without what every path has."""
    words = [word for word in source.split("/") if not re.fullmatch(r"jit\(.*\)|vmap\(\)|closed_call|body", word)]
    return " / ".join(words[-3:]) or "the program itself"
