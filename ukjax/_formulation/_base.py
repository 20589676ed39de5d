"""What every formulation takes and gives, and what they share.

n: coordinates; m: constraint rows; c: non-ideal force.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check
from .._linalg import SVD, AbstractPseudoinverse, power_of_two, pseudoinverse, pseudosolve, rank_tolerance, whiten
from .._mechanism import Terms
from .._result import RESULTS, worst
from .._types import BoolScalar, IntScalar, Matrix, Partition, Rows, RowValues, Scalar, Vector


# How many times the size of the acceleration may be missing before it counts as a contradiction.
MODERATE = 100.0


class Motion(eqx.Module):
    """The motion at one state.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2]. If the constraints contradict each other it is a least-squares one;
            if it is not unique, one of many; if the terms are unusable it is NaN. `result` tells.
        unconstrained_acceleration: a = M^-1 Q (n,); NaN where M is singular.
        constraint_force: The ideal constraint force, which does no virtual work (n,) [N or N m].
        nonideal_force: What acts of the non-ideal force c (n,) [N or N m].
        rank: Rank of A found by the rank test of the pseudoinverse.
        residual: Euclidean norm of A q'' - b.
        result: `RESULTS`; empty message if all went well.
    """

    acceleration: Vector
    unconstrained_acceleration: Vector
    constraint_force: Vector
    nonideal_force: Vector
    rank: IntScalar
    residual: Scalar
    result: Any


class AbstractFormulation(eqx.Module):
    """How the constrained acceleration follows from (M, Q, A, b, c)."""

    @abc.abstractmethod
    def solve(self, terms: Terms) -> Motion:
        """Returns the motion; `rank`, `residual` and `result` are always filled."""


class Linear(eqx.Module):
    """The constrained motion at one state, which is linear in the force and in b.

    Attributes:
        solve: (force (n,), b (m,)) -> q'' (n,), what the constraints add to the force (n,), and the rank of A.
        unconstrained: a = M^-1 Q (n,), or NaN.
        free: Size of the terms of A a, (m,), beside which A q'' = b is to hold.
        scales: Of the rows, in the least squares, (m,).
        result: `RESULTS` of the mass matrix.
        reach: The rows along which an acceleration was free to satisfy them, (m, n), if that is not A itself.
    """

    solve: Callable[[Array, Array], tuple[Array, Array, Array]]
    unconstrained: Array
    free: Array
    scales: Array
    result: Any
    reach: Array | None = None


class AbstractPseudoinverseFormulation(AbstractFormulation):
    """A formulation in which a pseudoinverse does the work: what its subclasses share."""

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        _check.instance(self.pseudoinverse, lx.AbstractLinearSolver, "pseudoinverse", "ukjax.SVD()")
        _check.tolerance(self.consistency_rtol, "consistency_rtol")

    def solve(self, terms: Terms) -> Motion:
        return _motion(terms, self._linear, self.consistency_rtol)

    @abc.abstractmethod
    def _linear(self, M: Matrix, Q: Vector, A: Rows, partition: Partition | None, again: bool) -> Linear:
        """The constrained motion as a linear map.

        `partition` tells the blocks of M, `again` whether the map will be applied more than once.
        """

    def _finer(self, dtype: Any) -> lx.AbstractLinearSolver:
        """The pseudoinverse with the square of its rank tolerance, if it is one of ours."""
        if not isinstance(self.pseudoinverse, AbstractPseudoinverse):
            return self.pseudoinverse
        return dataclasses.replace(self.pseudoinverse, rtol=rank_tolerance(self.pseudoinverse.rtol, dtype) ** 2)


def _motion(terms: Terms, linear: Callable[..., Linear], rtol: float) -> Motion:
    """The motion at one state: guards what goes in, adds the non-ideal force, and judges what comes out.

    The ideal force is what the constraints add to Q; the non-ideal one, c, then acts as far as they let it, which is
    what the same map makes of it with b = 0.  Liu et al. (2015), eq. 12 and 13.
    """
    M, Q, A, b = terms.M, terms.Q, terms.A, terms.b
    finite = _all_finite(M, Q, A, b)
    # Unusable terms are replaced before they are used, and the answer is made NaN at the end: a NaN inside a
    # factorisation would also reach the gradients of states that are all right.
    M, Q, A, b = (jnp.where(finite, x, jnp.zeros_like(x)) for x in (M, Q, A, b))
    at = linear(M, Q, A, terms.partition, terms.nonideal is not None)
    acceleration, ideal_force, rank = at.solve(Q, b)

    nonideal_force = jnp.zeros_like(Q)
    if terms.nonideal is not None:
        c = terms.nonideal(ideal_force)
        finite = finite & _all_finite(c)
        c = jnp.where(finite, c, jnp.zeros_like(c))
        change, added, _ = at.solve(c, jnp.zeros_like(b))
        acceleration, nonideal_force = acceleration + change, c + added

    residual, consistent = consistency(A, b, acceleration, at, rtol)
    usable = finite & (at.result != RESULTS.mass_not_positive_definite)
    mask = lambda value: jnp.where(usable, value, jnp.nan)
    return Motion(
        acceleration=mask(acceleration),
        unconstrained_acceleration=mask(at.unconstrained),
        constraint_force=mask(ideal_force),
        nonideal_force=mask(nonideal_force),
        rank=rank,
        residual=mask(residual),
        result=worst(
            RESULTS.where(finite, RESULTS.successful, RESULTS.not_finite),
            at.result,
            RESULTS.where(consistent, RESULTS.successful, RESULTS.constraints_contradict),
        ),
    )


def _all_finite(*arrays: Array) -> BoolScalar:
    return stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in arrays])))


def consistency(A: Rows, b: RowValues, acceleration: Vector, at: Linear, rtol: float) -> tuple[Scalar, BoolScalar]:
    """The norm of A q'' - b, and whether the constraints are consistent.

    They are if every row holds to `rtol` of the size of its own terms. Measured row by row, so that scaling a row
    changes nothing, down to where a row is nothing but rounding errors of the others.

    They also are if a moderate acceleration would do it. Next to a singular configuration the rank test drops a
    direction v with a small singular value s, which leaves an error s (v^T q'') along the matching u. What it would
    take to mend an error e is |e|^2 / |A^T e|: of the size of the acceleration in this case, and without bound where
    rows contradict each other, for then A^T e = 0.

    Without gradient: it is a diagnostic, and the gradient of a norm at zero is NaN.
    """
    reach = A if at.reach is None else at.reach
    A, b, acceleration, free, D, reach = stop_gradient((A, b, acceleration, at.free, at.scales, reach))
    error = A @ acceleration - b
    size = jnp.abs(b) + jnp.abs(A) @ jnp.abs(acceleration) + free
    rounding = 64 * jnp.finfo(A.dtype).eps * jnp.max(size, initial=0.0)
    moderate = MODERATE * (jnp.linalg.norm(acceleration) + jnp.linalg.norm(D * b))
    mended = jnp.sum((D * error) ** 2) <= moderate * jnp.linalg.norm((D * D * error) @ reach)
    return jnp.linalg.norm(error), jnp.all(jnp.abs(error) <= rtol * size + rounding) | mended


def by_pseudoinverse(solver: lx.AbstractLinearSolver, B: Array, again: bool) -> Callable[[Array], tuple[Array, Array]]:
    """y -> B^+ y and the rank of B; with B^+ itself, computed once, if it is going to be applied `again`."""
    if B.shape[0] == 0:
        return lambda y: (jnp.zeros(B.shape[1], B.dtype), jnp.zeros((), int))
    if not again:
        return lambda y: pseudosolve(solver, B, y)
    P, rank = pseudoinverse(solver, B)
    return lambda y: (P @ y, rank)


def with_definite_mass(
    M: Matrix,
    Q: Vector,
    A: Rows,
    partition: Partition | None,
    correct: Callable[[Array], Callable[[Array], tuple[Array, Array]]],
) -> Linear:
    """The constrained motion for M > 0, in the coordinates in which M is the identity.

    W^T W = M^-1; w = W Q; B = A W^T; D: row scales. `correct` takes D B and gives y -> ((D B)^+ y, rank).
    """
    L, W, definite = whiten(M, partition)
    w, B = W @ Q, A @ W.T  # A a = B w
    D = row_scales(B)
    correction = correct(D[:, None] * B)

    def solve(force, b):
        w = W @ force
        x, rank = correction(D * (b - B @ w))
        return W.T @ (w + x), L @ x, rank

    return Linear(
        solve=solve,
        unconstrained=W.T @ w,
        free=jnp.abs(B) @ jnp.abs(w),
        scales=D,
        result=RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite),
    )


def with_singular_mass(
    M: Matrix, Q: Vector, A: Rows, D: RowValues, rank: IntScalar, solve: Callable, inverse: Matrix, unique: BoolScalar
) -> Linear:
    """The constrained motion for an M that may be singular.

    `solve` takes force and b to q''; `inverse` (n, n) is what it makes of the force; `unique` tells whether [M; A] has
    full rank.
    """

    def with_force(force, b):
        acceleration = solve(force, b)
        return acceleration, M @ acceleration - force, rank

    _, W, definite = whiten(M)
    return Linear(
        solve=with_force,
        unconstrained=jnp.where(definite, W.T @ (W @ Q), jnp.nan),
        free=jnp.abs(A) @ (jnp.abs(inverse) @ jnp.abs(Q)),
        scales=D,
        result=_singular_mass(M, unique),
    )


def row_scales(B: Rows) -> RowValues:
    """Powers of two that bring the rows of B (m, n) to about the same length; (m,).

    The rank test then measures angles between rows, whatever their units; and not a digit is lost. A row that is
    shorter than the longest by more than sqrt(eps), which may be nothing but rounding errors, stays short.

    Where the rows are consistent the solution does not depend on the scales, and otherwise they are constant almost
    everywhere: no gradient.
    """
    lengths = stop_gradient(jnp.linalg.norm(B, axis=1))
    longest = jnp.max(lengths, initial=0.0)
    usable = jnp.maximum(lengths, jnp.sqrt(jnp.finfo(B.dtype).eps) * longest)
    return 1 / power_of_two(jnp.where(usable > 0, usable, 1.0))


def _singular_mass(M: Matrix, unique: BoolScalar) -> Any:
    """The result for a mass matrix that may be singular: it must have no negative direction, and leave no choice."""
    size = jnp.max(jnp.abs(M), initial=0.0)
    shift = jnp.sqrt(jnp.finfo(M.dtype).eps) * size
    _, _, semidefinite = whiten(stop_gradient(M + shift * jnp.eye(M.shape[0], dtype=M.dtype)))
    semidefinite = semidefinite | (size == 0)
    return worst(
        RESULTS.where(semidefinite, RESULTS.successful, RESULTS.mass_not_positive_definite),
        RESULTS.where(unique, RESULTS.successful, RESULTS.acceleration_not_unique),
    )


def unit_size(M: Matrix) -> Scalar:
    """A power of two that brings the largest entry of M near one."""
    size = stop_gradient(jnp.max(jnp.abs(M), initial=0.0))
    return 1 / power_of_two(jnp.where(size > 0, size, 1.0))
