"""Programs for one plain call, which wait longer to be compiled than they run."""

import functools as ft
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import get_opaque_trace_state

from .._result import is_traced


def lightly_compiled(function: Callable[..., Any], inlined: bool = False) -> Callable[..., Any]:
    """`function` of pytrees, compiled; on the CPU without LLVM's optimisations, unless it is part of a larger program.

    They take half of the time and gain little: the kernels of one small mechanism run for less time than it takes to
    start them. What somebody compiles, to call it often or for a batch, is compiled as they say. If it is `inlined`
    there, a mechanism that they do not hand over as an argument is constant, which scalar code makes use of.
    """
    by_itself, alone = eqx.filter_jit(function), ft.cache(lambda: light_jit(function))

    @ft.wraps(function)
    def call(*arguments: Any) -> Any:
        if inlined and _is_within_a_program():
            return function(*arguments)
        return (alone() if is_plain() and light_options() else by_itself)(*arguments)

    return call


def light_jit(function: Callable[..., Any]) -> Any:
    """`eqx.filter_jit(function)` for a compiler that shall be done soon. It cannot be part of a larger program."""
    jit: Any = eqx.filter_jit
    return jit(function, compiler_options=light_options())


def is_plain() -> bool:
    """Whether a call is made for its result, and not traced to become part of a program, a batch or a derivative."""
    return _trace() == _nothing_traced()


def _is_within_a_program() -> bool:
    """Whether everything that is computed becomes part of a program, even what is constant."""
    return is_traced(jax.lax.add(0, 0))


@ft.cache
def light_options() -> dict[str, bool | int]:
    """For a compiler that shall be done soon; nothing where somebody has said in XLA_FLAGS what it shall do."""
    if jax.default_backend() != "cpu":
        return {}
    flags, options = os.environ.get("XLA_FLAGS", ""), {}
    if "backend_optimization_level" not in flags:
        options["xla_backend_optimization_level"] = 0
    # The code generator of JAX 0.10 takes twice as long to compile, for no faster code. JAX 0.12 knows no such option.
    if jax.__version_info__[:2] == (0, 10) and "fusion_emitters" not in flags:
        options["xla_cpu_use_fusion_emitters"] = False
    return options


def _trace() -> Any:
    return get_opaque_trace_state(convention="ukjax")


@ft.cache
def _nothing_traced() -> Any:
    with ThreadPoolExecutor(1) as another:  # every thread traces for itself
        return another.submit(_trace).result()
