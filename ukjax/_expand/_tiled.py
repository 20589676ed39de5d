"""Functions of many small steps for many states: a tile of a batch after the other, or as one scalar program.

In a scalar program for many states all pieces are inlined. The product of a Jacobian and many directions, each of which
comes by itself in a derivative, is an operation of its own.
"""

import enum
import functools as ft
import itertools
import math
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.tree_util import Partial
from jaxtyping import Array

from .._linalg import in_tiles
from .._lowering._entry import Block, Entry, NotScalar, constant
from .._program import with_constants_as_arguments, with_results
from .._result import is_traced
from ._graph import Graph, TooLong
from ._interpret import OURS, interpret
from ._motion import alone
from ._piece import exchanged, traced
from ._scalar import ScalarProgram, limits, over_batch, size_of
from ._scalar_piece import AbstractTracedPiece, ScalarPiece
from ._structure import STRUCTURE


class InlinedProgram:
    """A function with all the pieces in it inlined, as one scalar program; its last result is whether it is certain.

    If it is `judged`, the last result of the function is a truth value, and numbers are certain only where that holds.
    Then they are NaN elsewhere.
    Raises NotScalar or TooLong if there is no such program of at most `most` operations. `most_along`: see `Graph`.
    """

    def __init__(self, closed: ClosedJaxpr, most: int, judged: bool = False, most_along: float = math.inf):
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            graph.most_along = most_along
            values = interpret(graph, closed, arguments)
            certain = graph.negation(graph.doubt())
            if judged:
                certain = graph.both(certain, values.pop().item())
                values = [fast_or_slow(graph, certain, x, _unknown(x)) for x in values]
            return [*values, alone(certain)]

        given = closed.out_avals[:-1] if judged else closed.out_avals
        self.takes, self.gives = closed.in_avals, [*given, jax.ShapeDtypeStruct((), bool)]
        self.program = ScalarProgram(self.takes, self.gives, build, most, inlines=True).program
        if self.program.has_arrays:
            kept = sorted({str(node.primitive) for node in self.program.steps if isinstance(node, Block)})
            raise NotScalar(f"{', '.join(kept)}, which stays an operation on arrays")


def _unknown(like: np.ndarray) -> np.ndarray:
    found = np.empty(like.shape, object)
    for i in np.ndindex(like.shape):
        found[i] = constant(np.nan, like[i].dtype)
    return found


def fast_or_slow(graph: Graph, flag: Entry, where: np.ndarray, elsewhere: np.ndarray) -> np.ndarray:
    """The entries of one array where the flag is set, else those of the other."""
    found = np.empty(elsewhere.shape, object)
    for i, x, y in zip(np.ndindex(elsewhere.shape), where.flat, elsewhere.flat, strict=True):
        found[i] = y if x is y else graph.where(flag, x, y)
    return found


# J (*states, n, k), x (*directions, k) -> J x (*states, n, *directions).
directional_p = Primitive("directional")


def directional(J: Array, x: Array) -> Array:
    """The product J x of a matrix (n, k) and a vector (k,).

    Under `jax.jacfwd` the vectors are those of the standard basis, the same for all states of a batch: the result is J
    itself then, and nothing need be multiplied. That is checked at run time.
    """
    return directional_p.bind(J, x)


def _product(J: Array, x: Array) -> Array:
    """The product J x, without a check whether x is the standard basis."""
    return lax.dot_general(J, x, (((J.ndim - 1,), (x.ndim - 1,)), ((), ())))


def _evaluated(J: Array, x: Array) -> Array:
    *directions, k = x.shape
    if math.prod(directions) != k or J.ndim == 2:
        return _product(J, x)
    is_basis = jnp.all(x.reshape(k, k) == jnp.eye(k, dtype=x.dtype))
    # A loop of one round or of none: a conditional would copy J even where J does not change.

    def multiply(carry):
        return _product(carry[0].reshape(J.shape), x), jnp.asarray(True)

    itself = J.reshape(*J.shape[:-1], *directions)
    return lax.while_loop(lambda carry: ~carry[1], multiply, (itself, is_basis))[0]


@directional_p.def_impl
def _impl(J, x):
    return _evaluated(J, x)


@directional_p.def_abstract_eval
def _shape(J, x):
    return ShapedArray((*J.shape[:-1], *x.shape[:-1]), J.dtype)


mlir.register_lowering(directional_p, mlir.lower_fun(_evaluated, multiple_results=False))


