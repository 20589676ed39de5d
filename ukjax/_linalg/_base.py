"""Pseudoinverse strategies, which are lineax solvers with a rank test: their interface, and their application.

B: matrix (m, n); Y: right-hand sides (m, k); X = B^+ Y (n, k).

Their derivative rule is that of a JAX primitive (`with_derivative`). `jax.custom_jvp` is not enough: JAX forgets such a
rule when a loop that holds it is differentiated in reverse mode. A second derivative then goes through the algorithm,
past the rule (JAX 0.10, `jax.lax.scan`, which moves operations out of the loop). For a pseudoinverse that is NaN at
repeated singular values. A primitive is opaque to everything but its rules.

One rule serves every strategy. P = B^+ (n, m); y: right-hand side (m,); x = P y; a prime marks a derivative. For
constant rank (Golub & Pereyra 1973)

    P' = -P B' P + P P^T B'^T (I - B P) + (I - P B) B'^T P^T P,

The rule needs P only. It is finite at repeated and at zero singular values, where the derivative of the algorithm is
not. lineax has the same rule for any of its solvers, but raises, unconditionally, if a derivative meets a number that
is not finite (as in a trial step that is rejected anyway). The functions here therefore use lineax's solvers with their
own rule, under which such a number stays data.
"""

import abc
import math
from collections.abc import Callable

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import lineax as lx
from jax.core import ShapedArray
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .. import _check
from .._result import is_traced
from .._types import IntScalar, Rows, RowValues, Vector


def tolerance(value: object) -> float | None:
    """Returns a rank tolerance as a float, which can be hashed; raises ValueError if it is not within (0, 1)."""
    if value is None:
        return None
    if is_traced(value):
        raise ValueError("rtol must be a Python number, not a traced value: a rank has no derivative.")
    number = _check.scalar(value, "rtol")
    if not 0 < number < 1:
        raise ValueError(f"rtol must lie between 0 and 1, but is {number}. None gives the default of the precision.")
    return number


def rank_tolerance(rtol: float | None, dtype: DTypeLike) -> float:
    """Returns the relative cut-off of a rank test: `rtol`, or the default of the precision, but never below rounding.

    The default was found by measurement: see `SVD`.
    """
    eps = float(jnp.finfo(dtype).eps)
    default = 1e-4 if eps < 1e-12 else 1e-3
    return max(default if rtol is None else rtol, 16 * eps)


def rank_tolerance_of(solver: lx.AbstractLinearSolver, dtype: DTypeLike) -> float:
    """Returns the relative cut-off of the rank test of `solver`; the default for solvers of other libraries."""
    return rank_tolerance(solver.rtol if isinstance(solver, AbstractPseudoinverse) else None, dtype)


# A tree of shapes in a form that can be hashed.
_Structure = tuple[tuple[jax.ShapeDtypeStruct, ...], PyTree]


class State(eqx.Module):
    """The matrix of a linear operator, or of its transpose, and the structures of its output and input."""

    matrix: Array
    structures: tuple[_Structure, _Structure] = eqx.field(static=True)
    transposed: bool = eqx.field(static=True, default=False)


