"""Compilation of LLVM's language for the CPU of this process."""

import ctypes
import functools as ft
import hashlib
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from ._disk import CodeFolder, code_folder
from ._kernel import Kernel


T = TypeVar("T")

# LLVM's passes before the code is generated, and those of the code: more take longer, for code that is hardly faster.
# With none for the code it takes an eighth of the time, for code that is slower, with the same bits.
PASSES, QUICK, CODE = 0, 0, 2


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A function that is called once in a process, however many threads ask for its result at a time."""
    lock, cached = threading.Lock(), ft.cache(make)

    @ft.wraps(make)
    def made() -> T:
        with lock:
            return cached()

    return made


@once
def _binding() -> ModuleType:
    """LLVM, with what it needs for this CPU; imported when the first function is compiled."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@ft.cache
def has_compiler() -> bool:
    """Whether llvmlite is installed, as on every platform for which it has a wheel."""
    try:
        _binding()
    except ImportError:
        return False
    return True


@ft.cache
def vector_width() -> int:
    """The doubles in a vector of this CPU."""
    features = _binding().get_host_cpu_features()
    return 8 if features.get("avx512f") else 4 if features.get("avx") else 2


class Library:
    """Functions of LLVM as machine code, which is freed with this object.

    Args:
        text: What is compiled.
        folder: Where code is kept from one process to the next; None for nowhere.
        quick: Whether code that is made soon is better than fast code, unless the folder has that.

    Attributes:
        is_quick: Whether it is such code.
    """

    def __init__(self, text: str, folder: CodeFolder | None = None, quick: bool = False):
        llvm = _binding()
        # Vectors of 512 bits have to be asked for.
        features = llvm.get_host_cpu_features().flatten() + ",-prefer-256-bit"
        target = llvm.Target.from_default_triple()

        def key(level: int) -> str:
            made_by = (text, llvm.llvm_version_info, llvm.get_host_cpu_name(), features, PASSES, level)
            return hashlib.sha256(repr(made_by).encode()).hexdigest()

        self.is_quick = quick and (folder is None or not folder.has(key(CODE)))
        level = QUICK if self.is_quick else CODE
        machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=level)
        module = llvm.parse_assembly(text)
        module.verify()
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=PASSES))
        passes.getModulePassManager().run(module, passes)
        self.engine = llvm.create_mcjit_compiler(module, machine)
        if folder is not None:
            name = key(level)
            self.engine.set_object_cache(lambda _, code: folder.put(name, code), lambda _: folder.get(name))
        self.engine.finalize_object()

    def address(self, name: str) -> int:
        """The place of a function."""
        return self.engine.get_function_address(name)


class Machine(Library):
    """A kernel as machine code.

    Attributes:
        run: (place of the places of all arrays, begin, end) evaluates these states. It lets other threads run.
    """

    def __init__(self, kernel: Kernel, quick: bool = False):
        super().__init__(kernel.text, code_folder(), quick)
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self.address("run"))


_known: "weakref.WeakValueDictionary[tuple[bytes, bool], Machine]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def compiled(kernel: Kernel, quick: bool = False) -> Machine:
    """The machine code of a kernel; kernels with the same text share it as long as one of them is in use."""
    key = hashlib.sha256(kernel.text.encode()).digest(), quick
    with _lock:
        machine = _known.get(key)
        if machine is None:
            machine = _known[key] = Machine(kernel, quick)
        return machine
