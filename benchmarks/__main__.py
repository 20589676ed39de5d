"""`python -m benchmarks [TABLE]`: a table in Markdown, of scara (by default), expand, chain, peers, and others."""

import argparse
import functools as ft
import os
import platform
import sys
from pathlib import Path

import jax
from rich.console import Console

from . import _chain, _compile, _expand, _formalisms, _gpu, _peers, _pseudoinverse, _scara


TABLES = {
    "scara": (_scara.rows, ("", "", "")),
    "expand": (_expand.rows, _expand.HEADER),
    "chain": (_chain.rows, _chain.HEADER),
    "peers": (_peers.rows, _peers.HEADER),
    "pseudoinverse": (_pseudoinverse.rows, _pseudoinverse.HEADER),
    "formalisms": (_formalisms.rows, _formalisms.HEADER),
    "gpu": (_gpu.rows, _gpu.HEADER),
    "compile": (_compile.rows, _compile.HEADER),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("table", nargs="?", choices=TABLES, default="scara")
    parser.add_argument("--against", type=Path, help="compile: another checkout to compare with")
    parser.add_argument("--only", default="", help="compile: scenarios whose name contains this")
    chosen = parser.parse_args()
    rows, header = TABLES[chosen.table]
    if chosen.table == "compile":
        rows = ft.partial(rows, against=chosen.against, only=chosen.only)
    elif chosen.against or chosen.only:
        parser.error("--against and --only are for the table compile.")
    jax.config.update("jax_enable_x64", True)
    console = Console(stderr=True)
    with console.status("Starting") as status:
        cells = rows(lambda what: status.update(f"Measuring: {what}"))
    device = jax.devices()[0]
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
    print(f"{device.device_kind} ({device.platform}), {os.cpu_count()} cores, float64, {versions}\n")
    line = lambda row: "| " + " | ".join(row) + " |"
    print("\n".join([line(header), "|" + "---|" * len(header), *map(line, cells)]))


if __name__ == "__main__":
    sys.exit(main())
