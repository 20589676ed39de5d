"""Functions of many small steps, evaluated for a tile of a batch after the other."""

import functools as ft
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from .._linalg import in_tiles
from ._directions import directional
from ._entry import NotScalar
from ._expand import MOST_OPERATIONS, with_constants_as_arguments
from ._graph import Graph, TooLong
from ._interpret import interpret
from ._lane_step import MANY, inline_op
from ._piece import AbstractTracedPiece, exchanged
from ._scalar import ScalarPiece, ScalarProgram, over_batch, size_of


# States of a tile; fewer and more take longer for each.
TILE = 128
# Most operations of a function that is inlined for many states.
MOST_WRITTEN = 32_000


def tiled_dynamics(
    function: Callable[..., tuple[Array, Array]],
    state: Sequence[Array],
    slopes: Callable[..., Array] | None = None,
    short: tuple[bool, bool] = (False, False),
    written: tuple[bool, bool] = (False, False),
) -> tuple[Array, Array]:
    """A vector, and a flag without derivative, at a state; a CPU evaluates a tile of a batch after the other.

    The numbers that one step of the function hands on to the next then come from the cache.

    Args:
        function: (*state) -> the vector and the flag.
        state: Arrays.
        slopes: (*state, vector) -> the Jacobian with respect to the first of the state, one after the other.
            Derivatives with respect to these are made of it, once for all directions; derivatives with respect to the
            others, and to what the function closes over, are made of the function.
        short: Whether the function, and whether its slopes, are to be scalar code in place of tiles.
        written: Whether the function and its slopes, if not `short`, are to be scalar code for many states.

    Raises:
        NotScalar, TooLong: If the function is to be scalar code, and cannot be.
    """
    closed, further = with_constants_as_arguments(jax.make_jaxpr(function)(*state))
    piece = _piece(closed) if short[0] else TiledPiece(closed, written[0])
    if slopes is None:
        vector, flag = piece(*state, *further)
        return vector, flag
    blank = jnp.zeros(closed.out_avals[0].shape, closed.out_avals[0].dtype)
    slope, more = with_constants_as_arguments(jax.make_jaxpr(slopes)(*state, blank))
    ends = list(itertools.accumulate(len(x) for x in state if x.ndim))
    count = ends.index(slope.out_avals[0].shape[1]) + 1
    try:
        of = _piece(slope) if short[1] else TiledPiece(slope, written[1])
    except (TooLong, NotScalar):
        of = TiledPiece(slope)
    used = {id(x) for equation in closed.jaxpr.eqns for x in equation.invars}

    # The flag as a number: truth values have tangents of a dtype of their own.
    @jax.custom_jvp
    def apply(state, further, more):
        vector, flag = piece(*state, *further)
        return vector, flag.astype(vector.dtype)

    def change(primals, tangents):
        (state, further, more), known = primals, len(tangents[0])
        found, flag = apply(*primals)
        total = jnp.zeros_like(found)
        given = [(i, x) for i, x in enumerate(tangents[0][:count]) if not isinstance(x, SymbolicZero)]
        if given:
            (J,) = of(*state, found, *more)
            columns = np.concatenate([np.arange(ends[i] - len(x), ends[i]) for i, x in given])
            J = J if len(columns) == J.shape[1] else J[:, columns]
            total = directional(J, jnp.concatenate([x for _, x in given]))
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
    """The piece of a traced function as scalar code; raises NotScalar or TooLong."""
    piece = ScalarPiece(closed, MOST_OPERATIONS)
    _ = piece.program
    return piece


class TiledPiece(AbstractTracedPiece):
    """A traced function, and its derivatives, evaluated for a tile after the other.

    `is_written`: whether the function itself, but not its derivatives, is one scalar program for many states, with all
    loops unrolled and all pieces inlined.
    """

    def __init__(self, closed: ClosedJaxpr, is_written: bool = False):
        super().__init__(closed)
        self.is_written = is_written

    def through(self, change):
        return TiledPiece(change(self.closed))

    @ft.cached_property
    def program(self) -> ScalarProgram | None:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            found = interpret(graph, self.closed, arguments)
            if graph.doubts:
                raise NotScalar("a piece that is not always certain")
            return found

        try:
            return ScalarProgram(self.takes, self.gives, build, MOST_WRITTEN, inline_op)
        except (TooLong, NotScalar):
            return None

    def evaluate(self, form, *arrays):
        (size,) = size_of(form.batched, arrays) or (1,)
        if self.is_written and form.on_cpu and size >= MANY and self.program is not None:
            return self.program.evaluate(form, *arrays)
        function = over_batch(jaxpr_as_fun(self.closed), form.batched)
        if not form.on_cpu or size <= TILE:
            return list(function(*arrays))
        start = [jnp.zeros((size, *x.shape), x.dtype) for x in self.gives]
        return in_tiles(function, TILE, start, [0 if b else None for b in form.batched], arrays)
