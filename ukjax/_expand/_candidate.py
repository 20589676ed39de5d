"""A motion found in a fast way from arrays, and how its rows are judged."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ._solved import SHORTEST, Certain


class Candidate(NamedTuple):
    """q'', a and the constraint force (n,), the residual, which rows count (m,); whether all that is certain.

    `smooth`: whether derivatives are those of the pseudoinverse too, which takes independent rows.
    """

    acceleration: Array
    unconstrained: Array
    constraint_force: Array
    residual: Array
    kept: Array
    clear: Array
    smooth: Array


class Rows(NamedTuple):
    """How rows came out of an elimination: of S = A M^-1 A^T the diagonal and the pivots, and which rows count.

    b; what is asked for beyond free motion; and the accelerations that are missed. All of one shape.
    """

    squares: Array
    pivots: Array
    kept: Array
    b: Array
    demand: Array
    missed: Array

    def are_clear(self, certain: Certain, push: Array, real: Array | None = None) -> Array:
        """Whether every row that is a `real` one is met, and counts or not, without any doubt.

        push: How far the constraints push, in the metric of M; a row's own share of it is at most its length times
            that, and of a light body beside heavy ones far less.
        """
        eps, tiny = (getattr(jnp.finfo(self.b.dtype), name) for name in ("eps", "tiny"))
        real = jnp.ones(self.b.shape, bool) if real is None else real
        # What is no number neither counts nor does not.
        decided = jnp.where(self.kept, self.pivots > certain.rank**2 * self.squares, jnp.isfinite(self.pivots))
        # No row is as short as the rounding errors of the longest.
        least = (SHORTEST * eps) ** 2 * jnp.max(self.squares, where=real, initial=0.0)
        none_or_real = (self.squares <= 0) | (self.squares > least)
        terms = certain.residual * (jnp.abs(self.b) + jnp.abs(self.demand))
        met = jnp.abs(self.missed) <= terms + certain.push * jnp.sqrt(jnp.abs(self.squares)) * push + tiny
        return jnp.all((decided & none_or_real & met) | ~real)
