"""The code in the documentation runs, and prints what stands below it."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest


PAGES = (
    *("first_hour.md", "theory.md", "formulation.md", "rigid.md", "analysis.md"),
    *("feedback.md", "events.md", "planning.md", "long_runs.md"),
)
DOCS = Path(__file__).parent.parent / "docs"


def blocks(name: str) -> list[tuple[str, str]]:
    """Each block of Python, and the block of text right after it, if there is one."""
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?"
    return re.findall(pattern, (DOCS / name).read_text(), re.DOTALL)


def outcome(code: str, names: dict) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(code, names)
    return shown.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("name", PAGES)
def test_code_runs_and_prints_what_the_page_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    found = blocks(name)
    assert len(found) >= 1
    assert any(printed for _, printed in found)
    for code, printed in found:
        got = [line.rstrip() for line in outcome(code, names).splitlines()]
        assert got == [line.rstrip() for line in printed.splitlines()], code
    assert names.get("worst", 0.0) < 1e-8


@pytest.mark.long
def test_the_page_on_many_trajectories_in_python(tmp_path, monkeypatch):
    """But for the program that runs on several processes, and what asks a cluster."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code, printed in blocks("batch.md"):
        if code.startswith("# gradient.py"):
            continue
        with jax.numpy_dtype_promotion("standard"):
            got = [line.rstrip() for line in outcome(code, names).splitlines()]
        assert got == [line.rstrip() for line in printed.splitlines()], code
    study = tmp_path / "by-hand"
    names["ukjax"].sweep_export(study, tmp_path / "shards", holdout=0.25)
    batches = list(names["batches"](tmp_path / "shards", "train", 4))
    assert [x["q"].shape for x in batches] == [(4, 11, 4)] * len(batches)
    assert len(np.unique(np.concatenate([x["damping"] + 1000 * x["stiffness"] for x in batches]))) == 4 * len(batches)


@pytest.mark.long
def test_the_commands_on_many_trajectories(tmp_path):
    """Each block in a shell, one after the other, in one folder; what runs in the background ends with it."""
    root = DOCS.parent
    commands = re.findall(r"```sh\n(.*?)```", (DOCS / "batch.md").read_text(), re.DOTALL)
    assert len(commands) == 4
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(root)}
    for text in commands:
        ended = subprocess.run(
            ["bash", "-euc", f"trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{text}"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ended.returncode == 0, (text, ended.stdout, ended.stderr)
    for wanted in ("study/plots/quantiles.png", "shards/index.json", "clustered/data.zarr/q/0.0.0", "points/data.zarr"):
        assert (tmp_path / wanted).exists(), wanted
    same = [(tmp_path / name / "data.zarr/q/0.0.0").read_bytes() for name in ("study", "clustered")]
    assert same[0] == same[1]