class AbstractPseudoinverse(lx.AbstractLinearSolver):
    """A strategy to apply B^+ that also finds the rank of B.

    In `lineax.linear_solve` a strategy reports `stats["rank"]` and `stats["residual"]`, the norm of y - B x. Whatever
    the algorithm, the derivative is that of the constant-rank rule.
    """

    rtol: eqx.AbstractVar[float | None]

    @abc.abstractmethod
    def solve(self, B: Array, Y: Array) -> tuple[Array, Array]:
        """Returns B^+ Y (n, k) and the rank of B, for B (m, n) and Y (m, k), real."""

    def init(self, operator: lx.AbstractLinearOperator, options: dict[str, object]) -> State:
        matrix = operator.as_matrix()
        if not jnp.issubdtype(matrix.dtype, jnp.floating):
            raise ValueError(
                f"{type(self).__name__} takes a real floating matrix, but got {matrix.dtype}. For complex numbers use "
                "lineax.SVD()."
            )
        return State(matrix, (_flat(operator.out_structure()), _flat(operator.in_structure())))

    def compute(
        self, state: State, vector: PyTree[Array], options: dict[str, object]
    ) -> tuple[PyTree[Array], lx.RESULTS, dict[str, Array]]:
        y = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree_util.tree_leaves(vector)])
        if state.transposed:
            # The pseudoinverse of the matrix itself serves the transpose, without a second factorisation: a derivative
            # needs both, and two batched LAPACK calls at a time can wait for each other forever.
            P, rank = self.solve(state.matrix, jnp.eye(state.matrix.shape[0], dtype=y.dtype))
            x = (P.T @ y)[:, None]
            residual = jnp.linalg.norm(y - state.matrix.T @ x[:, 0])
        else:
            x, rank = self.solve(state.matrix, y[:, None])
            residual = jnp.linalg.norm(y - state.matrix @ x[:, 0])
        leaves, structure = state.structures[1]
        ends = [math.prod(leaf.shape) for leaf in leaves]
        parts = jnp.split(x[:, 0], [sum(ends[: i + 1]) for i in range(len(ends) - 1)])
        solution = [part.reshape(leaf.shape).astype(leaf.dtype) for part, leaf in zip(parts, leaves)]
        stats = {"rank": rank, "residual": residual}
        return jax.tree_util.tree_unflatten(structure, solution), lx.RESULTS.successful, stats

    def transpose(self, state: State, options: dict[str, object]) -> tuple[State, dict[str, object]]:
        return State(state.matrix, (state.structures[1], state.structures[0]), not state.transposed), {}

    def conj(self, state: State, options: dict[str, object]) -> tuple[State, dict[str, object]]:
        return state, {}

    def assume_full_rank(self) -> bool:
        return False


class AbstractDecomposition(AbstractPseudoinverse):
    """A strategy that finds the singular values, and so pseudoinverses at several tolerances by one decomposition."""

    @abc.abstractmethod
    def solve_at(self, B: Array, Y: Array, rtols: tuple[float, ...]) -> tuple[Array, Array]:
        """Returns B^+ Y (r, n, k) and the rank of B (r,), at each of r rank tolerances."""

    def solve(self, B, Y):
        X, rank = self.solve_at(B, Y, (rank_tolerance(self.rtol, B.dtype),))
        return X[0], rank[0]


def new_rows(rest: Array, rows: Array, rtol: float) -> Array:
    """Whether each of the `rows` (m, n) is independent of those projected out of it, with `rest` (m, n) left; (m,).

    A dependent row leaves rounding errors, which are small beside the row itself but not beside each other. They must
    not count as rows.
    """
    rest, rows = jax.lax.stop_gradient((rest, rows))
    return jnp.linalg.norm(rest, axis=-1) > rtol * jnp.linalg.norm(rows, axis=-1)


def _flat(structure: PyTree) -> _Structure:
    """Returns a tree of shapes in a form that can be hashed."""
    leaves, treedef = jax.tree_util.tree_flatten(structure)
    return tuple(leaves), treedef


def row_sizes(B: Array, rtol: float) -> Array:
    """Returns squared lengths of the rows of B (m, n, batch), to compare their remainders with; (m, batch).

    A row that is shorter than the longest by sqrt(eps) is compared with the longest: it may be nothing but rounding
    errors.
    """
    eps = float(jnp.finfo(B.dtype).eps)
    shortest = max(eps**0.5, 64 * eps / rtol)
    squares = jnp.sum(B**2, axis=1)
    return jnp.maximum(squares, shortest**2 * jnp.max(squares, axis=0, initial=0.0))


