"""Sentences of pages in Markdown, and their words; and the lines of their code."""

import re
from pathlib import Path


# Blocks without sentences: code, mathematics, comments, tables, headings, pictures, options of a directive.
NO_PROSE = re.compile(
    r"```.*?```|~~~.*?~~~|\$\$.*?\$\$|<!--.*?-->|<(\w+)[^>]*>.*?</\1>"
    r"|^\s*\|.*?$|^#+ .*?$|^:::.*?$|!\[[^\]]*\]\([^)]*\)",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
CODE = re.compile(r"`[^`]*`|\$[^$]*\$")
# Where a paragraph or an item of a list begins.
BEGIN = re.compile(r"\n\s*\n|^\s*(?:[-*+]|\d+\.)\s+", re.MULTILINE)
END = re.compile(r"(?<=[.!?:;])[)\"'*_]*\s+(?=[^a-z])")
# Abbreviations whose full stop ends no sentence.
SHORT = re.compile(r"\b(?:e\.g|i\.e|vs|cf|etc|Fig|fig|Eq|eq|No|al|Sec|sec|Ch|ch)\.")


def sentences(text: str) -> list[str]:
    """The sentences of a page. A formula or a piece of code counts as one word; a colon ends a sentence too."""
    text = NO_PROSE.sub("\n\n", text)
    text = CODE.sub("X", LINK.sub(r"\1", text))
    text = SHORT.sub("Y", text)
    found = []
    for paragraph in BEGIN.split(text):
        words = " ".join(paragraph.split())
        found += [x.strip() for x in END.split(words)]
    return [x for x in found if re.search(r"[A-Za-z]{2}", x)]


def count_of(sentence: str) -> int:
    """The number of words of a sentence."""
    return len([x for x in sentence.split() if re.search(r"\w", x)])


def counts(path: Path) -> list[tuple[int, str]]:
    """The number of words of each sentence of a page, and the sentence."""
    return [(count_of(x), x) for x in sentences(path.read_text(encoding="utf-8"))]


def code_lines(text: str) -> list[tuple[int, int, str]]:
    """The lines in blocks of code: the number of the line from 1, that of the block from 0, and the line."""
    found, block, inside = [], -1, False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
            block += inside
        elif inside:
            found.append((number, block, line))
    return found