def _jvp(primals, tangents):
    (J, x), (dJ, dx) = primals, tangents
    change = [] if isinstance(dJ, ad.Zero) else [_product(dJ, x)]
    change += [] if isinstance(dx, ad.Zero) else [directional_p.bind(J, dx)]
    return directional_p.bind(J, x), sum(change[1:], change[0])


ad.primitive_jvps[directional_p] = _jvp


def _transpose(cotangent, J, x):
    """The transpose by x; that by J is not needed, for `_jvp` has an ordinary product there."""
    if J.ndim == 2 and x.aval.ndim == 1:
        return None, directional_p.bind(J.T, cotangent)
    lead = tuple(range(J.ndim - 1))
    found = lax.dot_general(J, cotangent, ((lead, lead), ((), ())))
    return None, jnp.moveaxis(found, 0, -1)


ad.primitive_transposes[directional_p] = _transpose


def _batch(args, dims):
    (J, x), (of_J, of_x) = args, dims
    if of_J is None:
        return directional_p.bind(J, jnp.moveaxis(x, of_x, 0)), J.ndim - 1
    J = jnp.moveaxis(J, of_J, 0)
    if of_x is None:
        return directional_p.bind(J, x), 0
    # Each J has directions of its own.
    x = jnp.moveaxis(x, of_x, 0)
    return lax.dot_general(J, x, (((J.ndim - 1,), (x.ndim - 1,)), ((0,), (0,)))), 0


batching.primitive_batchers[directional_p] = _batch


def _as_scalars(graph, params, args, avals):
    J, x = args
    numbers = (((J.ndim - 1,), (x.ndim - 1,)), ((), ()))
    return STRUCTURE[prims.dot_general_p](graph, {"dimension_numbers": numbers}, args, avals)


OURS[directional_p] = _as_scalars


# States of a tile; fewer and more take longer for each.
TILE = 128


class Lowering(enum.Enum):
    """The kind of program that a function of many small steps becomes.

    Attributes:
        SCALAR: Scalar code; for functions that are short.
        UNROLLED: As TILES; but where there is machine code scalar code, with loops unrolled and pieces inlined.
        TILES: The function as it is; on a CPU for a tile of a batch after the other.
    """

    SCALAR = enum.auto()
    UNROLLED = enum.auto()
    TILES = enum.auto()


def tiled_dynamics(
    function: Callable[..., tuple[Array, Array]],
    state: Sequence[Array],
    others: Sequence[Array],
    slopes: Partial | None = None,
    lowering: Lowering = Lowering.TILES,
    slopes_lowering: Lowering = Lowering.TILES,
) -> tuple[Array, Array]:
    """A vector, and a flag without derivative, at a state; a CPU evaluates a tile of a batch after the other.

    The numbers that one step of the function hands on to the next then come from the cache.

    Args:
        function: (*state, *others) -> the vector and the flag.
        state, others: Arrays.
        slopes: (*state, vector) -> the Jacobian with respect to the first of the state, one after the other.
            Derivatives with respect to these are made of it, once for all directions; derivatives with respect to the
            others, and to what the function closes over, are made of the function.
        lowering: How the function becomes a program.
        slopes_lowering: How its slopes become a program; in tiles if they cannot be scalar code.

    Raises:
        NotScalar, TooLong: If the function is to be scalar code, and cannot be.
    """
    arrays = [*state, *others]
    closed, further = with_constants_as_arguments(jax.make_jaxpr(function)(*arrays))
    piece = _lowered(closed, lowering)
    if slopes is None:
        vector, flag = piece(*arrays, *further)
        return vector, flag
    jacobian = _Slopes(slopes, state, [*others, *further], closed.out_avals[0], slopes_lowering)
    used = {id(x) for equation in closed.jaxpr.eqns for x in equation.invars}

    # The flag as a number: truth values have tangents of a dtype of their own.
    @jax.custom_jvp
    def apply(arrays, further, of_slopes):
        vector, flag = piece(*arrays, *further)
        return vector, flag.astype(vector.dtype)

    def change(primals, tangents):
        (arrays, further, of_slopes), known = primals, len(tangents[0])
        found, flag = apply(*primals)
        total = jnp.zeros_like(found)
        count, ends = jacobian.count, jacobian.ends
        given = [(i, x) for i, x in enumerate(tangents[0][:count]) if not isinstance(x, SymbolicZero)]
        if given:
            (J,) = jacobian.piece(*arrays[: len(state)], found, *of_slopes)
            columns = np.concatenate([np.arange(ends[i] - len(x), ends[i]) for i, x in given])
            J = J if len(columns) == J.shape[1] else J[:, columns]
            total = directional(J, jnp.concatenate([x for _, x in given]))
        values, ways = [*arrays, *further], [*tangents[0], *tangents[1]]
        moving = [
            i for i, x in enumerate(ways)
            if i >= min(count, known) and not isinstance(x, SymbolicZero) and id(closed.jaxpr.invars[i]) in used
        ]  # fmt: skip
        if moving:

            def along(*moved: Array) -> Array:
                return piece(*exchanged(values, moving, moved))[0]

            total = total + jax.jvp(along, [values[i] for i in moving], [ways[i] for i in moving])[1]
        return (found, flag), (total, jnp.zeros_like(flag))

    apply.defjvp(change, symbolic_zeros=True)
    vector, flag = apply(arrays, list(further), jacobian.arrays)
    return vector, flag > 0.5


