"""The commands `ukjax simulate` and `ukjax animate`."""

import contextlib
import enum
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .._coordinate import Coordinate
from .._program import light_jit
from .._result import RESULTS, message
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _output, _target
from ._target import UsageError


if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation

LONGEST = 1000  # most frames; Pillow holds all of them in memory


def run_simulate(
    console: Console,
    target: str,
    settings: Sequence[str],
    t1: float | None,
    rtol: float,
    atol: float,
    points: int,
    out: Path | None,
    options: _target.FileOptions,
    pictures: Sequence[_output.Picture] = (),
    csv: bool = False,
) -> None:
    """Simulates, prints a summary, and writes results to `out`. Raises UsageError, or RuntimeError if it fails."""
    with _output.working(console, f"Making {target}"):
        scenario = _target.scenario(target, settings, options)
    end = end_of(scenario, t1)
    if scenario.drawing is not None:
        drawable(target, scenario)
    folder = _output.claim(out, scenario.name)
    ts = jnp.linspace(scenario.t0, end, points)
    trajectory, compile_s, run_s = timed_run(console, target, scenario, ts, rtol, atol)
    try:
        observed, invariants = _along(scenario, trajectory)
        console.print(_summary(scenario, trajectory, invariants, compile_s, run_s))
        with _output.working(console, "Writing the trajectory and drawing it"):
            files = _files(scenario, trajectory, observed, invariants, pictures, csv)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    with _output.working(console, "Writing the trajectory and drawing it"):
        paths = _output.write(folder, files)
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True, highlight=False, markup=False)


