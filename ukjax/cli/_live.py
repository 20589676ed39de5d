"""The command `ukjax animate --live`: a page that simulates."""

from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
from rich.console import Console

from . import _output, _simulate, _target
from ._target import UsageError


# Saved times, by which the page's picture and steps are chosen.
POINTS = 401


def run_live(
    console: Console,
    target: str,
    settings: Sequence[str],
    t1: float | None,
    out: Path | None,
    speed: float | None,
    parameters: Sequence[str],
    options: _target.FileOptions,
) -> None:
    """Writes the page to `out`. Raises UsageError, or RuntimeError if the simulation fails."""
    from .. import plot

    with _output.working(console, f"Making {target}"):
        scenario = _target.scenario(target, settings, options)
    _simulate.drawable(target, scenario)
    end = _simulate.end_of(scenario, t1)
    speed = _simulate.speed_of(end - scenario.t0, speed)
    folder = _output.claim(out, scenario.name)
    ts = jnp.linspace(scenario.t0, end, POINTS)
    trajectory, _, _ = _simulate.timed_run(console, target, scenario, ts)
    try:
        with _output.working(console, "Making the page"):
            text = plot.live(scenario, trajectory, speed, parameters or None)
    except ValueError as error:
        raise UsageError(f"{target} --live: {error}") from error
    (path,) = _output.write(folder, [("live.html", lambda path: path.write_text(text, "utf-8"))])
    console.print(f"wrote {path} ({len(text) / 1e6:.2g} MB)", soft_wrap=True, highlight=False, markup=False)
