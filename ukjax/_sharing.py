"""One parameter, one leaf: what several pytrees have in common is kept once.

A constraint that is a method of a system holds that system. If both were kept, every parameter would be two leaves, and
a gradient with respect to either of them a part of the truth. So of everything that occurs again only a `Reference` is
kept, which has no leaves; `joined` puts back what it stands for.

What counts as the same: a module that is the same object, also within one pytree; an array that is the same object in
two different pytrees; and either of them where a plain function closes over it, or uses it as a global variable.
"""

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jax.tree_util import Partial
from jaxtyping import PyTree


Path = tuple[Any, ...]


class Reference(eqx.Module):
    """Stands for what lies at `path` of the pytree number `part`, of those that `scope` put side by side.

    `depth`: how often it was put side by side with something else since, as a mechanism inside of another one.
    """

    scope: str = eqx.field(static=True)
    part: int = eqx.field(static=True)
    path: Path = eqx.field(static=True)
    depth: int = eqx.field(static=True, default=0)


def deeper(reference: Reference, by: int) -> Reference:
    return Reference(reference.scope, reference.part, reference.path, reference.depth + by)


class Closure(eqx.Module):
    """A plain function of whose outer variables these, by name, are kept beside it: leaves, or references."""

    function: Callable = eqx.field(static=True)
    variables: dict[str, PyTree]


def separated(scope: str, parts: Sequence[PyTree]) -> list[PyTree]:
    """The pytrees, the first one whole, with references in the others to what occurred before.

    `scope` tells the references from those that parts of the pytrees may have among themselves.
    """
    known = _Known(scope)
    first, *others = parts
    _remember(first, 0, (), known)
    return [first, *(_separate(part, number, (), known) for number, part in enumerate(others, start=1))]


def joined(scope: str, parts: Sequence[PyTree]) -> list[PyTree]:
    """The pytrees that `separated` was given."""
    join = _Join(scope, parts, {})
    first, *others = parts
    return [first, *map(join, others)]


def opened(parts: Sequence[PyTree]) -> list[PyTree]:
    """The pytrees; functions that close over an array of one of them as a `Closure` that holds it as a leaf."""
    known = {id(x) for x in jax.tree_util.tree_leaves(parts) if eqx.is_array(x)}
    return [_opened(part, known, frozenset()) for part in parts]


def _opened(x: PyTree, known: set[int], entered: frozenset[int]) -> PyTree:
    def open_function(x):
        function = _plain_function(x)
        if function is None or id(function) in entered:
            return x
        inside = lambda value: _opened(value, known, entered | {id(function)})
        variables = {name: inside(value) for name, value in _outer_variables(function)}
        holds = lambda value: any(id(leaf) in known for leaf in jax.tree_util.tree_leaves(value))
        variables = {name: value for name, value in variables.items() if holds(value)}
        return Closure(function, variables) if variables else x

    return jax.tree_util.tree_map(open_function, x, is_leaf=lambda y: _plain_function(y) is not None)


def closed(x: PyTree) -> PyTree:
    """What `opened` was given."""

    is_reference = lambda y: isinstance(y, Reference)
    holds_reference = lambda x: any(map(is_reference, jax.tree_util.tree_leaves(x, is_leaf=is_reference)))

    def close(x):
        # One that holds references is not opened, but separated: a constraint inside will join it.
        if not isinstance(x, Closure) or holds_reference(x.variables):
            return x
        return Partial(_with_variables(x.function, {name: closed(value) for name, value in x.variables.items()}))

    return jax.tree_util.tree_map(close, x, is_leaf=lambda y: isinstance(y, Closure))


class _Known:
    """Where each module and each array was met first, by identity; the objects are kept alive meanwhile."""

    def __init__(self, scope: str):
        self.scope = scope
        self.modules: dict[int, Reference] = {}
        self.arrays: dict[int, Reference | None] = {}
        self.objects: list[Any] = []
        self.entered: set[int] = set()  # functions that are being looked into: one may call itself

    def add(self, x: Any, number: int, path: Path) -> None:
        self.objects.append(x)
        if isinstance(x, eqx.Module):
            self.modules.setdefault(id(x), Reference(self.scope, number, path))
        elif eqx.is_array(x):
            # An array that stands for two parameters of one pytree is neither of them.
            self.arrays[id(x)] = None if id(x) in self.arrays else Reference(self.scope, number, path)

    def find(self, x: Any, number: int) -> Reference | None:
        if isinstance(x, eqx.Module):
            return self.modules.get(id(x))
        found = self.arrays.get(id(x)) if eqx.is_array(x) else None
        return found if found is not None and found.part != number else None


