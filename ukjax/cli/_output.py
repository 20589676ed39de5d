"""Files that a command writes: all of them, or none."""

import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._target import UsageError


def claim(out: Path | None, name: str) -> Path:
    """The folder `out`, or a folder named after `name`, made and found writable before any work. Raises UsageError."""
    folder = out or Path("out") / re.sub(r"\W+", "-", name).strip("-").lower()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"--out {folder} cannot be written to: {error.strerror}. Pass another folder.") from error
    return folder


def write(folder: Path, files: Sequence[tuple[str, Callable[[Path], Any]]]) -> list[Path]:
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
