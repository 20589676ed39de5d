"""Chains of N rods in absolute coordinates, hanging and closed: block by block beside matrices, against N.

An acceleration, with everything in `Motion`; times are the least of some rounds in turn. The slopes are those of the
logarithms of time and of compile time against that of N, by least squares over all N.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import n_pendulum

from . import _measure


NUMBERS = (10, 20, 50, 100, 200)
BATCH, ROUNDS = 128, 5
HEADER = (
    "chain", "rods", "blocks, each of a batch", "blocks, one state", "matrices, one state",
    "compile: blocks, matrices", "difference", "row missed by",
)  # fmt: skip


def rows(
    report: Callable[[str], None], numbers: tuple[int, ...] = NUMBERS, batch: int = BATCH, rounds: int = ROUNDS
) -> list[tuple[str, ...]]:
    found = []
    for name in ("hanging", "closed"):
        times, compiled = [], []
        for N in numbers:
            report(f"{name} chain of {N} rods")
            row, each, compile_s = _of(name, N, batch, rounds)
            found.append(row)
            times.append(each)
            compiled.append(compile_s)
        slope = lambda values: f"{np.polyfit(np.log(numbers), np.log(values), 1)[0]:.2f}"
        found.append((name, "slope", slope(times), "", "", slope(compiled), "", ""))
    return found


def _of(name: str, N: int, batch: int, rounds: int) -> tuple[tuple[str, ...], float, float]:
    length, end = 1.0 / N, (0.6, 0.0) if name == "closed" else None
    chain = n_pendulum.Chain(m=np.full(N, 1.0 / N), L=np.full(N, length), end=end)
    phi = n_pendulum.arc(N, length, end) if end else np.linspace(-1.2, 0.3, N)
    noise = 0.01 * np.random.default_rng(0).normal(size=(2, batch, N))
    q, v = jax.vmap(chain.state)(jnp.asarray(phi[None] + noise[0]), jnp.asarray(noise[1]))
    blocks, matrices = _by(n_pendulum.modular(chain).mechanism(), None), _by(chain.mechanism(), False)
    one, dense = _measure.race((blocks, q[0], v[0]), (matrices, q[0], v[0]), rounds=rounds)
    (many,) = _measure.race((jax.vmap(blocks), q, v), rounds=rounds)
    each = many.run_s / batch
    (fast, _), (slow, _), (_, missed) = one.output, dense.output, many.output
    off = float(jnp.max(jnp.abs(fast - slow)) / (1 + jnp.max(jnp.abs(slow))))
    row = (
        name, str(N), f"{1e6 * each:,.1f} µs", f"{1e6 * one.run_s:,.0f} µs",
        f"{1e6 * dense.run_s:,.0f} µs, {dense.run_s / one.run_s:.1f} times",
        f"{many.compile_s:.1f} s, {dense.compile_s:.1f} s", f"{off:.0e}", f"{float(jnp.max(missed)):.0e}",
    )  # fmt: skip
    return row, each, many.compile_s


def _by(mechanism: ukjax.Mechanism, expand: bool | None) -> Callable[..., Any]:
    # Under `jax.vmap` and in a loop the default is the same; of a single state it would leave small chains to matrices.
    formulation = ukjax.UdwadiaKalaba(expand=True if expand is None else expand)

    def acceleration(q, v):
        motion = ukjax.equation_of_motion(mechanism, q, v, formulation=formulation, throw=False)
        return motion.acceleration, motion.residual

    return acceleration
