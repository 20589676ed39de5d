"""Python's garbage collector, which runs less often while many objects are made that stay.

Imports make hundreds of thousands of them, and a program that is traced up to millions. Every collection looks through
those that are new, in vain.
"""

import contextlib
import gc
import threading
from collections.abc import Iterator


# New objects, less those that are gone, after which it runs.
SELDOM = 4_000_000
# With more new objects than this, a program has been traced; after so many all objects are looked through.
MANY, MOST = 50_000, 8_000_000
_lock = threading.Lock()
_depth, _usual, _aged = 0, None, 0


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
                _age()
                gc.set_threshold(*_usual)


def _age() -> None:
    """Lets many new objects count as old, so that the next collection does not look through them in vain.

    The collector does not know of them then, so that they are counted here.
    """
    global _aged
    new = gc.get_count()[0]
    if new < MANY or gc.get_freeze_count():  # what the user has frozen is to stay so
        return
    _aged += new
    if _aged > MOST:
        _aged = 0
        gc.collect()
    else:
        gc.freeze()
        gc.unfreeze()


# The imports of the package, until `imported`.
_imports = seldom_collecting()
_imports.__enter__()


def imported() -> None:
    """Ends the imports."""
    _imports.__exit__(None, None, None)
