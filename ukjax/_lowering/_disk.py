"""Compiled code in a folder, from one process to the next.

The folder is that of the environment variable UKJAX_CACHE, or one that a command names. A file is named by a checksum
of everything that its code depends on: the text, LLVM, the CPU. Another of any of these is another file.
"""

import contextlib
import functools as ft
import os
import tempfile
from pathlib import Path


VARIABLE = "UKJAX_CACHE"
OFF = ("0", "off", "no", "false")
LARGEST = 200_000_000  # [bytes]; what was not used for longest goes first
# Files after which the size of the folder is looked at again.
OFTEN = 32


class CodeFolder:
    """A folder of compiled code, of which files may vanish at any time; several processes may use it."""

    def __init__(self, path: Path, largest: int = LARGEST):
        self.path, self.largest, self._written = path, largest, 0

    def get(self, key: str) -> bytes | None:
        """The code of this key; None if there is none."""
        file = self.path / key
        try:
            data = file.read_bytes()
            file.touch()
        except OSError:
            return None
        return data or None

    def has(self, key: str) -> bool:
        """Whether there is code of this key."""
        return os.path.isfile(self.path / key)  # False too where the folder cannot be read

    def put(self, key: str, data: bytes) -> None:
        """Keeps the code of this key, if the folder can be written to."""
        with contextlib.suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
                file.write(data)
            os.replace(file.name, self.path / key)
            if self._written % OFTEN == 0:
                self._tidy()
            self._written += 1

    def _tidy(self) -> None:
        found = [(x.stat().st_mtime, x.stat().st_size, x.path) for x in os.scandir(self.path) if x.is_file()]
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.largest:
                return
            with contextlib.suppress(OSError):
                os.remove(path)
            total -= size


_named: list[Path] = []


def keep_code(folder: Path) -> None:
    """Keeps compiled code in this folder from now on, unless UKJAX_CACHE says otherwise."""
    _named[:] = [folder]


def code_folder() -> CodeFolder | None:
    """The folder of compiled code; None if none is kept."""
    said = os.environ.get(VARIABLE, "")
    if said.lower() in OFF:
        return None
    path = Path(said) / "code" if said else _named[0] if _named else None
    if path is None:
        return None
    return _folder_at(path)


@ft.cache
def _folder_at(path: Path) -> CodeFolder:
    return CodeFolder(path)