def unit_scale(B: Array) -> Array:
    """Returns a power of two that brings the largest entry of B (m, n, batch) near one, (batch,); one for B = 0.

    With it, squares in the kernels neither overflow nor vanish, and no digit is lost.
    """
    size = jnp.max(jnp.abs(B), axis=(0, 1), initial=0.0)
    usable = (size > 0) & jnp.isfinite(size)
    return jnp.where(usable, 1 / power_of_two(jnp.where(usable, size, 1.0)), 1.0)


def power_of_two(x: Array) -> Array:
    """Returns the power of two nearest to x > 0: x without its mantissa."""
    return jax.lax.reduce_precision(x, jnp.finfo(x.dtype).nexp, 0)


def with_derivative(function: Callable, derivative: Callable) -> Callable:
    """Returns `function` as a primitive whose tangents are those of `derivative(primals, tangents)`.

    Arguments may be arrays or other objects; results are arrays. `derivative` returns the outputs and their tangents,
    None for an output without tangent. It receives a tangent for every array of floating dtype.
    """

    # Traced once for arguments of one kind, however often a program uses it.
    traced = eqx.filter_jit(function)

    @eqxi.filter_primitive_def
    def shapes(*args):
        arrays, static = eqx.partition(args, lambda x: isinstance(x, (ShapedArray, jax.Array)))
        structs = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
        # No mesh, as at compile time, so that JAX finds the function traced there.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            out = eqx.filter_eval_shape(traced, *eqx.combine(structs, static))
        return jax.tree_util.tree_map(lambda x: ShapedArray(x.shape, x.dtype), out)

    @eqxi.filter_primitive_jvp
    def jvp(primals, tangents):
        full = jax.tree_util.tree_map(eqxi.materialise_zeros, primals, tangents, is_leaf=lambda x: x is None)
        return derivative(primals, full)

    name = function.__name__.strip("_")
    p = eqxi.create_vprim(name, eqxi.filter_primitive_def(traced), shapes, jvp, None)
    return lambda *args: eqxi.filter_primitive_bind(p, *args)


def pseudosolve(solver: lx.AbstractLinearSolver, B: Rows, y: RowValues) -> tuple[Vector, IntScalar]:
    """Returns x = B^+ y and the rank that the solver found; x is differentiable where the rank is locally constant."""
    return _pseudosolve_p(solver, B, y)


def pseudoinverse(solver: lx.AbstractLinearSolver, B: Rows) -> tuple[Array, IntScalar]:
    """Returns B^+ (n, m) and the rank that the solver found."""
    return _pseudoinverse_p(solver, B)


def pseudosolve_at(
    solver: AbstractDecomposition, B: Rows, y: RowValues, rtols: tuple[float, ...]
) -> tuple[Array, Array]:
    """Returns B^+ y (r, n) and the ranks (r,), at r rank tolerances by one decomposition."""
    return _pseudosolve_at_p(solver, B, y, rtols)


def pseudoinverse_at(solver: AbstractDecomposition, B: Rows, rtols: tuple[float, ...]) -> tuple[Array, Array]:
    """Returns B^+ (r, n, m) and the ranks (r,), at r rank tolerances by one decomposition."""
    return _pseudoinverse_at_p(solver, B, rtols)


def _pseudosolve_at(solver: AbstractDecomposition, B: Rows, y: RowValues, rtols: tuple[float, ...]):
    X, rank = solver.solve_at(B, y[:, None], rtols)
    return X[..., 0], rank


def _pseudoinverse_at(solver: AbstractDecomposition, B: Rows, rtols: tuple[float, ...]):
    return solver.solve_at(B, jnp.eye(B.shape[0], dtype=B.dtype), rtols)


def _pseudosolve(solver: lx.AbstractLinearSolver, B: Rows, y: RowValues) -> tuple[Vector, IntScalar]:
    if isinstance(solver, AbstractPseudoinverse):
        X, rank = solver.solve(B, y[:, None])
        return X[:, 0], rank
    operator = lx.MatrixLinearOperator(B)
    x, _, stats = solver.compute(solver.init(operator, {}), y, {})
    return x, _rank(solver, B, stats)


