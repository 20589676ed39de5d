"""The constrained motion at one state as a linear map of force and b, which a formulation factorises once.

L L^T = M, W = L^-1, w = W force, B = A W^T, D: row scales, H = D B; x: change of w by the constraints.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._linalg import (
    AbstractDecomposition,
    pseudoinverse,
    pseudoinverse_at,
    pseudosolve,
    pseudosolve_at,
    rank_tolerance_of,
)
from .._types import BoolScalar, IntScalar, Matrix, Rows, RowValues, Vector
from ._problem import WhitenedTerms


class Response(NamedTuple):
    """The motion under a force and b; from a linear map, by each of r decisions about the rank along the first axis.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2].
        constraint_force: Force that the constraints add (n,) [N or N m].
        rank: Rank of A found by the rank test.
        unique: Whether the acceleration is unique: [M; A] has full rank.
    """

    acceleration: Array
    constraint_force: Array
    rank: Array
    unique: Array


class AbstractLinearMap(eqx.Module):
    """A linear map (force (n,), b (m,)) -> r `Response`s."""

    @abc.abstractmethod
    def __call__(self, force: Vector, b: RowValues) -> Response:
        """Returns the motion under this force and b; of two decisions by one factorisation the coarser is first."""

    @abc.abstractmethod
    def free(self, force: Vector) -> Vector:
        """Size of the motion that the constraints act against, in the metric of the problem (n,)."""


def one_response(acceleration: Vector, force: Vector, rank: IntScalar, unique: BoolScalar) -> Response:
    """Returns the response by a single decision about the rank."""
    return Response(acceleration[None], force[None], rank[None], unique[None])


class DefiniteMass(AbstractLinearMap):
    """The map by the pseudoinverse of H or, `squared`, by that of H H^T; P (r, n, m) holds it for repeated use.

    A pseudoinverse that knows the singular values decides at two tolerances, of which `finest` is the second. Where the
    metric is not that of M (`is_mass` is false), the constraints add M q'' - force.
    """

    M: Matrix
    L: Matrix
    W: Matrix
    B: Rows
    D: RowValues
    P: Array | None
    rank: Array | None
    is_mass: BoolScalar | None
    solver: lx.AbstractLinearSolver
    finest: float | None = eqx.field(static=True)
    squared: bool = eqx.field(static=True)

    def __init__(
        self,
        problem: WhitenedTerms,
        solver: lx.AbstractLinearSolver,
        repeatedly: bool,
        finest: float | None = None,
        squared: bool = False,
    ):
        self.M, self.L, self.W, self.B, self.D = problem.M, problem.L, problem.W, problem.B, problem.D
        self.is_mass = problem.is_mass
        self.solver, self.finest, self.squared = solver, finest, squared
        self.P = self.rank = None
        if repeatedly and self.B.shape[0]:
            H = problem.H
            P, self.rank = self._inverse(H @ H.T if squared else H)
            self.P = H.T @ P if squared else P

    def __call__(self, force, b):
        w = self.W @ force
        X, rank = self._corrections(self.D * (b - self.B @ w))
        acceleration, added = (w[None] + X) @ self.W, X @ self.L.T
        if self.is_mass is not None:
            added = jnp.where(self.is_mass, added, acceleration @ self.M - force[None])
        return Response(acceleration, added, rank, jnp.ones(rank.shape, bool))

    def free(self, force):
        return jnp.abs(self.W @ force)

    def _corrections(self, y: RowValues) -> tuple[Array, Array]:
        """Returns x (r, n) and the rank (r,)."""
        if self.B.shape[0] == 0:
            return jnp.zeros((1, self.B.shape[1]), self.B.dtype), jnp.zeros(1, int)
        if self.P is not None and self.rank is not None:
            return self.P @ y, self.rank
        H = self.D[:, None] * self.B
        if not self.squared:
            return self._solution(H, y)
        multipliers, rank = self._solution(H @ H.T, y)
        return multipliers @ H, rank

    def _inverse(self, matrix: Array) -> tuple[Array, Array]:
        if isinstance(self.solver, AbstractDecomposition):
            return pseudoinverse_at(self.solver, matrix, self._tolerances(self.solver))
        P, rank = pseudoinverse(self.solver, matrix)
        return P[None], rank[None]

    def _solution(self, matrix: Array, y: RowValues) -> tuple[Array, Array]:
        if isinstance(self.solver, AbstractDecomposition):
            return pseudosolve_at(self.solver, matrix, y, self._tolerances(self.solver))
        x, rank = pseudosolve(self.solver, matrix, y)
        return x[None], rank[None]

    def _tolerances(self, solver: AbstractDecomposition) -> tuple[float, ...]:
        first = rank_tolerance_of(solver, self.B.dtype)
        return (first,) if self.finest is None else (first, self.finest)


class SingularMass(AbstractLinearMap):
    """The map L^T q'' = F W force + G D b for an M that may be singular; `unique`: whether [M; A] has full rank.

    Rounding errors of the map leave an error of the rows, which G corrects once.
    """

    M: Matrix
    A: Rows
    W: Matrix
    D: RowValues
    F: Matrix
    G: Array
    rank: IntScalar
    unique: BoolScalar

    def __init__(self, problem: WhitenedTerms, F: Matrix, G: Array, rank: IntScalar, unique: BoolScalar):
        self.M, self.A, self.W, self.D = problem.M, problem.A, problem.W, problem.D
        self.F, self.G, self.rank, self.unique = F, G, rank, unique

    def __call__(self, force, b):
        first = self.W.T @ (self.F @ (self.W @ force) + self.G @ (self.D * b))
        acceleration = first + self.W.T @ (self.G @ (self.D * (b - self.A @ first)))
        return one_response(acceleration, self.M @ acceleration - force, self.rank, self.unique)

    def free(self, force):
        # Where the constraints leave no freedom F is nothing but rounding errors, which are those of a free motion.
        size = jnp.abs(self.W @ force)
        return jnp.abs(self.F) @ size + jnp.max(size, initial=0.0)