def _along(scenario: Scenario, trajectory: Trajectory) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Observables and invariants at the saved times, by one program instead of dozens of single operations."""

    def quantities(q: Array, v: Array, t: Array) -> tuple[dict[str, Array], ...]:
        both = scenario.observables, scenario.invariants
        return tuple({name: f(q, v, t) for name, f in functions.items()} for functions in both)

    found = light_jit(jax.vmap(quantities))(trajectory.q, trajectory.v, trajectory.t)
    return jax.tree.map(np.asarray, found)


def drawable(target: str, scenario: Scenario) -> None:
    """Raises UsageError if the scenario cannot be drawn, before it is simulated."""
    from ..plot._stage import check

    try:
        check(scenario)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error


def timed_run(
    console: Console, target: str, scenario: Scenario, ts: Array, rtol: float = 1e-8, atol: float = 1e-8
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


def _run(console: Console, scenario: Scenario, ts: Array, rtol: float, atol: float) -> tuple[Trajectory, float, float]:
    # JAX keeps no program with callbacks, so the progress bar is only for programs that are not kept.
    kept = _output.are_kept()
    options = {"rtol": rtol, "atol": atol, "progress": not kept, "throw": False}
    function = light_jit(lambda scenario, ts: scenario.simulate(ts, **options))
    with _output.working(console, f"Compiling {scenario.name}"):
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
    scenario: Scenario, trajectory: Trajectory, invariants: dict[str, np.ndarray], compile_s: float, run_s: float
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
        ("largest position error", _largest(trajectory.position_residual)),
        ("largest velocity error", _largest(trajectory.velocity_residual)),
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
    since = float(trajectory.stats["servo_missed_from"])
    return [
        ("servo rows met", f"no, first missed at t = {since:g} s" if np.isfinite(since) else "at every saved time"),
        ("largest control", f"{np.max(np.abs(trajectory.control)):.4g}"),
        ("largest servo position error", _largest(trajectory.servo_position_residual)),
        ("largest servo velocity error", _largest(trajectory.servo_velocity_residual)),
        ("largest acceleration missed by the servo", _largest(trajectory.servo_residual)),
    ]


def _largest(errors: Array | None) -> str:
    values = np.asarray(errors)
    return f"{np.max(values):.3g}, at the end {values[-1]:.3g}"


def _files(
    scenario: Scenario,
    trajectory: Trajectory,
    observed: dict[str, np.ndarray],
    invariants: dict[str, np.ndarray],
    pictures: Sequence[_output.Picture],
    csv: bool,
) -> _output.Files:
    from .. import plot

    further = observed | invariants
    data = trajectory.to_dataset(scenario.coordinates, scenario.controls or None, scenario.speeds, further)
    data = data.assign_attrs(title=scenario.name)
    figures = {"overview": plot.overview(trajectory, scenario.coordinates, speeds=scenario.speeds)}
    if trajectory.control is not None:
        figures["control"] = plot.controls(trajectory, scenario.controls)
    if not any(Coordinate(name).unit == "J" for name in (*observed, *invariants)):
        figures["energy"] = plot.energy(scenario, trajectory)
    if scenario.drawing is not None:
        figures["path"] = plot.path(scenario, trajectory)
    for name, values in further.items():
        stem = re.sub(r"\W+", "-", Coordinate(name).name).strip("-")
        while stem in figures:  # a user's "path [m]" must not replace the picture of that name
            stem += "-over-time"
        if name in invariants:
            figures[stem] = plot.components(trajectory.t, values - values[0], f"drift of {name}")
        else:
            figures[stem] = plot.components(trajectory.t, values, name)
    # The scipy engine writes NetCDF 3, which every reader opens, and needs no further package.
    files: _output.Files = [("trajectory.nc", lambda path: data.to_netcdf(path, engine="scipy"))]
    if csv:
        files.append(("trajectory.csv", lambda path: trajectory.to_csv(path, observables=further)))
    return [*files, *_output.pictures(figures, pictures)]


class Format(enum.StrEnum):
    gif = "gif"
    mp4 = "mp4"
    html = "html"


def run_animate(
    console: Console,
    target: str,
    settings: Sequence[str],
    t1: float | None,
    out: Path | None,
    fps: float,
    speed: float | None,
    formats: Sequence[Format],
    options: _target.FileOptions,
) -> None:
    """Simulates and writes animations to `out`. Raises UsageError, or RuntimeError if it fails."""
    wanted = list(dict.fromkeys(formats or (Format.gif, Format.html)))
    from matplotlib.animation import FFMpegWriter  # slow to import, and other commands do not need it

    if Format.mp4 in wanted and not FFMpegWriter.isAvailable():
        raise UsageError("--format mp4 needs ffmpeg, which is not on the PATH. Install it, or pass --format gif.")
    with _output.working(console, f"Making {target}"):
        scenario = _target.scenario(target, settings, options)
    drawable(target, scenario)
    end = end_of(scenario, t1)
    # A GIF counts in hundredths of a second, and all formats show the same frames.
    frame_ms = 10 * round(100 / fps)
    speed = speed_of(end - scenario.t0, speed)
    count = _number_of_frames(end - scenario.t0, frame_ms, speed)
    folder = _output.claim(out, scenario.name)

    # The page draws quickly, so it has a further frame between every two.
    ts = scenario.t0 + speed * frame_ms / 2000 * jnp.arange(2.0 * count - 1)
    trajectory, _, _ = timed_run(console, target, scenario, ts)
    try:
        files = _films(console, scenario, trajectory, frame_ms, speed, wanted)
    except ValueError as error:
        raise UsageError(f"{target}: {error}") from error
    paths = _output.write(folder, files)
    shown = "" if speed == 1 else f", {speed:g} times as fast as it is"
    console.print(f"{scenario.name}: {ts[0]:g} to {ts[-1]:g} s{shown}, {count} frames", highlight=False, markup=False)
    for path in paths:
        console.print(
            f"wrote {path} ({path.stat().st_size / 1e6:.2g} MB)", soft_wrap=True, highlight=False, markup=False
        )


def end_of(scenario: Scenario, t1: float | None) -> float:
    """The end time that --t1 asks for; else the scenario's. Raises UsageError if it is not after the start."""
    end = scenario.t1 if t1 is None else t1
    if not end > scenario.t0:
        raise UsageError(f"--t1 must be later than the start, {scenario.t0} s, but is {end} s.")
    return end


