"""Files that are written as a whole or not at all, and a lock for one process."""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes an OSError within this context name `out` as the folder that cannot be written to."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"out={folder} cannot be written to: {error.strerror}. Pass another folder"
        ) from error


def lock(file: Any) -> None:
    """Locks a file for this process, as long as it is open; raises BlockingIOError if another process has it."""
    words = "Another process is writing to this study. Wait for it, or stop it."
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        windows: Any = msvcrt
        try:
            windows.locking(file.fileno(), windows.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(words) from error
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = os.path.samestat(os.stat(file.name), os.fstat(file.fileno()))
    except (BlockingIOError, FileNotFoundError) as error:
        raise BlockingIOError(words) from error
    if not ours:  # the process that had it has removed it, and another one has made a new file
        raise BlockingIOError(words)


def write(path: Path, text: str) -> None:
    """Writes a file that is there as a whole, on disk, or not at all."""
    aside = path.with_name(f".{path.name}.unfinished")
    try:
        aside.write_text(text)
        to_disk(aside)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Waits until a file, or the list of files of a folder, would outlive a power cut."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def checksum(path: Path) -> tuple[int, str]:
    """The length of a file and a hash of its content."""
    content = path.read_bytes()
    return len(content), hashlib.blake2b(content, digest_size=16).hexdigest()
