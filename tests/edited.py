"""Modules of a person's own, written to a folder, edited, and imported anew."""

import importlib
import sys


def imported(folder, files, *edits):
    """The first of `files` (name -> text) as a module of that folder; each edit is (name, old text, new text)."""
    files = dict(files)
    for name, old, new in edits:
        assert files[name].count(old) == 1, f"{old!r} is not in {name} once"
        files[name] = files[name].replace(old, new)
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(next(iter(files)))
    finally:
        sys.path.remove(str(folder))