def speed_of(duration: float, speed: float | None) -> float:
    """The given speed; else 1, or a round number if the motion is too short to see or too long to wait for."""
    if speed is not None:
        if not (speed > 0 and np.isfinite(speed)):
            raise UsageError(f"--speed must be positive, but is {speed:g}.")
        return speed
    if 2.0 <= duration <= 30.0:
        return 1.0
    # The largest of 1, 2, 5 times a power of ten below the speed that takes 5 s, so 5 to 12.5 s.
    power = 10.0 ** np.floor(np.log10(duration / 5.0))
    return float(f"{max(m * power for m in (1, 2, 5) if m * power <= duration / 5.0 * (1 + 1e-9)):.3g}")


def _number_of_frames(duration: float, frame_ms: int, speed: float) -> int:
    count = int(duration / speed / frame_ms * 1000 * (1 + 1e-12)) + 1
    if not 2 <= count <= LONGEST:
        what = "a lower --speed or a later --t1" if count < 2 else "a higher --speed, a lower --fps or an earlier --t1"
        raise UsageError(
            f"{duration:g} s at --speed {speed:g} make {count} frames of {frame_ms} ms, but 2 to {LONGEST} are "
            f"possible. Pass {what}."
        )
    return count


def _films(
    console: Console, scenario: Scenario, trajectory: Trajectory, frame_ms: int, speed: float, wanted: Sequence[Format]
) -> _output.Files:
    from .. import plot

    files: _output.Files = []
    for kind in wanted:
        if kind == Format.html:
            text = plot.page(scenario, trajectory, speed)
            files.append(("animation.html", lambda path, text=text: path.write_text(text, "utf-8")))
        else:
            film = plot.animation(scenario, trajectory, frame_ms, step=2)
            files.append((f"animation.{kind}", lambda path, film=film: save(console, film, path, frame_ms)))
    return files


def save(console: Console, film: "FuncAnimation", path: Path, frame_ms: int) -> None:
    """Writes a film, with a progress bar. Raises RuntimeError if ffmpeg fails."""
    from matplotlib.animation import FFMpegWriter, PillowWriter

    if path.suffix == ".gif":
        # Pillow's writer rounds the milliseconds down, and GIF the hundredths: half of one keeps both right.
        kind, fps, options = PillowWriter, 1000 / (frame_ms + 0.5), {}
    else:
        kind, fps, options = FFMpegWriter, 1000 / frame_ms, {"codec": "h264"}
    # The annotation of `fps` asks for an integer, the code does not.
    writer = kind(fps=fps, **options)  # pyright: ignore
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(f"Drawing {path.name}")

        def tell(i: int, n: int) -> None:
            # After the last frame Pillow compresses all of them, which takes longer than drawing them.
            doing = "Drawing" if i + 1 < n else "Compressing"
            progress.update(task, completed=i + 1, total=n, description=f"{doing} {path.name}")

        try:
            film.save(path, writer, dpi=100, progress_callback=tell)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"ffmpeg could not write {path.name} ({error}). Nothing was written.") from error


# Saved times, by which the picture and the steps of a page that simulates are chosen.
LIVE_POINTS = 401


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
    drawable(target, scenario)
    end = end_of(scenario, t1)
    speed = speed_of(end - scenario.t0, speed)
    folder = _output.claim(out, scenario.name)
    ts = jnp.linspace(scenario.t0, end, LIVE_POINTS)
    trajectory, _, _ = timed_run(console, target, scenario, ts)
    try:
        with _output.working(console, "Making the page"):
            text = plot.live(scenario, trajectory, speed, parameters or None)
    except ValueError as error:
        raise UsageError(f"{target} --live: {error}") from error
    (path,) = _output.write(folder, [("live.html", lambda path: path.write_text(text, "utf-8"))])
    console.print(f"wrote {path} ({len(text) / 1e6:.2g} MB)", soft_wrap=True, highlight=False, markup=False)
