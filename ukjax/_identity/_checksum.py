"""Checksums of values: of their contents, and never of their places or names.

A traced function has the checksum of its program, a function that cannot be traced that of its instructions (`_code`).
"""

import dataclasses
import enum
import functools as ft
import hashlib
import re
import types
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh, Sharding

from .._expand import AbstractBatchedOp
from .._lowering import Traceable
from .._sharing import Origin
from ._code import cached, of_class, of_function, of_program, tag_of_shape


PLAIN = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis), np.dtype)
# Types that say where something is computed, or keep others alive.
NOWHERE = (Sharding, Mesh, jax.Device, weakref.ReferenceType, Origin)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)


def checksum_of(*values: object, with_rules: bool = False) -> str:
    """The checksum of values: numbers, arrays, pytrees, traced functions, objects and Python functions.

    `with_rules`: includes the derivative rules that a traced function has of its own, for programs to differentiate.
    """
    return Checksum(with_rules).of(values).hex()


class Checksum:
    """Checksums of values that may have parts in common, each of which is visited once."""

    def __init__(self, with_rules: bool):
        self.with_rules = with_rules
        self.within_rule = False
        self._known: dict[tuple[int, bool], tuple[object, bytes]] = {}
        self._entered: dict[int, int] = {}

    def of(self, value: object) -> bytes:
        if isinstance(value, PLAIN):
            return self.put("plain", type(value).__name__.encode(), repr(value).encode())
        if id(value) in self._entered:  # it holds itself, as a function does that calls itself
            return self.put(f"entered {len(self._entered) - self._entered[id(value)]}")
        key = id(value), self.within_rule
        if key not in self._known:
            self._entered[id(value)] = len(self._entered)
            found = self._of_kind(value)
            del self._entered[id(value)]
            self._known[key] = value, found  # which is kept, for its id to stay its own
        return self._known[key][1]

    def put(self, tag: str, *parts: bytes) -> bytes:
        """The checksum of parts, in order."""
        found = hashlib.blake2b(tag.encode(), digest_size=16)
        for part in parts:
            found.update(len(part).to_bytes(8, "little"))
            found.update(part)
        return found.digest()

    def of_all(self, tag: str, values: Iterable) -> bytes:
        """The checksum of values, in order."""
        return self.put(tag, *map(self.of, values))

    def of_names(self, tag: str, values: Mapping) -> bytes:
        """The checksum of names and values, which does not depend on their order."""
        return self.put(tag, *sorted(self.of(name) + self.of(value) for name, value in values.items()))

    def _of_kind(self, value: object) -> bytes:
        if isinstance(value, ClosedJaxpr):
            return self.put("closed", of_program(self, value.jaxpr), self.of_all("constants", value.consts))
        if isinstance(value, Jaxpr):
            return of_program(self, value)
        if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return self.put("key", str(value.dtype).encode(), self.of(jax.random.key_data(value)))
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(np.asarray(value))
        if isinstance(value, ShapedArray | jax.ShapeDtypeStruct):
            return self.put("shape", tag_of_shape(value).encode())
        if isinstance(value, NOWHERE):
            return self.put("somewhere")
        if isinstance(value, enum.Enum):
            return self.put("member", type(value).__qualname__.encode(), value.name.encode())
        return self._container(value)

    def _array(self, value: np.ndarray) -> bytes:
        if value.dtype == object:
            return self.of_all(f"objects {value.shape}", value.ravel().tolist())
        return self.put(f"array {value.dtype} {value.shape}", value.tobytes())

    def _container(self, value: Any) -> bytes:
        if isinstance(value, tuple | list):
            return self.of_all(type(value).__name__, value)
        if isinstance(value, set | frozenset):
            return self.put("set", *sorted(map(self.of, value)))
        if isinstance(value, dict | types.MappingProxyType):
            return self.of_names("dict", value)
        if isinstance(value, jax.tree_util.PyTreeDef):
            return self.put("tree", self.of(value.node_data()), self.of_all("children", value.children()))
        return self._callable(value)

    def _callable(self, value: object) -> bytes:
        if isinstance(value, types.MethodType):
            return self.put("method", self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, ft.partial):
            return self.put("partial", self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, FUNCTIONS):
            return of_function(self, value)
        if isinstance(value, type):
            return of_class(self, value)
        if isinstance(value, types.ModuleType):
            return self.put("module", value.__name__.encode())
        return self._piece(value) if isinstance(value, AbstractBatchedOp) else self._object(value)

    def _object(self, value: object) -> bytes:
        """The checksum of an object: of its class and its attributes, without results that it caches."""
        kind = type(value)
        slots = [name for k in kind.__mro__ for name in _as_tuple(vars(k).get("__slots__", ()))]
        held = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
        held = {name: x for name, x in held.items() if name not in cached(kind) and not name.startswith("__")}
        if callable(inner := getattr(value, "__wrapped__", None)):
            # An object that compiles a function, caches its results, or adds a derivative, counts by its functions.
            held = {name: x for name, x in held.items() if isinstance(x, FUNCTIONS)} | {"__wrapped__": inner}
        if not held and not dataclasses.is_dataclass(value):
            shown = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
            return self.put("object", self.of(kind), shown.encode())
        return self.put("object", self.of(kind), self.of_names("held", held))

    def _piece(self, piece: AbstractBatchedOp) -> bytes:
        """The checksum of an operation of this package: of its functions, from which all else in it follows."""
        parts = (ClosedJaxpr, Traceable, AbstractBatchedOp, bool, int, str, tuple)
        held = {name: x for name, x in vars(piece).items() if isinstance(x, parts) and name not in cached(type(piece))}
        held = {
            name: x
            for name, x in held.items()
            if not name.startswith("_") and name not in ("tangent_of", "cotangent_of")
        }
        held = {name: x.closed if isinstance(x, Traceable) else x for name, x in held.items()}
        return self.put("piece", type(piece).__qualname__.encode(), self.of_names("held", held))


def _as_tuple(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
