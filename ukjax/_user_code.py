"""Notes on errors of the user's functions: where they are raised, and what JAX needs instead."""

import contextlib
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax


OURS = str(Path(__file__).parent) + os.sep
INSTALLED = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))

# Errors of JAX about numbers that are not known yet, and what to write. The first that fits counts.
CURES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "It asks whether an unknown number is true, by `if`, `while`, `and`, `or`, `not`, `min` or `max`. JAX runs a "
        "function once, with numbers that are not known yet. Write jnp.where(condition, a, b), jnp.minimum, "
        "jnp.maximum, jnp.logical_and or jax.lax.cond instead.",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "It gives an unknown number to NumPy or SciPy. JAX runs a function once, with numbers that are not known yet. "
        "Write jnp.sin for np.sin, jnp.array for np.array, and so on, after `import jax.numpy as jnp`.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "It selects entries by an unknown condition, so that their number is not known. Write "
        "jnp.where(condition, x, 0.0) instead of x[condition].",
    ),
    (
        (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError),
        "It needs an unknown number as a number of Python's, as float(), int(), range() and the functions of `math` "
        "do. Leave float() out, and write jnp.sin for math.sin.",
    ),
)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Adds a note to an error that a function of the user raises: which function and line, and what to write."""
    try:
        yield
    except Exception as error:
        if (note := _note(error)) is not None and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def users_frames(error: Exception) -> list[traceback.FrameSummary]:
    """Returns the frames of an error's traceback that are in files of the user; empty if the library raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    known = [frame for frame in frames if frame.filename.startswith(OURS) or _is_users(frame.filename)]
    if not known or not _is_users(known[-1].filename):
        return []
    return [frame for frame in known if _is_users(frame.filename)]


def _note(error: Exception) -> str | None:
    """Returns the note for an error; None if the library raised it, and not a function of the user."""
    frames = users_frames(error)
    if not frames:
        return None
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno or 0).strip()
    where = f"{last.filename}, line {last.lineno}" + (f": {line}" if line else "")
    name = "a lambda" if last.name == "<lambda>" else f"the function {last.name!r}"
    cure = next((cure for kind, cure in CURES if isinstance(error, kind)), "")
    return f"This was raised in {name} ({where}). {cure}".strip()


def _is_users(file: str) -> bool:
    """Whether a file is neither ours, nor installed, nor within Python itself."""
    if file.startswith("<frozen"):
        return False
    return not file.startswith((OURS, *INSTALLED))
