"""Bounds of parameters, and the projected gradient within them.

A parameter is held if it lies on a bound and the loss falls beyond it. The others are free, and the projected gradient
is that of the free ones. Where it vanishes, and nowhere else, no step within the bounds lowers the loss to first order.

Methods with a model of the coupling of parameters would move the free ones as if the held ones moved too. Those methods
therefore see the free parameters only: the two-metric projection of Bertsekas (1982), Projected Newton methods for
optimization problems with simple constraints, SIAM J. Control Optim. 20.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree


# Lengths of the trial steps along the projected gradient, as parts of the parameters.
LENGTHS = (1e-1, 1e-3, 1e-5, 1e-7)


class Box(NamedTuple):
    """The least and the largest value of every parameter, infinite where there is none."""

    low: PyTree
    high: PyTree

    def inside(self, tuned: PyTree) -> PyTree:
        """Returns the parameters, clipped to the bounds."""
        return optax.projections.projection_box(tuned, self.low, self.high)

    def free(self, tuned: PyTree, gradient: PyTree) -> PyTree:
        """Returns a mask of the parameters that no bound holds."""

        def is_free(x: Array, g: Array, a: Array, b: Array) -> Array:
            return ~(((x <= a) & (g > 0)) | ((x >= b) & (g < 0)))

        return jax.tree_util.tree_map(is_free, tuned, gradient, self.low, self.high)

    def projected(self, tuned: PyTree, gradient: PyTree) -> PyTree:
        """Returns the gradient, with zeros for held parameters."""
        return only(self.free(tuned, gradient), gradient)


def without_bounds(tuned: PyTree) -> Box:
    """Returns the box of parameters without bounds."""
    high = jax.tree_util.tree_map(lambda x: jnp.full_like(x, jnp.inf), tuned)
    return Box(jax.tree_util.tree_map(jnp.negative, high), high)


def only(mask: PyTree, tree: PyTree, other: PyTree | None = None) -> PyTree:
    """Returns the numbers of a tree where the mask is true; elsewhere those of `other`, or zero."""
    other = jax.tree_util.tree_map(jnp.zeros_like, tree) if other is None else other
    return jax.tree_util.tree_map(jnp.where, mask, tree, other)


def lowers(
    loss: Callable[[PyTree], Array | float], tuned: PyTree, value: float, gradient: PyTree, sizes: PyTree, box: Box,
    visible: float,
) -> bool:  # fmt: skip
    """Whether a step along the projected gradient lowers the loss by more than `visible`.

    The direction is that of the gradient by parameters divided by their sizes, so that units do not matter.
    """
    gradient = box.projected(tuned, gradient)
    parts = jax.tree_util.tree_map(lambda g, s: np.asarray(g * s), gradient, sizes)
    largest = max((np.max(np.abs(p), initial=0.0) for p in jax.tree_util.tree_leaves(parts)), default=0.0)
    if largest == 0:
        return False
    for length in LENGTHS:
        tried = jax.tree_util.tree_map(lambda x, p, s, k=length / largest: x - s * k * p, tuned, parts, sizes)
        if value - float(loss(box.inside(tried))) > visible:
            return True
    return False


def sizes_of(history: PyTree, box: Box) -> PyTree:
    """Returns the size of every parameter: its largest value so far, or the width of its bounds, or one."""

    def size(values: np.ndarray, low: Array, high: Array) -> np.ndarray:
        largest, width = np.max(np.abs(values), axis=0), np.asarray(high) - np.asarray(low)
        return np.where(largest > 0, largest, np.where(np.isfinite(width) & (width > 0), width, 1.0))

    return jax.tree_util.tree_map(size, history, box.low, box.high)
