"""Compiled programs that the command keeps from one call to the next, in the user's cache folder."""

import os
import platform
from pathlib import Path
from typing import Any

import jax
from platformdirs import user_cache_path


VARIABLE = "UKJAX_CACHE"
OFF = ("0", "off", "no", "false")
LARGEST = 500_000_000  # bytes; what was not used for longest goes first


def keep_programs() -> None:
    """Has JAX keep what it compiles, unless the variable says not to, somebody chose a folder, or there is no room."""
    if os.environ.get(VARIABLE, "").lower() in OFF or are_kept():
        return
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".writable").touch()
    except OSError:
        return  # it is an offer, and the command does the same without
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    # There are many small ones, and all of them have to be compiled again.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def are_kept() -> bool:
    """Whether compiled programs are kept; not those that call back to Python, to tell how far they are."""
    config: Any = jax.config
    return config.jax_compilation_cache_dir is not None


def _folder() -> Path:
    # Of each machine its own: a home may be shared, and what is compiled is for one processor.
    return user_cache_path("ukjax") / "programs" / (platform.node() or "here")
