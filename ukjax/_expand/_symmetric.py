"""Symmetric systems of equations as operations of their own, which scalar code knows.

S (n, n): semidefinite; a row whose pivot is no more than the part `least` of its diagonal entry depends on those before
it and is struck out. The system of the other rows is solved; the solution is zero in those struck out.

A scalar program eliminates over the entries that are not zero, once however often S occurs: S = P^T L D L^T P with a
unit lower L; the order P is that of minimum degree, chosen once, from the pattern. Elsewhere, in a derivative that has
become too long, S is eliminated in the order in which it is written.
"""

import functools as ft
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Float, PyTree

from .._lowering._entry import Entry, Node, constant, is_constant
from .._program import Parameters
from .._types import Matrix, Scalar, Vector
from ._graph import Graph


class Factors:
    """L, D and the order of a semidefinite matrix (n, n) of entries, of which the lower triangle is used.

    A row whose pivot is no more than the part `least` of its diagonal entry depends on those before it. It is left out,
    so that solutions are those of S with these rows and columns struck out: see `pivots` and `kept`.
    """

    def __init__(self, graph: Graph, S: np.ndarray, dtype: np.dtype, least: float = 0.0):
        self.graph, self.dtype = graph, dtype
        self.order = minimum_degree(S)
        zero, one = constant(0, dtype), constant(1, dtype)
        n = len(S)
        rest = {
            (i, j): S[max(p, q), min(p, q)] for i, p in enumerate(self.order) for j, q in enumerate(self.order[: i + 1])
        }
        rest = {k: x for k, x in rest.items() if not is_constant(x, 0)}
        self.rows: list[dict[int, Entry]] = [{} for _ in range(n)]  # of L, by column, below the diagonal
        self.columns: list[dict[int, Entry]] = [{} for _ in range(n)]
        self.pivots: list[Entry] = []
        self.kept: list[Entry] = []
        self.inverses: list[Entry] = []
        for j, p in enumerate(self.order):
            pivot = rest.get((j, j), zero)
            kept = graph.greater(pivot, graph.mul(constant(least, dtype), S[p, p]) if least else zero)
            inverse = graph.where(kept, graph.div(one, graph.where(kept, pivot, one)), zero)
            self.pivots.append(pivot)
            self.kept.append(kept)
            self.inverses.append(inverse)
            below = [(i, rest[i, j]) for i in range(j + 1, n) if (i, j) in rest]
            for i, x in below:
                self.rows[i][j] = self.columns[j][i] = graph.mul(x, inverse)
            for k, (i, _) in enumerate(below):
                for l, x in below[: k + 1]:
                    rest[i, l] = graph.sub(rest.get((i, l), zero), graph.mul(self.rows[i][j], x))

    def solve(self, y: Sequence[Entry]) -> list[Entry]:
        """The solution S^-1 y."""
        return self.upper(self.scaled(self.lower(y)))

    def lower(self, y: Sequence[Entry]) -> list[Entry]:
        """The product L^-1 P y."""
        graph, x = self.graph, [y[p] for p in self.order]
        for i, row in enumerate(self.rows):
            for j, value in row.items():
                x[i] = graph.sub(x[i], graph.mul(value, x[j]))
        return x

    def scaled(self, x: Sequence[Entry]) -> list[Entry]:
        """The product D^-1 x."""
        return [self.graph.mul(value, inverse) for value, inverse in zip(x, self.inverses, strict=True)]

    def upper(self, x: Sequence[Entry]) -> list[Entry]:
        """The product P^T L^-T x."""
        graph, x = self.graph, list(x)
        for j in reversed(range(len(x))):
            for i, value in self.columns[j].items():
                x[j] = graph.sub(x[j], graph.mul(value, x[i]))
        found = list(x)
        for p, value in zip(self.order, x, strict=True):
            found[p] = value
        return found

    def inverse_bound(self, lengths: Sequence[Entry]) -> Entry:
        r"""A bound of $\|\hat R^{-1}\|_\infty$, $\hat R^\top \hat R = \hat S$: the kept part of S, rows of unit length.

        Its inverse is a lower bound of the smallest singular value of the rows, up to the square root of their number.
        It uses the comparison matrix of R: Higham (2002), Accuracy and stability of numerical algorithms, 8.3.
        """
        graph, w = self.graph, {}
        largest = constant(0, self.dtype)
        for i in reversed(range(len(self.rows))):
            total = graph.sqrt(graph.abs(self.inverses[i]))
            for j, value in self.columns[i].items():
                total = graph.add(total, graph.mul(graph.abs(value), w[j]))
            w[i] = total
            largest = graph.maximum(largest, graph.mul(total, lengths[self.order[i]]))
        return largest


