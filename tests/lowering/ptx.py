"""The kernels of every model for a GPU, compiled by NVIDIA's assembler: their registers, and what is in none.

`python -m tests.lowering.ptx` prints them as a table.
"""

import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

import ukjax

from ..inside import assembly, replaced
from .gpu import CpuAsGpu


def assembler() -> Path:
    """The assembler of the package nvidia-cuda-nvcc-cu12."""
    spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    assert spec is not None, "pip install nvidia-cuda-nvcc-cu12"
    return Path(next(iter(spec.submodule_search_locations)), "bin", "ptxas")


class Assembled(NamedTuple):
    """A kernel: operations for each state or step, registers, and bytes for each thread of what is in none."""

    is_loop: bool
    operations: int
    registers: int
    stack: int


class Assembler(CpuAsGpu):
    """A GPU whose kernels are compiled in a folder, and never run."""

    platform = "CUDA"

    def __init__(self, folder: Path):
        super().__init__("ukjax_kernel_nowhere")
        self.folder, self.made, self.said = folder, [], {}

    def assemble(self, text: str, threads: int, kind: int) -> str:
        """Compiles with the optimisation that the driver is asked for; returns what the driver takes for a kernel."""
        file = self.folder / "kernel.ptx"
        file.write_text(assembly(text, threads, kind), encoding="utf-8")
        command = [assembler(), "-v", "-O1", f"-arch=sm_{kind}", file, "-o", self.folder / "kernel.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        self.said[text] = done.stderr
        return "1"

    def load(self, kernel, is_loop):
        found = super().load(kernel, is_loop)
        said = self.said[kernel.text]
        (registers,) = re.findall(r"Used (\d+) registers", said)
        stack = max(map(int, re.findall(r"(\d+) bytes stack frame", said)))
        self.made.append(Assembled(is_loop, kernel.operations, int(registers), stack))
        return found


@contextlib.contextmanager
def assembling(folder: Path):
    """A context in which what is lowered for a GPU has its kernels compiled."""
    gpu = Assembler(folder)
    of = {"gpu_of": lambda platform: gpu if platform == "cuda" else None, "is_right": lambda *_: True}
    with replaced(assembly=gpu.assemble, **of):
        yield gpu


def lowered(function, *arguments) -> str:
    """The program of a function for a GPU."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


class Kernels(NamedTuple):
    """The kernels of a batch of accelerations, of trajectories, and of their gradients in the start."""

    acceleration: list[Assembled]
    run: list[Assembled]
    gradient: list[Assembled]


def kernels(scenario: ukjax.Scenario, folder: Path) -> Kernels:
    q, v = (jnp.broadcast_to(x, (8, *x.shape)) for x in map(jnp.asarray, (scenario.q0, scenario.v0)))
    ts = jnp.linspace(0.0, 0.1, 5)

    def acceleration(q, v):
        return ukjax.equation_of_motion(scenario.mechanism, q, v, 0.0, throw=False).acceleration

    def run(q, v):
        settings = {"servo": scenario.servo, "projection": scenario.projection, "throw": False, "keep": ("q",)}
        return ukjax.simulate(scenario.mechanism, q, v, ts, **settings).q

    gradient = jax.grad(lambda q, v: jnp.sum(run(q, v) ** 2), argnums=(0, 1))
    made = []
    for function in (acceleration, run, gradient):
        with assembling(folder) as gpu:
            lowered(jax.vmap(function), q, v)
        made.append(gpu.made)
    return Kernels(*made)


def main() -> None:
    from ukjax import cli

    from .test_models import scenario_of

    print("| scenario | acceleration | trajectory | its gradient in the start |\n|---|---|---|---|")
    for name in sys.argv[1:] or cli.factories("models")[0]:
        with tempfile.TemporaryDirectory() as folder:
            found = kernels(scenario_of(name), Path(folder))
        print(f"| `{name.removeprefix('models.')}` | {' | '.join(map(_longest, found))} |", flush=True)


def _longest(some: list[Assembled]) -> str:
    """The operations of the longest of some kernels, its registers, and bytes beside them."""
    found = max(some, key=lambda x: x.operations, default=None)
    return "-" if found is None else f"{found.operations:,}; {found.registers}; {found.stack:,}"


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
