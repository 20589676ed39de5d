"""Plain calls that are made again and again with the same objects, such as a mechanism.

Most of the time of such a call goes into taking the objects apart, to find the arrays in them and to tell whether the
program for the rest is known. That is done once here for objects that stay the same.

`packed` makes many small arrays into a few: an argument or a result of a program costs as much for one number as for a
thousand.
"""

import functools as ft
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from .._result import is_traced
from ._compile import light_options, not_tracing
from ._substitute import TreeStructure


# Objects that are remembered, and programs for what is not an array in them.
MOST = 256


class Prepared:
    """A function with its objects, for states of the shapes and dtypes that it was prepared with.

    Attributes:
        others: What else the result depends on; a call with other values needs another preparation.
    """

    def __init__(self, function: Callable[..., PyTree], objects: PyTree, state: Sequence[Array], others: Hashable):
        arrays, rest = eqx.partition(objects, eqx.is_array)
        self.leaves, structure = jax.tree_util.tree_flatten(arrays)
        static, form = jax.tree_util.tree_flatten(rest)
        self.program = _program(function, structure, tuple(static), form)
        self.kinds, self.others = [(x.shape, x.dtype) for x in state], others

    def takes(self, state: Sequence[object]) -> bool:
        """Whether these are arrays of the right shapes and dtypes; Python's numbers may stand for numbers."""
        for x, (shape, dtype) in zip(state, self.kinds, strict=True):
            if type(x) is float and shape == ():
                continue
            if type(x) not in _arrays() or x.shape != shape or x.dtype != dtype:  # pyright: ignore
                return False
        return True

    def __call__(self, *state: Any) -> PyTree:
        given = [np.asarray(x, d) if type(x) is float else x for x, (_, d) in zip(state, self.kinds, strict=True)]
        return self.program(self.leaves, given)


@ft.cache
def _arrays() -> tuple[type, ...]:
    """The types of arrays whose values are known."""
    with jax.ensure_compile_time_eval():
        return np.ndarray, type(jax.numpy.zeros(1))


@ft.lru_cache(MOST)
def _program(
    function: Callable[..., PyTree], structure: TreeStructure, static: tuple[Hashable, ...], form: TreeStructure
) -> Callable[[list[Array], Sequence[Any]], PyTree]:
    found: list[TreeStructure] = []

    def flat(leaves, state):
        arrays, rest = jax.tree_util.tree_unflatten(structure, leaves), jax.tree_util.tree_unflatten(form, static)
        results, tree = jax.tree_util.tree_flatten(function(*eqx.combine(arrays, rest), *state))
        found[:] = [tree]
        return results

    compiled = jax.jit(flat, compiler_options=light_options())

    def run(leaves: list[Array], state: Sequence[Any]) -> PyTree:
        results = compiled(leaves, state)
        return jax.tree_util.tree_unflatten(found[0], results)

    return run


class _Same:
    """An object to be recognised; None is one too. The numbers of an array of NumPy may have changed."""

    def __init__(self, x: object, gone: Callable[[object], object]):
        self.refers = (lambda: None) if x is None else weakref.ref(x, gone)
        self.numbers = x.copy() if isinstance(x, np.ndarray) else None

    def is_of(self, x: object) -> bool:
        return self.refers() is x and (self.numbers is None or np.array_equal(self.numbers, x))  # pyright: ignore


