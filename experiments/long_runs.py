"""A million steps: energy by the structure-preserving step (`ukjax.Rattle`) beside projection, on three mechanisms.

The spherical pendulum; the overconstrained parallelogram, swinging; and A02 of the IFToMM library, whose rods come into
line, where the rank drops, twice in every turn. Each runs for a million steps of RATTLE; over the same time by Tsit5
with a projection at three tolerances. Then work against error over a tenth of that time: what the energy is off by,
at the most, against the time that a second of motion takes to compute.

    python -m experiments.long_runs [--out DIR]
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

import ukjax
from models import n_four_bar, parallelogram, spherical_pendulum

from . import _report
from ._figures import captioned, legend, panels, visible


MILLION = 1_000_000
SAVED = 2001
TOLERANCES = (1e-6, 1e-8, 1e-10)
PARTS = (4.0, 2.0, 1.0, 0.5)  # of the step, for the picture of work against error


class Case(NamedTuple):
    """A scenario with its energy, and the step of the million [s]."""

    name: str
    scenario: ukjax.Scenario
    energy: Callable
    step: float


def cases() -> list[Case]:
    found = []
    for name, scenario, step in (
        ("spherical pendulum", spherical_pendulum.scenario(), 0.01),
        ("parallelogram", parallelogram.scenario(), 0.002),
        ("A02, two windows", n_four_bar.scenario(), 0.002),
    ):
        energy = next(f for name, f in scenario.invariants.items() if "energy" in name)
        found.append(Case(name, scenario, energy, step))
    return found


class Run(NamedTuple):
    """Times, by what the energy is off from the start [J], steps, and seconds of computing for a second of motion."""

    t: np.ndarray
    off: np.ndarray
    steps: int
    pace: float


def run(case: Case, duration: float, **options: Any) -> Run:
    """A motion of this duration [s], compiled and then timed."""
    ts = jnp.linspace(0.0, duration, SAVED)
    scenario, more = case.scenario, {"keep": ("q", "v"), "throw": False, **options}

    def energies(ts):
        got = ukjax.simulate(scenario.mechanism, scenario.q0, scenario.v0, ts, **more)
        return jax.vmap(case.energy)(got.q, got.v, got.t), got.stats["num_steps"], got.result

    compiled = jax.jit(energies).lower(ts).compile()
    begin = time.perf_counter()
    values, steps, result = jax.block_until_ready(compiled(ts))
    pace = (time.perf_counter() - begin) / duration
    if bool(result != ukjax.RESULTS.successful):
        raise RuntimeError(f"{case.name}: {ukjax.RESULTS[result]}")
    values = np.asarray(values)
    return Run(np.asarray(ts), np.abs(values - values[0]), int(steps), pace)


def by_rattle(case: Case, duration: float, step: float) -> Run:
    """Constant steps; the mass, in units of the step."""
    count = round(duration / step)
    options = {"solver": ukjax.Rattle(), "stepsize_controller": diffrax.ConstantStepSize(), "dt0": step}
    return run(case, duration, max_steps=count + 2, **options)


def by_projection(case: Case, duration: float, tolerance: float) -> Run:
    return run(
        case, duration, projection=ukjax.Projection(), rtol=tolerance, atol=tolerance, max_steps=4 * MILLION,
        solver=diffrax.Tsit5(),
    )  # fmt: skip


def study(steps: int = MILLION) -> tuple[dict[str, dict[str, Run]], dict[str, dict[str, list[Run]]]]:
    """The long runs, and those of work against error, by the names of cases and methods."""
    long: dict[str, dict[str, Run]] = {}
    work: dict[str, dict[str, list[Run]]] = {}
    for case in cases():
        duration = steps * case.step
        say = lambda what, case=case: _report.console.status(f"{case.name}: {what}")
        with say(f"{steps} steps of RATTLE"):
            long[case.name] = {f"RATTLE, step {1e3 * case.step:g} ms": by_rattle(case, duration, case.step)}
        for tolerance in TOLERANCES:
            with say(f"Tsit5 with projection, {tolerance:.0e}"):
                found = by_projection(case, duration, tolerance)
                long[case.name][f"Tsit5 + projection, {tolerance:.0e}"] = found
        with say("work against error"):
            part = duration / 10
            work[case.name] = {
                "RATTLE": [by_rattle(case, part, case.step * x) for x in PARTS],
                "Tsit5 + projection": [by_projection(case, part, x) for x in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)],
            }
    return long, work


def rows(long: dict[str, dict[str, Run]]) -> list[tuple[str, ...]]:
    said = []
    for name, runs in long.items():
        for method, found in runs.items():
            tenth = len(found.off) // 10
            first, last = np.max(found.off[: tenth + 1]), np.max(found.off[-tenth:])
            said.append(
                (name, method, f"{found.steps:,}", f"{found.t[-1]:,.0f}", f"{first:.1e}", f"{last:.1e}",
                 f"{1e3 * found.pace:.2f}")
            )  # fmt: skip
    return said


def energies(long: dict[str, dict[str, Run]]) -> Figure:
    figure, axes = panels(1, len(long), (10.0, 4.6), sharey=True)
    for axis, (name, runs) in zip(axes, long.items(), strict=True):
        for (method, found), color in zip(runs.items(), ("0.6", "C1", "C0", "C2"), strict=True):
            axis.semilogy(found.t[1:], visible(found.off[1:]), color=color, lw=0.7, label=method.split(", step")[0])
        axis.set(title=name, xlabel="time t [s]")
        axis.margins(x=0.0)
    axes[0].set_ylabel("energy, off from the start by [J]")
    legend(figure)
    said = "; ".join(f"{name} {next(iter(runs)).partition(', ')[2]}" for name, runs in long.items())
    return captioned(figure, f"How far the energy is off over long runs, by RATTLE ({said}) and by projection.")


def works(work: dict[str, dict[str, list[Run]]]) -> Figure:
    figure, axes = panels(1, len(work), (10.0, 4.2), sharey=True)
    for axis, (name, methods) in zip(axes, work.items(), strict=True):
        for (method, runs), color in zip(methods.items(), ("k", "C0"), strict=True):
            axis.loglog([1e3 * x.pace for x in runs], [np.max(x.off) for x in runs], "o-", color=color, label=method)
        axis.set(
            title=f"{name}, {next(iter(methods.values()))[0].t[-1]:,.0f} s", xlabel="computing a second of motion [ms]"
        )
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel("energy, off by at the most [J]")
    legend(figure)
    return captioned(figure, "How far the energy is off at the most over what a second of motion costs.")


def main() -> None:
    out = _report.start(__doc__ or "", "long_runs")
    long, work = study()
    columns = ("mechanism", "method", "steps", "motion [s]", "energy off in the first tenth [J]",
               "in the last tenth [J]", "computing a second [ms]")  # fmt: skip
    _report.table("Energy over long runs", columns, rows(long))
    _report.save({"energy": energies(long), "work": works(work)}, out)


if __name__ == "__main__":
    main()
