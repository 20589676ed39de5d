"""What an argument of a study is, as text by which a later call with another one is told apart."""

import functools
import hashlib
import re
import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np


PLAIN = (str, bytes, bool, int, float, complex, type(None))


def fingerprint(value: Any) -> str:
    """Numbers and words as they are; what is in arrays and pytrees, and what functions do, by a checksum.

    Of a function it is of its instructions and what they refer to by value: constants, defaults, what it closes over.
    Functions of other names that it calls are known by these names.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PLAIN):
        return repr(value)
    name = getattr(value, "__qualname__", type(value).__qualname__)
    words = "\0".join(_words(value, set()))
    return f"{name} {hashlib.blake2b(words.encode(), digest_size=8).hexdigest()}"


def is_named(function: Any) -> bool:
    """Whether it is the only one of its name in its module: no lambda or local function, no method, no partial."""
    return isinstance(function, types.FunctionType | type) and "<" not in function.__qualname__


def _words(value: Any, seen: set[int]) -> Iterator[str]:
    if id(value) in seen:  # a function that calls itself
        return
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        array = np.asarray(value)
        yield f"{array.dtype} {array.shape}"
        yield array.tobytes().hex()
    elif isinstance(value, types.FunctionType):
        seen = seen | {id(value)}
        yield from _instructions(value.__code__)
        held = [value.__defaults__, value.__kwdefaults__, *(_content(cell) for cell in value.__closure__ or ())]
        for one in held:
            yield from _words(one, seen)
    elif isinstance(value, types.MethodType):
        yield from _words(value.__func__, seen)
        yield from _words(value.__self__, seen)
    elif isinstance(value, functools.partial):
        for one in (value.func, value.args, value.keywords):
            yield from _words(one, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType) and _is_leaf(value):
        yield type(value).__qualname__
        for name, one in sorted(vars(value).items()):
            yield name
            yield from _words(one, seen | {id(value)})
    elif _is_leaf(value):
        yield _without_addresses(repr(value))
    else:
        leaves, structure = jax.tree_util.tree_flatten(value)
        yield _without_addresses(str(structure))
        for leaf in leaves:
            yield from _words(leaf, seen)


def _is_leaf(value: Any) -> bool:
    return jax.tree_util.all_leaves([value])


def _instructions(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _instructions(constant)
        else:  # sets of words have another order in every process
            yield repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
