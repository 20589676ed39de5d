"""Checks of what the user passes in; every message names the argument and says what to pass instead."""

import inspect
import operator
import os
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from ._result import is_traced


K = TypeVar("K")
V = TypeVar("V")


class HasRates(Protocol):
    """An object that has the rates of coordinates, as a kinematics has."""

    def rates(self, q: Array, v: Array, t: Array) -> Array: ...


def state(
    q: object,
    v: object,
    t: object = 0.0,
    names: tuple[str, str] = ("q", "v"),
    kinematics: HasRates | None = None,
) -> tuple[Array, Array, Array]:
    """Returns `q`, `v`, `t` as arrays of one floating dtype; raises ValueError if they are not one state.

    With a `kinematics`, q may be longer than v; `kinematics.rates` must then return the shape of q.
    """
    q, v = floating(q, names[0]), floating(v, names[1])
    for name, x in zip(names, (q, v), strict=True):
        if x.ndim != 1:
            raise ValueError(
                f"{name} must have shape (n,), one state per call, but has shape {x.shape}. "
                "For a batch of states use jax.vmap."
            )
        if x.dtype not in (jnp.float32, jnp.float64):
            raise ValueError(
                f"{name} must be of dtype float32 or float64, in which linear systems are solved, but is of {x.dtype}. "
                f"Pass {name}.astype('float32')."
            )
    if kinematics is None and q.shape != v.shape:
        raise ValueError(
            f"{names[0]} and {names[1]} must have the same shape (n,), but {names[0]} has {q.shape} and {names[1]} has "
            f"{v.shape}: {names[1]} holds one rate per coordinate."
        )
    dtype = jnp.promote_types(q.dtype, v.dtype)
    t = floating(t, "t")
    if t.ndim != 0:
        raise ValueError(f"t must be a scalar, but has shape {t.shape}. For several times use jax.vmap.")
    q, v, t = q.astype(dtype), v.astype(dtype), t.astype(dtype)
    if kinematics is not None:
        _fits(kinematics, q, v, t, names)
    return q, v, t


def _fits(kinematics: HasRates, q: Array, v: Array, t: Array, names: tuple[str, str]) -> None:
    """Raises ValueError unless the kinematics makes rates of q of the speeds v."""
    shapes = f"{names[0]} has shape {q.shape} and {names[1]} shape {v.shape}"
    try:
        rates = jax.eval_shape(kinematics.rates, q, v, t)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{shapes}, which the kinematics of the system does not take: {error}") from error
    if rates.shape != q.shape:
        raise ValueError(f"{shapes}, but the kinematics of the system makes rates of shape {rates.shape} of them.")


def floating(x: object, name: str) -> Array:
    """Returns `x` as an array of floating dtype, integers as floats; raises ValueError for anything else."""
    if any(isinstance(leaf, str) for leaf in jax.tree_util.tree_leaves(x)):
        raise ValueError(f"{name} must be an array of real numbers, but holds text: {x!r}.")
    try:
        array = jnp.asarray(x)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of real numbers, got {type(x).__name__}: {error}") from error
    if jnp.issubdtype(array.dtype, jnp.floating):
        return jnp.asarray(array, array.dtype)  # a Python number would be weakly typed, and compile once more
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.result_type(float))
    raise ValueError(f"{name} must be an array of real numbers, but has dtype {array.dtype}.")