def minimum_degree(S: np.ndarray) -> list[int]:
    """An order of the rows in which elimination fills in little; ties go to the first row."""
    n = len(S)
    is_zero = [[is_constant(S[i, j], 0) and is_constant(S[j, i], 0) for j in range(n)] for i in range(n)]
    near = [{j for j in range(n) if j != i and not is_zero[i][j]} for i in range(n)]
    order: list[int] = []
    left = set(range(n))
    while left:
        i = min(left, key=lambda i: (len(near[i]), i))
        order.append(i)
        left.remove(i)
        for j in near[i]:
            near[j] |= near[i]
            near[j] -= {i, j}
    return order


def product(graph: Graph, A: np.ndarray, x: Sequence[Entry], dtype: np.dtype) -> list[Entry]:
    """The product A x."""
    return [dot(graph, row, x, dtype) for row in A]


def dot(graph: Graph, x: Iterable[Entry], y: Iterable[Entry], dtype: np.dtype) -> Entry:
    """The product x . y. Zeros of x are left out, unless a constant that is not finite is beside them."""
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if isinstance(a, Node) or a != 0 or not _is_finite(b)]
    return graph.sum([graph.mul(a, b) for a, b in pairs], dtype)


def _is_finite(x: Entry) -> bool:
    return isinstance(x, Node) or bool(np.isfinite(x))


def combined(graph: Graph, f: Callable[[Entry, Entry], Entry], x: Sequence[Entry], y: Sequence[Entry]) -> list[Entry]:
    return [f(a, b) for a, b in zip(x, y, strict=True)]


class Pivots(NamedTuple):
    """The pivots of an elimination, which rows count, and a bound of the inverse of their factor, for unit rows."""

    pivots: Vector
    kept: Bool[Array, " n"]
    bound: Scalar


def solve(S: Matrix, Y: Float[Array, "n ..."], least: float = 0.0) -> Float[Array, "n ..."]:
    """The solution S^-1 Y, differentiable where the same rows count."""
    if not Y.size:
        return Y
    columns = Y.reshape(Y.shape[0], -1)
    return solve_p.bind(S, columns, least=least).reshape(Y.shape)


def pivots(S: Matrix, least: float = 0.0) -> Pivots:
    """The pivots of an elimination of S, without derivatives."""
    if not S.size:
        return Pivots(jnp.zeros(0, S.dtype), jnp.zeros(0, bool), jnp.zeros((), S.dtype))
    return Pivots(*pivots_p.bind(jax.lax.stop_gradient(S), least=least))


def _eliminated(S: Array, least: float) -> tuple[Array, Array, Array]:
    """A unit lower L, the pivots, and which of them count."""
    n = len(S)
    below = jnp.arange(n)

    def step(j, carry):
        rest, L, pivots = carry
        pivot = rest[j, j]
        inverse = _inverse(pivot, pivot > least * S[j, j])
        column = jnp.where(below > j, rest[:, j] * inverse, 0)
        return rest - column[:, None] * rest[j][None], L.at[:, j].add(column), pivots.at[j].set(pivot)

    start = S, jnp.eye(n, dtype=S.dtype), jnp.zeros(n, S.dtype)
    _, L, pivots = jax.lax.fori_loop(0, n, step, start)
    return L, pivots, pivots > least * jnp.diag(S)


def _inverse(pivots: Array, kept: Array) -> Array:
    return jnp.where(kept, 1 / jnp.where(kept, pivots, 1), 0)


