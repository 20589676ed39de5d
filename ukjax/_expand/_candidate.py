"""A motion found by a fast path from arrays, and the verdict on its rows."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from ._scalar_kkt import SHORTEST, Certain


class Candidate(NamedTuple):
    """q'', a and the constraint force (n,), the residual, which rows count (m,); whether all of these are certain.

    `smooth`: whether derivatives are those of the pseudoinverse too, which requires independent rows.
    """

    acceleration: Array
    unconstrained: Array
    constraint_force: Array
    residual: Array
    kept: Array
    clear: Array
    smooth: Array


class Rows(NamedTuple):
    """The rows after an elimination: the diagonal and the pivots of S = A M^-1 A^T, and which rows count.

    b; the demand beyond free motion, b - A a; and the error, b - A q''. All are of one shape.
    """

    squares: Array
    pivots: Array
    kept: Array
    b: Array
    demand: Array
    missed: Array

    def are_clear(self, certain: Certain, push: Array, real: Array | None = None) -> Array:
        """Whether every `real` row is met, and surely counts or surely does not.

        push: The push of the constraints, in the metric of M; a row's own share is at most its length times that, and
            far less for a light body beside heavy ones.
        """
        eps, tiny = (getattr(jnp.finfo(self.b.dtype), name) for name in ("eps", "tiny"))
        real = jnp.ones(self.b.shape, bool) if real is None else real
        # NaN neither counts nor does not.
        decided = jnp.where(self.kept, self.pivots > certain.rank**2 * self.squares, jnp.isfinite(self.pivots))
        # No row is as short as the rounding errors of the longest.
        least = (SHORTEST * eps) ** 2 * jnp.max(self.squares, where=real, initial=0.0)
        none_or_real = (self.squares <= 0) | (self.squares > least)
        terms = certain.residual * (jnp.abs(self.b) + jnp.abs(self.demand))
        met = jnp.abs(self.missed) <= terms + certain.push * jnp.sqrt(jnp.abs(self.squares)) * push + tiny
        return jnp.all((decided & none_or_real & met) | ~real)
