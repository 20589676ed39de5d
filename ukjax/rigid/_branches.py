r"""Linear equations with the mass matrix of a tree, which couples two joints only if one is before the other.

.. math:: M = L^\top D L

With elimination from the ends to the ground, L has entries only where M has: row i at the joints before i. So the cost
of a solve depends on the lengths of the branches, and is not n for each of n rows.

Source: Featherstone (2005), Efficient factorization of the joint-space inertia matrix for branched kinematic trees.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._expand import expand
from ._layout import Layout


# Most steps of the elimination, each of one entry. With more it compiles longer than a dense factorisation.
MOST = 700


class Branches:
    """The order of a tree's joints: `before` lists for each joint the joints before it, the nearest first."""

    def __init__(self, before: list[list[int]]):
        n = len(before)
        self.before = before
        # From the ends to the ground; the diagonal is last.
        self.beside = [(i, j) for i in reversed(range(n)) for j in before[i]]
        self.entries = [*self.beside, *((i, i) for i in range(n))]

    @classmethod
    def of(cls, layout: Layout) -> "Branches":
        """The branches of a layout whose joints have one speed, or none; joints without a speed are left out."""
        moving = [i for i, node in enumerate(layout.nodes) if node.v[0] < node.v[1]]
        ways = [set(layout.path(i)) for i in moving]
        return cls([[j for j in reversed(range(k)) if moving[j] in way] for k, way in enumerate(ways)])

    @property
    def are_short(self) -> bool:
        """Whether the elimination takes at most `MOST` steps, so that it is better than a dense factorisation."""
        return sum(len(x) * (len(x) + 1) // 2 for x in self.before) <= MOST

    def solve(self, M: Array, y: Array) -> Array:
        """M^-1 y (n, k), for a definite M (n, n)."""
        return jax.lax.custom_linear_solve(lambda x: M @ x, y, lambda _, y: self._solved(M, y), symmetric=True)

    def _solved(self, M: Array, y: Array) -> Array:
        rows, columns = np.array(self.entries).T
        factors = expand(self._factors)(stop_gradient(M)[rows, columns])
        count = len(self.beside)
        if not count:
            return factors[:, None] * y
        L, inverses = factors[:count], factors[count:]
        i, j = jnp.asarray(rows[:count]), jnp.asarray(columns[:count])
        to_ground = lambda p, y: y.at[j[p]].add(-L[p] * y[i[p]])
        outwards = lambda p, y: y.at[i[count - 1 - p]].add(-L[count - 1 - p] * y[j[count - 1 - p]])
        y = inverses[:, None] * jax.lax.fori_loop(0, count, to_ground, y)
        return jax.lax.fori_loop(0, count, outwards, y)

    def _factors(self, entries: Array) -> Array:
        """The entries of L beside its diagonal, and the inverses of D, from the entries of M."""
        left = {at: entries[k] for k, at in enumerate(self.entries)}
        for k in reversed(range(len(self.before))):
            inverse = 1 / left[k, k]
            for i in self.before[k]:
                factor = left[k, i] * inverse
                for j in (i, *self.before[i]):
                    left[i, j] = left[i, j] - factor * left[k, j]
                left[k, i] = factor
            left[k, k] = inverse
        return jnp.stack([left[at] for at in self.entries])
