"""The code in the documentation runs, and prints what stands below it."""

import contextlib
import io
import re
from pathlib import Path

import pytest


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
@pytest.mark.parametrize("name", ["formulation.md", "rigid.md"])
def test_code_runs_and_prints_what_the_page_says(name):
    names: dict = {}
    found = blocks(name)
    assert len(found) >= 5
    assert any(printed for _, printed in found)
    for code, printed in found:
        got = [line.rstrip() for line in outcome(code, names).splitlines()]
        assert got == [line.rstrip() for line in printed.splitlines()], code
    assert names.get("worst", 0.0) < 1e-8
