"""The page "Your first hour" by the clock: in a fresh clone, with a fresh environment, as printed."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


ROOT = Path(__file__).parent.parent
HEADER = ("step", "seconds", "since the start")
# What a newcomer is promised: the first picture in two minutes, all of it in forty.
PROMISED = {"the first picture": 120.0, "everything": 2400.0}


def rows(say: Callable[[str], None]) -> list[tuple[str, ...]]:
    """Cells of the table; `say` is told what is being done. RuntimeError if something does not run, or is late."""
    found, begin = [], time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "ukjax"
        _run(["git", "clone", "-q", str(ROOT), str(clone)], Path(folder))
        page = (clone / "docs" / "first_hour.md").read_text("utf-8")
        (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        commands = re.sub(r"\\\n +", "", commands)  # a command that goes on in the next line
        steps = [*commands.splitlines(), "the page's Python"]
        for step in steps:
            say(step)
            start = time.perf_counter()
            if step in commands:
                _run(["bash", "-euc", step], clone)
            else:
                _run([str(clone / ".venv/bin/python"), "-c", "\n".join(blocks)], clone)
            end = time.perf_counter()
            found.append((step, f"{end - start:.0f}", f"{end - begin:.0f}"))
            part = "everything" if step == steps[-1] else "the first picture"
            if end - begin > PROMISED[part]:
                raise RuntimeError(f"{part} took {end - begin:.0f} s, and not {PROMISED[part]:.0f} s.")
        if not list((clone / "out" / "first").glob("*.png")) or not (clone / "bead.png").exists():
            raise RuntimeError("The page did not leave its pictures.")
    return found


def _run(command: list[str], folder: Path) -> None:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ended.returncode:
        print(ended.stdout, ended.stderr, file=sys.stderr)
        raise RuntimeError(f"{command} does not run: {ended.stderr.strip().splitlines()[-1:]}")
