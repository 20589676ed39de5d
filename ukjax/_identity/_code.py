"""Checksums of Python functions and classes: of their instructions, and of what these refer to.

A function refers to what it closes over, to its defaults, and to the global variables that it uses. These count by
their values. Functions and classes of the user count by their own instructions, whichever module they are in; those
of installed packages count by name and version. Comments, docstrings, line numbers, files and names of local variables
do not count. The version of Python does.
"""

import dis
import functools as ft
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from ._installed import release
from ._program import Sums


HAS_DOCSTRING = 0x4000000  # of a code object, from Python 3.13 on
CHECKED = "__beartype_wrapper"  # of a function with checks around it, which mention addresses


# The module whose functions raise the errors of `equinox.error_if`, and hold the files and lines of its calls.
RAISING = "equinox._errors"


def of_function(sums: Sums, function: Any) -> bytes:
    """The checksum of a function."""
    if hasattr(function, CHECKED):
        return sums.of(function.__wrapped__)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    code = getattr(function, "__code__", None)
    installed = release(getattr(function, "__module__", None))
    raises = getattr(function, "__module__", None) == RAISING
    # A rule of ours may mention functions whose programs are there anyway.
    if code is None or raises or sums.within_rule:
        return sums.put("function", f"{installed} {name}".encode())
    does = sums.put("installed", f"{installed} {name}".encode()) if installed else _instructions(sums, function, code)
    held = [function.__defaults__, function.__kwdefaults__, *map(_content, function.__closure__ or ())]
    return sums.put("function", does, sums.of_all("held", held))


def of_class(sums: Sums, kind: type) -> bytes:
    """The checksum of a class: of its functions, and of those of its bases."""
    installed = release(kind.__module__)
    if installed or sums.within_rule:
        return sums.put("class", f"{installed} {kind.__module__}.{kind.__qualname__}".encode())
    functions = {k: _underlying(x) for k, x in vars(kind).items() if not k.startswith("_abc_")}
    counts = lambda name, x: not name.startswith("__") or isinstance(x, types.FunctionType)
    functions = {name: x for name, x in functions.items() if counts(name, x) and not _is_slot(x)}
    return sums.put(
        "class", kind.__qualname__.encode(), sums.of_all("bases", kind.__bases__), sums.of_names("holds", functions)
    )


@ft.cache
def cached(kind: type) -> frozenset[str]:
    """The names of the attributes in which an object of a class caches results."""
    return frozenset(name for k in kind.__mro__ for name, x in vars(k).items() if isinstance(x, ft.cached_property))


def _underlying(x: Any) -> Any:
    if isinstance(x, property):
        return x.fget, x.fset
    if isinstance(x, ft.cached_property):
        return x.func
    return x.__func__ if isinstance(x, staticmethod | classmethod) else x


def _is_slot(x: Any) -> bool:
    return inspect.ismemberdescriptor(x) or inspect.isgetsetdescriptor(x)


def _instructions(sums: Sums, function: types.FunctionType, code: types.CodeType) -> bytes:
    """The checksum of instructions, and of the global variables that they use."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nested = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    constants = [x for x in code.co_consts[_is_documented(code) :] if not isinstance(x, types.CodeType)]
    return sums.put(
        f"instructions {sys.implementation.cache_tag} {code.co_flags & ~HAS_DOCSTRING}",
        code.co_code,
        code.co_exceptiontable,
        sums.of((code.co_names, arguments, tuple(constants))),
        *(_instructions(sums, function, x) for x in nested),
        sums.of_names("global", dict(_global_variables(function, code))),
    )


def _is_documented(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring, or the place of one."""
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & HAS_DOCSTRING)
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def _global_variables(function: types.FunctionType, code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """The global variables that instructions use, and the attributes that they use of the user's modules."""
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__:
            value = function.__globals__[name]
        elif step.opname == "IMPORT_NAME" and name in sys.modules:
            value = sys.modules[name]
        else:
            continue
        if isinstance(value, types.ModuleType) and release(value.__name__) is None:
            yield from ((f"{name}.{k}", vars(value)[k]) for k in code.co_names if k in vars(value))
        yield name, value


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None
