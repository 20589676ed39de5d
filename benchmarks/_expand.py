"""Accelerations in a batch: scalar code, which is the default there, beside matrices and the formula written down.

Times are the least of some rounds in turn, per state; the formula, which may not return for large batches, is timed in
batches of 500.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import coordinated_robots, n_pendulum, parallelogram, scara, spherical_pendulum, unicycle

from . import _measure
from ._scara import _pinv_acceleration


SIZE, ROUNDS = 20_480, 20
HEADER = ("mechanism", "what", "scalar code", "matrices", "Cholesky + pinv", "compile: scalar, matrices", "difference")
SCENARIOS = {
    "SCARA": scara.scenario,
    "coordinated robots": coordinated_robots.scenario,
    "spherical pendulum": spherical_pendulum.scenario,
    "unicycle": unicycle.scenario,
    "parallelogram (redundant rows)": parallelogram.scenario,
    "closed chain of five rods": n_pendulum.closed,
}


def rows(report: Callable[[str], None], size: int = SIZE, rounds: int = ROUNDS) -> list[tuple[str, ...]]:
    return [row for name in SCENARIOS for row in _of(name, report, size, rounds)]


def _of(name: str, report: Callable[[str], None], size: int, rounds: int) -> list[tuple[str, ...]]:
    case = SCENARIOS[name]()
    # States along the motion: rows that are redundant are so on the constraints only.
    # Not the start: there rows of the parallelogram have the length 1.5, as far from 1 as from 2. Either may scale it,
    # and a derivative that leaves the constraints depends on which.
    run = case.simulate(jnp.linspace(case.t0, case.t1, size + 1))
    q, v = run.q[1:], run.v[1:]
    found = []
    for what, way in (("acceleration", _values), ("value and gradient in q, v", _gradients)):
        report(f"{name}: {what}")
        ours = [way(_by(expand), case.mechanism) for expand in (None, False)]
        formula = way(_formula, case.mechanism)
        in_parts = lambda q, v, formula=formula: jax.lax.map(lambda z: formula(*z), (_parts(q), _parts(v)))
        fast, dense = _measure.race(*((f, q, v) for f in ours), rounds=rounds)
        literal, *_ = _measure.race((in_parts, q, v), rounds=max(2, rounds // 4))
        nanoseconds = [1e9 * x.run_s / size for x in (fast, dense, literal)]
        off = max(_off(x, y) for x, y in zip(*map(jax.tree_util.tree_leaves, (fast.output, dense.output)), strict=True))
        others = [f"{x:,.0f} ns, {x / nanoseconds[0]:.1f} times" for x in nanoseconds[1:]]
        compiling = f"{fast.compile_s:.1f} s, {dense.compile_s:.1f} s"
        found.append((name, what, f"{nanoseconds[0]:,.0f} ns", *others, compiling, f"{off:.0e}"))
    return found


def _by(expand: bool | None) -> Callable[..., Any]:
    formulation = ukjax.UdwadiaKalaba(expand=expand)

    def acceleration(mechanism, q, v):
        return ukjax.equation_of_motion(mechanism, q, v, formulation=formulation, throw=False).acceleration

    return acceleration


def _formula(mechanism, q, v):
    return _pinv_acceleration(mechanism, q, v)


def _values(acceleration: Callable[..., Any], mechanism: Any) -> Callable[..., Any]:
    return lambda q, v: jax.vmap(lambda q, v: acceleration(mechanism, q, v))(q, v)


def _gradients(acceleration: Callable[..., Any], mechanism: Any) -> Callable[..., Any]:
    loss = lambda q, v: jnp.sum(jnp.sin(acceleration(mechanism, q, v)))
    return lambda q, v: jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)))(q, v)


def _parts(x: jax.Array) -> jax.Array:
    part = min(500, x.shape[0])
    return x[: x.shape[0] // part * part].reshape(-1, part, x.shape[1])


def _off(x: Any, y: Any) -> float:
    x, y = np.asarray(x), np.asarray(y)
    return float(np.nanmax(np.abs(x - y)) / (1 + np.nanmax(np.abs(y))))
