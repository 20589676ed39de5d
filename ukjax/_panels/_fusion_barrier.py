"""A barrier that keeps a computation from being fused into its uses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def fusion_barrier(function: Callable[..., Any], *arrays: Array) -> Any:
    """Computes `function` of arrays once, behind a barrier to fusion; the first array has entries of floating dtype.

    XLA's compiler for the CPU fuses a computation into each of its uses, and so repeats it for every one of them: of
    the panels of a factorisation, each made of the one before, it computes the first as often as there are panels. It
    does not fuse across the border of a conditional whose branch it cannot know. A GPU has no such barrier, which would
    make it wait.
    """

    def apart(*arrays):
        # This is always true, but the compiler cannot know it.
        always = ~(jnp.ravel(arrays[0])[0] < -jnp.inf)
        empty = lambda *xs: jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *xs))
        return jax.lax.cond(always, function, empty, *arrays)

    return jax.lax.platform_dependent(*arrays, cpu=apart, default=function)
