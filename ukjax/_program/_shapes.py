"""The shapes of the results of functions, remembered."""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

from ._fast_compile import not_tracing


MOST = 64


def shapes_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls `eqx.filter_eval_shape(function, *arguments)`, once for all plain calls that differ in numbers only."""
    leaves, structure = jax.tree_util.tree_flatten(arguments)
    given = tuple(_shape(x) if eqx.is_array(x) else x for x in leaves)
    key = structure, given, tuple(map(type, given)), jax.config.read("jax_enable_x64")
    try:
        hash(key)
    except TypeError:  # static fields of the user's modules need not be hashable
        return eqx.filter_eval_shape(function, *arguments)
    return _remembered(function, *key) if not_tracing() else eqx.filter_eval_shape(function, *arguments)


@ft.lru_cache(MOST)
def _remembered(function: Callable[..., Any], structure: Any, leaves: tuple[Any, ...], *others: Any) -> Any:
    return eqx.filter_eval_shape(function, *jax.tree_util.tree_unflatten(structure, leaves))


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
