"""The command `ukjax simulate`."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from .. import plot
from .._coordinate import Coordinate
from .._program import light_jit
from .._result import RESULTS, message
from .._scenario import Scenario
from .._trajectory import Trajectory
from ..plot._scene import check
from . import _output, _programs, _target
from ._target import UsageError


def run_simulate(
    console: Console,
    target: str,
    settings: Sequence[str],
    t1: float | None,
    rtol: float,
    atol: float,
    points: int,
    out: Path | None,
) -> None:
    """Simulates, prints a summary, and writes results to `out`. Raises UsageError, or RuntimeError if it fails."""
    scenario = _target.scenario(target, settings)
    end = scenario.t1 if t1 is None else t1
    if not end > scenario.t0:
        raise UsageError(f"--t1 must be later than the start, {scenario.t0} s, but is {end} s.")
    if scenario.drawing is not None:
        drawable(target, scenario)
    folder = _output.claim(out, scenario.name)
    ts = jnp.linspace(scenario.t0, end, points)
    trajectory, compile_s, run_s = timed_run(console, target, scenario, ts, rtol, atol)
    try:
        observed, invariants = _along(scenario, trajectory)
        console.print(_summary(scenario, trajectory, invariants, compile_s, run_s))
        with console.status("Writing the trajectory and drawing it"):
            files = _files(scenario, trajectory, observed, invariants)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    with console.status("Writing the trajectory and drawing it"):
        paths = _output.write(folder, files)
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _along(scenario: Scenario, trajectory: Trajectory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Observables and invariants at the saved times, by one program instead of dozens of single operations."""
    both = scenario.observables, scenario.invariants
    of = lambda q, v, t: tuple({name: f(q, v, t) for name, f in functions.items()} for functions in both)
    found = light_jit(jax.vmap(of))(trajectory.q, trajectory.v, trajectory.t)
    return jax.tree.map(np.asarray, found)


def drawable(target: str, scenario: Scenario) -> None:
    """Raises UsageError if the scenario cannot be drawn, before it is simulated."""
    try:
        check(scenario)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error


def timed_run(
    console: Console, target: str, scenario: Scenario, ts: Any, rtol: float = 1e-8, atol: float = 1e-8
) -> tuple[Trajectory, float, float]:
    """The trajectory, and the times of compilation and of the run [s]. Raises UsageError or RuntimeError."""
    try:
        trajectory, compile_s, run_s = _run(console, scenario, ts, rtol, atol)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    if bool(trajectory.result != RESULTS.successful):
        where = f"(reached t = {trajectory.stats['t_reached']:.6g} s of {ts[-1]:g} s; nothing was written)"
        raise RuntimeError(f"{message(trajectory.result)} {where}")
    return trajectory, compile_s, run_s


def _run(console: Console, scenario: Scenario, ts: Any, rtol: float, atol: float) -> tuple[Trajectory, float, float]:
    # JAX keeps no program with callbacks, so the progress bar is only for programs that are not kept.
    kept = _programs.are_kept()
    options: dict[str, Any] = {"rtol": rtol, "atol": atol, "progress": not kept, "throw": False}
    function = light_jit(lambda scenario, ts: scenario.simulate(ts, **options))
    with console.status(f"Compiling {scenario.name}"):
        start = time.perf_counter()
        lowered = function.lower(scenario, ts)
        # While XLA compiles, or reads a kept program, Python is idle.
        ahead = threading.Thread(target=_load_ahead)
        ahead.start()
        compiled = lowered.compile()
        compile_s = time.perf_counter() - start
        ahead.join()  # matplotlib draws one picture at a time
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not kept) as waiting:
        waiting.add_task(f"Simulating {escape(scenario.name)}", total=None)
        start = time.perf_counter()
        trajectory = jax.block_until_ready(compiled(scenario, ts))
        run_s = time.perf_counter() - start
    # From here on the arrays are NumPy's: JAX would compile a program for each small operation on them.
    plain = jax.tree.map(np.asarray, trajectory)
    return eqx.tree_at(lambda x: x.result, plain, trajectory.result), compile_s, run_s


