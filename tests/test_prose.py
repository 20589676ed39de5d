"""The pages of the documentation are plain English: short sentences, and speed on the pages on speed only."""

import re
from pathlib import Path

import pytest

from .prose import code_lines, counts, sentences


ROOT = Path(__file__).parent.parent
# Derivations and accounts of papers have longer sentences; a changelog has figures.
PAGES = [*sorted(x for x in (ROOT / "docs").glob("*.md") if x.name not in ("theory.md",)), ROOT / "README.md"]
ON_SPEED = ("benchmarks.md", "peers.md")
SPEED = re.compile(
    r"\d\s?(?:µs|us|ns)\b|\b[\d.]+ times (?:as fast|faster)|\b(?:takes?|took|costs?) (?:\w+ )?[\d.]+\s?(?:ms|s)\b"
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda x: x.name)
def test_sentences_are_short(page):
    found = counts(page)
    assert [x for x in found if x[0] > 40] == []
    assert sum(count for count, _ in found) <= 20 * len(found)


@pytest.mark.parametrize("page", [x for x in PAGES if x.name not in ON_SPEED], ids=lambda x: x.name)
def test_speed_is_on_the_pages_on_speed(page):
    assert [x for x in sentences(page.read_text(encoding="utf-8")) if SPEED.search(x)] == []


def too_wide(page: Path, but_for: int = 0) -> list[str]:
    """Lines of code that the column of the site has no room for, but for those of the first blocks."""
    lines = code_lines(page.read_text(encoding="utf-8"))
    return [f"{page}:{number}" for number, block, line in lines if block >= but_for and len(line) > 79]


def test_code_fits_its_column():
    """But for the first two commands of the README, which programs read as one line each."""
    pages = [x for x in sorted((ROOT / "docs").rglob("*.md")) if ROOT / "docs" / "gallery" not in x.parents]
    found = too_wide(ROOT / "README.md", but_for=2) + [line for page in pages for line in too_wide(page)]
    assert not found, "\n".join(found)


def test_what_counts_as_too_wide(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{'x' * 80}\n```\n{'x' * 79}\n{'x' * 80}\n```\n{'x' * 80}\n", "utf-8")
    assert too_wide(page) == [f"{page}:4"]
    assert too_wide(page, but_for=1) == []


def test_what_counts_as_a_sentence():
    text = "# Title\n\nOne two `a b c` three. Four (five, e.g. six): Seven.\n\n"
    text += "```python\nx = 1.\n```\n- [eight nine](x.md)\n"
    assert sentences(text) == ["One two X three.", "Four (five, Y six):", "Seven.", "eight nine"]
    assert SPEED.search("It takes 3.5 ms.")
    assert SPEED.search("12 times as fast")
    assert not SPEED.search("a step of 0.1 s")
