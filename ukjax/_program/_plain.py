"""Plain calls that are made again and again with the same objects, such as a mechanism.

Most of the time of such a call goes into taking the objects apart, to find the arrays in them and to tell whether the
program for the rest is known. That is done once here for objects that stay the same.
"""

import functools as ft
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from .._result import is_traced
from ._compile import light_options, not_tracing
from ._hoist import TreeStructure


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