def _pseudoinverse(solver: lx.AbstractLinearSolver, B: Rows) -> tuple[Array, IntScalar]:
    if isinstance(solver, AbstractPseudoinverse):
        return solver.solve(B, jnp.eye(B.shape[0], dtype=B.dtype))
    operator = lx.MatrixLinearOperator(B)
    state = solver.init(operator, {})
    columns, _, stats = jax.vmap(lambda y: solver.compute(state, y, {}))(jnp.eye(B.shape[0], dtype=B.dtype))
    return columns.T, _rank(solver, B, jax.tree_util.tree_map(lambda s: s[0], stats), columns.T)


def _rank(solver: lx.AbstractLinearSolver, B: Array, stats: dict[str, Array], P: Array | None = None) -> Array:
    if "rank" in stats:
        return jnp.asarray(stats["rank"], int)
    if solver.assume_full_rank():
        return jnp.asarray(min(B.shape))
    # The solver knows the rank but does not report it: P B projects on the row space, so its trace is the rank.
    P = pseudoinverse(solver, B)[0] if P is None else P
    return jnp.round(jnp.sum(P.T * B)).astype(int)


def _pseudosolve_jvp(primals, tangents):
    (solver, B, y), (_, dB, dy) = primals, tangents
    P, rank = pseudoinverse(solver, B)
    # Not P @ y: with y in a batch and B not, its batch axis would come last, where that of the solver's x comes first.
    # JAX 0.10.2 confuses the two if a compiled function that holds the batch is differentiated. Only lineax's own
    # solvers know where their batch axis is.
    x = y @ P.T if isinstance(solver, AbstractPseudoinverse) else pseudosolve(solver, B, y)[0]
    return (x, rank), (_change_of_solution(B, y, dB, dy, P, x), None)


def _pseudosolve_at_jvp(primals, tangents):
    (solver, B, y, rtols), (_, dB, dy, _) = primals, tangents
    P, rank = pseudoinverse_at(solver, B, rtols)
    X = jax.vmap(lambda P: y @ P.T)(P)
    return (X, rank), (jax.vmap(lambda P, x: _change_of_solution(B, y, dB, dy, P, x))(P, X), None)


def _change_of_solution(B: Array, y: Array, dB: Array, dy: Array, P: Array, x: Array) -> Array:
    z = P.T @ x
    return P @ (dy - dB @ x + P.T @ (dB.T @ (y - B @ x)) - B @ (dB.T @ z)) + dB.T @ z


def _pseudoinverse_jvp(primals, tangents):
    (solver, B), (_, dB) = primals, tangents
    P, rank = pseudoinverse(solver, B)
    return (P, rank), (_change_of_inverse(B, dB, P), None)


def _pseudoinverse_at_jvp(primals, tangents):
    (solver, B, rtols), (_, dB, _) = primals, tangents
    P, rank = pseudoinverse_at(solver, B, rtols)
    return (P, rank), (jax.vmap(lambda P: _change_of_inverse(B, dB, P))(P), None)


def _change_of_inverse(B: Array, dB: Array, P: Array) -> Array:
    onto_left, onto_rows = B @ P, P @ B
    left = P @ (P.T @ (dB.T - dB.T @ onto_left))
    right = (dB.T - onto_rows @ dB.T) @ (P.T @ P)
    return left + right - P @ dB @ P


_pseudosolve_p = with_derivative(_pseudosolve, _pseudosolve_jvp)
_pseudoinverse_p = with_derivative(_pseudoinverse, _pseudoinverse_jvp)
_pseudosolve_at_p = with_derivative(_pseudosolve_at, _pseudosolve_at_jvp)
_pseudoinverse_at_p = with_derivative(_pseudoinverse_at, _pseudoinverse_at_jvp)
