"""Numbers within a scalar program."""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.dtypes import extended


class NotScalar(Exception):
    """The function does what no scalar program can: it has effects, or arrays that are too large."""


# The most entries of an array; larger ones do not belong to a small mechanism.
LARGEST = 4096


class Node:
    """A number that is known when the program runs; other numbers are constants, NumPy scalars."""

    __slots__ = ("args", "dtype", "function", "order", "place", "primitive", "value")
    __array_ufunc__ = None

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], dtype: Any, order: int):
        self.function, self.args, self.dtype, self.order = function, args, dtype, order
        self.primitive: Any = None
        self.place: Any = None  # of an entry of a block: number of the result, and index there
        self.value: Any = None  # its `_value.Value`, if known


# A number within a program: a `Node`, or a constant.
Entry = Any


class Block(Node):
    """The arrays within a program that an operation on arrays returns."""

    __slots__ = ()


def constant(value: Any, dtype: Any) -> Any:
    """A constant of a program, which is a NumPy scalar."""
    return np.asarray(value, dtype)[()]


def is_constant(x: Entry, value: float | None = None) -> bool:
    return not isinstance(x, Node) and (value is None or bool(x == value))


def name_of(x: Any) -> Any:
    """The key that identifies an argument, and orders arguments."""
    if isinstance(x, Node):
        return (1, x.order)
    return (0, str(x.dtype), x.tobytes())


def entries(value: Any, dtype: Any) -> np.ndarray:
    """A known array as an array of constants; raises NotScalar for a large one."""
    if math.prod(np.shape(value)) > LARGEST or jnp.issubdtype(dtype, extended):
        raise NotScalar("a large array, or a random key")
    value = np.asarray(value, dtype)
    found = np.empty(value.shape, object)
    for i in np.ndindex(value.shape):
        found[i] = value[i]
    return found
