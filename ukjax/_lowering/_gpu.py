"""Kernels on a GPU, by CUDA: LLVM makes assembly of them, NVIDIA's driver compiles, loads and launches them.

The driver is there wherever JAX computes on such a GPU; it keeps what it has compiled, in a folder of its own, from one
process to the next. XLA calls a function of machine code, as on a CPU, which has the driver launch a kernel on the
stream that XLA names. It waits for the kernel only where states may need the sure way.

Source: CUDA Driver API (NVIDIA), version 12: library management, execution control.
"""

import collections
import contextlib
import ctypes
import hashlib
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import jax
import numpy as np

from ._compile import has_compiler, once
from ._handler import interface, register
from ._kernel import Kernel
from ._thread import OF_THREADS


# Threads of a block: of a kernel for rows of states, and of a loop, which needs all registers that a thread may have.
ROWS, LOOPS = 128, 64
# The newest kind of GPU, and version of its assembly, that is asked for; the driver compiles it for newer ones too.
NEWEST, ASSEMBLY = 90, "+ptx78"
# Numbers of the driver: attributes of a device, and of a kernel.
PROCESSORS, THREADS_OF_PROCESSOR, MAJOR, MINOR, REGISTERS_OF_PROCESSOR = 16, 39, 75, 76, 82
MEMORY_OF_THREAD, REGISTERS_OF_THREAD = 3, 4
# The part of a GPU's memory that numbers of threads may take which are in no register; XLA takes most of the rest.
PART = 0.1
# The driver's option for how much it optimises. With more than this it gives long functions 32 registers of 255, and
# keeps their other numbers in memory.
OPTIMISATION, OPTIMISED = 7, 1
# The most arrays of a kernel: their places take 4 KB at most.
ARRAYS = 500
# Kernels that are kept for a while after they are compiled.
RECENT = 16
# What the handler calls.
CALLED = ("cuLaunchKernel", "cuMemsetD8Async", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuGetErrorString")
REFUSED = "ukjax: the driver of the GPU refused a call."


class Loaded(NamedTuple):
    """A kernel that can be launched: its place, the threads of a block, and the blocks of a loop at a time."""

    place: int
    threads: int
    blocks: int
    kept: object


class Cuda:
    """The GPUs of this process, by NVIDIA's driver; raises AttributeError if that is older than CUDA 12.

    Attributes:
        device: The driver's number of the first; others are taken to be like it.
        target: The name under which XLA knows its handler.
        platform: XLA's name of its kind.
    """

    target, platform = "ukjax_kernel", "CUDA"

    def __init__(self, driver: ctypes.CDLL, device: int):
        self.driver, self.device = driver, device
        self._known: weakref.WeakValueDictionary[bytes, _Library] = weakref.WeakValueDictionary()
        self._recent: collections.deque[_Library] = collections.deque(maxlen=RECENT)
        self._attributes: dict[int, int] = {}
        self._lock, self._handler = threading.Lock(), None
        for name in ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetAttribute"):
            getattr(driver, name)

    def register(self) -> None:
        """Tells XLA of the handler, once."""
        found = {name: ctypes.cast(getattr(self.driver, _symbol(name)), ctypes.c_void_p).value or 0 for name in CALLED}
        words = {"refusal": REFUSED, "refusal_size": len(REFUSED) + 1}
        with self._lock:
            if self._handler is None:
                self._handler = register(self.target, self.platform, "gpu.ll", found | words)

    def load(self, kernel: Kernel, is_loop: bool) -> Loaded:
        """Compiles a kernel."""
        library = self._library(kernel, is_loop)
        room = self._has(REGISTERS_OF_PROCESSOR) // (library.threads * max(library.registers, 1))
        return Loaded(library.kernel.value or 0, library.threads, self._has(PROCESSORS) * max(room, 1), library)

    def fits(self, kernel: Kernel, is_loop: bool) -> bool:
        """Whether the GPU has memory for all its threads of a kernel, and room for the places of its arrays."""
        if kernel.arrays > ARRAYS:
            return False
        library, total = self._library(kernel, is_loop), ctypes.c_size_t()
        each = library.memory
        self.call("cuDeviceTotalMem_v2", ctypes.byref(total), self.device)
        # The driver makes room for as many threads as the processors hold of any kernel.
        return each * self._has(THREADS_OF_PROCESSOR) * self._has(PROCESSORS) <= PART * total.value

    def _library(self, kernel: Kernel, is_loop: bool) -> "_Library":
        threads = LOOPS if is_loop else ROWS
        key = hashlib.sha256(f"{threads} {kernel.text}".encode()).digest()
        kind = min(10 * self._has(MAJOR) + self._has(MINOR), NEWEST)
        with self._lock:
            library = self._known.get(key)
            if library is None:
                library = self._known[key] = _Library(self, assembly(kernel.text, threads, kind), threads)
            # One that is looked at is launched soon after.
            self._recent.append(library)
        return library

    def _has(self, attribute: int) -> int:
        """A number of the first GPU."""
        if attribute not in self._attributes:
            self._attributes[attribute] = self.ask("cuDeviceGetAttribute", attribute, self.device)
        return self._attributes[attribute]

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """A context in which the calls of the driver are about the first GPU."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(context))

    def ask(self, name: str, *args) -> int:
        """The whole number that a function of the driver finds."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *args)
        return found.value

    def call(self, name: str, *args) -> None:
        """Calls a function of the driver; raises RuntimeError with its words if it fails."""
        number = getattr(self.driver, name)(*args)
        if number:
            words = ctypes.c_char_p()
            self.driver.cuGetErrorString(number, ctypes.byref(words))
            raise RuntimeError(f"{name} of the GPU's driver: {(words.value or b'an error').decode()} ({number}).")

    def read(self, place: int, to: np.ndarray, stream: int | None) -> None:
        """Copies an array from the memory of the GPU, when the work before is done."""
        self._copy("cuMemcpyDtoHAsync", ctypes.c_void_p(to.ctypes.data), ctypes.c_uint64(place), to, stream)

    def write(self, place: int, array: np.ndarray, stream: int | None) -> None:
        """Copies an array to the memory of the GPU."""
        self._copy("cuMemcpyHtoDAsync", ctypes.c_uint64(place), ctypes.c_void_p(array.ctypes.data), array, stream)

    def _copy(self, name: str, to, source, array: np.ndarray, stream: int | None) -> None:
        if array.nbytes:
            self.call(_symbol(name), to, source, ctypes.c_size_t(array.nbytes), ctypes.c_void_p(stream))
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))


