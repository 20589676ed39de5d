"""Files that a command writes, all of them or none, and compiled programs that it keeps in the user's cache folder."""

import contextlib
import enum
import functools
import os
import platform
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from platformdirs import user_cache_path
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .._lowering import OFF, VARIABLE, keep_code
from ._target import UsageError


if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Names of files, and functions that write them to a path.
Files = list[tuple[str, Callable[[Path], object]]]


def folder_of(name: str) -> Path:
    """The folder that a command writes to if none is given."""
    return Path("out") / re.sub(r"\W+", "-", name).strip("-").lower()


def claim(out: Path | None, name: str) -> Path:
    """The folder `out`, or a folder named after `name`, made and found writable before any work. Raises UsageError."""
    folder = out or folder_of(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written to: {error.strerror}. Pass another folder.") from error
    return folder


def write(folder: Path, files: Files) -> list[Path]:
    """Writes all files to a temporary folder, and moves them to `folder` when all are complete. Raises UsageError."""
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as aside:
            for name, save in files:
                save(Path(aside) / name)
            for name, _ in files:
                shutil.move(Path(aside) / name, folder / name)
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written to: {error}. Nothing was left there.") from error
    return [folder / name for name, _ in files]


class Picture(enum.StrEnum):
    png = "png"
    pdf = "pdf"
    svg = "svg"


def pictures(figures: Mapping[str, "Figure"], kinds: Sequence[Picture]) -> Files:
    """Files of figures, by their names without an ending: PNG, or of all `kinds`."""
    return [
        (f"{stem}.{kind}", functools.partial(figure.savefig, dpi=150))
        for stem, figure in figures.items()
        for kind in dict.fromkeys(kinds or (Picture.png,))
    ]


SILENT = 3.0  # [s]: the longest wait without a word


@contextlib.contextmanager
def working(console: Console, what: str) -> Iterator[None]:
    """Shows what is being done, and for how long; where the output is no terminal, a line after three seconds."""
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            progress.add_task(escape(what), total=None)
            yield
        return
    line = {"soft_wrap": True, "highlight": False, "markup": False}
    later = threading.Timer(SILENT, console.print, (f"{what} ...",), line)
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()


LARGEST = 500_000_000  # [bytes]; the least recently used programs are removed first


def keep_programs() -> None:
    """Makes JAX keep compiled programs, unless `VARIABLE` is off, a folder is already set, or none can be written.

    Machine code is kept beside them.
    """
    if os.environ.get(VARIABLE, "").lower() in OFF:
        return
    keep_code(_folder() / "code")
    if are_kept():
        return
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
    except OSError:
        return  # the command works without kept programs
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    # Many programs are small, and all of them take time to compile again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache() -> Path | None:
    """The folder in which the command keeps what it computed; None if it keeps nothing."""
    return None if os.environ.get(VARIABLE, "").lower() in OFF else _folder()


def are_kept() -> bool:
    """Whether compiled programs are kept; programs with callbacks to Python, as for progress bars, never are."""
    return jax.config.jax_compilation_cache_dir is not None  # pyright: ignore[reportAttributeAccessIssue]


def _folder() -> Path:
    if said := os.environ.get(VARIABLE):
        return Path(said)
    # Each machine has its own folder: a home may be shared, and a program is compiled for one processor.
    return user_cache_path("ukjax") / "programs" / (platform.node() or "here")