class _Slopes:
    """The Jacobian of a vector as a piece, which is traced when it is needed, if it can be.

    Args:
        slopes: (*state, vector) -> the Jacobian.
        state: Arrays.
        others: Arrays that the vector depends on. If others than those within `slopes` are being traced, these may be
            hidden in its functions, and it is traced at once.
        vector: The type of the vector.
        lowering: How it becomes a program.

    Attributes:
        arrays: What the piece takes after the state and the vector.
    """

    def __init__(
        self, slopes: Partial, state: Sequence[Array], others: Sequence[Array], vector: ShapedArray, lowering: Lowering
    ):
        self.lowering, self.ends = lowering, list(itertools.accumulate(len(x) for x in state if x.ndim))
        parts, rest = eqx.partition(slopes, is_traced)
        self.arrays, structure = jax.tree_util.tree_flatten(parts)
        takes = [*map(jax.typeof, state), vector]

        def function(*arrays):
            parts = jax.tree_util.tree_unflatten(structure, arrays[len(takes) :])
            return eqx.combine(parts, rest)(*arrays[: len(takes)])

        if {*map(id, others)} <= {*map(id, self.arrays)}:
            self._trace = ft.partial(traced, function, takes, [*map(jax.typeof, self.arrays)])
        else:
            closed, self.arrays = with_constants_as_arguments(traced(slopes, takes))
            self._trace = lambda: closed

    @ft.cached_property
    def piece(self) -> AbstractTracedPiece:
        try:
            return _lowered(self._closed, self.lowering)
        except (TooLong, NotScalar):
            return TiledPiece(self._closed)

    @ft.cached_property
    def _closed(self) -> ClosedJaxpr:
        return self._trace()

    @property
    def count(self) -> int:
        """The arrays of the state by which the slopes are taken."""
        return self.ends.index(self._closed.out_avals[0].shape[1]) + 1


def _lowered(closed: ClosedJaxpr, lowering: Lowering) -> AbstractTracedPiece:
    """The piece of a traced function; raises NotScalar or TooLong if it is to be scalar code, and cannot be."""
    if lowering is not Lowering.SCALAR:
        return TiledPiece(closed, lowering)
    piece = ScalarPiece(closed, limits().function)
    _ = piece.program
    return piece


class TiledPiece(AbstractTracedPiece):
    """A traced function, and its derivatives, evaluated for a tile after the other.

    `lowering`, TILES or UNROLLED, is that of the function itself; its derivatives are in tiles.
    """

    def __init__(self, closed: ClosedJaxpr, lowering: Lowering = Lowering.TILES):
        super().__init__(closed)
        self.lowering = lowering

    def through(self, change):
        return TiledPiece(change(self.closed))

    def make_some(self, outputs):
        return TiledPiece(with_results(self.closed, outputs), self.lowering)

    @ft.cached_property
    def program(self) -> ScalarProgram | None:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            return interpret(graph, self.closed, arguments)

        try:
            return ScalarProgram(self.takes, self.gives, build, limits().function)
        except (TooLong, NotScalar):
            return None

    def evaluate(self, form, *arrays):
        if self.lowering is Lowering.UNROLLED and form.native and self.program is not None:
            return self.program.evaluate(form, *arrays)
        (size,) = size_of(form.batched, arrays) or (1,)
        function = over_batch(jaxpr_as_fun(self.closed), form.batched)
        if not form.on_cpu or size <= TILE:
            return list(function(*arrays))
        start = [jnp.zeros((size, *x.shape), x.dtype) for x in self.gives]
        return in_tiles(function, TILE, start, [0 if b else None for b in form.batched], arrays)
