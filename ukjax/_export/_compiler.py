"""Shared libraries of C files, by a C compiler of this machine."""

import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


# Compilers in the order in which they are looked for; the wheel of ziglang is a clang.
KNOWN = ("cc", "gcc", "clang")
OPTIONS = ("-std=c99", "-O2", "-ffp-contract=off")
OF_LIBRARY = ("-fPIC", "-fvisibility=hidden", "-shared")


def c_compiler() -> list[str] | None:
    """The command of a C compiler; None if there is none."""
    for name in KNOWN:
        if found := shutil.which(name):
            return [found]
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else None


def needed_compiler(to: str) -> list[str]:
    """The command of a C compiler. Raises ValueError if there is none."""
    found = c_compiler()
    if found is None:
        raise ValueError(
            f'to="{to}" needs a C compiler, but none of {", ".join(KNOWN)} is to be found, nor the wheel of ziglang. '
            "Install one of them: pip install ziglang."
        )
    return found


def shared_library(compiler: list[str], files: Mapping[str, bytes], sources: list[str]) -> bytes:
    """The shared library of some of the files, for this machine. Raises ValueError if the compiler fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        command = [*compiler, *OPTIONS, *OF_LIBRARY, *sources, "-o", "library", "-lm"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        except OSError as error:
            raise ValueError(f"The C compiler {compiler[0]} cannot be run: {error.strerror}.") from error
        if done.returncode:
            last = (done.stderr.strip() or f"exit status {done.returncode}")[-500:]
            raise ValueError(f"The C compiler {compiler[0]} failed: {last}")
        return (Path(folder) / "library").read_bytes()


def platform_name() -> tuple[str, str]:
    """The name that FMI 3.0 has for this platform, such as x86_64-linux, and the ending of its libraries."""
    system = {"Darwin": "darwin", "Windows": "windows"}.get(platform.system(), "linux")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    return f"{machine}-{system}", {"darwin": ".dylib", "windows": ".dll"}.get(system, ".so")
