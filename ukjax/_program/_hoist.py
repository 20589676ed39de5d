"""Functions as pytrees, with what they close over."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array


class Hoisted(eqx.Module):
    """A traced function of arrays to a tree of arrays; `constants` are the arrays that it closed over.

    `jaxpr` is a leaf, not static, so that equinox's primitives find it when they look for jaxprs inside.
    """

    jaxpr: Jaxpr
    constants: list[Any]
    structure: Any = eqx.field(static=True)

    def __call__(self, *arguments: Array) -> Any:
        found = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, self.constants))(*arguments)
        # What is the same for all arguments comes as a number of Python's.
        array = lambda x, of: x if eqx.is_array(x) else jnp.asarray(x, of.aval.dtype)
        leaves = [array(x, of) for x, of in zip(found, self.jaxpr.outvars, strict=True)]
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def hoist(function: Callable[..., Any], *examples: Array, axes: Sequence[tuple[str, int]] = ()) -> Hoisted:
    """`function`, called with arrays like `examples`, as a pytree of all that it closes over, tracers included.

    However often it is then called, the person's functions are traced once. `axes`: names and sizes of axes over which
    it adds up and the like.

    Not `equinox.filter_closure_convert`, which refuses arguments that lie on other devices than the examples.
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
        """The arrays in its arguments, as it takes them."""
        leaves = jax.tree_util.tree_leaves(arguments)
        return [x.astype(dtype) for x, dtype in zip(leaves, self.dtypes, strict=True)]

    @property
    def shapes(self) -> Any:
        """What it returns, as shapes."""
        return jax.tree_util.tree_unflatten(self.hoisted.structure, self.results)


def traced(function: Callable[..., Any], *examples: Any, axes: Sequence[tuple[str, int]] = ()) -> Traced:
    """`function`, called with trees of arrays, or of their shapes, like `examples`, as `hoist` does it."""
    leaves, structure = jax.tree_util.tree_flatten(examples)
    hoisted = hoist(lambda *leaves: function(*jax.tree_util.tree_unflatten(structure, leaves)), *leaves, axes=axes)
    kinds: Any = [x.aval for x in hoisted.jaxpr.outvars]
    results = [jax.ShapeDtypeStruct(kind.shape, kind.dtype) for kind in kinds]
    return Traced(hoisted, tuple(x.dtype for x in leaves), tuple(results))
