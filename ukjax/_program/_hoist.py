"""Functions as they are traced: as pytrees with what they close over, what they use, and the shapes of results."""

import functools as ft
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun
from jax.interpreters import partial_eval
from jaxtyping import Array, ArrayLike, PyTree

from .._result import is_traced
from ._compile import not_tracing
from ._unbatch import aval_of


class TreeStructure(Protocol):
    """The structure of a tree of arrays: a `jax.tree_util.PyTreeDef`, which type checkers do not know."""

    @property
    def num_leaves(self) -> int: ...


# Larger arrays than those of this many entries are not compared by their entries.
MOST_PLACES = 16_384


class Places(NamedTuple):
    """An array of whole numbers or truth values, such as places in other arrays, which equal ones are equal to."""

    shape: tuple[int, ...]
    dtype: np.dtype
    data: bytes

    @property
    def array(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Hoisted(eqx.Module):
    """A traced function of arrays to a tree of arrays; `constants` are the arrays that it closed over.

    `jaxpr` is a leaf, not static, so that equinox's primitives find it when they look for jaxprs inside. `places`: in
    place of `constants`, those that are known and have no derivative, None for the others; what picks an entry of an
    array by one of them has to know it.
    """

    jaxpr: Jaxpr
    constants: list[Array]
    structure: TreeStructure = eqx.field(static=True)
    places: tuple[Places | None, ...] = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> PyTree:
        found = called(self.closed, *arguments)
        return jax.tree_util.tree_unflatten(self.structure, found)

    @property
    def closed(self) -> ClosedJaxpr:
        """The function, with all that it closed over."""
        others = iter(self.constants)
        return ClosedJaxpr(self.jaxpr, [next(others) if x is None else x.array for x in self.places])


def called(closed: ClosedJaxpr, *arguments: Array) -> list[Array]:
    """The results of a program, all of them arrays of JAX, as some that depend on no argument are not."""
    found = jaxpr_as_fun(closed)(*arguments)
    return [jnp.asarray(x, of.dtype) for x, of in zip(found, closed.out_avals, strict=True)]


def hoist(function: Callable[..., PyTree], *examples: Array, axes: Sequence[tuple[str, int]] = ()) -> Hoisted:
    """Traces `function` for arrays like `examples` into a pytree of all that it closes over, tracers included.

    However often the result is called, the user's functions are traced once. `axes`: names and sizes of the axes of its
    collective operations, such as sums over devices.

    `equinox.filter_closure_convert` will not do: it refuses arguments on other devices than the examples.
    """
    closed, shapes = jax.make_jaxpr(function, axis_env=list(axes), return_shape=True)(*examples)
    places = tuple(map(_places, closed.consts))
    constants = [x for x, known in zip(closed.consts, places, strict=True) if known is None]
    return Hoisted(closed.jaxpr, constants, jax.tree_util.tree_structure(shapes), places)


def _places(x: ArrayLike) -> Places | None:
    if is_traced(x) or not isinstance(jnp.result_type(x), np.dtype) or jnp.result_type(x).kind not in "biu":
        return None
    x = np.asarray(x)
    if x.size > MOST_PLACES:
        return None
    return Places(x.shape, x.dtype, x.tobytes())


class Traced(eqx.Module):
    """A traced function of trees of arrays to a tree of arrays, with what it closes over."""

    hoisted: Hoisted
    dtypes: tuple[np.dtype, ...] = eqx.field(static=True)
    results: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)

    def __call__(self, *arguments: PyTree) -> PyTree:
        return self.hoisted(*self.leaves(arguments))

    def leaves(self, arguments: PyTree) -> list[Array]:
        """The arrays in `arguments`, in the dtypes of the examples."""
        leaves = jax.tree_util.tree_leaves(arguments)
        return [x.astype(dtype) for x, dtype in zip(leaves, self.dtypes, strict=True)]

    @property
    def shapes(self) -> PyTree:
        """The shapes and dtypes of the results."""
        return jax.tree_util.tree_unflatten(self.hoisted.structure, self.results)


def traced(function: Callable[..., PyTree], *examples: PyTree, axes: Sequence[tuple[str, int]] = ()) -> Traced:
    """Traces `function` as `hoist` does, for trees of arrays, or of their shapes, like `examples`."""
    leaves, structure = jax.tree_util.tree_flatten(examples)
    hoisted = hoist(lambda *leaves: function(*jax.tree_util.tree_unflatten(structure, leaves)), *leaves, axes=axes)
    kinds = map(aval_of, hoisted.jaxpr.outvars)
    results = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]
    return Traced(hoisted, tuple(x.dtype for x in leaves), tuple(results))


def uses(function: Callable[..., PyTree], *examples: Array) -> list[bool]:
    """Returns for each of the arguments whether the results of the function, as traced, depend on it."""
    jaxpr = jax.make_jaxpr(function)(*examples).jaxpr
    return list(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])


def with_constants_as_arguments(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Array]]:
    """Turns constants that are not known while tracing into further arguments; returns the function and these."""
    pairs = list(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    further = [(variable, x) for variable, x in pairs if is_traced(x)]
    if not further:
        return closed, []
    known = [(variable, x) for variable, x in pairs if not is_traced(x)]
    takes = [*closed.jaxpr.invars, *(variable for variable, _ in further)]
    jaxpr = with_arguments(closed.jaxpr, takes, [variable for variable, _ in known])
    return ClosedJaxpr(jaxpr, [x for _, x in known]), [x for _, x in further]


def with_arguments(jaxpr: Jaxpr, invars: Sequence[Var], constvars: Sequence[Var] = ()) -> Jaxpr:
    """The program with its variables in another order, and some of them constants."""
    names = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    return jaxpr.replace(constvars=[*constvars], invars=[*invars], debug_info=names)


def with_results(closed: ClosedJaxpr, which: Collection[int]) -> ClosedJaxpr:
    """The program that computes some of the results, in their order, and nothing that these do not need."""
    used = [i in which for i in range(len(closed.jaxpr.outvars))]
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, used, True)  # pyright: ignore
    return ClosedJaxpr(jaxpr, closed.consts)


MOST = 64


def shapes_of(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
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
def _remembered(
    function: Callable[..., PyTree], structure: TreeStructure, leaves: tuple[Hashable, ...], *others: Hashable
) -> PyTree:
    return eqx.filter_eval_shape(function, *jax.tree_util.tree_unflatten(structure, leaves))


def _shape(x: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
