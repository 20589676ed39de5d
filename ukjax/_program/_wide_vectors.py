"""Programs that run for long on a CPU, with the widest vectors that it has, and no more threads than are of use.

A large operation is shared out to threads, of which there are as many as cores, and the same for all devices. Where
every core is a device, or operations are short, that costs more than it gains.
"""

import functools as ft
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


WIDTH = 512  # bits


def jit_wide_vectors(function: Callable[..., Any], by_itself: Callable[..., bool], **how: Any) -> Callable[..., Any]:
    """Compiles `eqx.filter_jit(function, **how)` with `wide_options`; devices have one thread if `by_itself(*args)`."""
    jit: Any = eqx.filter_jit
    made = ft.cache(lambda by_itself: jit(function, compiler_options=wide_options(by_itself), **how))

    @ft.wraps(function)
    def call(*arguments: Any) -> Any:
        return made(by_itself(*arguments))(*arguments)

    return call


@ft.cache
def wide_options(by_itself: bool) -> dict[str, int | bool]:
    """The compiler options for loops over a batch, without those that the user has set in XLA_FLAGS.

    LLVM makes vectors of 256 bits even where a CPU has 512, for these slow down the clock of some older CPUs.
    """
    options: dict[str, int | bool] = {"xla_cpu_prefer_vector_width": WIDTH}
    if by_itself:
        options["xla_cpu_multi_thread_eigen"] = False
    return {name: value for name, value in options.items() if _is_possible(name, value)}


def _is_possible(name: str, value: int | bool) -> bool:
    if name in os.environ.get("XLA_FLAGS", ""):
        return False
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:  # no such option
        return False
    return True