def _solve(S: Array, Y: Array, *, least: float) -> Array:
    L, pivots, kept = _eliminated(S, least)
    n = len(S)
    lower = jax.lax.fori_loop(0, n, lambda i, x: x.at[i].add(-jnp.where(jnp.arange(n) < i, L[i], 0) @ x), Y)
    scaled = _inverse(pivots, kept)[:, None] * lower

    def upper(k, x):
        i = n - 1 - k
        return x.at[i].add(-jnp.where(jnp.arange(n) > i, L[:, i], 0) @ x)

    return jax.lax.fori_loop(0, n, upper, scaled)


def _pivots(S: Array, *, least: float) -> list[Array]:
    L, pivots, kept = _eliminated(S, least)
    n, roots = len(S), jnp.sqrt(jnp.abs(_inverse(pivots, kept)))

    def bound(k, w):
        i = n - 1 - k
        return w.at[i].set(roots[i] + jnp.abs(jnp.where(jnp.arange(n) > i, L[:, i], 0)) @ w)

    w = jax.lax.fori_loop(0, n, bound, jnp.zeros(n, S.dtype))
    return [pivots, kept, jnp.max(w * jnp.sqrt(jnp.abs(jnp.diag(S))))]


solve_p, pivots_p = Primitive("symmetric_solve"), Primitive("symmetric_pivots")
pivots_p.multiple_results = True


def _known(primitive: Primitive, function: Callable[..., PyTree[Array]]) -> None:
    """Defines what a primitive computes, with and without a batch, by a function of arrays."""
    several = primitive.multiple_results
    primitive.def_impl(lambda *args, **params: jax.jit(ft.partial(function, **params))(*args))
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=several))

    def batch(args, dims, **params):
        found = jax.vmap(ft.partial(function, **params), in_axes=dims)(*args)
        return found, jax.tree_util.tree_map(lambda _: 0, found)

    batching.primitive_batchers[primitive] = batch


_known(solve_p, _solve)
_known(pivots_p, _pivots)


@solve_p.def_abstract_eval
def _solve_shape(S, Y, *, least):
    return ShapedArray(Y.shape, Y.dtype)


@pivots_p.def_abstract_eval
def _pivots_shapes(S, *, least):
    n = S.shape[0]
    return [ShapedArray((n,), S.dtype), ShapedArray((n,), jnp.dtype(bool)), ShapedArray((), S.dtype)]


def _solve_jvp(primals, tangents, *, least):
    (S, Y), (dS, dY) = primals, tangents
    X = solve_p.bind(S, Y, least=least)
    right = ad.instantiate_zeros(dY)
    if not isinstance(dS, ad.Zero):
        right = right - dS @ X
    return X, solve_p.bind(S, right, least=least)


def _solve_transpose(cotangent, S, Y, *, least):
    return None, ad.Zero(Y.aval) if isinstance(cotangent, ad.Zero) else solve_p.bind(S, cotangent, least=least)


ad.primitive_jvps[solve_p] = _solve_jvp
ad.primitive_transposes[solve_p] = _solve_transpose


def solve_rule(
    graph: Graph, params: Parameters, args: list[np.ndarray], avals: Sequence[ShapedArray]
) -> list[np.ndarray]:
    """The rule of `solve` in a scalar program."""
    (S, Y), (aval,) = args, avals
    factors, X = Factors(graph, S, aval.dtype, params["least"]), Y.copy()
    for k in range(Y.shape[1]):
        X[:, k] = factors.solve(list(Y[:, k]))
    return [X]


def pivots_rule(
    graph: Graph, params: Parameters, args: list[np.ndarray], avals: Sequence[ShapedArray]
) -> list[np.ndarray]:
    """The rule of `pivots` in a scalar program."""
    (S,), (*_, aval) = args, avals
    factors = Factors(graph, S, aval.dtype, params["least"])
    found, kept, bound = results = [np.empty(x.shape, object) for x in avals]
    for place, pivot, counts in zip(factors.order, factors.pivots, factors.kept, strict=True):
        found[place], kept[place] = pivot, counts
    bound[()] = factors.inverse_bound([graph.sqrt(graph.abs(S[i, i])) for i in range(len(S))])
    return results
