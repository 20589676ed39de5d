"""Servos and projections: scalar code, which is the default in batches and in a `jit`, beside matrices.

Times are the least of some rounds in turn; of batches per state.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ukjax
from models import coordinated_robots, parallelogram, three_rrr, unicycle

from . import _measure
from ._expand import _off


SIZE, ROUNDS, POINTS = 20_480, 10, 101
HEADER = ("mechanism", "what", "scalar code", "matrices", "compile: scalar, matrices", "difference")
DRIVEN = {"coordinated robots": coordinated_robots.scenario, "unicycle": unicycle.scenario}
PROJECTED = {**DRIVEN, "parallelogram (redundant rows)": parallelogram.scenario, "3RRR": three_rrr.driven}
# How far a state has drifted before it is projected.
DRIFT = 1e-8


def rows(report: Callable[[str], None], size: int = SIZE, rounds: int = ROUNDS) -> list[tuple[str, ...]]:
    found = []
    for name, make in PROJECTED.items():
        case = make()
        q, v = _along(case, size)
        if name in DRIVEN:
            found += _controls(name, case, q, v, report, rounds)
        found += _projections(name, case, q, v, report, rounds)
        found += _trajectories(name, case, report, max(2, rounds // 3))
    return found


def _along(case: ukjax.Scenario, size: int) -> tuple[Any, Any]:
    run = case.simulate(jnp.linspace(case.t0, case.t1, size + 1))
    return run.q[1:], run.v[1:]


def _ways() -> Iterator[tuple[bool, Any]]:
    for expand in (None, False):
        yield expand is not False, ukjax.UdwadiaKalaba(expand=expand)


def _controls(name, case, q, v, report, rounds):
    def control(formulation):
        one = lambda q, v: ukjax.servo_control(
            case.mechanism, case.servo, q, v, case.t0, formulation=formulation, throw=False
        )
        value = lambda q, v: one(q, v).u
        slope = jax.value_and_grad(lambda q, v: jnp.sum(jnp.sin(value(q, v))), argnums=(0, 1))
        return jax.vmap(value), jax.vmap(slope)

    values, slopes = zip(*(control(formulation) for _, formulation in _ways()), strict=True)
    for what, functions in (("control", values), ("control and its gradient in q, v", slopes)):
        report(f"{name}: {what}")
        yield _row(name, what, functions, (q, v), rounds, len(q))


def _projections(name, case, q, v, report, rounds):
    report(f"{name}: projection")
    y = jnp.concatenate([q, v], axis=1)
    y = y + DRIFT * jnp.asarray(np.random.default_rng(0).normal(size=y.shape))
    back = lambda expand: jax.vmap(lambda y: ukjax.Projection()(case.mechanism, jnp.asarray(case.t0), y, expand))
    yield _row(name, "projection", [back(expand) for expand, _ in _ways()], (y,), rounds, len(y))


def _trajectories(name, case, report, rounds):
    ts = np.linspace(case.t0, case.t1, POINTS)

    def run(formulation):
        return lambda q0: ukjax.simulate(
            case.mechanism, q0, case.v0, ts, servo=case.servo, formulation=formulation,
            projection=ukjax.Projection(), keep=("q",), throw=False,
        ).q  # fmt: skip

    what = "trajectory with projection" + (" and servo" if case.servo else "")
    report(f"{name}: {what}")
    yield _row(name, what, [run(formulation) for _, formulation in _ways()], (case.q0,), rounds)


def _row(name: str, what: str, functions: Any, args: Any, rounds: int, size: int | None = None) -> tuple[str, ...]:
    fast, dense = _measure.race(*((f, *args) for f in functions), rounds=rounds)
    told = lambda x: f"{1e3 * x.run_s:.1f} ms" if size is None else f"{1e9 * x.run_s / size:,.0f} ns"
    off = max(_off(x, y) for x, y in zip(*map(jax.tree_util.tree_leaves, (fast.output, dense.output)), strict=True))
    slower = f"{told(dense)}, {dense.run_s / fast.run_s:.1f} times"
    return name, what, told(fast), slower, f"{fast.compile_s:.1f} s, {dense.compile_s:.1f} s", f"{off:.0e}"
