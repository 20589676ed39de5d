"""The function that XLA calls, through its foreign function interface, for all machine code of this process.

There is one for CPUs, and one for GPUs, which launches kernels; both look into one table.

A call names its code by a number, the key, which is made of the text of the code: it is the same in every process, so
that a program which XLA keeps on disk finds its code again. The function looks the key up in a table, takes the places
of the arrays from the call, and runs the code, for a large batch on the threads that XLA has. It is machine code too.

Threads take a few states at a time from a counter. The caller takes part, and waits only for states that another thread
has begun: no order of threads can make it wait for ever. A thread that comes late finds nothing to do.

Code that is no longer needed leaves the table first and memory later; a call that comes too late is an error.

Source: XLA's header xla/ffi/api/c_api.h, which jaxlib brings. Its text is compared with the one that is known here.
"""

import collections
import contextlib
import ctypes
import functools as ft
import hashlib
import re
import string
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax

from ._compile import NEVER, Library, Machine, Optimiser, Tier, has_compiler, once, write_function


TARGET = "ukjax_machine_code"
# The fields of the structures that the function reads, as in the header of version 0.3; any pointer is *. Versions 0.4
# and 0.5 (JAX 0.11 and 0.12) have other names for what some point to.
_HEAD = "size_t struct_size; * extension_start; "
KNOWN = {
    "XLA_FFI_CallFrame": _HEAD + "* api; * ctx; XLA_FFI_ExecutionStage stage; XLA_FFI_Args args; XLA_FFI_Rets rets; "
    "XLA_FFI_Attrs attrs;",
    "XLA_FFI_Args": _HEAD + "int64_t size; * types; * args;",
    "XLA_FFI_Rets": _HEAD + "int64_t size; * types; * rets;",
    "XLA_FFI_Attrs": _HEAD + "int64_t size; * types; * names; * attrs;",
    "XLA_FFI_Buffer": _HEAD + "XLA_FFI_DataType dtype; * data; int64_t rank; * dims;",
    "XLA_FFI_Scalar": "XLA_FFI_DataType dtype; * value;",
    "XLA_FFI_Metadata": "size_t struct_size; XLA_FFI_Api_Version api_version; XLA_FFI_Handler_Traits traits;",
    "XLA_FFI_Api_Version": _HEAD + "int major_version; int minor_version;",
    "XLA_FFI_Api": _HEAD + "XLA_FFI_Api_Version api_version; * internal_api;",
    "XLA_FFI_ThreadPool_Schedule_Args": _HEAD + "* ctx; * task; * data;",
    "XLA_FFI_ThreadPool_NumThreads_Args": _HEAD + "* ctx; * num_threads;",
    "XLA_FFI_Stream_Get_Args": _HEAD + "* ctx; * stream;",
    "XLA_FFI_Error_Create_Args": _HEAD + "* message; XLA_FFI_Error_Code errc;",
    "XLA_FFI_Error_Destroy_Args": _HEAD + "* error;",
}
MAJOR = 0
# The functions of XLA that are called; they come in the structure XLA_FFI_Api after so many bytes, in their order.
FUNCTIONS = ("Error_Create", "Error_Destroy", "ThreadPool_Schedule", "ThreadPool_NumThreads", "Stream_Get")
BEFORE_FUNCTIONS = 48

# Places in the table, a power of two.
PLACES = 1 << 16
# Codes that stay in the table after the last program that uses them is gone: JAX computes in the background, so that
# such a program may still have calls to come.
LINGERING = 128
# Codes that are kept for a while after they left the table.
RETIRED = 64
# Operations that a thread does before it takes the next states: some tens of microseconds.
OPERATIONS_OF_A_CHUNK = 150_000


