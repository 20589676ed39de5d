"""What every experiment shares: its command line, its table, and pictures that appear whole or not at all."""

import argparse
import contextlib
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import matplotlib
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table


console = Console()
# Of the tables of an experiment, as Markdown, for its report.
tables: list[str] = []
# How pictures are written; the report shows them in the first.
formats = ["png"]


def start(description: str, name: str, every_core: bool = False) -> Path:
    """Reads `--out` and `--format`, makes that folder, and sets JAX as the command does.

    That is double precision, compiled sooner; and `every_core` as a device, for batches.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path("out") / name, help="folder for the pictures")
    kinds = ("png", "pdf", "svg")
    parser.add_argument("--format", action="append", choices=kinds, help="of pictures, png if omitted; repeatable")
    arguments = parser.parse_args()
    out, formats[:] = arguments.out, dict.fromkeys(arguments.format or ["png"])
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {out} cannot be written to: {error.strerror}")
    tables.clear()
    jax.config.update("jax_enable_x64", True)
    flags = os.environ.get("XLA_FLAGS", "")
    if every_core and "JAX_NUM_CPU_DEVICES" not in os.environ:
        with contextlib.suppress(RuntimeError):  # JAX has started: whoever did that has said how
            jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)
    if jax.__version_info__[:2] == (0, 10) and "fusion_emitters" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false"
    return out


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Prints a table."""
    shown, head, body = Table(title=escape(title), show_lines=False), list(columns), [list(row) for row in rows]
    for column in head:
        shown.add_column(column, overflow="fold")
    for row in body:
        shown.add_row(*(escape(cell) for cell in row))  # a unit in brackets is no markup
    console.print(shown)
    line = lambda cells: "| " + " | ".join(map(_plain, cells)) + " |"
    tables.append("\n".join([f"## {title}", "", line(head), "|---" * len(head) + "|", *map(line, body)]))


def median_seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 7) -> float:
    """How long a call takes, once compiled: the median of several."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def _plain(text: str) -> str:
    """Text in which Markdown finds no markup."""
    return re.sub(r"([\\|*_<>`\[\]])", r"\\\1", text)


def save(figures: Mapping[str, Figure], out: Path) -> None:
    """Writes each figure, and as report.md the tables so far and the pictures with captions; and says where.

    The caption of a figure is its label.
    """
    begin, shown = time.perf_counter(), []
    # Type 42 keeps letters letters in a PDF; journals ask for it.
    with console.status("Drawing"), matplotlib.rc_context({"pdf.fonttype": 42}):
        for name, figure in figures.items():
            for suffix in formats:
                aside = out / f".{name}.{suffix}"
                figure.savefig(aside, dpi=130)
                aside.replace(out / f"{name}.{suffix}")
            caption = _plain(str(figure.get_label()))
            shown.append(f"![{caption}]({name}.{formats[0]})\n\n{caption}".rstrip())
        aside = out / ".report.md"
        aside.write_text("\n\n".join([*tables, *shown]) + "\n", "utf-8")
        aside.replace(out / "report.md")
    console.print(f"{len(figures)} pictures in {out} ({time.perf_counter() - begin:.1f} s)", highlight=False)
