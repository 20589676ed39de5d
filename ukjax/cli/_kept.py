"""Entries of `ukjax list --rank` that are kept from call to call, beside the programs that the command keeps."""

import hashlib
import json
from pathlib import Path
from typing import Any

from .._identity import versions
from . import _output
from ._declared import files


class Entries:
    """The kept entries of a package, as long as its files and the versions of ukjax and JAX are the same.

    None are kept where the command keeps no programs.
    """

    def __init__(self, package: str):
        folder = _output.cache()
        self.path = None if folder is None else folder / "lists" / f"{_mark(package)}.json"
        self.found: dict[str, dict[str, Any]] = {}
        if self.path is not None and self.path.is_file():
            try:
                self.found = json.loads(self.path.read_text("utf-8"))
            except (OSError, ValueError):
                self.found = {}

    def find(self, target: str) -> dict[str, Any] | None:
        """The entry of a scenario, if it is kept."""
        return self.found.get(target)

    def add(self, target: str, entry: dict[str, Any]) -> None:
        """Adds the entry of a scenario."""
        self.found[target] = entry

    def write(self) -> None:
        """Writes the entries, if they can be written."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_suffix(".unfinished")
            aside.write_text(json.dumps(self.found), "utf-8")
            aside.replace(self.path)
        except OSError:
            return  # the list is printed all the same


def _mark(package: str) -> str:
    """A checksum of the files of a package, of the library, and of versions."""
    library = Path(__file__).parents[1].rglob("*.py")
    found = hashlib.sha256(repr((package, sorted(versions().items()))).encode())
    for path in sorted({*(path for _, path in files(package)), *library}):
        found.update(path.read_bytes())
    return found.hexdigest()[:20]
