"""Programs that run for long on a CPU, with vectors as wide as it has them."""

import functools as ft
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


WIDTH = 512  # bits


def widely_compiled(function: Callable[..., Any], **how: Any) -> Callable[..., Any]:
    """`eqx.filter_jit(function, **how)`, with the vectors of `wide_options`."""
    jit: Any = eqx.filter_jit
    made = ft.cache(lambda: jit(function, compiler_options=wide_options(), **how))

    @ft.wraps(function)
    def call(*arguments: Any) -> Any:
        return made()(*arguments)

    return call


@ft.cache
def wide_options() -> dict[str, int]:
    """For loops over a batch; nothing where somebody has said in XLA_FLAGS how wide vectors shall be.

    LLVM makes vectors of 256 bits where a CPU has 512 too, for the clock of some older ones slows down with those.
    """
    options = {"xla_cpu_prefer_vector_width": WIDTH}
    if any(name in os.environ.get("XLA_FLAGS", "") for name in options):
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=options).lower().compile()
    except jax.errors.JaxRuntimeError:  # no such option
        return {}
    return options
