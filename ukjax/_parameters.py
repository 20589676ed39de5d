"""Conversion of the numbers in a system's fields to arrays, each a distinct object."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ._result import is_traced
from ._sharing import children, with_children


def own_parameters(module: eqx.Module) -> None:
    """Makes every number in the fields of a module, and of modules within, an array used nowhere else in the module.

    The array's identity later identifies the parameter. The module is changed in place: call this while it is being
    made.
    """
    count: dict[int, int] = {}

    def counted(x: Any) -> Any:
        count[id(x)] = count.get(id(x), 0) + 1
        return x

    def own(x: Any) -> Any:
        if is_traced(x):
            return jnp.array(x) if count[id(x)] > 1 else x
        with jax.ensure_compile_time_eval():
            return jnp.array(x) if count[id(x)] > 1 or not isinstance(x, jax.Array) else x

    for change in (counted, own):
        _change_numbers(module, change, set())


def _change_numbers(x: Any, change: Callable[[Any], Any], entered: set[int]) -> Any:
    if eqx.is_array(x) or isinstance(x, float):
        return change(x) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else x
    if isinstance(x, eqx.Module):
        if id(x) not in entered:
            entered.add(id(x))
            for field in dataclasses.fields(x):
                if not field.metadata.get("static", False):
                    value = _change_numbers(getattr(x, field.name), change, entered)
                    object.__setattr__(x, field.name, value)
        return x
    parts = [_change_numbers(child, change, entered) for _, child in children(x)]
    return with_children(x, parts)