def _children(x: Any) -> list[tuple[Any, Any]] | None:
    """Keys and values one level down; None for a leaf, and for what JAX cannot take apart (a dict of mixed keys)."""
    try:
        entries, structure = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    except (TypeError, ValueError):
        return None
    if jax.tree_util.treedef_is_leaf(structure):
        return None
    return [(path[0], child) for path, child in entries]


def _with_children(x: Any, children: Sequence[Any]) -> Any:
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(x, is_leaf=lambda y: y is not x), children)


def _remember(x: Any, number: int, path: Path, known: _Known) -> None:
    known.add(x, number, path)
    for key, child in _children(x) or ():
        _remember(child, number, (*path, key), known)


def _separate(x: Any, number: int, path: Path, known: _Known, *, remember: bool = True) -> Any:
    if isinstance(x, Reference):
        return deeper(x, 1) if x.scope == known.scope else x
    found = known.find(x, number)
    if found is not None and (eqx.is_array(x) or any(eqx.is_array(leaf) for leaf in jax.tree_util.tree_leaves(x))):
        return found
    function = _plain_function(x)
    if function is not None:
        return _separate_closure(x, function, number, known)
    children = _children(x)
    if children is None:
        changed = x
    else:
        parts = [_separate(child, number, (*path, key), known, remember=remember) for key, child in children]
        same = all(part is child for part, (_, child) in zip(parts, children, strict=True))
        changed = x if same else _with_children(x, parts)
    if remember:
        known.add(x, number, path)
    return changed


def _plain_function(x: Any) -> types.FunctionType | None:
    if isinstance(x, Partial) and not x.args and not x.keywords:
        x = x.func
    return x if isinstance(x, types.FunctionType) else None


def _separate_closure(x: Any, function: types.FunctionType, number: int, known: _Known) -> Any:
    """`x`, unless its outer variables hold what is known. What it alone holds is a constant, as in any function."""
    if id(function) in known.entered:
        return x
    known.entered.add(id(function))
    variables = {}
    for name, value in _outer_variables(function):
        found = _separate(value, number, (), known, remember=False)
        if found is not value:
            variables[name] = found
    known.entered.remove(id(function))
    return Closure(function, variables) if variables else x


def _outer_variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Names and values of what a function closes over, and of the global variables that it uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell: what it is for will be assigned later
            yield name, cell.cell_contents
    for name in _global_names(function.__code__):
        if isinstance(function.__globals__.get(name), (eqx.Module, jax.Array)):
            yield name, function.__globals__[name]


def _global_names(code: types.CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return {*code.co_names}.union(*map(_global_names, inner))


class _Join(NamedTuple):
    """Puts back what references stand for; the same object wherever they stand for the same."""

    scope: str
    parts: Sequence[PyTree]
    made: dict[tuple[int, Path], PyTree]

    def __call__(self, x: PyTree) -> PyTree:
        if not any(map(self.is_ours, jax.tree_util.tree_leaves(x, is_leaf=self.is_ours))):
            return x
        return jax.tree_util.tree_map(lambda y: self.put_back(y) if self.is_ours(y) else y, x, is_leaf=self.is_ours)

    def is_ours(self, x: Any) -> bool:
        if isinstance(x, Closure):
            return any(map(self.is_ours, jax.tree_util.tree_leaves(x.variables, is_leaf=self.is_ours)))
        return isinstance(x, Reference) and x.scope == self.scope

    def put_back(self, x: Reference | Closure) -> PyTree:
        if isinstance(x, Closure):
            return Partial(_with_variables(x.function, {name: self(value) for name, value in x.variables.items()}))
        if x.depth:
            return deeper(x, -1)
        key = (x.part, x.path)
        if key not in self.made:
            found = self.resolved(x)
            self.made[key] = self(found) if x.part else found  # the first was left whole
        return self.made[key]

    def resolved(self, reference: Reference) -> PyTree:
        found = self.parts[reference.part]
        for key in reference.path:
            if isinstance(found, Reference) and found.scope == self.scope and not found.depth:
                found = self.resolved(found)
            found = dict(_children(found) or ()).get(key, _MISSING)
            if found is _MISSING:
                where = jax.tree_util.keystr(reference.path)
                raise ValueError(
                    f"A constraint shares {where} with its system, but the system has no such parameter: it was "
                    "replaced by one of another kind. Make a new ukjax.Mechanism with constraints of the new system."
                )
        return found


def _with_variables(function: Any, values: dict[str, Any]) -> types.FunctionType:
    """A copy of a plain function with other values of its outer variables."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    closure = tuple(types.CellType(values[k]) if k in values else old for k, old in zip(names, cells, strict=True))
    outside = {k: x for k, x in values.items() if k not in names}
    variables = {**function.__globals__, **outside} if outside else function.__globals__
    copy = types.FunctionType(function.__code__, variables, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_MISSING = object()