def _symbol(name: str) -> str:
    """The name of a function in the driver: those that copy have a second version, for 64 bits."""
    return f"{name}_v2" if "Memcpy" in name else name


class _Library:
    """A kernel in the driver, which is unloaded with this object.

    Attributes:
        kernel: What is launched.
        threads: Those of a block.
        registers, memory: Of each thread; the memory [bytes] of the numbers that are in no register.
    """

    def __init__(self, cuda: Cuda, text: str, threads: int):
        library, self.kernel, self.threads = ctypes.c_void_p(), ctypes.c_void_p(), threads
        option, level = ctypes.c_int(OPTIMISATION), ctypes.c_void_p(OPTIMISED)
        options = ctypes.byref(option), ctypes.byref(level), 1, None, None, 0
        with cuda.current():
            cuda.call("cuLibraryLoadData", ctypes.byref(library), text.encode(), *options)
            weakref.finalize(self, cuda.driver.cuLibraryUnload, library).atexit = False
            cuda.call("cuLibraryGetKernel", ctypes.byref(self.kernel), library, b"run")
            self.registers, self.memory = (
                cuda.ask("cuKernelGetAttribute", x, self.kernel, cuda.device)
                for x in (REGISTERS_OF_THREAD, MEMORY_OF_THREAD)
            )


@once
def _binding() -> ModuleType:
    """LLVM, with what it needs for NVIDIA's GPUs."""
    from llvmlite import binding

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    return binding


def assembly(text: str, threads: int, kind: int) -> str:
    """A kernel in the assembly of NVIDIA's GPUs (PTX), for blocks of so many threads and this kind of GPU."""
    llvm = _binding()
    whole = "\n".join(line for line in text.split("\n") if line not in OF_THREADS)
    whole = whole.replace("i64 %size, i64 %resumed) {", f'i64 %size, i64 %resumed) "nvvm.maxntid"="{threads}" {{')
    module = llvm.parse_assembly(Path(__file__).with_name("thread.ll").read_text(encoding="utf-8") + whole)
    module.verify()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    machine = target.create_target_machine(cpu=f"sm_{kind}", features=ASSEMBLY, opt=2)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=0))
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return machine.emit_assembly(module)


def gpu_of(platform: str) -> Cuda | None:
    """The GPU of a platform of JAX, if kernels can be launched there."""
    return _cuda() if platform == "cuda" else None


@once
def _cuda() -> Cuda | None:
    try:
        if not has_compiler() or interface() is None:
            return None
        return Cuda(ctypes.CDLL("libcuda.so.1"), jax.local_devices(backend="cuda")[0].local_hardware_id)
    except (OSError, AttributeError, RuntimeError):  # no driver, an older one, or no GPU
        return None
