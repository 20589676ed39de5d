"""Symmetric linear systems of several unknowns, differentiable in reverse mode too."""

from collections.abc import Callable

import jax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array


def solve_jointly(
    linear: Callable[[tuple[Array, ...]], tuple[Array, ...]],
    sides: tuple[Array, ...],
    solve: Callable[[tuple[Array, ...]], tuple[Array, ...]],
) -> tuple[Array, ...]:
    """Returns x with linear(x) = sides, found by `solve(sides)`; `linear` is symmetric, x has the shapes of sides.

    Gradients: those of the equation, in either mode, any number of times. `jax.lax.custom_linear_solve` alone has no
        reverse mode where only some of the sides depend on the variables of the derivative; here all sides are one
        vector.
    """
    flat, split = ravel_pytree(sides)
    one = lambda function: lambda x: ravel_pytree(function(split(x)))[0]
    return split(jax.lax.custom_linear_solve(one(linear), flat, lambda _, y: one(solve)(y), symmetric=True))
