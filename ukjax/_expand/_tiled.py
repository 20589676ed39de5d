"""Functions of many small steps, of a tile of a batch after the other."""

import functools as ft
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._linalg import in_tiles
from ._entry import NotScalar
from ._expand import MOST_OPERATIONS, with_constants_as_arguments
from ._graph import TooLong
from ._interpret import interpret
from ._piece import AbstractTracedPiece, exchanged
from ._scalar import ScalarPiece, ScalarProgram, over_batch, size_of


# Of a tree of 30 joints a state takes 9 µs in tiles of 64 and of 512, and 6.5 in between.
TILE = 128
# What has no more operations is written out for many states, as long as it takes to compile: the tree of 30 joints has
# 16 693, takes 1.6 µs a state in place of 8, and 10 s to compile in place of 6.5.
MOST_WRITTEN = 32_000
MANY = 32


def tiled(
    function: Callable[..., tuple[Array, Array]],
    state: Sequence[Array],
    slopes: Callable[..., Sequence[Array]] | None = None,
    short: tuple[bool, bool] = (False, False),
) -> tuple[Array, Array]:
    """A vector, and a flag without derivative, at a state: on a CPU a tile of a batch after the other.

    What one step of the function hands on to the next then comes from the cache.

    Args:
        function: (*state) -> the vector and the flag.
        state: Arrays.
        slopes: (*state, vector) -> Jacobians with respect to the first of the state. Derivatives with respect to these
            are made of them, once for all directions; and of the function with respect to the others, and to what it
            holds.
        short: Whether the function, and whether its slopes, are to be scalar code in place of that.

    Raises:
        NotScalar, TooLong: If the function is to be, and cannot be.
    """
    closed, further = with_constants_as_arguments(jax.make_jaxpr(function)(*state))
    piece = _piece(closed) if short[0] else TiledPiece(closed, MOST_WRITTEN)
    if slopes is None:
        vector, flag = piece(*state, *further)
        return vector, flag
    blank = jnp.zeros(closed.out_avals[0].shape, closed.out_avals[0].dtype)
    slope, more = with_constants_as_arguments(jax.make_jaxpr(slopes)(*state, blank))
    count = len(slope.out_avals)
    try:
        of = _piece(slope) if short[1] else TiledPiece(slope)
    except (TooLong, NotScalar):
        of = TiledPiece(slope)
    used = {id(x) for equation in closed.jaxpr.eqns for x in equation.invars}

    # The flag as a number: what is no number has tangents of a dtype of their own.
    @jax.custom_jvp
    def apply(state, further, more):
        vector, flag = piece(*state, *further)
        return vector, flag.astype(vector.dtype)

    def change(primals, tangents):
        (state, further, more), known = primals, len(tangents[0])
        found, flag = apply(*primals)
        total = jnp.zeros_like(found)
        if any(not isinstance(x, SymbolicZero) for x in tangents[0][:count]):
            for J, x in zip(of(*state, found, *more), tangents[0], strict=False):
                total = total if isinstance(x, SymbolicZero) else total + J @ x
        values, ways = [*state, *further], [*tangents[0], *tangents[1]]
        moving = [
            i for i, x in enumerate(ways)
            if i >= min(count, known) and not isinstance(x, SymbolicZero) and id(closed.jaxpr.invars[i]) in used
        ]  # fmt: skip
        if moving:
            along = lambda *moved: piece(*exchanged(values, moving, moved))[0]
            total = total + jax.jvp(along, [values[i] for i in moving], [ways[i] for i in moving])[1]
        return (found, flag), (total, jnp.zeros_like(flag))

    apply.defjvp(change, symbolic_zeros=True)
    vector, flag = apply(list(state), list(further), list(more))
    return vector, flag > 0.5


def _piece(closed: ClosedJaxpr) -> ScalarPiece:
    """As scalar code; raises NotScalar or TooLong."""
    piece = ScalarPiece(closed, MOST_OPERATIONS)
    _ = piece.program
    return piece


class TiledPiece(AbstractTracedPiece):
    """A traced function, and its derivatives, of a tile after the other.

    `most`: with no more operations than that, the function itself, but not its derivatives, is written out for many
    states, with all the loops and pieces in it.
    """

    def __init__(self, closed: ClosedJaxpr, most: int = 0):
        super().__init__(closed)
        self.most = most

    def through(self, change):
        return TiledPiece(change(self.closed))

    @ft.cached_property
    def written(self) -> ScalarProgram | None:
        build = lambda graph, arguments: interpret(graph, self.closed, arguments)
        try:
            return ScalarProgram(self.takes, self.gives, build, self.most, whole=True)
        except (TooLong, NotScalar):
            return None

    def evaluate(self, form, *arrays):
        (size,) = size_of(form.batched, arrays) or (1,)
        if self.most and form.on_cpu and size >= MANY and self.written is not None:
            return self.written.evaluate(form, *arrays)
        function = over_batch(jaxpr_as_fun(self.closed), form.batched)
        if not form.on_cpu or size <= TILE:
            return list(function(*arrays))
        start = [jnp.zeros((size, *x.shape), x.dtype) for x in self.gives]
        return in_tiles(function, TILE, start, [0 if b else None for b in form.batched], arrays)
