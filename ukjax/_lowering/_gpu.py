"""Kernels on a GPU, by CUDA: LLVM makes assembly of them, NVIDIA's driver compiles, loads and launches them.

The driver is there wherever JAX computes on such a GPU; it keeps what it has compiled, in a folder of its own, from one
process to the next. XLA calls a function of machine code, as on a CPU, which has the driver launch a kernel on the
stream that XLA names. It waits for the kernel only where states may need the sure way.

Source: CUDA Driver API (NVIDIA), version 12: library management, execution control.
"""

import collections
import contextlib
import ctypes
import functools as ft
import hashlib
import threading
import warnings
import weakref
from collections.abc import Iterator, Sequence
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
PROCESSORS, THREADS_OF_PROCESSOR, MAJOR, MINOR = 16, 39, 75, 76
MEMORY_OF_THREAD = 3
# The part of a GPU's memory that numbers of threads may take which are in no register; XLA takes most of the rest.
PART = 0.1
# The driver's option for how much it optimises. With more than this it gives long functions 32 registers of 255, and
# keeps their other numbers in memory.
OPTIMISATION, OPTIMISED = 7, 1
# Its options for where it says what is wrong with a kernel, and how much it may say.
LOG, LOG_SIZE, LOG_BYTES = 5, 6, 4096
# The most arrays of a kernel: their places take 4 KB at most.
ARRAYS = 500
# Kernels that are kept for a while after they are compiled.
RECENT = 16
# What the handler calls, in order: it tells by these numbers what failed.
CALLED = ("cuMemsetD8Async", "cuLaunchKernel", "cuMemcpyDtoHAsync", "cuStreamSynchronize")
# (number of what failed, number of the error) -> the place of a message.
SAY = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
OUT_OF_MEMORY = 2
LOST = "ukjax: XLA names no stream of the GPU. Please report this."


class Loaded(NamedTuple):
    """A kernel that can be launched: its place, the threads of a block, and the blocks of a loop at a time."""

    place: int
    threads: int
    blocks: int
    kept: object