def scalar(x: object, name: str) -> Any:
    """Returns a tracer unchanged, anything else as a float; raises ValueError unless that is one finite number.

    NumPy does the conversion: inside of a trace JAX would turn a constant into a tracer, whose value is not known.
    """
    if is_traced(x):
        return x
    try:
        number = np.asarray(x, float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, but is {x!r}.") from error
    if number.ndim != 0:
        raise ValueError(f"{name} must be a scalar, but has shape {number.shape}.")
    if not np.isfinite(number):
        raise ValueError(f"{name} must be finite, but is {number}.")
    return float(number)


def count(x: object, name: str) -> int:
    """Returns `x` as an int; raises ValueError unless it is an integer, of Python's or NumPy's, of at least 1."""
    number = _integer(x)
    if number is None or number < 1:
        raise ValueError(f"{name} must be a positive integer, but is {x!r}.")
    return number


def seed(x: object) -> int:
    """Returns `x` as an int; raises ValueError unless it is an integer, of Python's or NumPy's, of at least 0."""
    number = _integer(x)
    if number is None or number < 0:
        raise ValueError(f"seed must be an integer of at least 0, but is {x!r}.")
    return number


def _integer(x: object) -> int | None:
    try:
        return operator.index(x) if isinstance(x, SupportsIndex) and not isinstance(x, bool | np.bool_) else None
    except TypeError:
        return None


def positive(x: object, name: str) -> float:
    """Returns a number as a float; raises ValueError unless it is positive and finite."""
    number = scalar(x, name)
    if number <= 0:
        raise ValueError(f"{name} must be positive, but is {number}.")
    return number


def warn_if_negative(x: object, name: str, effect: str, callers: int) -> None:
    """Warns if a known number, or one of several, is negative; attributed to the frame `callers` levels up."""
    if not is_traced(x) and np.any(np.asarray(x) < 0):
        warnings.warn(f"{name} is negative, {x}: {effect}. Pass it with the other sign.", stacklevel=callers + 1)


def tolerance(x: object, name: str) -> Any:
    """Returns a tracer unchanged, else a float; raises ValueError unless that is a finite number of at least 0."""
    number = scalar(x, name)
    if not is_traced(number) and number < 0:
        raise ValueError(f"{name} must not be negative, but is {number}.")
    return number


def finite(x: Array | np.ndarray, name: str) -> None:
    """Raises ValueError if the concrete array `x` holds NaN or infinity; a tracer passes."""
    if is_traced(x):
        return
    values = np.asarray(x)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        where = f"{name}[{', '.join(map(str, bad[0]))}]" if values.ndim else "it"
        raise ValueError(f"{name} must be finite, but {where} is {values[tuple(bad[0])]}.")


def times(ts: object) -> Array:
    """Returns `ts` as an array of at least two times; raises ValueError unless its known values increase."""
    ts = floating(ts, "ts")
    if ts.ndim != 1 or ts.shape[0] < 2:
        raise ValueError(
            f"ts must have shape (T,) with T >= 2, the times to save at from the first to the last, but has {ts.shape}."
        )
    finite(ts, "ts")
    if not is_traced(ts):
        steps = np.diff(np.asarray(ts, float))
        if np.any(steps <= 0):
            i = int(np.argmax(steps <= 0))
            raise ValueError(
                f"ts must increase strictly, but ts[{i}] = {ts[i]} is followed by ts[{i + 1}] = {ts[i + 1]}."
            )
    return ts


def output(value: object, shape: tuple[int | str, ...], dtype: DTypeLike, what: str, hint: str = "") -> Array:
    """Returns the result of a user's function, cast to `dtype`; raises ValueError if its shape is not `shape`.

    A letter in `shape` stands for any length.
    """
    if not hasattr(value, "shape") and not isinstance(value, (int, float, list, tuple)):
        raise ValueError(f"{what} must return an array of shape {_show(shape)}, but returned {type(value).__name__}.")
    array = jnp.asarray(value)
    fits = array.ndim == len(shape) and all(
        isinstance(want, str) or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{what} must return an array of shape {_show(shape)}, but returned shape {array.shape}. {hint}".rstrip()
        )
    return array.astype(dtype)


def instance(value: object, kind: type, name: str, example: str) -> None:
    """Raises TypeError unless `value` is an instance of `kind`; `example` says how to make one."""
    if not isinstance(value, kind):
        what = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be an instance of {kind.__name__}, such as {example}, but is {what}.")


def _show(shape: tuple[int | str, ...]) -> str:
    return "(" + ", ".join(map(str, shape)) + ("," if len(shape) == 1 else "") + ")"


def function(value: object, name: str, signature: str) -> Callable:
    """Returns `value` as a callable pytree; raises TypeError unless it takes the arguments that `signature` names.

    A `signature` with optional arguments, in brackets, is not checked.

    A plain function becomes a `jax.tree_util.Partial`, which jax.jit accepts as an argument; a callable that is a
    pytree already (an equinox module, say) keeps its array leaves.
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function {signature}, but is {type(value).__name__}: {value!r}.")
    takes = _signature(value)
    named = re.match(r"\w+\(([\w, ]+)\)", signature)
    if takes is not None and named is not None:
        try:
            takes.bind(*named[1].split(","))
        except TypeError as error:
            raise TypeError(f"{name} must be a function {signature}, but takes {takes}: {error}.") from error
    if jax.tree_util.all_leaves([value]):
        return jax.tree_util.Partial(value)
    return value


def _signature(value: Callable) -> inspect.Signature | None:
    """Returns the arguments of a function without following `__wrapped__`; None if they are not known."""
    try:
        return inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def mapping(value: Mapping[K, V] | None, name: str, example: str) -> dict[K, V]:
    """Returns `value` as a dict, empty for None; raises TypeError unless it is a mapping, such as `example`."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, such as {example}, but is {value!r}.")
    return dict(value or {})


def path(value: object, name: str) -> Path:
    """Returns `value` as a path; raises TypeError unless it is text or a path."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} must be a path, as text or a pathlib.Path, but is {value!r}.")
    return Path(value)
