"""The code in the documentation runs, and prints what stands below it."""

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import numpy as np
import pytest

from models import closed_form

from .helpers import standard_promotion


PAGES = (
    *("first_hour.md", "theory.md", "formulation.md", "rigid.md", "analysis.md"),
    *("feedback.md", "events.md", "planning.md", "long_runs.md", "recursive.md", "servo.md", "see.md"),
    "howto.md",
    "sharp_bits.md",
)
DOCS = Path(__file__).parent.parent / "docs"


def blocks(name: str) -> list[tuple[str, str]]:
    """Each block of Python, and the block of text right after it, if there is one."""
    pattern = r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?"
    return re.findall(pattern, (DOCS / name).read_text(), re.DOTALL)


def examples() -> dict[str, str]:
    """Every block of Python in a docstring of the library, by where it stands."""
    found = {}
    for path in sorted((DOCS.parent / "ukjax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                assert ">>>" not in text, (path, "write a block of Python instead")
                for i, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
                    name = getattr(node, "name", path.stem)
                    found[f"{name}-{i}"] = textwrap.dedent(code)
    return found


def outcome(code: str, names: dict) -> str:
    """What it prints, as its reader has JAX: numbers of different precision may meet."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), standard_promotion():
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
@pytest.mark.parametrize("name", examples())
def test_an_example_in_a_docstring_runs_and_prints_numbers(name):
    shown = outcome(examples()[name], {})
    assert re.search(r"\d", shown)
    assert "nan" not in shown


@pytest.mark.long
def test_the_readmes_own_mechanism():
    """A height, and its slope by the length; the height of a pendulum in closed form."""
    text = (DOCS.parent / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {}
    outcome(code, names)
    with standard_promotion():
        height, slope = jax.value_and_grad(names["final_height"])(1.2)
        higher, lower = (names["final_height"](1.2 + h) for h in (1e-5, -1e-5))
    angle, _ = closed_form.pendulum(np.array([1.0]), -np.pi / 2 - 0.01, 0.0, np.sqrt(9.81 / 1.2))
    assert float(height) == pytest.approx(-1.2 * np.cos(angle[0]), abs=1e-3)
    assert float(slope) == pytest.approx(float(higher - lower) / 2e-5, abs=1e-6)


def test_every_page_with_code_is_run():
    """In this file, or by the test of what it is about."""
    tests = DOCS.parent / "tests"
    elsewhere = {
        "batch.md": __file__,
        "formalisms.md": str(tests / "test_formalisms.py"),
        "export.md": str(tests / "export" / "test_page.py"),
    }
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        if "```python" in page.read_text() and name not in PAGES:
            assert f'"{name}"' in Path(elsewhere[name]).read_text()


@pytest.mark.long
def test_the_page_on_many_trajectories_in_python(tmp_path, monkeypatch):
    """But for the program that runs on several processes, and what asks a cluster."""
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code, printed in blocks("batch.md"):
        if code.startswith("# gradient.py"):
            continue
        got = [line.rstrip() for line in outcome(code, names).splitlines()]
        assert got == [line.rstrip() for line in printed.splitlines()], code
    study = tmp_path / "by-hand"
    names["ukjax"].study.sweep_export(study, tmp_path / "shards", holdout=0.25)
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
