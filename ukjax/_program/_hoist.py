"""Functions as pytrees, with what they close over."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jaxtyping import Array


class Hoisted(eqx.Module):
    """A traced function of arrays to one array; `constants` are the arrays that it closed over.

    `jaxpr` is a leaf, not static, so that equinox's primitives find it when they look for jaxprs inside.
    """

    jaxpr: Jaxpr
    constants: list[Any]

    def __call__(self, *arguments: Array) -> Array:
        (out,) = jaxpr_as_fun(ClosedJaxpr(self.jaxpr, self.constants))(*arguments)
        return out


def hoist(function: Callable[..., Array], *examples: Array) -> Hoisted:
    """`function`, called with arrays like `examples`, as a pytree of all that it closes over, tracers included.

    Not `equinox.filter_closure_convert`, which refuses arguments that lie on other devices than the examples.
    """
    closed = jax.make_jaxpr(function)(*examples)
    return Hoisted(closed.jaxpr, closed.consts)