class Entry(ctypes.Structure):
    """The needs of the function for one code.

    Attributes:
        run: The code, see `_kernel`, or the kernel of a GPU, see `_thread`; null for none.
        mend: A function of Python, (places, size, stream) -> 0 or the place of a message, which is called then where
            one of some truth values is set; null for none.
        flags: The number of the array of these truth values, among arguments and results; on a GPU, where the kernel
            looks at them, that of the only array that the kernel takes, or -1 if it takes all.
        first: The first argument with a batch; -1 if there is none.
        chunk: States that a thread takes at a time; on a GPU, the threads of a block. Negative for a loop, which takes
            members by itself: the number of those for which a thread is worth it, or of the threads of a block, with
            the other sign.
        running: Calls that run now.
        blocks: The most blocks of a loop on a GPU.
        left: Evaluations that remain until the code is optimised; of a loop its steps.
        step: The optimised step of a loop; null for none.
        count: The function that counts evaluations.
    """

    _fields_ = (
        ("run", ctypes.c_void_p),
        ("mend", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("running", ctypes.c_int64),
        ("blocks", ctypes.c_int64),
        ("left", ctypes.c_int64),
        ("step", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
    )


class _Place(ctypes.Structure):
    _fields_ = (("key", ctypes.c_int64), ("entry", ctypes.c_void_p))


def _fields(text: str) -> str:
    """The fields of a structure, without comments and the types of pointers."""
    plain = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\w[\w ]*\*+ ?(?=\w+;)", "* ", plain)


def interface_of(header: str) -> tuple[int, dict[str, int]] | None:
    """The minor version of the interface in a header, and where its functions lie; None if it is not the known one."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", header, flags=re.DOTALL)
    major, minor = (re.search(rf"#define XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR"))
    if major is None or minor is None or int(major[1]) != MAJOR:
        return None
    for name, fields in KNOWN.items():
        found = re.search(rf"struct {name} \{{(.*?)\}}", text, re.DOTALL)
        if found is None or not _fields(found[1]).startswith(fields):
            return None
    functions = re.findall(r"_XLA_FFI_API_STRUCT_FIELD\(XLA_FFI_(\w+)\)", text)
    if not set(FUNCTIONS) <= set(functions):
        return None
    return int(minor[1]), {x: BEFORE_FUNCTIONS + 8 * functions.index(x) for x in FUNCTIONS}


@ft.cache
def interface() -> tuple[int, dict[str, int]] | None:
    """The interface of the XLA that is installed; see `interface_of`."""
    try:
        header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text(encoding="utf-8")
    except OSError:
        return None
    return interface_of(header)


@ft.cache
def can_be_called() -> bool:
    """Whether XLA can call machine code here; there is a warning where only XLA's interface is in the way."""
    if not has_compiler():
        return False
    if interface() is None:
        warnings.warn(
            f"XLA's foreign function interface of jaxlib {version('jaxlib')} is none that ukjax knows: everything "
            "goes by matrices, which takes longer. Install a newer ukjax, or an older jaxlib.",
            stacklevel=2,
        )
        return False
    return True


class _Runs(ctypes.Structure):
    """The runs of this process: how many loops have done, and whether those that go on are asked to stop."""

    _fields_ = (("done", ctypes.c_int64), ("stop", ctypes.c_int64))


class _Table:
    """The codes of this process, by their keys."""

    def __init__(self):
        self.places = (_Place * PLACES)()
        self.lock = threading.Lock()
        self.known: weakref.WeakValueDictionary[int, Code] = weakref.WeakValueDictionary()
        # Codes whose last use has ended, and those of them that have left the table.
        self.ended: collections.deque[tuple[int, Entry, object]] = collections.deque()
        self.retired: collections.deque[tuple[Entry, object]] = collections.deque()
        self.free: list[Entry] = []
        self.runs = _Runs()
        self.optimiser = Optimiser(self._improve)
        words = {
            "stopped": STOPPED,
            "said": len(STOPPED) + 1,
            "write": write_function(),
            "outbox": self.optimiser.outbox,
        }
        self.library = self.register(TARGET, "cpu", "threads.ll", words)

    def register(self, target: str, platform: str, part: str, words: dict[str, str | int]) -> Library:
        """Registers the function under a name with XLA, for one kind of machine, and returns it.

        `part`: the file with `@evaluate`; `words`: what it is filled with.
        """
        interface_ = interface()
        assert interface_ is not None
        minor, at = interface_
        words = {"table": ctypes.addressof(self.places), "runs": ctypes.addressof(self.runs), "minor": minor} | words
        library = Library(handler_text(part, words | at))
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        address = library.address("handler")
        jax.ffi.register_ffi_target(target, capsule(address, b"xla._CUSTOM_CALL_TARGET", None), platform=platform)
        if platform == "cpu":
            jax.ffi.register_ffi_target_as_batch_partitionable(target)
        return library

    def _place(self, key: int) -> _Place:
        free = None
        for k in range(PLACES):
            place = self.places[(key + k) % PLACES]
            if place.key == key:
                return place
            if free is None and place.key != 0 and not place.entry:
                free = place
            if place.key == 0:
                return free or place
        if free is None:
            raise RuntimeError(f"More than {PLACES} mechanisms have machine code at a time. Call jax.clear_caches().")
        return free

    def put(self, key: int, does: "Does") -> Entry:
        entry = self.free.pop() if self.free else Entry()
        entry.run, entry.mend, entry.flags, entry.first, entry.chunk, entry.blocks = does[:6]
        entry.step, entry.count = None, self.library.address("count")
        tier, address = does.tier, ctypes.addressof(entry)
        entry.left = NEVER if tier is None else tier.left
        if tier is not None and tier.machines[0].is_quick:
            self.optimiser.waiting[address] = key, tier
        place = self._place(key)
        place.key, place.entry = key, address
        return entry

    def _improve(self, address: int, key: int, tier: Tier) -> None:
        """Lets an entry run optimised code, if it is still that of the same key."""
        code = self.known.get(key)
        if code is None:
            return
        kernel = tier.kernel if code.optimised is None else tier.kernel._replace(text=code.optimised())
        machine = Machine(kernel)
        with self.lock:
            if self._place(key).entry != address:
                return
            tier.improved(machine)
            entry = Entry.from_address(address)
            if tier.is_loop:
                entry.step = machine.address("step.own")
            entry.run = machine.address("run")

    def end(self, key: int, entry: Entry, kept: object) -> None:
        """Notes that a code is no longer in use. Python may call this anywhere, so it does nothing else."""
        self.ended.append((key, entry, kept))

    def tidy(self) -> None:
        """Takes codes whose use ended long ago out of the table; frees those that left it long ago and do not run."""
        while len(self.ended) > LINGERING:
            key, entry, kept = self.ended.popleft()
            place, address = self._place(key), ctypes.addressof(entry)
            if place.key == key and place.entry == address:
                place.entry = None
            self.optimiser.waiting.pop(address, None)
            self.retired.append((entry, kept))
        while len(self.retired) > RETIRED and self.retired[0][0].running == 0:
            self.free.append(self.retired.popleft()[0])


@once
def _table() -> _Table:
    return _Table()


class Code:
    """Machine code that XLA can call by its key as long as this object is in use; `optimised`: as of its kernel."""

    def __init__(self, key: int, entry: Entry, kept: object, optimised: Callable[[], str] | None = None):
        self.key, self.optimised = key, optimised
        weakref.finalize(self, _table().end, key, entry, kept).atexit = False


class Does(NamedTuple):
    """The parts of an `Entry`, and what is to be kept for it."""

    run: int
    mend: int
    flags: int
    first: int
    chunk: int
    blocks: int
    kept: object
    tier: Tier | None = None
    optimised: Callable[[], str] | None = None


def code(text: str, make: Callable[[], Does]) -> Code:
    """The code that a text stands for, made if it is not known."""
    table = _table()
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)
    with table.lock:
        found = table.known.get(key)
    if found is not None:
        return found
    does = make()
    with table.lock:
        table.tidy()
        found = table.known.get(key)
        if found is None:
            entry = table.put(key, does)
            found = table.known[key] = Code(key, entry, (does.kept, does.tier), does.optimised)
        return found


def runs_done() -> int:
    """The number of runs that loops of this process have done; steps that wait for the sure way count too."""
    return _table().runs.done


def asked_to_stop() -> bool:
    """Whether loops that go on are asked to stop: see `stopping`."""
    return bool(_table().runs.stop)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """A context in which every loop of this process stops after its next step, and its call is an error."""
    runs = _table().runs
    runs.stop += 1
    try:
        yield
    finally:
        runs.stop -= 1


def chunk_of(operations: int, width: int) -> int:
    """States that a thread takes at a time: whole vectors."""
    return max(1, -(-OPERATIONS_OF_A_CHUNK // max(operations, 1) // width)) * width


STOPPED = "ukjax: the computation was interrupted."
GONE = "ukjax: the machine code of this program is not in this process. Trace and compile the program here."


def register(target: str, platform: str, part: str, words: dict[str, str | int]) -> Library:
    """Registers the function for another kind of machine: see `_Table.register`."""
    return _table().register(target, platform, part, words)


def handler_text(part: str, words: dict[str, str | int]) -> str:
    """The function in LLVM's language, with its `part` for one kind of machine, both filled with `words`."""
    found = "".join(Path(__file__).with_name(x).read_text(encoding="utf-8") for x in ("handler.ll", part))
    text = string.Template(found).substitute(
        {"mask": PLACES - 1, "major": MAJOR, "gone": GONE, "length": len(GONE) + 1} | words
    )
    if sys.platform == "win32":  # which has no `sched_yield`: all states go on the thread of the caller
        text = text.replace("declare i32 @sched_yield()", "define internal i32 @sched_yield() {\n  ret i32 0\n}")
    return text
