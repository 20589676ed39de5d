"""Any function of small arrays as scalar code."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, PyTree

from .. import _check
from .._lowering import runs_machine_code
from .._lowering._entry import Block, Node, NotScalar
from .._program import TreeStructure, with_constants_as_arguments, with_results
from ._graph import TooLong
from ._scalar import ScalarProgram, limits
from ._scalar_piece import ScalarPiece


# XLA writes every result on its own, so that many take long.
MOST_RESULTS = 128


class Expansion(NamedTuple):
    """The report on a function as scalar code.

    Attributes:
        operations: Operations on numbers, after folding; None if the function is left as it was.
        kept: Names of the JAX primitives that were left as operations on arrays.
        reason: The reason why the function is left as it was; empty if it is not.
    """

    operations: int | None
    kept: tuple[str, ...]
    reason: str


class Expanded(eqx.Module):
    """A function as scalar code: see `expand`."""

    function: Callable[..., PyTree]
    limit: int = eqx.field(static=True)

    def __call__(self, *args: PyTree) -> PyTree:
        """Evaluates the function for `args`, trees of arrays."""
        traced = _Traced.of(self.function, args)
        if traced.closed.effects:
            return self.function(*args)
        return traced.tree(ScalarPiece(traced.closed, self.limit)(*traced.arrays))

    def report(self, *args: PyTree) -> Expansion:
        """Counts the operations for `args`, of which only shapes and dtypes matter; nothing is computed."""
        closed = _Traced.of(self.function, args).closed
        if closed.effects:
            return Expansion(None, (), "it has effects")
        try:
            program = ScalarPiece(closed, self.limit).program.program
        except (TooLong, NotScalar) as error:
            return Expansion(None, (), str(error))
        kept = {str(node.primitive) for node in program.steps if isinstance(node, Block)}
        return Expansion(program.operations, tuple(sorted(kept)), "")


def expand(function: Callable[..., PyTree], *, limit: int | None = None) -> Expanded:
    """Turns a function of small arrays into scalar code: every entry of every array becomes a number of its own.

    The function is traced. Multiplications by zero and one vanish, constants are computed beforehand, and equal numbers
    are computed once, however differently they were written. Other operations (LAPACK, a loop of more than 32 rounds, a
    gather at indices that are not known) stay operations on arrays. Under `jax.vmap`, on a CPU, all of it is one loop
    over the batch.

    It pays for functions of up to some hundred operations on small, sparse arrays in a large batch, and in loops. It
    does not for large dense arrays, and for single calls from Python, which take longer to compile.
    `equation_of_motion` and `simulate` use it by themselves.

    What changes: 0 times NaN, or infinity, is 0; sums are in another order; equality of numbers is decided at random
    points, to 1e-9 of their digits. Functions with effects, random keys, arrays of more than 16 384 entries, or more
    than `limit` operations are evaluated as they are.

    Args:
        function: Takes and gives trees of arrays. An argument that is no array is part of the function.
        limit: Most operations; more take long to compile. By default 128 000 on a CPU, where there is machine code, and
            8 000 elsewhere.

    Returns:
        A callable with the same arguments and results, for `jit`, `vmap`, and `grad` in both modes, any number of
        times: a derivative is expanded as a function of its own. `report(*args)` tells how many operations there are.

    Raises:
        TypeError: If `function` cannot be called, or, when called, returns something that is no array.
        ValueError: If `limit` is no positive integer.
    """
    _check.function(function, "function", "(*arrays)")
    if limit is not None:
        _check.count(limit, "limit")
    return Expanded(function, limits().function if limit is None else limit)


class _Traced(NamedTuple):
    """A function of arrays, with these arrays, and the function that makes a tree of its results."""

    closed: ClosedJaxpr
    arrays: list[Array]
    tree: Callable[[Sequence[Array]], PyTree]

    @classmethod
    def of(cls, function: Callable[..., PyTree], args: tuple[PyTree, ...]) -> "_Traced":
        given, static = eqx.partition(args, eqx.is_array)
        arrays, structure = jax.tree_util.tree_flatten(given)
        kept: list[TreeStructure] = []

        def flat(*arrays):
            out = function(*eqx.combine(jax.tree_util.tree_unflatten(structure, arrays), static))
            leaves, tree = jax.tree_util.tree_flatten(out)
            kept.append(tree)
            for leaf in leaves:
                if not eqx.is_array_like(leaf):
                    raise TypeError(f"function must return a tree of arrays, but there is {leaf!r} in it.")
            return leaves

        closed = jax.make_jaxpr(flat)(*arrays)
        closed, further = with_constants_as_arguments(with_results(closed, range(len(closed.out_avals))))
        return cls(closed, [*arrays, *further], lambda leaves: jax.tree_util.tree_unflatten(kept[0], leaves))


def scalars(function: Callable[..., PyTree], *like: Array, joins: bool = False) -> Callable[..., PyTree]:
    """The function of arrays, traced once for arrays `like` these, as scalar code where that is possible.

    `joins`: whether pieces that are not always certain are part of it, as in `ScalarPiece`.
    """
    traced = _Traced.of(function, like)
    if traced.closed.effects:
        return function
    piece, further = ScalarPiece(traced.closed, limits().function, joins=joins), traced.arrays[len(like) :]
    return lambda *arrays: traced.tree(piece(*arrays, *further))


def short_program(closed: ClosedJaxpr) -> ScalarProgram | None:
    """A traced function as a scalar program, or None if that has many operations or many results."""
    try:
        program = ScalarPiece(closed, limits().function).program
    except (TooLong, NotScalar):
        return None
    results = sum(isinstance(x, Node) for x in program.program.outputs)
    return program if runs_machine_code() or results <= MOST_RESULTS else None
