"""Batches of small matrices, worked on with the batch as the last axis.

`jax.vmap` puts the batch first, so that the innermost loop runs over a row of three or four numbers. A kernel that has
the batch last runs over many matrices at a time, which is what the vector units of a CPU and the threads of a GPU want.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array


# (B, Y) -> (X, rank), with B (m, n, batch), Y (m, k, batch), X (n, k, batch), rank (batch,).
Kernel = Callable[[Array, Array], tuple[Array, Array]]


def batched(kernel: Kernel) -> Callable[[Array, Array], tuple[Array, Array]]:
    """`kernel` for B (m, n) and Y (m, k); under `jax.vmap`, however nested, the whole batch reaches it at once.

    On the CPU it comes in tiles that stay in the cache; a GPU, where tiles would run one after the other, has no use
    for them.
    """

    @custom_vmap
    def apply(B: Array, Y: Array) -> tuple[Array, Array]:
        batch, (m, n), k = B.shape[:-2], B.shape[-2:], Y.shape[-1]
        if 0 in B.shape:
            return jnp.zeros((*batch, n, k), B.dtype), jnp.zeros(batch, int)
        B, Y = B.reshape(-1, m, n), Y.reshape(-1, m, k)
        if B.shape[0] <= tile_size(m, n):
            X, rank = _whole(kernel, B, Y)
        else:
            on_cpu, on_gpu = (lambda B, Y: _tiled(kernel, B, Y)), (lambda B, Y: _whole(kernel, B, Y))
            X, rank = jax.lax.platform_dependent(B, Y, cpu=on_cpu, default=on_gpu)
        return X.reshape(*batch, *X.shape[1:]), rank.reshape(batch)

    @apply.def_vmap
    def _(size: int, mapped: Any, B: Array, Y: Array) -> Any:
        if not mapped[0]:
            # One matrix, many right-hand sides: more columns, and still one factorisation.
            k = Y.shape[-1]
            X, rank = apply(B, jnp.moveaxis(Y, 0, -2).reshape(*Y.shape[1:-1], size * k))
            return (jnp.moveaxis(X.reshape(*X.shape[:-1], size, k), -2, 0), rank), (True, False)
        Y = Y if mapped[1] else jnp.broadcast_to(Y, (size, *Y.shape))
        return apply(B, Y), (True, True)

    return apply


@ft.cache
def at_tolerance(kernel: Callable[[float, Array, Array], tuple[Array, Array]], rtol: float) -> Callable:
    """The same for a kernel that takes a tolerance first; the same function every time, which compiles once."""
    return batched(ft.partial(kernel, rtol))


def tile_size(m: int, n: int) -> int:
    """How many m x n matrices a tile holds: few enough for the cache, enough for the vector units."""
    return max(8, min(256, 4096 // max(1, m * n)))


def _whole(kernel: Kernel, B: Array, Y: Array) -> tuple[Array, Array]:
    # With the batch last, a scalar of each matrix broadcasts against the matrices: that is the point of it.
    with jax.numpy_rank_promotion("allow"):
        X, rank = kernel(jnp.moveaxis(B, 0, -1), jnp.moveaxis(Y, 0, -1))
    return jnp.moveaxis(X, -1, 0), rank


def _tiled(kernel: Kernel, B: Array, Y: Array) -> tuple[Array, Array]:
    size = B.shape[0]
    tile = tile_size(*B.shape[1:])

    def step(i, carry):
        start = jnp.minimum(i * tile, size - tile)  # the last tile overlaps the one before
        cut = lambda x: jax.lax.dynamic_slice_in_dim(x, start, tile)
        put = lambda x, part: jax.lax.dynamic_update_slice_in_dim(x, part, start, 0)
        return jax.tree_util.tree_map(put, carry, _whole(kernel, cut(B), cut(Y)))

    shapes = jax.eval_shape(lambda B, Y: _whole(kernel, B, Y), B[:1], Y[:1])
    empty = jax.tree_util.tree_map(lambda x: jnp.zeros((size, *x.shape[1:]), x.dtype), shapes)
    return jax.lax.fori_loop(0, -(-size // tile), step, empty)
