"""Finds the arguments that a function uses."""

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import partial_eval
from jaxtyping import Array


def uses(function: Callable[..., Any], *examples: Array) -> list[bool]:
    """Returns for each of the arguments whether the results of the function, as traced, depend on it."""
    jaxpr = jax.make_jaxpr(function)(*examples).jaxpr
    return list(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])
