"""C compilers of this machine, and functions that they compiled, called from here."""

import ctypes
import importlib.util
import shutil
import subprocess
import sys

import numpy as np


# gcc and clang where they are installed; the wheel of ziglang, which the extra "test" brings, is a clang.
COMPILERS = {name: [found] for name in ("gcc", "clang") if (found := shutil.which(name))}
if importlib.util.find_spec("ziglang"):
    COMPILERS["zig"] = [sys.executable, "-m", "ziglang", "cc"]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-O1"]


def compile_c(compiler, *arguments):
    """Runs a compiler; its warnings are errors here."""
    done = subprocess.run([*COMPILERS[compiler], *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def first():
    assert COMPILERS, "there is no C compiler: install the extra test, which brings one"
    return next(iter(COMPILERS))


class Library:
    """Exported functions, from C or an object file, compiled into a library and called with arrays."""

    def __init__(self, path, name, compiler=None, options=STRICT):
        compiler = compiler or first()
        library = path.parent / f"{name}-{path.suffix[1:]}-{compiler}.so"
        compile_c(
            compiler,
            *(options if path.suffix == ".c" else ()),
            "-shared",
            "-fPIC",
            path,
            "-o",
            library,
            "-lm",
        )
        self.name, self.functions = name, ctypes.CDLL(str(library))

    def __call__(self, what, *arguments, gives):
        """Whether the results are certain, and the results, arrays of `gives` numbers each."""
        dtype = np.dtype(np.result_type(*(x for x in arguments if isinstance(x, np.ndarray))))
        number = np.ctypeslib.as_ctypes_type(dtype)
        results = [np.full(n, 17.0, dtype) for n in gives]
        place = lambda x: ctypes.c_void_p(x.ctypes.data)
        given = [place(np.ascontiguousarray(x)) if np.ndim(x) else number(float(x)) for x in arguments]
        certain = self.functions[f"{self.name}_{what}"](*given, *map(place, results))
        return certain, results
