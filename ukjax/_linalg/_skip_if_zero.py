"""A pseudoinverse for batches in which few matrices need it, at no cost where none does."""

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
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .._types import BoolScalar
from ._base import AbstractPseudoinverse, rank_tolerance


Solver = TypeVar("Solver", bound=lx.AbstractLinearSolver)
Tree = TypeVar("Tree")


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
