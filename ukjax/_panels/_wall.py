"""What is computed apart from what surrounds it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def walled(function: Callable[..., Any], *arrays: Array) -> Any:
    """`function` of arrays, computed once; the first of them has entries of floating dtype.

    XLA's compiler for the CPU fuses what is computed from arrays into each of its uses, and so computes it again for
    every one of them: of the panels of a factorisation, each made of the one before, those of the first as often as
    there are panels. Not across the border of a conditional, of which it must not know which way it goes. On a GPU
    there is no such wall, which would make it wait.
    """

    def apart(*arrays):
        # True, whatever the number is, but not to a compiler.
        always = ~(jnp.ravel(arrays[0])[0] < -jnp.inf)
        empty = lambda *xs: jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *xs))
        return jax.lax.cond(always, function, empty, *arrays)

    return jax.lax.platform_dependent(*arrays, cpu=apart, default=function)
