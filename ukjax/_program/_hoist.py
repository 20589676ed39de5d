"""Functions as pytrees, with what they close over."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
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
        leaves = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, self.constants))(*arguments)
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def hoist(function: Callable[..., Any], *examples: Array) -> Hoisted:
    """`function`, called with arrays like `examples`, as a pytree of all that it closes over, tracers included.

    However often it is then called, the person's functions are traced once.

    Not `equinox.filter_closure_convert`, which refuses arguments that lie on other devices than the examples.
    """
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*examples)
    return Hoisted(closed.jaxpr, closed.consts, jax.tree_util.tree_structure(shapes))