class PlainCalls:
    """The prepared functions of objects, each for as long as all its objects are in use."""

    def __init__(self):
        self._known: dict[tuple[int, ...], tuple[list[_Same], Prepared]] = {}

    def find(self, objects: Sequence[object], state: Sequence[object], others: Hashable = None) -> Prepared | None:
        """The prepared function of these very objects, if the call is a plain one with a state that it takes."""
        found = self._known.get(tuple(map(id, objects)))
        if found is None:
            return None
        known, prepared = found
        same = all(x.is_of(y) for x, y in zip(known, objects, strict=True)) and prepared.others == others
        return prepared if same and prepared.takes(state) and not_tracing() else None

    def prepare(
        self,
        function: Callable[..., PyTree],
        objects: Sequence[object],
        used: PyTree,
        state: Sequence[Array],
        others: Hashable = None,
    ) -> Prepared | None:
        """Prepares `function(*used, *state)` for these objects; None if the call is no plain one, or has no key."""
        if not not_tracing() or is_traced(used, state):
            return None
        key = tuple(map(id, objects))
        try:
            prepared = Prepared(function, used, state, others)
            known = [_Same(x, lambda _: self._known.pop(key, None)) for x in objects]
        except TypeError:  # something that cannot be a key, or be referred to
            return None
        while len(self._known) >= MOST:
            self._known.pop(next(iter(self._known)))
        self._known[key] = known, prepared
        return prepared


# The dtype of a leaf, where it lies in the array of that dtype, and its shape; None for a leaf that is not packed.
_Place = tuple[str, int, int, tuple[int, ...]] | None


class Packed(eqx.Module):
    """A pytree whose small arrays of the same dtype lie side by side, each row by row; see `packed`."""

    joined: dict[str, Array | np.ndarray]
    others: list[PyTree]
    places: tuple[_Place, ...] = eqx.field(static=True)
    structure: TreeStructure = eqx.field(static=True)

    @property
    def tree(self) -> PyTree:
        others = iter(self.others)
        leaves = [next(others) if place is None else self._part(*place) for place in self.places]
        return jax.tree_util.tree_unflatten(self.structure, leaves)

    def _part(self, dtype: str, begin: int, end: int, shape: tuple[int, ...]) -> Array | np.ndarray:
        joined = self.joined[dtype]
        return joined[..., begin:end].reshape((*joined.shape[:-1], *shape))


def packed(tree: PyTree, axes: int = 0, most: int = 1024) -> Packed:
    """Packs a pytree into few arrays with `axes` leading axes in common; its property `tree` is the pytree again.

    Arrays of more than `most` numbers, apart from these axes, stay separate, and so do those outside of the memory of
    the host. If nothing is traced NumPy does it.
    """
    leaves, structure = jax.tree_util.tree_flatten(tree)
    kinds = [_kind(x, axes, most) for x in leaves]
    alike: dict[str, list[Array]] = {}
    places: list[_Place] = []
    used: dict[str, int] = {}
    for x, kind in zip(leaves, kinds, strict=True):
        if kind is None:
            places.append(None)
            continue
        begin, shape = used.get(kind, 0), x.shape[axes:]
        used[kind] = begin + math.prod(shape)
        places.append((kind, begin, used[kind], shape))
        alike.setdefault(kind, []).append(x)
    xp = jnp if is_traced(leaves) else np
    flat = {kind: [xp.asarray(x).reshape(*x.shape[:axes], -1) for x in some] for kind, some in alike.items()}
    joined = {kind: xp.concatenate(some, axis=-1) for kind, some in flat.items()}
    others = [x for x, kind in zip(leaves, kinds, strict=True) if kind is None]
    return Packed(joined, others, tuple(places), structure)


def _kind(x: object, axes: int, most: int) -> str | None:
    """The name of the dtype of a leaf that is to be packed, else None."""
    # A NumPy array without leading axes is a constant of a program, which knows its values.
    if not isinstance(x, jax.Array | np.ndarray if axes else jax.Array):
        return None
    if math.prod(x.shape[axes:]) > most or getattr(x, "weak_type", False) or not _is_plain(x.dtype):
        return None
    return x.dtype.name if is_traced(x) or isinstance(x, np.ndarray) or _is_here(x) else None


def _is_plain(dtype: np.dtype) -> bool:
    """Whether a dtype is one of numbers, unlike that of random keys."""
    return not jnp.issubdtype(dtype, jax.dtypes.extended)


def _is_here(x: Array) -> bool:
    return x.is_fully_addressable and all(device.platform == "cpu" for device in x.devices())
