"""How long somebody waits for `import ukjax`, and for the pictures of a command: the first time, and later."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from . import _measure


COMMAND = "from ukjax.cli import main; main()", "simulate"
TARGETS = ("models.simple_pendulum:scenario", "models.scara:scenario")
WARM = 3  # runs, of which the median counts
# What the command is to take at most [s], to the pictures.
PROMISED = {"cold": 10.0, "warm": 5.0}


def rows(say: Callable[[str], None]) -> list[tuple[str, str, str]]:
    """(what, figure, note) for the table; `say` is told what is being measured."""
    say("importing in a fresh interpreter")
    with_jax = _measure.fresh("import jax, diffrax, equinox, optax")
    with_ukjax = _measure.fresh("import jax, diffrax, equinox, optax; import ukjax")
    alone = _measure.fresh("import ukjax")
    note = f"of which jax, diffrax, equinox, optax {with_jax:.2f} s; both as two imports {with_ukjax:.2f} s"
    return [("import ukjax", f"{alone:.2f} s", note), *(pictures(target, say) for target in TARGETS)]


def pictures(target: str, say: Callable[[str], None]) -> tuple[str, str, str]:
    """From the command to its pictures, with a cache of programs that is empty, and that has them."""
    with tempfile.TemporaryDirectory() as folder:
        say(f"ukjax simulate {target}, cold")
        cold = _seconds(target, Path(folder))
        say(f"ukjax simulate {target}, warm")
        warm = sorted(_seconds(target, Path(folder)) for _ in range(WARM))[WARM // 2]
    asked = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in PROMISED.items())
    return f"ukjax simulate {target}", f"{cold:.1f} s", f"{warm:.1f} s with its programs kept; asked are {asked}"


def _seconds(target: str, folder: Path) -> float:
    """Of one call of the command, which keeps its programs in `folder`. RuntimeError if it leaves no picture."""
    environment = {k: v for k, v in os.environ.items() if k != "UKJAX_CACHE" and not k.startswith(("JAX_", "XLA_"))}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    out = folder / "pictures"
    start = time.perf_counter()
    command = [sys.executable, "-c", *COMMAND, target, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env=environment)
    end = time.perf_counter()
    if not list(out.glob("*.png")):
        raise RuntimeError(f"ukjax simulate {target} left no picture.")
    return end - start
