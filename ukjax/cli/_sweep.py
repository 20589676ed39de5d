"""The commands that simulate many times: `ukjax sweep`, `ukjax dataset` and `ukjax tune`."""

import dataclasses
import hashlib
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .._result import FailedTrajectories
from .._scenario import Scenario
from .._sweep import Status, dataset, design_of, opened, parse, sweep, sweep_export, sweep_status
from .._trajectory import OPTIONAL
from .._tune import Tuning
from . import _output, _target
from ._target import UsageError


if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client


class Study(NamedTuple):
    """The options of a study: see `ukjax.sweep`."""

    vary: Sequence[str]
    samples: int | None
    design: str
    seed: int
    t1: float | None
    points: int
    keep: str
    chunk: int | None
    rtol: float
    atol: float
    scheduler: str | None
    pictures: Sequence[_output.Picture] = ()


def run_sweep(console: Console, target: str, settings: Sequence[str], study: Study, out: Path | None) -> None:
    """Runs a study, or continues it, and draws it. Raises UsageError, or RuntimeError if the study cannot continue."""
    if _target.is_robot(target):
        raise UsageError("TARGET of a study must be module:factory or file.py:factory, whose arguments are varied.")
    if not study.vary:
        raise UsageError("Pass --vary name=low:high:n, once for every parameter.")
    factory = _target.factory(target, Scenario)
    fixed = _target.parse(settings, factory, target)
    try:
        vary = parse(study.vary)
        names = design_of(vary, study.design, study.samples, study.seed).about  # raises before a folder is made
    except ValueError as error:
        raise UsageError(str(error)) from error
    _target.parse([f"{name}=0" for name in names], factory, target)
    first = _target.scenario(
        target, [*settings, *(f"{name}={_first(given)!r}" for name, given in zip(names, vary.values()))]
    )
    end = first.t1 if study.t1 is None else study.t1
    if not end > first.t0:
        raise UsageError(f"--t1 must be later than the start, {first.t0} s, but is {end} s.")
    client = None if study.scheduler is None else _client(study.scheduler)
    folder = _output.claim(out, f"{first.name} sweep")
    console.print(f"Studying {escape(first.name)} in {folder}; the first chunk compiles.", highlight=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FailedTrajectories)  # the table counts them
            data = sweep(
                factory, vary, folder, design=study.design, samples=study.samples, seed=study.seed, settings=fixed,
                ts=np.linspace(first.t0, end, study.points), keep=tuple(study.keep.split(",")), chunk=study.chunk,
                client=client, name=target, rtol=study.rtol, atol=study.atol,
            )  # fmt: skip
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error
    except (OSError, RuntimeError) as error:
        raise RuntimeError(str(error)) from error
    except KeyboardInterrupt:
        console.print(f"Interrupted. The same command goes on: {escape(str(folder))}", soft_wrap=True, highlight=False)
        raise SystemExit(130) from None
    finally:
        if client is not None:
            client.close()
    console.print(_study_summary(sweep_status(folder)))
    console.print(f"wrote {folder / 'data.zarr'}", soft_wrap=True, highlight=False, markup=False)
    _draw(console, folder, data, study.pictures)


def status(console: Console, folder: Path) -> None:
    """Prints the progress of a study. Raises UsageError."""
    try:
        with _output.working(console, "Looking at the chunks"):
            found = sweep_status(folder, thoroughly=True)
    except ValueError as error:
        raise UsageError(str(error)) from error
    console.print(_study_summary(found))


def draw(console: Console, folder: Path, kinds: Sequence[_output.Picture]) -> None:
    """Draws the results of a study so far. Raises UsageError."""
    try:
        store = opened(folder)
        damaged, data = store.damaged(), dataset(folder)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    if damaged:
        raise UsageError(
            f"{len(damaged)} of {store.chunks} chunks of {folder} are not as they were written, beginning with chunk "
            f"{damaged[0]}. The command that began the study makes them again."
        )
    _draw(console, folder, data, kinds)


