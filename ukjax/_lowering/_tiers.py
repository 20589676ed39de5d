"""Machine code in two tiers: quickly made at first, and optimised, in the background, when it has been evaluated often.

To optimise a program takes as long as to evaluate it some ten thousand times. Most programs of a session are evaluated
less often, and then only the first tier is made, in an eighth of the time, or half of that for few states, where the
first is for one state at a time and the optimised one for vectors of them. Both have the same bits. The handler counts
evaluations (`@count` in threads.ll), and loops count steps; a thread waits for what they tell. A loop goes on with the
optimised step while it runs.
"""

import atexit
import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Callable

from ._compile import Machine
from ._kernel import Kernel


# Evaluations of a vector of states, or steps of one, after which code is optimised.
OFTEN = 2000
NEVER = 2**62


class Tier:
    """The machine code of a kernel: the first, and the optimised one when it is there."""

    def __init__(self, machine: Machine, kernel: Kernel, is_loop: bool = False):
        self.machines, self.kernel, self.is_loop = [machine], kernel, is_loop

    @property
    def left(self) -> int:
        """The number of states, or of steps of a loop, after which it is to be optimised."""
        if not self.machines[0].is_quick:
            return NEVER
        return OFTEN if self.is_loop else max(OFTEN * max(self.kernel.width, 1) // self.kernel.rounds, 1)

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
