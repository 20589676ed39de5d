"""Options of the compiler for functions that are called once, and what is being traced.

A program for one plain call takes longer to compile than to run.
"""

import functools as ft
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state
from jaxtyping import PyTree

from .._collector import seldom_collecting
from .._result import is_traced
from .._user_code import noted
from .._waiting import reported


P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Jitted(Protocol[P, R_co]):
    """A function compiled by `eqx.filter_jit`."""

    def __call__(self, *arguments: P.args, **keywords: P.kwargs) -> R_co: ...

    def lower(self, *arguments: P.args, **keywords: P.kwargs) -> Any: ...  # a class of equinox without a public name


def jit_fast_compile(function: Callable[P, R], inlined: bool = False) -> Callable[P, R]:
    """Compiles `function` of pytrees, on the CPU without LLVM's optimisations unless it is part of a larger program.

    The optimisations take long and gain little: the kernels of one small mechanism run for less time than it takes to
    start them. A program that the user compiles, to call it often or for a batch, keeps the user's options. If
    `function` is `inlined` there, a mechanism that is no argument of the program is constant, which scalar code uses.
    """
    name = getattr(function, "__name__", "a function").strip("_").replace("_", " ")
    by_itself, alone = eqx.filter_jit(function), ft.cache(lambda: light_jit(function))

    @ft.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        with noted(), reported(name), seldom_collecting():
            if inlined and _is_within_a_program():
                return function(*arguments, **keywords)
            return (alone() if not_tracing() and light_options() else by_itself)(*arguments, **keywords)

    return call


def light_jit(function: Callable[P, R]) -> Jitted[P, R]:
    """Compiles by `eqx.filter_jit(function)` in little time. The result cannot be part of a larger program."""
    # The annotations of equinox leave out the options of `jax.jit`.
    return eqx.filter_jit(function, compiler_options=light_options())  # pyright: ignore


def not_tracing() -> bool:
    """Whether a call is made for its result, and not traced to become part of a program, a batch or a derivative."""
    return _trace() == _nothing_traced()


def _is_within_a_program() -> bool:
    """Whether all computations become part of a program, even those of constants."""
    return is_traced(jax.lax.add(0, 0))


@ft.cache
def light_options() -> dict[str, Any]:
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


def _trace() -> object:
    return get_opaque_trace_state(convention="ukjax")


@ft.cache
def _nothing_traced() -> object:
    with ThreadPoolExecutor(1) as another:  # every thread traces for itself
        return another.submit(_trace).result()


def in_batch(*trees: PyTree) -> bool:
    """Whether an array in `trees` stands for a batch of arrays: of a `jax.vmap` that is being traced."""
    return any(isinstance(_innermost(leaf), _kind()) for leaf in jax.tree_util.tree_leaves(trees))


def _innermost(x: object) -> object:
    """The array under all levels of differentiation, without what the derivatives add."""
    while (primal := getattr(x, "primal", None)) is not None:
        x = primal
    return x


@ft.cache
def _kind() -> type:
    """JAX's class of the arrays within a `jax.vmap`, which has no public name."""
    seen: list[type] = []
    with jax.ensure_compile_time_eval():
        jax.vmap(lambda x: (seen.append(type(x)), x)[1])(jnp.zeros(1))
    return seen[0]
