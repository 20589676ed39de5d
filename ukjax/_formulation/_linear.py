"""The constrained motion at one state as a linear map of force and b: what a formulation factorises once.

L L^T = M, W = L^-1, w = W force, B = A W^T, D: row scales, H = D B; x: what the constraints add to w.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .._linalg import pseudoinverse, pseudosolve
from .._types import BoolScalar, IntScalar, Matrix, Rows, RowValues, Vector
from ._problem import Problem, unit_size


class Response(NamedTuple):
    """What force and b lead to.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2].
        constraint_force: What the constraints add to the force (n,) [N or N m].
        rank: Rank of A found by the rank test.
        unique: Whether the acceleration is: [M; A] has full rank.
    """

    acceleration: Vector
    constraint_force: Vector
    rank: IntScalar
    unique: BoolScalar


class AbstractLinearMap(eqx.Module):
    """(force (n,), b (m,)) -> `Response`, linear in both."""

    @abc.abstractmethod
    def __call__(self, force: Vector, b: RowValues) -> Response:
        """The motion under this force and this b."""

    @abc.abstractmethod
    def free(self, force: Vector) -> Vector:
        """Size of the motion that the constraints act against, in the metric of the problem (n,)."""


class DefiniteMass(AbstractLinearMap):
    """By the pseudoinverse of H or, `squared`, by that of H H^T; P (n, m) is what it is, if it is used repeatedly."""

    L: Matrix
    W: Matrix
    B: Rows
    D: RowValues
    P: Array | None
    rank: IntScalar | None
    solver: lx.AbstractLinearSolver
    squared: bool = eqx.field(static=True)

    def __init__(self, problem: Problem, solver: lx.AbstractLinearSolver, repeatedly: bool, squared: bool = False):
        self.L, self.W, self.B, self.D = problem.L, problem.W, problem.B, problem.D
        self.solver, self.squared = solver, squared
        self.P = self.rank = None
        if repeatedly and self.B.shape[0]:
            H = problem.H
            P, self.rank = pseudoinverse(solver, H @ H.T if squared else H)
            self.P = H.T @ P if squared else P

    def __call__(self, force, b):
        w = self.W @ force
        x, rank = self._correction(self.D * (b - self.B @ w))
        return Response(self.W.T @ (w + x), self.L @ x, rank, jnp.asarray(True))

    def free(self, force):
        return jnp.abs(self.W @ force)

    def _correction(self, y: RowValues) -> tuple[Vector, IntScalar]:
        if self.B.shape[0] == 0:
            return jnp.zeros(self.B.shape[1], self.B.dtype), jnp.zeros((), int)
        if self.P is not None and self.rank is not None:
            return self.P @ y, self.rank
        H = self.D[:, None] * self.B
        if not self.squared:
            return pseudosolve(self.solver, H, y)
        multiplier, rank = pseudosolve(self.solver, H @ H.T, y)
        return H.T @ multiplier, rank


class SingularMass(AbstractLinearMap):
    """q'' = F force + G b for an M that may be singular; `unique` tells whether [M; A] has full rank."""

    M: Matrix
    F: Matrix
    G: Array
    rank: IntScalar
    unique: BoolScalar

    def __call__(self, force, b):
        acceleration = self.F @ force + self.G @ b
        return Response(acceleration, self.M @ acceleration - force, self.rank, self.unique)

    def free(self, force):
        # Where the constraints leave no freedom F is nothing but rounding errors, which are those of a free motion.
        return jnp.abs(self.F) @ jnp.abs(force) + unit_size(self.M) * jnp.max(jnp.abs(force), initial=0.0)
