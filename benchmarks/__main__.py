"""`python -m benchmarks`: prints the first table of the README as Markdown."""

import os
import platform
import sys

import jax
from rich.console import Console

from . import _scara


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    console = Console(stderr=True)
    with console.status("Starting") as status:
        rows = _scara.rows(lambda what: status.update(f"Measuring: {what}"))
    device = jax.devices()[0]
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
    print(f"{device.device_kind} ({device.platform}), {os.cpu_count()} cores, float64, {versions}\n")
    print("| | | |\n|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    sys.exit(main())
