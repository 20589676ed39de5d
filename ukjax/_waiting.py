"""A line in the terminal, or under a notebook's cell, about a call that takes longer than three seconds."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from tqdm.auto import tqdm


VARIABLE = "UKJAX_PROGRESS"  # "off" in the environment: no line is ever written
AFTER, BETWEEN = 3.0, 0.25  # [s]: from when on a call is reported, and how often the time is looked at

# Calls in progress with their starts, the outermost first.
_calls: list[tuple[str, float]] = []
_begun = threading.Event()
_watcher: list[threading.Thread] = []
# The line that is on the screen, if any.
_shown: list[str] = []
_lock = threading.Lock()


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Writes a line to stderr while the body runs, from three seconds on; see `is_watched`."""
    if not is_watched():
        yield
        return
    call = (what, time.perf_counter())
    _calls.append(call)
    _begun.set()
    if not _watcher:
        _watcher.append(threading.Thread(target=_watch, daemon=True))
        _watcher[0].start()
    try:
        yield
    finally:
        _calls.remove(call)
        if not _calls:
            _write("")


def is_watched() -> bool:
    """Whether stderr is a terminal, or belongs to a notebook, and the environment does not say otherwise."""
    if os.environ.get(VARIABLE, "").lower() == "off" or sys.stderr is None:
        return False
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _watch() -> None:
    while True:
        _begun.wait()
        time.sleep(BETWEEN)
        _begun.clear()
        with contextlib.suppress(IndexError):  # the call has ended since
            what, start = _calls[0]
            _begun.set()
            seconds = time.perf_counter() - start
            if any(getattr(bar, "n", 0) for bar in getattr(tqdm, "_instances", ())):
                _write("")  # the bar says more
            elif seconds > AFTER:
                _write(f"ukjax: {what}, {seconds:.0f} s; the first call compiles")


def _write(line: str) -> None:
    """Puts a line in the place of the one on the screen; the empty one only removes it, as does a call that ended."""
    with _lock:
        line = line if _calls else ""
        before = _shown.pop() if _shown else ""
        if line != before:
            sys.stderr.write(f"\r{line.ljust(len(before))}" if line else f"\r{' ' * len(before)}\r")
            sys.stderr.flush()
        if line:
            _shown.append(line)
