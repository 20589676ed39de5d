"""Functions with all the pieces in them inlined, as one scalar program for many states."""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ._entry import NotScalar
from ._expand import with_constants_as_arguments
from ._fast_or_slow import CertainScalars, FastOrSlowOp
from ._graph import Graph
from ._guarded_op import GuardedOp
from ._interpret import interpret
from ._loops import side_by_side
from ._motion import MotionPiece
from ._piece import AbstractTracedPiece
from ._scalar import ScalarProgram, as_number


# For fewer states compiling takes longer than what is saved.
MANY = 32


def inline_op(graph: Graph, piece: Any, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """Inlines a piece: returns its results as entries of a graph, and adds the doubts about them to the graph."""
    if isinstance(piece, MotionPiece):
        return piece.found(graph, interpret(graph, piece.closed, arguments))
    if isinstance(piece, CertainScalars):
        return interpret(graph, piece.closed, arguments)
    if isinstance(piece, FastOrSlowOp):
        *values, clear, _ = inline_op(graph, piece.fast, arguments[: piece.known])
        graph.doubts.append(graph.negation(clear[()]))
        return interpret(graph, piece.found, values)
    if isinstance(piece, GuardedOp):
        graph.doubts.append(arguments[0][()])
        return arguments[piece.passed :]
    if isinstance(piece, AbstractTracedPiece):
        return interpret(graph, piece.closed, arguments)
    raise NotScalar("what goes by whole matrices")


class Entries(eqx.Module):
    """An array of each of many states as its entries, each with the batch as its only axis; truth values as numbers."""

    each: list[Array]
    shape: tuple[int, ...] = eqx.field(static=True)
    dtype: Any = eqx.field(static=True)

    @classmethod
    def of(cls, array: Array) -> "Entries":
        """The entries of an array whose first axis is the batch."""
        flat = array.reshape(array.shape[0], -1).astype(as_number(array.dtype))
        return cls([flat[:, i] for i in range(flat.shape[1])], array.shape[1:], array.dtype)

    def joined(self) -> Array:
        """The array of these entries, with the batch as its first axis."""
        return jnp.stack(self.each, axis=-1).reshape(-1, *self.shape).astype(self.dtype)


def in_entries(tree: PyTree) -> Any:
    """The tree with the `Entries` of its arrays."""
    return jax.tree_util.tree_map(Entries.of, tree)


def joined(tree: PyTree) -> Any:
    """The tree with the arrays of its `Entries`."""
    return jax.tree_util.tree_map(lambda x: x.joined(), tree, is_leaf=lambda x: isinstance(x, Entries))


class ScalarLaneStep:
    """A step that many states repeat, as one scalar program with all the pieces in it.

    Between steps a state is kept in entries, so that no arrays are joined or split.

    Args:
        function: (state, *others) -> (new, otherwise, found, wanted, doubt, matters). The state becomes `new`; where
            the function is in `doubt`, or a piece in it is not certain, and that `matters`, it becomes `otherwise`.
            `found`: a tree of truth values, none of which is set there. `wanted`: any tree of arrays.
        state, others: Trees of arrays of one state.
        most: Most operations of the program.

    Raises:
        NotScalar, TooLong: If there is no such program.
    """

    def __init__(self, function: Callable[..., Any], state: PyTree, *others: PyTree, most: int):
        leaves, structure = jax.tree_util.tree_flatten((state, others))
        self.forms: list[Any] = []

        def flat(*leaves):
            state, others = jax.tree_util.tree_unflatten(structure, leaves)
            *trees, doubt, matters = function(state, *others)
            flats, self.forms = map(list, zip(*map(jax.tree_util.tree_flatten, trees), strict=True))
            return [jnp.asarray(x) for x in (*(x for flat in flats for x in flat), doubt, matters)]

        closed, self.further = with_constants_as_arguments(jax.make_jaxpr(flat)(*leaves))
        new, otherwise, found, _ = (form.num_leaves for form in self.forms)
        assert new == otherwise

        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            *values, doubt, matters = interpret(graph, closed, arguments)
            flag = graph.both(matters[()], ft.reduce(graph.either, graph.doubts, doubt[()]))
            states = [
                _fast_or_slow(graph, flag, *both) for both in zip(values[new : 2 * new], values[:new], strict=True)
            ]
            rest = values[2 * new :]
            return [*states, *(_fast_or_slow(graph, flag, np.zeros((), bool), x) for x in rest[:found]), *rest[found:]]

        self.gives = [*closed.out_avals[:new], *closed.out_avals[2 * new : -2]]
        self.program = ScalarProgram(closed.in_avals, self.gives, build, most, inline_op)
        if self.program.program.has_arrays:
            raise NotScalar("what stays an operation on arrays")

    def __call__(self, state: PyTree, *others: PyTree) -> tuple[Any, Any, Any]:
        """Makes a step: returns the new states, `found` and `wanted`, all in entries, as are the arguments."""
        # One loop copies the states first. Otherwise XLA copies each of them before it writes new ones over old ones.
        own = [*side_by_side(jax.tree_util.tree_leaves(state)), *jax.tree_util.tree_leaves(others)]
        found = iter(self.program.of_entries(own, [x for leaf in self.further for x in jnp.ravel(leaf)]))
        results = iter([Entries([next(found) for _ in range(x.size)], x.shape, x.dtype) for x in self.gives])
        made = [[next(results) for _ in range(self.forms[i].num_leaves)] for i in (0, 2, 3)]
        new, *rest = (jax.tree_util.tree_unflatten(self.forms[i], x) for i, x in zip((0, 2, 3), made, strict=True))
        return new, rest[0], rest[1]


def _fast_or_slow(graph: Graph, flag: Any, where: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    found = np.empty(elsewhere.shape, object)
    for i in np.ndindex(elsewhere.shape):
        x, y = where[i], elsewhere[i]
        found[i] = y if x is y else graph.where(flag, x, y)
    return found
