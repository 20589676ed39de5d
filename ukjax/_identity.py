"""Checksums of programs and values, which are the same in another process, on another machine, and in another folder.

A traced function has the checksum of its program, a function that cannot be traced that of its instructions. Values
count by their contents, and never by their places or names.

A traced function counts by its operations, the operands of these, and their order. Variables are numbered within each
program; names of functions, arguments and files do not count. Constants count by their bytes. A Python function that a
program calls back counts by its instructions.

A Python function refers to what it closes over, to its defaults, and to the global variables that it uses. These count
by their values. Functions and classes of the user count by their own instructions, whichever module they are in; those
of installed packages count by name and version. Comments, docstrings, line numbers, files and names of local variables
do not count. The version of Python does.
"""

import dataclasses
import dis
import enum
import functools as ft
import hashlib
import importlib.metadata
import inspect
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import AbstractValue, ShapedArray
from jax.extend.core import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.sharding import Mesh, Sharding
from jaxtyping import Array

from ._expand import AbstractBatchedOp
from ._lowering import Traceable
from ._sharing import Origin


# The parameters of operations that do not change their results.
LABELS = frozenset({
    "name", "debug_info", "donated_invars", "in_shardings", "out_shardings", "in_layouts", "out_layouts", "ctx_mesh",
    "keep_unused", "inline", "compiler_options_kvs", "policy", "prevent_cse", "flatten",
})  # fmt: skip
# The parameters that hold the derivative rule of a function with its own: Python functions, traced where needed.
RULES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd", "out_trees", "num_consts", "symbolic_zeros"})
SHOWN = frozenset({"debug_callback", "debug_print"})  # operations that only display
CALLS = "callback"


class Sums(Protocol):
    """The methods of `Checksum`, which makes checksums."""

    with_rules: bool
    within_rule: bool

    def of(self, value: object, /) -> bytes: ...
    def put(self, tag: str, /, *parts: bytes) -> bytes: ...
    def of_all(self, tag: str, values: Iterable, /) -> bytes: ...
    def of_names(self, tag: str, values: Mapping, /) -> bytes: ...


def of_program(sums: Sums, jaxpr: Jaxpr) -> bytes:
    """The checksum of a traced function, without its constants."""
    numbers: dict[Var, int] = {}

    def defined(x: Var) -> bytes:
        numbers[x] = len(numbers)
        return tag_of_shape(x.aval).encode()

    def used(x: Var | Literal) -> bytes:
        if isinstance(x, Literal):
            return sums.put("literal", tag_of_shape(x.aval).encode(), sums.of(np.asarray(x.val)))
        return f"#{numbers[x]}".encode()

    takes = [defined(x) for x in (*jaxpr.constvars, *jaxpr.invars)]
    parts = [sums.put(f"takes {len(jaxpr.constvars)}", *takes)]
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in SHOWN:
            continue
        of = [used(x) for x in eqn.invars]
        gives = [defined(x) for x in eqn.outvars]
        parts.append(sums.put(_operation(eqn), sums.put("of", *of), _parameters(sums, eqn), sums.put("gives", *gives)))
    return sums.put("program", *parts, sums.put("returns", *(used(x) for x in jaxpr.outvars)))


def tag_of_shape(aval: AbstractValue | jax.ShapeDtypeStruct) -> str:
    """The dtype and shape of an abstract value, or its type if it has none."""
    aval = getattr(aval, "inner_aval", aval)
    has_shape = hasattr(aval, "dtype")
    return f"{aval.dtype} {tuple(aval.shape)}" if has_shape else type(aval).__name__  # pyright: ignore


def _operation(eqn: JaxprEqn) -> str:
    name = eqn.primitive.name
    # The random numbers of a key depend on a setting of JAX.
    return f"{name} {eqn.ctx.threefry_partitionable}" if name.startswith(("random", "threefry")) else name


def _parameters(sums: Sums, eqn: JaxprEqn) -> bytes:
    has_rule = not RULES.isdisjoint(eqn.params)
    left_out = LABELS | RULES if has_rule else LABELS
    values = {name: x for name, x in eqn.params.items() if name not in left_out}
    was, sums.within_rule = sums.within_rule, sums.within_rule and CALLS not in eqn.primitive.name
    found = sums.of_names("parameters", values)
    sums.within_rule = was
    if has_rule and sums.with_rules and not sums.within_rule:
        sums.within_rule = True
        found = sums.put("with a rule", found, _rule(sums, eqn))
        sums.within_rule = False
    return found


def _rule(sums: Sums, eqn: JaxprEqn) -> bytes:
    """The checksum of the derivative of an operation that has its own derivative rule."""
    try:
        return sums.of(_derivative(eqn))
    except Exception:  # the rule is the user's, and may raise anything; whoever takes the derivative will see it
        return sums.put("no derivative")


