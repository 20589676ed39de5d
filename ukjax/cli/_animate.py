"""The command `ukjax animate`."""

import enum
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import plot
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _output, _target
from ._simulate import drawable, timed_run
from ._target import UsageError


if TYPE_CHECKING:
    from matplotlib.animation import FuncAnimation

LONGEST = 1000  # most frames; Pillow holds all of them in memory


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
) -> None:
    """Simulates and writes animations to `out`. Raises UsageError, or RuntimeError if it fails."""
    wanted = list(dict.fromkeys(formats or (Format.gif, Format.html)))
    from matplotlib.animation import FFMpegWriter  # slow to import, and other commands do not need it

    if Format.mp4 in wanted and not FFMpegWriter.isAvailable():
        raise UsageError("--format mp4 needs ffmpeg, which is not on the PATH. Install it, or pass --format gif.")
    scenario = _target.scenario(target, settings)
    drawable(target, scenario)
    end = scenario.t1 if t1 is None else t1
    if not end > scenario.t0:
        raise UsageError(f"--t1 must be later than the start, {scenario.t0} s, but is {end} s.")
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
) -> list[tuple[str, Callable[[Path], Any]]]:
    files: list[tuple[str, Callable[[Path], Any]]] = []
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
    writer: Any = kind(fps=fps, **options)  # pyright: ignore
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
