"""Functions that are written out with all the pieces in them, as one scalar program for many states."""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array

from ._chosen import CertainScalars, ChosenPiece
from ._entry import NotScalar
from ._expand import with_constants_as_arguments
from ._graph import Graph, TooLong
from ._interpret import interpret
from ._motion import MotionPiece
from ._piece import AbstractTracedPiece, traced
from ._scalar import PlainPiece, ScalarProgram, over_batch, size_of
from ._seldom import SeldomPiece, where_needed


# For fewer states it takes longer to compile than it spares.
MANY = 32


def written(graph: Graph, piece: Any, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """The results of a piece as entries of a graph, which gets the doubts that there are of them."""
    if isinstance(piece, MotionPiece):
        return piece.found(graph, interpret(graph, piece.closed, arguments))
    if isinstance(piece, CertainScalars):
        return interpret(graph, piece.closed, arguments)
    if isinstance(piece, ChosenPiece):
        *values, clear, _ = written(graph, piece.fast, arguments[: piece.known])
        graph.doubts.append(graph.negation(clear[()]))
        return interpret(graph, piece.found, values)
    if isinstance(piece, SeldomPiece):
        graph.doubts.append(arguments[0][()])
        return arguments[piece.passed :]
    if isinstance(piece, AbstractTracedPiece):
        return interpret(graph, piece.closed, arguments)
    raise NotScalar("what goes by whole matrices")


class WrittenPiece(AbstractTracedPiece):
    """A function that for many states is `fast`, written out, where that holds; `slow` for few, and elsewhere.

    Args:
        fast: x -> the results, and whether they are something else.
        slow: x -> the results. Derivatives are those of it.
        most: Operations of which `fast` may consist.
    """

    def __init__(self, fast: ClosedJaxpr, slow: ClosedJaxpr, most: int):
        super().__init__(slow)
        self.fast, self.most = fast, most

    def through(self, change):
        return PlainPiece(change(self.closed))

    @ft.cached_property
    def program(self) -> ScalarProgram | None:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            *found, doubt = interpret(graph, self.fast, arguments)
            flag = np.empty((), object)
            flag[()] = ft.reduce(graph.either, graph.doubts, doubt[()])
            return [*found, flag]

        try:
            return ScalarProgram(self.takes, self.fast.out_avals, build, self.most, written)
        except (TooLong, NotScalar):
            return None

    def evaluate(self, form, *arrays):
        (size,) = size_of(form.batched, arrays) or (1,)
        if not form.on_cpu or size < MANY or self.program is None or self.program.program.has_arrays:
            return over_batch(jaxpr_as_fun(self.closed), form.batched)(*arrays)
        *found, needed = self.program.evaluate(form, *arrays)
        batched = (True, *form.batched, *(True,) * len(found))
        return where_needed(self.closed, form._replace(batched=batched), needed, arrays, found)


def written_or(
    slow: Callable[..., Any], fast: Callable[..., tuple[Any, Array]], most: int, arguments: tuple[Any, ...]
) -> Any:
    """A tree of arrays: under `jax.vmap`, on a CPU, of many states what `fast` makes of them, else what `slow` does.

    Args:
        slow: (*arguments) -> the tree.
        fast: (*arguments) -> such a tree, and whether it is not what is meant; written out, with all pieces in it.
            Where it, or one of these, is not certain, `slow` is asked.
        most: Operations of which that may consist.
        arguments: Trees.
    """
    given, static = eqx.partition(arguments, eqx.is_array)
    arrays, structure = jax.tree_util.tree_flatten(given)
    trees: list[Any] = []

    def of(function: Callable[..., Any]) -> tuple[ClosedJaxpr, list[Any]]:
        def flat(*arrays):
            leaves, tree = jax.tree_util.tree_flatten(
                function(*eqx.combine(jax.tree_util.tree_unflatten(structure, arrays), static))
            )
            trees.append(tree)
            return [*map(jnp.asarray, leaves)]

        return with_constants_as_arguments(jax.make_jaxpr(flat)(*arrays))

    (whole, more), (short, further) = of(slow), of(fast)
    count, known = len(arrays), len(arrays) + len(more)
    takes = [*whole.in_avals, *map(jax.typeof, further)]
    both = (
        traced(lambda *x: jaxpr_as_fun(short)(*x[:count], *x[known:]), takes),
        traced(lambda *x: jaxpr_as_fun(whole)(*x[:known]), takes),
    )
    found = WrittenPiece(*both, most)(*arrays, *more, *further)
    return jax.tree_util.tree_unflatten(trees[0], found)