def _derivative(eqn: JaxprEqn) -> ClosedJaxpr:
    takes = list(dict.fromkeys(x for x in eqn.invars if not isinstance(x, Literal)))
    gives = [x for x in eqn.outvars if not isinstance(x, DropVar)]
    jaxpr = eqn.params["call_jaxpr"].jaxpr
    names = jaxpr.debug_info._replace(arg_names=("",) * len(takes), result_paths=("",) * len(gives))
    alone = jaxpr.replace(constvars=[], invars=takes, outvars=gives, eqns=[eqn], debug_info=names)
    function = jaxpr_as_fun(ClosedJaxpr(alone, ()))
    avals = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in takes]  # pyright: ignore
    smooth = [i for i, x in enumerate(avals) if jnp.issubdtype(x.dtype, jnp.inexact)]

    def along(at: Sequence[Array]) -> Callable[..., list[Array]]:
        def moved(*moving):
            whole = list(at)
            for i, x in zip(smooth, moving, strict=True):
                whole[i] = x
            return [y for y in function(*whole) if jnp.issubdtype(y.dtype, jnp.inexact)]

        return moved

    def of(at: Sequence) -> list:
        return [at[i] for i in smooth]

    if "jvp_jaxpr_fun" in eqn.params:
        return jax.make_jaxpr(lambda at, d: jax.jvp(along(at), of(at), d))(avals, of(avals))

    def pulled(at):
        found, pull = jax.vjp(along(at), *of(at))
        return pull(found)  # the cotangents may be any numbers of these shapes

    return jax.make_jaxpr(pulled)(avals)


PACKAGES = ("ukjax", "jax", "jaxlib", "diffrax", "numpy")  # on which results depend


def versions() -> dict[str, str]:
    """The versions of the installed packages on which results depend."""
    return {package: importlib.metadata.version(package) for package in PACKAGES}


@ft.cache
def release(module: str | None) -> str | None:
    """The name and version of the installed package that a module belongs to; None for a module of the user."""
    top = (module or "__main__").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return top
    package = sys.modules.get(top)
    version = getattr(package, "__version__", "")
    if top == "ukjax" or (package is not None and _is_installed(package)):
        return f"{top} {version}"
    return None


def _is_installed(package: object) -> bool:
    places = [getattr(package, "__file__", None), *getattr(package, "__path__", ())]
    roots = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    return any(root in Path(place).resolve().parents for place in places if place for root in roots)


HAS_DOCSTRING = 0x4000000  # of a code object, from Python 3.13 on
CHECKED = "__beartype_wrapper"  # of a function with checks around it, which mention addresses


# The module whose functions raise the errors of `equinox.error_if`, and hold the files and lines of its calls.
RAISING = "equinox._errors"


def of_function(sums: Sums, function: Any) -> bytes:
    """The checksum of a function."""
    if hasattr(function, CHECKED):
        return sums.of(function.__wrapped__)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(function))}"
    code = getattr(function, "__code__", None)
    installed = release(getattr(function, "__module__", None))
    raises = getattr(function, "__module__", None) == RAISING
    # A rule of ours may mention functions whose programs are there anyway.
    if code is None or raises or sums.within_rule:
        return sums.put("function", f"{installed} {name}".encode())
    does = sums.put("installed", f"{installed} {name}".encode()) if installed else _instructions(sums, function, code)
    held = [function.__defaults__, function.__kwdefaults__, *map(_content, function.__closure__ or ())]
    return sums.put("function", does, sums.of_all("held", held))


def of_class(sums: Sums, kind: type) -> bytes:
    """The checksum of a class: of its functions, and of those of its bases."""
    installed = release(kind.__module__)
    if installed or sums.within_rule:
        return sums.put("class", f"{installed} {kind.__module__}.{kind.__qualname__}".encode())
    functions = {k: _underlying(x) for k, x in vars(kind).items() if not k.startswith("_abc_")}
    functions = {name: x for name, x in functions.items() if _is_written(name, x) and not _is_slot(x)}
    return sums.put(
        "class", kind.__qualname__.encode(), sums.of_all("bases", kind.__bases__), sums.of_names("holds", functions)
    )


@ft.cache
def cached(kind: type) -> frozenset[str]:
    """The names of the attributes in which an object of a class caches results."""
    return frozenset(name for k in kind.__mro__ for name, x in vars(k).items() if isinstance(x, ft.cached_property))


def _underlying(x: object) -> object:
    if isinstance(x, property):
        return x.fget, x.fset
    if isinstance(x, ft.cached_property):
        return x.func
    return x.__func__ if isinstance(x, staticmethod | classmethod) else x


def _is_written(name: str, x: object) -> bool:
    return not name.startswith("__") or isinstance(x, types.FunctionType)


def _is_slot(x: object) -> bool:
    return inspect.ismemberdescriptor(x) or inspect.isgetsetdescriptor(x)


def _instructions(sums: Sums, function: types.FunctionType, code: types.CodeType) -> bytes:
    """The checksum of instructions, and of the global variables that they use."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    nested = [x for x in code.co_consts if isinstance(x, types.CodeType)]
    constants = [x for x in code.co_consts[_is_documented(code) :] if not isinstance(x, types.CodeType)]
    return sums.put(
        f"instructions {sys.implementation.cache_tag} {code.co_flags & ~HAS_DOCSTRING}",
        code.co_code,
        code.co_exceptiontable,
        sums.of((code.co_names, arguments, tuple(constants))),
        *(_instructions(sums, function, x) for x in nested),
        sums.of_names("global", dict(_global_variables(function, code))),
    )


def _is_documented(code: types.CodeType) -> bool:
    """Whether the first constant is a docstring, or the place of one."""
    if sys.version_info >= (3, 13):
        return bool(code.co_flags & HAS_DOCSTRING)
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def _global_variables(function: types.FunctionType, code: types.CodeType) -> Iterator[tuple[str, object]]:
    """The global variables that instructions use, and the attributes that they use of the user's modules."""
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__:
            value = function.__globals__[name]
        elif step.opname == "IMPORT_NAME" and name in sys.modules:
            value = sys.modules[name]
        else:
            continue
        if isinstance(value, types.ModuleType) and release(value.__name__) is None:
            yield from ((f"{name}.{k}", vars(value)[k]) for k in code.co_names if k in vars(value))
        yield name, value


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


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
