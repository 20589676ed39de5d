"""Functions as they are traced: as pytrees with what they close over, what they use, and the shapes of results."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.interpreters import partial_eval
from jaxtyping import Array

from ._compile import not_tracing


class Hoisted(eqx.Module):
    """A traced function of arrays to a tree of arrays; `constants` are the arrays that it closed over.

    `jaxpr` is a leaf, not static, so that equinox's primitives find it when they look for jaxprs inside.
    """

    jaxpr: Jaxpr
    constants: list[Any]
    structure: Any = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> Any:
        found = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, self.constants))(*arguments)
        # A result that does not depend on the arguments comes as a Python number.
        array = lambda x, of: x if eqx.is_array(x) else jnp.asarray(x, of.aval.dtype)
        leaves = [array(x, of) for x, of in zip(found, self.jaxpr.outvars, strict=True)]
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def hoist(function: Callable[..., Any], *examples: Array, axes: Sequence[tuple[str, int]] = ()) -> Hoisted:
    """Traces `function` for arrays like `examples` into a pytree of all that it closes over, tracers included.

    However often the result is called, the user's functions are traced once. `axes`: names and sizes of the axes of its
    collective operations, such as sums over devices.

    `equinox.filter_closure_convert` will not do: it refuses arguments on other devices than the examples.
    """
    closed, shapes = jax.make_jaxpr(function, axis_env=list(axes), return_shape=True)(*examples)
    return Hoisted(closed.jaxpr, closed.consts, jax.tree_util.tree_structure(shapes))


class Traced(eqx.Module):
    """A traced function of trees of arrays to a tree of arrays, with what it closes over."""

    hoisted: Hoisted
    dtypes: tuple[Any, ...] = eqx.field(static=True)
    results: tuple[jax.ShapeDtypeStruct, ...] = eqx.field(static=True)

    def __call__(self, *arguments: Any) -> Any:
        return self.hoisted(*self.leaves(arguments))

    def leaves(self, arguments: Any) -> list[Array]:
        """The arrays in `arguments`, in the dtypes of the examples."""
        leaves = jax.tree_util.tree_leaves(arguments)
        return [x.astype(dtype) for x, dtype in zip(leaves, self.dtypes, strict=True)]

    @property
    def shapes(self) -> Any:
        """The shapes and dtypes of the results."""
        return jax.tree_util.tree_unflatten(self.hoisted.structure, self.results)


def traced(function: Callable[..., Any], *examples: Any, axes: Sequence[tuple[str, int]] = ()) -> Traced:
    """Traces `function` as `hoist` does, for trees of arrays, or of their shapes, like `examples`."""
    leaves, structure = jax.tree_util.tree_flatten(examples)
    hoisted = hoist(lambda *leaves: function(*jax.tree_util.tree_unflatten(structure, leaves)), *leaves, axes=axes)
    kinds: Any = [x.aval for x in hoisted.jaxpr.outvars]
    results = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]
    return Traced(hoisted, tuple(x.dtype for x in leaves), tuple(results))


def uses(function: Callable[..., Any], *examples: Array) -> list[bool]:
    """Returns for each of the arguments whether the results of the function, as traced, depend on it."""
    jaxpr = jax.make_jaxpr(function)(*examples).jaxpr
    return list(partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1])


MOST = 64


def shapes_of(function: Callable[..., Any], *arguments: Any) -> Any:
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
def _remembered(function: Callable[..., Any], structure: Any, leaves: tuple[Any, ...], *others: Any) -> Any:
    return eqx.filter_eval_shape(function, *jax.tree_util.tree_unflatten(structure, leaves))


def _shape(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
