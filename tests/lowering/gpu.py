"""A GPU made of this CPU: its driver, driver.c, runs the threads of a kernel one after the other."""

import contextlib
import ctypes
import functools as ft
import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

from ..inside import OF_THREADS, Cuda, Library, handler_text, replaced


def of_cpu(text: str) -> str:
    """The text of a kernel with a function `launch`, which runs its threads one after the other."""
    arrays = len(re.search(r"@run\((.*?)\) \{", text)[1].split(", ")) - 2
    loads = "\n".join(
        f"  %q{k} = getelementptr ptr, ptr %params, i64 {k}\n  %r{k} = load ptr, ptr %q{k}\n"
        f"  %a{k} = load ptr, ptr %r{k}"
        for k in range(arrays)
    )
    given = ", ".join(f"ptr %a{k}" for k in range(arrays))
    plain = "\n".join(line for line in text.split("\n") if line not in OF_THREADS)
    plain = plain.replace("ptx_kernel ", "").replace("addrspace(3) ", "")
    return f"""{plain}
@number = internal global i64 0
@all = internal global i64 0
define internal i64 @index() {{
  %x = load i64, ptr @number
  ret i64 %x
}}
define internal i64 @threads() {{
  %x = load i64, ptr @all
  ret i64 %x
}}
define internal void @meet() {{
  ret void
}}
define void @launch(ptr %params, i64 %threads) {{
entry:
{loads}
  %qs = getelementptr ptr, ptr %params, i64 {arrays}
  %rs = load ptr, ptr %qs
  %size = load i64, ptr %rs
  %qb = getelementptr ptr, ptr %params, i64 {arrays + 1}
  %rb = load ptr, ptr %qb
  %resumed = load i64, ptr %rb
  store i64 %threads, ptr @all
  br label %head
head:
  %i = phi i64 [0, %entry], [%i1, %body]
  %more = icmp slt i64 %i, %threads
  br i1 %more, label %body, label %done
body:
  store i64 %i, ptr @number
  call void @run({given}, i64 %size, i64 %resumed)
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}"""


class CpuAsGpu(Cuda):
    """Its driver counts launches and what is unloaded.

    `fails`: the number of an error; `memory`: [bytes] that a thread needs; `refuses`: whether it compiles nothing.
    """

    target, platform = "ukjax_kernel_on_cpu", "cpu"

    def __init__(self, target=None):
        super().__init__(driver(), [0])
        self.target = target or self.target
        self.launches, self.fails, self.memory, self.refuses, self.unloaded = (
            ctypes.c_int.in_dll(self.driver, name) for name in ("launches", "fails", "memory", "refuses", "unloaded")
        )

    def register(self):
        # XLA has no streams on a CPU.
        with replaced(
            handler_text=lambda *args: handler_text(*args).replace(
                "br i1 %none.named, label %lost,", "br i1 0, label %lost,"
            )
        ):
            super().register()


@ft.cache
def driver():
    """The driver in driver.c, compiled."""
    spec = importlib.util.find_spec("nvidia.cuda_runtime")
    assert spec is not None, "pip install nvidia-cuda-runtime-cu12"
    include, source = Path(spec.submodule_search_locations[0], "include"), Path(__file__).with_name("driver.c")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "driver.so")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-O1",
            "-shared",
            "-fPIC",
            f"-I{include}",
            source,
            "-o",
            library,
        ]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


cpu_as_gpu = ft.cache(CpuAsGpu)
LIBRARIES = {}


def assembled(text, threads, kind):
    """The place in memory of the function that runs the threads of a kernel, as a text."""
    assert (threads, kind) in ((64, 90), (128, 90))
    library = LIBRARIES.setdefault(text, Library(of_cpu(text)))
    return str(library.address("launch"))


@contextlib.contextmanager
def on_gpu():
    """A context in which what JAX compiles goes to the GPU made of this CPU."""
    found = cpu_as_gpu()
    with replaced(gpu_of=lambda platform: found if platform == "cpu" else None, assembly=assembled):
        jax.clear_caches()
        yield found
    jax.clear_caches()
