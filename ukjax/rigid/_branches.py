r"""Linear equations with the mass matrix of a tree, which couples those joints only of which one is before the other.

.. math:: M = L^\top D L

Eliminated from the ends to the ground, L has entries only where M has: row i those of the joints before i. So a solve
costs as much as the branches are long, and not n for each of n rows.

Source: Featherstone (2005), Efficient factorization of the joint-space inertia matrix for branched kinematic trees.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._expand import expand
from ._layout import Layout


# Steps of the elimination, each of one entry. Up to a chain of 24 joints it is as fast as a dense one or faster, but
# with more than 15 it compiles longer. A tree of 30 joints with branches of up to six takes 150 (6 times as fast).
MOST = 700


class Branches:
    """Which joints are before which: `before` lists those of each joint, the nearest first."""

    def __init__(self, before: list[list[int]]):
        n = len(before)
        self.before = before
        # From the ends to the ground; the diagonal is last.
        self.beside = [(i, j) for i in reversed(range(n)) for j in before[i]]
        self.entries = [*self.beside, *((i, i) for i in range(n))]

    @classmethod
    def of(cls, layout: Layout) -> "Branches":
        """Of joints that have one speed, or none and count for nothing."""
        moving = [i for i, node in enumerate(layout.nodes) if node.v[0] < node.v[1]]
        ways = [set(layout.path(i)) for i in moving]
        return cls([[j for j in reversed(range(k)) if moving[j] in way] for k, way in enumerate(ways)])

    @property
    def are_short(self) -> bool:
        """Whether that is less than a dense factorisation."""
        return sum(len(x) * (len(x) + 1) // 2 for x in self.before) <= MOST

    def solve(self, M: Array, y: Array) -> Array:
        """M^-1 y (n, k), of a definite M (n, n)."""
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
        """The entries of L beside its diagonal, and the inverses of D, of those of M."""
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
