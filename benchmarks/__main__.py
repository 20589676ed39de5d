"""`python -m benchmarks [scara | pseudoinverse | formalisms]`: prints a table as Markdown; README has the SCARA's."""

import argparse
import os
import platform
import sys

import jax
from rich.console import Console

from . import _formalisms, _pseudoinverse, _scara


TABLES = {
    "scara": (_scara.rows, ("", "", "")),
    "pseudoinverse": (_pseudoinverse.rows, _pseudoinverse.HEADER),
    "formalisms": (_formalisms.rows, _formalisms.HEADER),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("table", nargs="?", choices=TABLES, default="scara")
    rows, header = TABLES[parser.parse_args().table]
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
