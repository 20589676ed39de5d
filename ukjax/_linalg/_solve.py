"""Application of a pseudoinverse, with one derivative rule for every strategy.

B: matrix (m, n); P = B^+ (n, m); y: right-hand side (m,); x = P y. A prime marks a derivative.

For constant rank (Golub & Pereyra 1973)

    P' = -P B' P + P P^T B'^T (I - B P) + (I - P B) B'^T P^T P,

The rule needs P only. It is finite at repeated and at zero singular values, where the derivative of the algorithm is
not. lineax has the same rule for any of its solvers, but raises, unconditionally, if a derivative meets a number that
is not finite (as in a trial step that is rejected anyway). This module therefore uses lineax's solvers with its own
rule, under which such a number stays data.
"""

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._types import IntScalar, Rows, RowValues, Vector
from ._base import AbstractDecomposition, AbstractPseudoinverse, with_derivative


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
