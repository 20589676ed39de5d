"""Python's garbage collector, which runs less often while many objects are made that stay.

Imports make hundreds of thousands of them, and a program that is traced tens of thousands. Every collection looks
through those that are new, in vain.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator


# New objects, less those that are gone, after which it runs.
SELDOM = 200_000
_lock = threading.Lock()
_depth, _usual = 0, None


@contextlib.contextmanager
def seldom_collecting() -> Iterator[None]:
    """A context in which the garbage collector runs seldom, in every thread; it can decorate a function."""
    global _depth, _usual
    with _lock:
        if not _depth:
            usual = gc.get_threshold()
            _usual = usual if 0 < usual[0] < SELDOM else None  # zero: it is switched off
            if _usual is not None:
                gc.set_threshold(SELDOM, *_usual[1:])
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            # Unless other code has changed it meanwhile.
            if not _depth and _usual is not None and gc.get_threshold() == (SELDOM, *_usual[1:]):
                gc.set_threshold(*_usual)


# The imports of the package, until `imported`.
_imports = seldom_collecting()
_imports.__enter__()


def imported() -> None:
    """Ends the imports. What they made counts as old, so that the next collection does not look through it."""
    if not gc.get_freeze_count():  # else the user has frozen objects, which are to stay so
        gc.freeze()
        gc.unfreeze()
    _imports.__exit__(None, None, None)
