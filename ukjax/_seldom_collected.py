"""While ukjax is imported the garbage collector looks at what there is less often.

Imports make hundreds of thousands of objects that stay: looking through them again and again takes a sixth of the time.
"""

import gc


_usual = gc.get_threshold()
if _usual[0]:  # zero: somebody switched it off
    gc.set_threshold(max(_usual[0], 200_000), *_usual[1:])


def done() -> None:
    """As often as before, unless somebody has changed it meanwhile."""
    if gc.get_threshold() == (max(_usual[0], 200_000), *_usual[1:]):
        gc.set_threshold(*_usual)