def export(console: Console, study: Path, out: Path, holdout: float, seed: int, dtype: str | None) -> None:
    """Writes a study as NumPy archives. Raises UsageError, or RuntimeError if the disk is full."""
    try:
        index = sweep_export(study, out, holdout=holdout, seed=seed, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise RuntimeError(f"{error.strerror}. Nothing was left there.") from error
    counts, shards = index["counts"], sum(map(len, index["shards"].values()))
    failed = f"; {index['failed']} failed and were left out" if index["failed"] else ""
    console.print(
        f"{counts['train']} trajectories to train on, {counts['holdout']} apart, in {shards} archives{failed}",
        highlight=False,
    )
    console.print(f"wrote {out / 'index.json'}", soft_wrap=True, highlight=False, markup=False)


def _first(given: tuple[float | str, ...] | list[float]) -> float:
    return float(given[0])


def _client(address: str) -> "Client":
    try:
        from distributed import Client
    except ImportError as error:
        raise UsageError("--scheduler needs Dask: python -m pip install 'ukjax[cluster]'.") from error
    try:
        return Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise UsageError(f"--scheduler {address}: there is no scheduler: {error}") from error


def _study_summary(status: Status) -> Table:
    table = Table(title=escape(str(status.about["study"])), show_header=False)
    whole = status.done == status.samples
    rate = f", {status.done / status.seconds:.3g} a second" if status.seconds else ""
    varied = "; ".join(f"{k} = {v}" for k, v in status.about["vary"].items())
    entries = [
        ("varied", f"{varied} ({status.about['design']})"),
        ("trajectories", f"{status.done} of {status.samples}{'' if whole else ', the same command goes on'}"),
        ("chunks", f"{status.chunks_done} of {status.chunks}"),
        ("failed", f"{status.failed}"),
        ("time", f"{status.seconds:.1f} s{rate}"),
        ("made with", ", ".join(f"{k} {v}" for k, v in status.about["versions"].items())),
    ]
    for entry in entries:
        table.add_row(*map(escape, entry))
    return table


def _draw(console: Console, folder: Path, data: "xr.Dataset", kinds: Sequence[_output.Picture]) -> None:
    from .. import plot

    done = np.flatnonzero(np.isfinite(np.asarray(data.result)))
    if not len(done):
        raise UsageError(f"{folder} has no results to draw yet.")
    numbers = [str(k) for k, x in data.data_vars.items() if x.dims == ("sample",) and "long_name" in x.attrs]
    numbers = [k for k in numbers if k not in ("result", "num_accepted_steps", "num_rejected_steps", "t_reached")]
    observed = [str(k) for k, x in data.data_vars.items() if x.dims[:2] == ("sample", "time") and k not in OPTIONAL]
    with _output.working(console, "Drawing"):
        pictures = {name: plot.over_parameters(data, name) for name in (*observed, *numbers)}
        if np.any(np.asarray(data.result) == 0):
            over_time = {"quantiles": "q"} if "q" in data else {}
            over_time |= {f"{name}_quantiles": name for name in observed}
            pictures |= {stem: plot.quantiles(data, name) for stem, name in over_time.items()}
        folder.joinpath("plots").mkdir(exist_ok=True)
        paths = _output.write(folder / "plots", _output.pictures(pictures, kinds))
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def run_tune(
    console: Console,
    target: str,
    settings: Sequence[str],
    steps: int | None,
    out: Path | None,
    fresh: bool,
    kinds: Sequence[_output.Picture],
) -> None:
    """Tunes, prints a summary, and writes results to `out`. Raises UsageError, or RuntimeError if it fails."""
    problem = _target.tuning_problem(target, settings)
    if steps is not None:
        problem = dataclasses.replace(problem, steps=steps)
    folder = _output.claim(out, problem.name)
    # The mark is of this target with these settings, so that another problem does not continue from its checkpoint.
    mark = hashlib.sha256(repr((target, sorted(settings))).encode()).hexdigest()[:10]
    checkpoint = folder / f".{mark}.unfinished.npz"
    if fresh:
        checkpoint.unlink(missing_ok=True)
    if checkpoint.exists():
        console.print("Going on where an earlier run was interrupted; --fresh starts anew.")
    console.print(f"Tuning {escape(problem.name)}; the first step compiles the gradient of the loss.", highlight=False)
    start = time.perf_counter()
    try:
        tuning = problem.tune(checkpoint=checkpoint, throw=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{target}: {error}") from error
    except KeyboardInterrupt:
        kept = f"Interrupted. The same command goes on from here: {checkpoint}" if checkpoint.exists() else "Stopped."
        console.print(escape(kept), soft_wrap=True, highlight=False)
        raise SystemExit(130) from None
    failed = not np.isfinite([tuning.losses[-1], tuning.gradient_norms[-1]]).all()
    if failed:
        checkpoint.unlink(missing_ok=True)  # continuing from there would only fail again
    if not np.isfinite(tuning.loss):
        raise RuntimeError(f"{tuning.stopped} Nothing was written.")
    from .. import plot

    quantities = problem.shown(tuning.history)
    console.print(_tuning_summary(problem.name, tuning, quantities, time.perf_counter() - start))
    data = tuning.to_dataset().assign_attrs(title=problem.name)
    figure = plot.convergence(tuning, quantities)
    with _output.working(console, "Writing the history and drawing it"):
        paths = _output.write(
            folder,
            [
                ("tuning.nc", lambda path: data.to_netcdf(path, engine="scipy")),
                *_output.pictures({"convergence": figure}, kinds),
            ],
        )
    checkpoint.unlink(missing_ok=True)
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)
    if failed:
        raise RuntimeError(f"{tuning.stopped} What was best until then was written.")


def _tuning_summary(name: str, tuning: Tuning, quantities: dict[str, np.ndarray], seconds: float) -> Table:
    table = Table("", "start", f"best (step {tuning.step})", title=escape(name))
    best = tuning.step
    table.add_row("loss", f"{tuning.full_losses[0]:.6g}", f"{tuning.loss:.6g}")
    for quantity, values in quantities.items():
        table.add_row(escape(quantity), f"{values[0]:.6g}", f"{values[best]:.6g}")
    table.add_row("norm of gradient", f"{tuning.gradient_norms[0]:.3g}", f"{tuning.gradient_norms[best]:.3g}")
    table.add_row("steps", "", f"{len(tuning.losses) - 1}{' (' + tuning.stopped + ')' if tuning.stopped else ''}")
    table.add_row("time", "", f"{seconds:.1f} s")
    return table
