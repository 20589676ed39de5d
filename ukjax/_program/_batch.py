"""Detects whether traced code will run as a batch."""

import functools as ft
from typing import Any

import jax
import jax.numpy as jnp


def in_batch(*trees: Any) -> bool:
    """Whether an array in `trees` stands for a batch of arrays: of a `jax.vmap` that is being traced."""
    return any(isinstance(_innermost(leaf), _kind()) for leaf in jax.tree_util.tree_leaves(trees))


def _innermost(x: Any) -> Any:
    """The array under all levels of differentiation, without what the derivatives add."""
    while hasattr(x, "primal"):
        x = x.primal
    return x


@ft.cache
def _kind() -> type:
    """JAX's class of the arrays within a `jax.vmap`, which has no public name."""
    seen: list[type] = []
    with jax.ensure_compile_time_eval():
        jax.vmap(lambda x: (seen.append(type(x)), x)[1])(jnp.zeros(1))
    return seen[0]
