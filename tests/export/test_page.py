"""The page docs/export.md: its Python, its C and its commands, one after the other, in one folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ..test_docs import DOCS, outcome
from .compilers import COMPILERS, first


PAGE = "export.md"


@pytest.mark.long
def test_the_page_says_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "cc").write_text(f'#!/bin/sh\nexec {shlex.join(COMPILERS[first()])} "$@"\n')
    (programs / "cc").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(DOCS.parent)}
    names: dict = {}
    found = re.findall(r"```(python|c|sh)\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", (DOCS / PAGE).read_text(), re.DOTALL)
    assert {kind for kind, _, _ in found} == {"python", "c", "sh"}
    for kind, text, printed in found:
        if kind == "c":
            (tmp_path / re.match(r"/\* (\w+\.c) \*/", text)[1]).write_text(text)
            continue
        if kind == "python":
            got = outcome(text, names)
        else:
            done = subprocess.run(["bash", "-euc", text], env=environment, capture_output=True, text=True)
            assert done.returncode == 0, (text, done.stderr)
            got = done.stdout
        if printed:
            assert got.splitlines() == printed.splitlines(), text
    assert {x.name for x in (tmp_path / "board").iterdir()} == {"robot.o", "robot.h"}