def _load_ahead() -> None:
    """Imports the packages for writing and drawing, which would otherwise delay the results after the simulation."""
    with contextlib.suppress(Exception):  # an error is raised again where the package is needed
        import scipy.io  # noqa: F401
        import xarray  # noqa: F401
        from matplotlib.figure import Figure

        Figure().savefig(BytesIO())


def _summary(
    scenario: Scenario, trajectory: Trajectory, invariants: dict[str, Any], compile_s: float, run_s: float
) -> Table:
    table = Table(title=escape(scenario.name), show_header=False)
    stats = trajectory.stats
    rank = np.unique(np.asarray(trajectory.rank))
    rows = jax.eval_shape(lambda: scenario.mechanism.terms(scenario.q0, scenario.v0, jnp.asarray(scenario.t0))).b.shape[
        0
    ]
    ranks = str(rank[0]) if rank.size == 1 else f"{rank[0]} to {rank[-1]}"
    entries = [
        ("time", f"{trajectory.t[0]:g} to {trajectory.t[-1]:g} s"),
        ("steps", f"{stats['num_accepted_steps']} accepted, {stats['num_rejected_steps']} rejected"),
        ("constraint rows", f"{rows}, of rank {ranks}; {trajectory.q.shape[1]} coordinates"),
        (
            "largest position error",
            f"{np.max(trajectory.position_residual):.3g}, at the end {trajectory.position_residual[-1]:.3g}",
        ),
        (
            "largest velocity error",
            f"{np.max(trajectory.velocity_residual):.3g}, at the end {trajectory.velocity_residual[-1]:.3g}",
        ),
        *_servo_entries(trajectory),
        *((f"drift of {name}", f"{np.max(np.abs(value - value[0])):.3g}") for name, value in invariants.items()),
        ("time to compile", f"{compile_s:.2f} s"),
        ("time to run", f"{run_s:.3f} s"),
    ]
    for entry in entries:
        table.add_row(*map(escape, entry))
    return table


def _servo_entries(trajectory: Trajectory) -> list[tuple[str, str]]:
    if trajectory.control is None:
        return []
    if trajectory.servo_residual is None:
        return [("largest control", f"{np.max(np.abs(trajectory.control)):.4g}")]
    largest = lambda x: f"{np.max(x):.3g}, at the end {x[-1]:.3g}"
    since = float(trajectory.stats["servo_missed_from"])
    return [
        ("servo rows met", f"no, first missed at t = {since:g} s" if np.isfinite(since) else "at every saved time"),
        ("largest control", f"{np.max(np.abs(trajectory.control)):.4g}"),
        ("largest servo position error", largest(np.asarray(trajectory.servo_position_residual))),
        ("largest servo velocity error", largest(np.asarray(trajectory.servo_velocity_residual))),
        ("largest acceleration missed by the servo", largest(np.asarray(trajectory.servo_residual))),
    ]


def _files(
    scenario: Scenario, trajectory: Trajectory, observed: dict[str, Any], invariants: dict[str, Any]
) -> list[tuple[str, Callable[[Path], Any]]]:
    data = trajectory.to_dataset(scenario.coordinates, scenario.controls or None, scenario.speeds)
    data = data.assign_attrs(title=scenario.name)
    figures = {"overview": plot.overview(trajectory, scenario.coordinates, scenario.name, scenario.speeds)}
    if trajectory.control is not None:
        figures["control"] = plot.controls(trajectory, scenario.controls, scenario.name)
    if not any(Coordinate(name).unit == "J" for name in (*observed, *invariants)):
        figures["energy"] = plot.energy(scenario, trajectory)
    if scenario.drawing is not None:
        figures["path"] = plot.path(scenario, trajectory)
    for name, values in {**observed, **invariants}.items():
        stem = re.sub(r"\W+", "-", Coordinate(name).name).strip("-")
        while stem in figures:  # a user's "path [m]" must not replace the picture of that name
            stem += "-over-time"
        figures[stem] = plot.components(trajectory.t, values, name, scenario.name)
    # The scipy engine writes NetCDF 3, which every reader opens, and needs no further package.
    files: list[tuple[str, Callable[[Path], Any]]] = [
        ("trajectory.nc", lambda path: data.to_netcdf(path, engine="scipy"))
    ]
    for stem, figure in figures.items():
        files.append((f"{stem}.png", lambda path, figure=figure: figure.savefig(path, dpi=150)))
    return files
