"""Compilation of LLVM's language for the CPU of this process, in two tiers, with a folder for what is compiled.

The folder is that of the environment variable UKJAX_CACHE, or one that a command names. A file is named by a checksum
of everything that its code depends on: the text, LLVM, the CPU. Another of any of these is another file.

Machine code is quickly made at first, and optimised, in the background, when it has been evaluated often. To optimise a
program takes as long as to evaluate it some ten thousand times. Most programs of a session are evaluated less often,
and then only the first tier is made: in an eighth of the time, or in less than that for a long program, which is
interpreted (see `_interpreter`). Both tiers have the same bits. The handler counts evaluations (`@count` in
threads.ll), and loops count steps; a thread waits for what they tell. A loop goes on with the optimised step while it
runs.
"""

import atexit
import contextlib
import ctypes
import functools as ft
import hashlib
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from ._kernel import Kernel
from ._parts import Interpreter


VARIABLE = "UKJAX_CACHE"
OFF = ("0", "off", "no", "false")
LARGEST = 200_000_000  # [bytes]; what was not used for longest goes first
# Files after which the size of the folder is looked at again.
FILES_UNTIL_PRUNED = 32


class CodeFolder:
    """A folder of compiled code, of which files may vanish at any time; several processes may use it."""

    def __init__(self, path: Path, largest: int = LARGEST):
        self.path, self.largest, self._written = path, largest, 0

    def get(self, key: str) -> bytes | None:
        """The code of this key; None if there is none."""
        file = self.path / key
        try:
            data = file.read_bytes()
            file.touch()
        except OSError:
            return None
        return data or None

    def has(self, key: str) -> bool:
        """Whether there is code of this key."""
        return os.path.isfile(self.path / key)  # False too where the folder cannot be read

    def put(self, key: str, data: bytes) -> None:
        """Keeps the code of this key, if the folder can be written to."""
        with contextlib.suppress(OSError):
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, delete=False) as file:
                file.write(data)
            os.replace(file.name, self.path / key)
            if self._written % FILES_UNTIL_PRUNED == 0:
                self._tidy()
            self._written += 1

    def _tidy(self) -> None:
        found = [(x.stat().st_mtime, x.stat().st_size, x.path) for x in os.scandir(self.path) if x.is_file()]
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.largest:
                return
            with contextlib.suppress(OSError):
                os.remove(path)
            total -= size


_named: list[Path] = []


def keep_code(folder: Path) -> None:
    """Keeps compiled code in this folder from now on, unless UKJAX_CACHE says otherwise."""
    _named[:] = [folder]


def code_folder() -> CodeFolder | None:
    """The folder of compiled code; None if none is kept."""
    said = os.environ.get(VARIABLE, "")
    if said.lower() in OFF:
        return None
    path = Path(said) / "code" if said else _named[0] if _named else None
    if path is None:
        return None
    return _folder_at(path)


@ft.cache
def _folder_at(path: Path) -> CodeFolder:
    return CodeFolder(path)


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
        for interpreter in kernel.interpreters:
            _provide(interpreter)
        super().__init__(kernel.text, code_folder(), quick)
        self.run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self.address("run"))


_provided: dict[str, Library] = {}
_providing = threading.Lock()


def _provide(interpreter: Interpreter) -> None:
    """Makes an interpreter known to LLVM by its name, for all code of this process; it is short, and has to be fast."""
    with _providing:
        if interpreter.name not in _provided:
            library = _provided[interpreter.name] = Library(interpreter.text, code_folder())
            _binding().add_symbol(interpreter.name, library.address(interpreter.name))


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


# Evaluations of a vector of states, or steps of one, after which code is optimised.
CALLS_UNTIL_OPTIMISED = 2000
NEVER = 2**62


class Tier:
    """The machine code of a kernel: the first, and the optimised one when it is there."""

    def __init__(self, machine: Machine, kernel: Kernel, is_loop: bool = False):
        # What prints the optimised text keeps the program, which is to be gone with its code.
        self.kernel = kernel._replace(optimised=None, interpreters=())
        self.machines, self.is_loop = [machine], is_loop

    @property
    def left(self) -> int:
        """The number of states, or of steps of a loop, after which it is to be optimised."""
        if not self.machines[0].is_quick:
            return NEVER
        if self.is_loop:
            return CALLS_UNTIL_OPTIMISED
        return max(CALLS_UNTIL_OPTIMISED * max(self.kernel.width, 1) // self.kernel.rounds, 1)

    def improved(self, machine: Machine) -> None:
        """Keeps the optimised code, beside the first, which may run yet."""
        self.machines.append(machine)


class Optimiser:
    """A thread that optimises the code of entries whose places are written to its outbox.

    `improve`: (place of an entry, its key, its tier) -> None.
    """

    def __init__(self, improve: Callable[[int, int, Tier], None]):
        self.waiting: dict[int, tuple[int, Tier]] = {}
        self._improve = improve
        self._inbox, self.outbox = os.pipe()
        if sys.platform != "win32":  # a computation does not wait where the pipe is full
            os.set_blocking(self.outbox, False)
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._work, name="ukjax-optimiser", daemon=True)
        self._thread.start()
        # LLVM is not to be taken down while it works.
        atexit.register(self._stop)

    def _work(self) -> None:
        while True:
            address = int.from_bytes(os.read(self._inbox, ctypes.sizeof(ctypes.c_void_p)), sys.byteorder)
            if address == 0:
                return
            found = self.waiting.pop(address, None)
            if found is not None:
                self._improve(address, *found)

    def _stop(self) -> None:
        if os.getpid() != self._process:  # a fork, which has the pipe and not the thread
            return
        self.waiting.clear()
        with contextlib.suppress(OSError):
            os.write(self.outbox, bytes(ctypes.sizeof(ctypes.c_void_p)))
            self._thread.join()


def write_function() -> int:
    """The place of the function that writes to a pipe."""
    function = ctypes.CDLL("ucrtbase")._write if sys.platform == "win32" else ctypes.CDLL(None).write
    place = ctypes.cast(function, ctypes.c_void_p).value
    assert place is not None
    return place
