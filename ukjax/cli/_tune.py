"""The command `ukjax tune`."""

import dataclasses
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import plot
from .._tune import Tuning
from . import _output, _target
from ._target import UsageError


def run_tune(
    console: Console, target: str, settings: Sequence[str], steps: int | None, out: Path | None, fresh: bool
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
    quantities = problem.shown(tuning.history)
    console.print(_tuning_summary(problem.name, tuning, quantities, time.perf_counter() - start))
    data = tuning.to_dataset().assign_attrs(title=problem.name)
    figure = plot.convergence(tuning, quantities, problem.name)
    with console.status("Writing the history and drawing it"):
        paths = _output.write(
            folder,
            [
                ("tuning.nc", lambda path: data.to_netcdf(path, engine="scipy")),
                ("convergence.png", lambda path: figure.savefig(path, dpi=150)),
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
