"""Runs the garbage collector less often while ukjax is imported.

Imports make hundreds of thousands of objects that stay, and every collection looks through all of them.
"""

import gc


_usual = gc.get_threshold()
if _usual[0]:  # zero: the collector is switched off
    gc.set_threshold(max(_usual[0], 200_000), *_usual[1:])


def restore_gc() -> None:
    """Restores the collector's former threshold, unless other code has changed it meanwhile."""
    if gc.get_threshold() == (max(_usual[0], 200_000), *_usual[1:]):
        gc.set_threshold(*_usual)
