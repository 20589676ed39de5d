"""Programs for one plain call, which take longer to compile than to run."""

import functools as ft
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import get_opaque_trace_state

from .._result import is_traced


def jit_fast_compile(function: Callable[..., Any], inlined: bool = False) -> Callable[..., Any]:
    """Compiles `function` of pytrees, on the CPU without LLVM's optimisations unless it is part of a larger program.

    The optimisations take long and gain little: the kernels of one small mechanism run for less time than it takes to
    start them. A program that the user compiles, to call it often or for a batch, keeps the user's options. If
    `function` is `inlined` there, a mechanism that is no argument of the program is constant, which scalar code uses.
    """
    by_itself, alone = eqx.filter_jit(function), ft.cache(lambda: light_jit(function))

    @ft.wraps(function)
    def call(*arguments: Any) -> Any:
        if inlined and _is_within_a_program():
            return function(*arguments)
        return (alone() if not_tracing() and light_options() else by_itself)(*arguments)

    return call


def light_jit(function: Callable[..., Any]) -> Any:
    """Compiles by `eqx.filter_jit(function)` in little time. The result cannot be part of a larger program."""
    jit: Any = eqx.filter_jit
    return jit(function, compiler_options=light_options())


def not_tracing() -> bool:
    """Whether a call is made for its result, and not traced to become part of a program, a batch or a derivative."""
    return _trace() == _nothing_traced()


def _is_within_a_program() -> bool:
    """Whether all computations become part of a program, even those of constants."""
    return is_traced(jax.lax.add(0, 0))


@ft.cache
def light_options() -> dict[str, bool | int]:
    """The compiler options for a short time of compilation, without those that the user has set in XLA_FLAGS."""
    if jax.default_backend() != "cpu":
        return {}
    flags, options = os.environ.get("XLA_FLAGS", ""), {}
    if "backend_optimization_level" not in flags:
        options["xla_backend_optimization_level"] = 0
    # The code generator of JAX 0.10 takes longer to compile, for no faster code. JAX 0.12 knows no such option.
    if jax.__version_info__[:2] == (0, 10) and "fusion_emitters" not in flags:
        options["xla_cpu_use_fusion_emitters"] = False
    return options


def _trace() -> Any:
    return get_opaque_trace_state(convention="ukjax")


@ft.cache
def _nothing_traced() -> Any:
    with ThreadPoolExecutor(1) as another:  # every thread traces for itself
        return another.submit(_trace).result()
