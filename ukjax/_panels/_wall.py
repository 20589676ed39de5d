"""What is computed apart from what surrounds it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def walled(function: Callable[..., Any], always: Array | None, *arrays: Array) -> Any:
    """`function` of arrays, computed once.

    XLA's compiler for the CPU fuses what is computed from arrays into each of its uses, and so computes it again for
    every one of them: of the panels of a factorisation, each made of the one before, those of the first as often as
    there are panels. Not across the border of a conditional, of which it must not know which way it goes: `always` is
    true, and the compiler cannot tell. Without it, as on a GPU, there is no wall.
    """
    if always is None:
        return function(*arrays)
    nothing = lambda *xs: jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *xs))
    return jax.lax.cond(always, function, nothing, *arrays)


def unknown_truth(x: Array) -> Array:
    """True, whatever x is, but not to a compiler."""
    return ~(jnp.ravel(x)[0] < -jnp.inf)
