"""Selection of the samples of each step."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree


class Batch(NamedTuple):
    """Samples of one step; `partial` unless they are all samples."""

    samples: PyTree
    partial: bool


class Samples:
    """All samples, and minibatches of them.

    Args:
        samples: A pytree of arrays with a common leading axis, or None.
        batch_size: Number of samples to draw for a step; None for all.
        seed: Seed of the order in which samples are drawn; only with a `batch_size`.

    Raises:
        ValueError: If the samples have no common leading axis, `batch_size` is not between one and their number, or
            `seed` has nothing to act on.
    """

    def __init__(self, samples: PyTree | None, batch_size: Any, seed: Any):
        self.all = samples
        self.count = None if samples is None else _count(samples)
        self.size = _batch_size(batch_size, self.count)
        if seed is not None and self.size is None:
            raise ValueError(
                "seed is of the order in which minibatches are drawn, but there are none. Pass batch_size."
            )
        self.seed = 0 if seed is None else seed
        self.partial = self.count is not None and self.size is not None and self.size < self.count

    @property
    def per_epoch(self) -> int:
        """Number of steps after which every sample was used."""
        return 1 if self.count is None or self.size is None else -(-self.count // self.size)

    def batch(self, step: int) -> Batch:
        """Returns the samples of a step, the same in every call."""
        if self.count is None or self.size is None or not self.partial:
            return Batch(self.all, False)
        epoch, place = divmod(step, self.per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.count)
        # The last batch of an epoch is filled up from its beginning, so that all have one size and compile once.
        drawn = np.resize(order, self.per_epoch * self.size)[place * self.size : (place + 1) * self.size]
        return Batch(jax.tree_util.tree_map(lambda x: x[drawn], self.all), True)


def _count(samples: PyTree) -> int:
    sizes = {np.shape(x)[:1] for x in jax.tree_util.tree_leaves(samples)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            f"samples must be arrays with one common leading axis, one entry per sample, but those are {sorted(sizes)}."
        )
    return sizes.pop()[0]


def _batch_size(size: Any, count: int | None) -> int | None:
    if size is None:
        return None
    if count is None:
        raise ValueError("batch_size needs samples to draw from: pass samples.")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= count:
        raise ValueError(f"batch_size must be an integer from 1 to the {count} samples, but is {size!r}.")
    return size
