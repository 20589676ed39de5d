"""Exported C and exported objects in WebAssembly: a machine without fused products, with the same bits."""

import contextlib
import subprocess

import numpy as np
import pytest
import wasmtime

import ukjax
from models import unicycle

from .compilers import STRICT, compile_c, first


DRIVER = """
#include <stdio.h>
#include "it.h"

int main(void)
{
    double q[IT_COORDINATES], v[IT_SPEEDS], u[IT_CONTROLS];
    int i, k;
    for (k = 0; k < 50; k++) {
        for (i = 0; k == 0 && i < IT_COORDINATES; i++) {
            q[i] = start[i];
            v[i] = start[IT_COORDINATES + i];
        }
        printf("%d", it_control(q, v, 1e-2 * k, u));
        printf(" %d", it_step(q, v, 1e-2 * k, 1e-2, q, v));
        for (i = 0; i < IT_CONTROLS; i++) printf(" %a", u[i]);
        for (i = 0; i < IT_SPEEDS; i++) printf(" %a %a", q[i], v[i]);
        printf("\\n");
    }
    return 0;
}
"""


def run_wasm(path):
    """What a program for WASI prints."""
    engine = wasmtime.Engine()
    linker, store, wasi = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
    linker.define_wasi()
    wasi.stdout_file = str(path.with_suffix(".txt"))
    store.set_wasi(wasi)
    program = linker.instantiate(store, wasmtime.Module.from_file(engine, str(path)))
    with contextlib.suppress(wasmtime.ExitTrap):  # raised at every end
        program.exports(store)["_start"](store)
    return path.with_suffix(".txt").read_text()


@pytest.mark.long
def test_bits_in_webassembly(tmp_path):
    scenario = unicycle.scenario()
    given = scenario.mechanism, scenario.q0, scenario.v0
    options = {"servo": scenario.servo, "what": ["control", "step"], "out": tmp_path, "name": "it"}
    source, _ = ukjax.export(*given, **options)
    code, _ = ukjax.export(*given, **options, to="object", target="wasm32-wasi")
    to_wasm = [*STRICT, "-target", "wasm32-wasi", "-lm", "-I", tmp_path]
    compile_c("zig", *to_wasm, "-DIT_TEST", source, "-o", tmp_path / "test.wasm")
    assert run_wasm(tmp_path / "test.wasm").endswith("0 results differ\n")
    numbers = ", ".join(float(x).hex() for x in np.concatenate(given[1:]))
    (tmp_path / "driver.c").write_text(f"static const double start[] = {{ {numbers} }};\n{DRIVER}")
    compile_c("zig", *to_wasm, tmp_path / "driver.c", code, "-o", tmp_path / "object.wasm")
    here = tmp_path / "here"
    compile_c(first(), *STRICT, "-I", tmp_path, tmp_path / "driver.c", source, "-o", here, "-lm")
    want = subprocess.run([here], capture_output=True, text=True, check=True).stdout
    assert all(line.startswith("1 1 ") for line in want.splitlines())
    assert run_wasm(tmp_path / "object.wasm") == want
