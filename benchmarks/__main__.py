"""`python -m benchmarks [TABLE]`: a table in Markdown, of scara (by default), expand, chain, peers, and others."""

import argparse
import contextlib
import functools as ft
import json
import os
import platform
import sys
from pathlib import Path

import jax
from rich.console import Console

from . import (
    _batch,
    _chain,
    _closed,
    _compile,
    _compile_gradients,
    _expand,
    _export,
    _first_hour,
    _forces,
    _formalisms,
    _gpu,
    _gradients,
    _native,
    _peers,
    _profile,
    _pseudoinverse,
    _scara,
    _servo,
    _work,
)


TABLES = {
    "scara": (_scara.rows, ("", "", "")),
    "expand": (_expand.rows, _expand.HEADER),
    "export": (_export.rows, _export.HEADER),
    "batch": (_batch.rows, _batch.HEADER),
    "batch-gpu": (_batch.rows_of_gpu, _batch.HEADER_OF_GPU),
    "servo": (_servo.rows, _servo.HEADER),
    "chain": (_chain.rows, _chain.HEADER),
    "closed": (_closed.rows, _closed.HEADER),
    "peers": (_peers.rows, _peers.HEADER),
    "profile": (_profile.rows, _profile.HEADER),
    "pseudoinverse": (_pseudoinverse.rows, _pseudoinverse.HEADER),
    "formalisms": (_formalisms.rows, _formalisms.HEADER),
    "forces": (_forces.rows, _forces.HEADER),
    "gpu": (_gpu.rows, _gpu.HEADER),
    "compile": (_compile.rows, _compile.HEADER),
    "native": (_native.rows, _native.HEADER),
    "compile-gradients": (_compile_gradients.rows, _compile_gradients.HEADER),
    "gradients": (_gradients.rows, _gradients.HEADER),
    "first-hour": (_first_hour.rows, _first_hour.HEADER),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("table", nargs="?", choices=TABLES, default="scara")
    parser.add_argument(
        "--against", type=Path, help="compile, native, compile-gradients: another checkout to compare with"
    )
    parser.add_argument("--only", default="", help="compile, native, compile-gradients: what has this in its name")
    parser.add_argument("--out", type=Path, help="a folder for the table as JSON; of peers, with a picture too")
    chosen = parser.parse_args()
    if chosen.out:
        try:
            chosen.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--out must be a folder, or a name for one: {error}")
    rows, header = TABLES[chosen.table]
    if chosen.table in ("compile", "native", "compile-gradients"):
        rows = ft.partial(rows, against=chosen.against, only=chosen.only)
    elif chosen.against or chosen.only:
        parser.error("--against and --only are for the tables compile, native and compile-gradients.")
    jax.config.update("jax_enable_x64", True)
    if chosen.table == "peers" and os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        with contextlib.suppress(RuntimeError):  # where JAX has started, with the devices that it has
            jax.config.update("jax_num_cpu_devices", os.cpu_count())
    console = Console(stderr=True)
    with console.status("Starting") as status:
        report = lambda what: status.update(f"Measuring: {what}")
        cells = rows(report)
        curves = _work.curves(report) if chosen.out and chosen.table == "peers" else []
    device = jax.devices()[0]
    versions = f"Python {platform.python_version()}, JAX {jax.__version__}"
    machine = f"{device.device_kind} ({device.platform}), {os.cpu_count()} cores, float64, {versions}"
    print(f"{machine}\n")
    line = lambda row: "| " + " | ".join(row) + " |"
    print("\n".join([line(header), "|" + "---|" * len(header), *map(line, cells)]))
    if chosen.out:
        whole = {"machine": machine, "header": header, "rows": cells, "curves": [c._asdict() for c in curves]}
        (chosen.out / f"{chosen.table}.json").write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")
    if curves:
        _work.draw(curves, chosen.out / f"{chosen.table}.png")


if __name__ == "__main__":
    sys.exit(main())
