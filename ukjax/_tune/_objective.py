"""The objective of a tuning, a loss or its mean over samples, and bounds of its parameters.

Samples are taken one tile at a time on every device. Memory is that of one tile, also for the gradient, which is added
up tile by tile. The residuals and the Jacobian of Levenberg-Marquardt are kept as the triangle of their QR
factorisation, which gives the same step.

B: samples; D: devices; p: parameters; m: residuals of a sample.

A parameter is held if it lies on a bound and the loss falls beyond it. The others are free, and the projected gradient
is that of the free ones. Where it vanishes, and nowhere else, no step within the bounds lowers the loss to first order.

Methods with a model of the coupling of parameters would move the free ones as if the held ones moved too. Those methods
therefore see the free parameters only: the two-metric projection of Bertsekas (1982), Projected Newton methods for
optimization problems with simple constraints, SIAM J. Control Optim. 20.
"""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .._batch import Tiles, devices_of, on_each


P = ParamSpec("P")
T = TypeVar("T")


class Objective:
    """A loss of some parameters, `loss(params)` or the mean of `loss(params, sample)`, or its residuals.

    Args:
        loss: Returns a scalar, or residuals (m,), whose sum of squares is minimised.
        fixed: Parameters that are not tuned.
        squares: Whether the loss returns residuals.
    """

    def __init__(self, loss: Callable[..., Array], fixed: PyTree, squares: bool):
        self.squares = squares
        self.loss = lambda tuned, *sample: loss(eqx.combine(tuned, fixed), *sample)
        self.devices = devices_of(None)

    def scalar(self, tuned: PyTree, batch: PyTree) -> Float[Array, ""]:
        """Returns the mean of the loss."""
        # A derivative computes the intermediate values of a tile again, to save memory.
        return self._mean(jax.checkpoint(self._sum), tuned, batch)

    def value_and_grad(self, tuned: PyTree, batch: PyTree) -> tuple[Float[Array, ""], PyTree]:
        """Returns the mean of the loss and its gradient, in one pass."""
        return self._mean(jax.value_and_grad(self._sum), tuned, batch)

    def residuals(self, tuned: PyTree, batch: PyTree) -> Float[Array, " B*m"]:
        """Returns the residuals of all samples, scaled so that their squares sum to the mean."""
        if batch is None:
            return self.loss(tuned)
        tiles = self._tiles(batch)
        each = jax.checkpoint(jax.vmap(self.loss, (None, 0)))

        def share(tuned: PyTree, samples: PyTree) -> Array:
            found = jax.lax.map(lambda tile: each(tuned, tile), tiles.apart(samples))
            return found.reshape(-1, *found.shape[2:])

        found = tiles.gathered(on_each(share, tiles.devices, tuned, tiles.arranged(batch)[0]))
        return jnp.ravel(found) / np.sqrt(tiles.count)

    def least_squares(self, tuned: PyTree, batch: PyTree) -> tuple[Float[Array, " r"], Float[Array, "r p"]]:
        """Returns residuals and their Jacobian; over samples, p + 1 rows with the same squares and products."""
        if batch is None:
            return _with_jacobian(self.loss, tuned)
        tiles, p = self._tiles(batch), ravel_pytree(tuned)[0].size

        def of_tile(tuned: PyTree, samples: PyTree, okay: Array) -> Array:
            r, J = jax.vmap(lambda sample: _with_jacobian(lambda tuned: self.loss(tuned, sample), tuned))(samples)
            both = jnp.concatenate([J, r[:, :, None]], axis=2) / np.sqrt(tiles.count)
            return jnp.where(okay[:, None, None], both, 0).reshape(-1, p + 1)

        def share(tuned: PyTree, samples: PyTree, okay: Array) -> Array:
            def with_tile(triangle: Array, tile: PyTree) -> tuple[Array, None]:
                return _triangle(triangle, of_tile(tuned, *tile)), None

            dtype = jax.eval_shape(of_tile, tuned, *_first(tiles.apart((samples, okay)))).dtype
            return jax.lax.scan(with_tile, jnp.zeros((p + 1, p + 1), dtype), tiles.apart((samples, okay)))[0]

        triangles = on_each(share, tiles.devices, tuned, *tiles.arranged(batch))
        rows = triangles if len(tiles.devices) == 1 else _triangle(triangles)
        return rows[:, p], rows[:, :p]

    def _tiles(self, batch: PyTree) -> Tiles:
        return Tiles(jax.tree_util.tree_leaves(batch)[0].shape[0], self.devices)

    def _sum(self, tuned: PyTree, samples: PyTree, okay: Array | None, count: int) -> Float[Array, ""]:
        """Returns the part of these samples in the mean."""
        if okay is None:
            each = self.loss(tuned)
            return jnp.sum(each**2) if self.squares else each
        each = jax.vmap(self.loss, (None, 0))(tuned, samples)
        each = jnp.sum(each**2, axis=1) if self.squares else each
        return jnp.sum(jnp.where(okay, each, 0)) / count

    def _mean(self, function: Callable[..., PyTree], tuned: PyTree, batch: PyTree) -> PyTree:
        """Returns `function`, `_sum` or a linear operation on it, added up over all tiles."""
        if batch is None:
            return function(tuned, None, None, 1)
        tiles = self._tiles(batch)

        def share(tuned: PyTree, samples: PyTree, okay: Array) -> PyTree:
            def of_tile(tile: PyTree) -> PyTree:
                return function(tuned, *tile, float(tiles.count))

            def with_tile(total: PyTree, tile: PyTree) -> tuple[PyTree, None]:
                return jax.tree_util.tree_map(jnp.add, total, of_tile(tile)), None

            parts = tiles.apart((samples, okay))
            if tiles.rounds == 1:
                return jax.tree_util.tree_map(lambda x: x[None], of_tile(_first(parts)))
            shapes = jax.eval_shape(of_tile, _first(parts))
            nothing = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            return jax.tree_util.tree_map(lambda x: x[None], jax.lax.scan(with_tile, nothing, parts)[0])

        parts = on_each(share, tiles.devices, tuned, *tiles.arranged(batch))
        return jax.tree_util.tree_map(lambda x: jnp.sum(x, axis=0), parts)


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Returns `function` compiled, with results moved off meshes of several devices."""
    program = eqx.filter_jit(function)

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return jax.tree_util.tree_map(_home, program(*args, **kwargs))

    return call


def _home(x: object) -> object:
    several = isinstance(x, jax.Array) and len(x.sharding.device_set) > 1
    return jnp.asarray(np.asarray(x)) if several else x


def _first(tree: PyTree) -> PyTree:
    return jax.tree_util.tree_map(lambda x: x[0], tree)


def _with_jacobian(
    residuals: Callable[[PyTree], Array], tuned: PyTree
) -> tuple[Float[Array, " m"], Float[Array, "m p"]]:
    """Returns residuals and their Jacobian by forward mode."""
    x, unravel = ravel_pytree(tuned)

    def along(direction: Array) -> tuple[Array, Array]:
        return jax.jvp(lambda x: residuals(unravel(x)), (x,), (direction,))

    return jax.vmap(along, out_axes=(None, 1))(jnp.eye(x.size, dtype=x.dtype))


def _triangle(*rows: Float[Array, "_ p1"]) -> Float[Array, "p1 p1"]:
    return jnp.linalg.qr(jnp.concatenate(rows), mode="r")


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

    def __init__(self, samples: PyTree | None, batch_size: int | None, seed: int | None):
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


def _batch_size(size: int | None, count: int | None) -> int | None:
    if size is None:
        return None
    if count is None:
        raise ValueError("batch_size needs samples to draw from: pass samples.")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= count:
        raise ValueError(f"batch_size must be an integer from 1 to the {count} samples, but is {size!r}.")
    return size


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