class Cuda:
    """The GPUs of this process, by NVIDIA's driver; raises AttributeError if that is older than CUDA 12.

    Attributes:
        devices: The driver's numbers of them.
        target: The name under which XLA knows its handler.
        platform: XLA's name of its kind.
    """

    target, platform = "ukjax_kernel", "CUDA"

    def __init__(self, driver: ctypes.CDLL, devices: Sequence[int]):
        self.driver, self.devices = driver, tuple(devices)
        self._known: weakref.WeakValueDictionary[bytes, _Library] = weakref.WeakValueDictionary()
        self._recent: collections.deque[_Library] = collections.deque(maxlen=RECENT)
        self._attributes: dict[int, int] = {}
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._messages: collections.deque[ctypes.Array] = collections.deque(maxlen=64)  # which XLA reads
        # Libraries that nobody uses; calls of their kernels may still wait on a stream.
        self.unused: collections.deque[ctypes.c_void_p] = collections.deque()
        self._lock, self._handler = threading.Lock(), None
        for name in ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetAttribute"):
            getattr(driver, name)

    def register(self) -> None:
        """Tells XLA of the handler, once."""
        with self._lock:
            if self._handler is not None:
                return
            say = SAY(self._say)
            functions = {name: getattr(self.driver, _symbol(name)) for name in CALLED} | {"say": say}
            places = {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()}
            words = {"lost": LOST, "lost_size": len(LOST) + 1}
            self._handler = register(self.target, self.platform, "gpu.ll", places | words), say

    def _say(self, which: int, number: int) -> int:
        """The place of a message about a call of the handler that failed."""
        hint = " Memory is short: pass smaller batches, or set XLA_PYTHON_CLIENT_MEM_FRACTION=0.5 before JAX starts."
        text = f"ukjax: {self._words(CALLED[which], number)}{hint if number == OUT_OF_MEMORY else ''}"
        self._messages.append(ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(self._messages[-1])

    def load(self, kernel: Kernel, is_loop: bool) -> Loaded:
        """Compiles a kernel."""
        library = self._library(kernel, is_loop)
        return Loaded(library.kernel.value or 0, library.threads, self._has(PROCESSORS) * library.blocks, library)

    def fits(self, kernel: Kernel, is_loop: bool) -> bool:
        """Whether the GPUs have memory for all threads of a kernel, and the driver takes it; warns if it does not."""
        if kernel.arrays > ARRAYS:
            return False
        try:
            library = self._library(kernel, is_loop)
        except RuntimeError as error:
            warnings.warn(
                f"ukjax: a kernel is left to XLA, which takes longer, for the driver does not take it: {error}",
                stacklevel=2,
            )
            return False
        # The driver makes room for as many threads as the processors hold of any kernel.
        return library.memory * self._has(THREADS_OF_PROCESSOR) * self._has(PROCESSORS) <= PART * self._memory

    def _library(self, kernel: Kernel, is_loop: bool) -> "_Library":
        threads = LOOPS if is_loop else ROWS
        key = hashlib.sha256(f"{threads} {kernel.text}".encode()).digest()
        kind = min(10 * self._has(MAJOR) + self._has(MINOR), NEWEST)
        with self._lock:
            library = self._known.get(key)
            if library is None:
                self._unload()
                library = self._known[key] = _Library(self, assembly(kernel.text, threads, kind), threads)
            # One that is looked at is launched soon after.
            self._recent.append(library)
        return library

    def _unload(self) -> None:
        """Unloads libraries that nobody uses, when all work is done."""
        gone = [self.unused.popleft() for _ in range(len(self.unused))]
        if gone:
            for device in self.devices:
                with self.current(device):
                    self.call("cuCtxSynchronize")
            for library in gone:
                self.call("cuLibraryUnload", library)

    def _has(self, attribute: int) -> int:
        """A number that all GPUs have at least."""
        if attribute not in self._attributes:
            every = (self.ask("cuDeviceGetAttribute", attribute, device) for device in self.devices)
            self._attributes[attribute] = min(every)
        return self._attributes[attribute]

    @ft.cached_property
    def _memory(self) -> int:
        """The memory that all GPUs have at least [bytes]."""
        found = [ctypes.c_size_t() for _ in self.devices]
        for x, device in zip(found, self.devices, strict=True):
            self.call("cuDeviceTotalMem_v2", ctypes.byref(x), device)
        return min(x.value for x in found)

    @contextlib.contextmanager
    def current(self, device: int) -> Iterator[None]:
        """A context in which the calls of the driver are about one GPU."""
        if device not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._contexts[device] = context
        self.call("cuCtxPushCurrent_v2", self._contexts[device])
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def ask(self, name: str, *args) -> int:
        """The whole number that a function of the driver finds."""
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *args)
        return found.value

    def call(self, name: str, *args) -> None:
        """Calls a function of the driver; raises RuntimeError with its words if it fails."""
        number = getattr(self.driver, name)(*args)
        if number:
            raise RuntimeError(self._words(name, number))

    def _words(self, name: str, number: int) -> str:
        words = ctypes.c_char_p()
        self.driver.cuGetErrorString(number, ctypes.byref(words))
        return f"{name} of the GPU's driver: {(words.value or b'an error').decode()} ({number})."

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
    """A kernel in the driver, which is unloaded some time after this object is gone.

    Attributes:
        kernel: What is launched.
        threads: Those of a block.
        blocks: Those that a processor has at a time.
        memory: [bytes] of each thread, for numbers that are in no register.
    """

    def __init__(self, cuda: Cuda, text: str, threads: int):
        library, self.kernel, self.threads = ctypes.c_void_p(), ctypes.c_void_p(), threads
        log = ctypes.create_string_buffer(LOG_BYTES)
        options = (ctypes.c_int * 3)(OPTIMISATION, LOG, LOG_SIZE)
        values = (ctypes.c_void_p * 3)(OPTIMISED, ctypes.addressof(log), LOG_BYTES)
        with cuda.current(cuda.devices[0]):
            try:
                given = text.encode(), options, values, len(options), None, None, 0
                cuda.call("cuLibraryLoadData", ctypes.byref(library), *given)
            except RuntimeError as error:
                raise RuntimeError(f"{error} {log.value.decode(errors='replace')}".strip()) from None
            # Memory may be freed in any thread, at any time: nothing else is done then.
            weakref.finalize(self, cuda.unused.append, library).atexit = False
            cuda.call("cuLibraryGetKernel", ctypes.byref(self.kernel), library, b"run")
            self.memory = cuda.ask("cuKernelGetAttribute", MEMORY_OF_THREAD, self.kernel, cuda.devices[0])
            blocks = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            self.blocks = max(1, cuda.ask(blocks, self.kernel, threads, ctypes.c_size_t(0)))


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
        devices = [device.local_hardware_id for device in jax.local_devices(backend="cuda")]
        return Cuda(ctypes.CDLL("libcuda.so.1"), devices) if devices else None
    except (OSError, AttributeError, RuntimeError):  # no driver, an older one, or no GPU
        return None
