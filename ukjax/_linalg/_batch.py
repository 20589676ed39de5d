"""Batches of small matrices, processed with the batch as the last axis.

`jax.vmap` puts the batch first, so that the innermost loop runs over a row of three or four numbers. A kernel that has
the batch last runs over many matrices at a time, which is what the vector units of a CPU and the threads of a GPU want.

`SkipIfZero` is a pseudoinverse for batches in which few matrices need it, at no cost where none does.
"""

import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .._types import BoolScalar
from ._base import AbstractPseudoinverse, rank_tolerance


Rtol = TypeVar("Rtol")
Tree = TypeVar("Tree")

# (B, Y) -> (X, rank), with B (m, n, batch), Y (m, k, batch), X (n, k, batch), rank (batch,); or at several tolerances,
# X (r, n, k, batch), rank (r, batch).
Kernel = Callable[[Array, Array], tuple[Array, Array]]


# A function of one matrix: B (m, n), Y (m, k), X (n, k) or (r, n, k), rank () or (r,).
Alone = Callable[[Array, Array], tuple[Array, Array]]


def batched(
    kernel: Kernel, alone: Alone | None = None, tile: int | None = None
) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Returns `kernel` for B (m, n) and Y (m, k); `jax.vmap`, however nested, passes it the whole batch at once.

    On the CPU the batch comes in tiles of `tile` matrices that stay in the cache. A GPU, where tiles would run one
    after the other, has no use for tiles. Without a batch, and on a GPU always, `alone` is called instead, if given.
    """

    @custom_vmap
    def apply(B: Array, Y: Array) -> tuple[Array, Array]:
        batch, (m, n), k = B.shape[:-2], B.shape[-2:], Y.shape[-1]
        if 0 in batch and 0 not in (m, n):
            # The kernel itself gives the shapes. It need not accept matrices without entries, which are handled below.
            ones = [jnp.zeros((1, *x.shape[-2:]), x.dtype) for x in (B, Y)]
            shapes = jax.eval_shape(ft.partial(_whole, kernel), *ones)
            return jax.tree_util.tree_map(lambda x: jnp.zeros((*batch, *x.shape[1:]), x.dtype), shapes)
        if 0 in B.shape:
            one = jnp.zeros((1, 1, 1), B.dtype)
            *several, _, _ = jax.eval_shape(ft.partial(_whole, kernel), one, one)[0].shape[1:]
            return jnp.zeros((*batch, *several, n, k), B.dtype), jnp.zeros((*batch, *several), int)
        if not batch and alone is not None:
            return alone(B, Y)
        B, Y = B.reshape(-1, m, n), Y.reshape(-1, m, k)
        size = tile or tile_size(m, n)
        fits = B.shape[0] <= size
        on_cpu = ft.partial(_whole, kernel) if fits else ft.partial(_tiled, kernel, size)
        on_gpu = ft.partial(_whole, kernel) if alone is None else jax.vmap(alone)
        if fits and alone is None:
            X, rank = on_cpu(B, Y)
        else:
            X, rank = jax.lax.platform_dependent(B, Y, cpu=on_cpu, default=on_gpu)
        return X.reshape(*batch, *X.shape[1:]), rank.reshape(*batch, *rank.shape[1:])

    @apply.def_vmap
    def _(size: int, mapped: Sequence[bool], B: Array, Y: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        if not mapped[0]:
            # One matrix, many right-hand sides: more columns, and still one factorisation.
            k = Y.shape[-1]
            X, rank = apply(B, jnp.moveaxis(Y, 0, -2).reshape(*Y.shape[1:-1], size * k))
            return (jnp.moveaxis(X.reshape(*X.shape[:-1], size, k), -2, 0), rank), (True, False)
        Y = Y if mapped[1] else jnp.broadcast_to(Y, (size, *Y.shape))
        return apply(B, Y), (True, True)

    return apply


def one_at_a_time(alone: Callable[..., Tree]) -> Callable[..., Tree]:
    """Returns `alone`, a function of matrices, which `jax.vmap` on a CPU calls for one matrix after the other.

    This is for functions that call LAPACK. jaxlib distributes a batch of matrices among the threads of the CPU and
    waits for them on one of these threads. When as many calls as there are threads do so at a time, none is left to do
    the work. A single matrix is not distributed.
    """

    @custom_vmap
    def apply(*matrices: Array) -> Tree:
        batch = matrices[0].shape[:-2]
        if not batch:
            return alone(*matrices)
        flat = [x.reshape(-1, *x.shape[-2:]) for x in matrices]

        def on_cpu(*matrices: Array) -> Tree:
            return jax.lax.map(lambda x: alone(*x), matrices)

        out = jax.lax.platform_dependent(*flat, cpu=on_cpu, default=jax.vmap(alone))
        return jax.tree_util.tree_map(lambda x: x.reshape(*batch, *x.shape[1:]), out)

    @apply.def_vmap
    def _(size: int, mapped: Sequence[bool], *matrices: Array) -> tuple[Tree, PyTree[bool]]:
        whole = [x if known else jnp.broadcast_to(x, (size, *x.shape)) for x, known in zip(matrices, mapped)]
        out = apply(*whole)
        return out, jax.tree_util.tree_map(lambda _: True, out)

    return apply


@ft.cache
def at_tolerance(
    kernel: Callable[[Rtol, Array, Array], tuple[Array, Array]], rtol: Rtol, tile: int | None = None
) -> Callable:
    """Returns `batched` of a kernel with its tolerances bound; cached, so that it compiles once."""
    return batched(ft.partial(kernel, rtol), tile=tile)


def tile_size(m: int, n: int) -> int:
    """Returns the number of m x n matrices in a tile: few enough for the cache, enough for the vector units."""
    return max(8, min(256, 4096 // max(1, m * n)))


def _whole(kernel: Kernel, B: Array, Y: Array) -> tuple[Array, Array]:
    # With the batch last, a scalar of each matrix broadcasts against the matrices.
    with jax.numpy_rank_promotion("allow"):
        X, rank = kernel(jnp.moveaxis(B, 0, -1), jnp.moveaxis(Y, 0, -1))
    return jnp.moveaxis(X, -1, 0), jnp.moveaxis(rank, -1, 0)


def _tiled(kernel: Kernel, tile: int, B: Array, Y: Array) -> tuple[Array, Array]:
    shapes = jax.eval_shape(lambda B, Y: _whole(kernel, B, Y), B[:1], Y[:1])
    empty = jax.tree_util.tree_map(lambda x: jnp.zeros((B.shape[0], *x.shape[1:]), x.dtype), shapes)
    return in_tiles(ft.partial(_whole, kernel), tile, empty, (0, 0), (B, Y))


def in_tiles(
    function: Callable[..., Tree],
    tile: int,
    start: Tree,
    axes: Sequence[int | None],
    arrays: Sequence[Array],
    wanted: bool | BoolScalar = True,
) -> Tree:
    """Applies `function` to one tile of a batch after the other; the last tile overlaps the one before.

    `start`: a tree of arrays like the result for the whole batch, with the batch as their first axis, and the result
    where not `wanted`. The batch is no smaller than a tile. `axes`: the batch axis of each array.
    """
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)

    def step(i, carry):
        at = jnp.minimum(i * tile, size - tile)
        pairs = zip(arrays, axes, strict=True)
        parts = [x if axis is None else jax.lax.dynamic_slice_in_dim(x, at, tile, axis) for x, axis in pairs]
        put = ft.partial(jax.lax.dynamic_update_slice_in_dim, start_index=at, axis=0)
        return jax.tree_util.tree_map(put, carry, function(*parts))

    count = -(-size // tile)
    return jax.lax.fori_loop(0, count if wanted is True else jnp.where(wanted, count, 0), step, start)


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

    def of_vector(function: Callable[[tuple[Array, ...]], tuple[Array, ...]], x: Array) -> Array:
        return ravel_pytree(function(split(x)))[0]

    one_linear = ft.partial(of_vector, linear)
    return split(jax.lax.custom_linear_solve(one_linear, flat, lambda _, y: of_vector(solve, y), symmetric=True))


Solver = TypeVar("Solver", bound=lx.AbstractLinearSolver)


class SkipIfZero(AbstractPseudoinverse):
    """A strategy that factorises a batch only if some matrix in it is nonzero.

    Under `jax.vmap` a `jax.lax.cond` on every matrix would compute both branches for all of them. Here one condition
    decides for the batch as a whole.

    Args:
        strategy: The strategy that factorises.
        rtol: Rank tolerance of the strategy.
    """

    strategy: AbstractPseudoinverse = eqx.field(static=True)
    rtol: float | None = eqx.field(static=True)

    def __init__(self, strategy: AbstractPseudoinverse, rtol: float | None):
        self.strategy, self.rtol = strategy, rtol

    def solve(self, B, Y):
        return _where_needed(self.strategy)(B, Y)


def finer(solver: Solver, dtype: DTypeLike) -> Solver:
    """Returns the strategy with the square of its rank tolerance, not below rounding; other solvers unchanged."""
    if isinstance(solver, SkipIfZero):
        inner = finer(solver.strategy, dtype)
        return dataclasses.replace(solver, strategy=inner, rtol=inner.rtol)
    if not isinstance(solver, AbstractPseudoinverse):
        return solver
    return dataclasses.replace(solver, rtol=rank_tolerance(rank_tolerance(solver.rtol, dtype) ** 2, dtype))


@ft.cache
def _where_needed(strategy: AbstractPseudoinverse) -> Callable[[Array, Array], tuple[Array, Array]]:
    """Returns `strategy.solve`, or zeros if the whole batch is zero; cached, so that it compiles once."""

    @custom_vmap
    def apply(B: Array, Y: Array) -> tuple[Array, Array]:
        batch, n, k = B.shape[:-2], B.shape[-1], Y.shape[-1]
        if 0 in B.shape:
            return jnp.zeros((*batch, n, k), B.dtype), jnp.zeros(batch, int)
        solve = strategy.solve
        for _ in batch:
            solve = jax.vmap(solve)
        shapes = jax.eval_shape(solve, B, Y)

        def zeros(B: Array, Y: Array) -> tuple[Array, Array]:
            return jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

        return jax.lax.cond(jnp.any(B != 0), solve, zeros, B, Y)

    @apply.def_vmap
    def _(size: int, mapped: Sequence[bool], B: Array, Y: Array) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
        B, Y = (x if is_mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, is_mapped in zip((B, Y), mapped))
        return apply(B, Y), (True, True)

    return apply


def only_where(needed: BoolScalar, function: Callable[..., Tree], *args: PyTree) -> Tree:
    """Returns `function(*args)`, a tree of truth values, where `needed`, and False elsewhere; no derivative.

    Under `jax.vmap` nothing is computed if no member of the batch needs it.
    """
    return _only_where(function, jax.lax.stop_gradient(needed), *jax.lax.stop_gradient(args))


@ft.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _only_where(function: Callable[..., Tree], needed: BoolScalar, *args: PyTree) -> Tree:
    @custom_vmap
    def apply(needed: Array, *args: PyTree) -> Tree:
        mapped = ft.partial(function)  # to which JAX can keep a weak reference
        for _ in needed.shape:
            mapped = jax.vmap(mapped)
        traced, shapes = jax.make_jaxpr(mapped, return_shape=True)(*args)

        def no(*_: Array) -> list[Array]:
            return [jnp.zeros(x.shape, bool) for x in traced.out_avals]

        values = jax.lax.cond(jnp.any(needed), jaxpr_as_fun(traced), no, *jax.tree_util.tree_leaves(args))
        return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(shapes), [x & needed for x in values])

    @apply.def_vmap
    def _(size: int, mapped: Sequence[PyTree[bool]], *args: PyTree) -> tuple[Tree, PyTree[bool]]:
        def whole(x: Array, is_mapped: bool) -> Array:
            return x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))

        values = apply(*jax.tree_util.tree_map(whole, args, tuple(mapped)))
        return values, jax.tree_util.tree_map(lambda _: True, values)

    return apply(needed, *args)


@_only_where.defjvp
def _only_where_jvp(function, primals, tangents):
    values = _only_where(function, *primals)
    return values, jax.tree_util.tree_map(lambda x: np.zeros(x.shape, jax.dtypes.float0), values)
