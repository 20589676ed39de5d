"""What every formulation takes and gives."""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.lax import stop_gradient

from .._mechanism import Terms
from .._result import RESULTS
from .._types import BoolScalar, IntScalar, Rows, RowValues, Scalar, Vector


class Motion(eqx.Module):
    """The motion at one state.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2]. If the constraints contradict each other it is the least-squares
            one of least norm; if the terms are unusable it is NaN. `result` tells.
        unconstrained_acceleration: a = M^-1 Q (n,).
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


def consistency(A: Rows, b: RowValues, acceleration: Vector, free: RowValues, rtol: float) -> tuple[Scalar, BoolScalar]:
    """The norm of A q'' - b, and whether every row holds to `rtol` of the size of its own terms.

    `free` is the size of the terms of A a. Measured row by row, so that scaling a row changes nothing. Without
    gradient: it is a diagnostic, and the gradient of a norm at zero is NaN.
    """
    A, b, acceleration, free = stop_gradient((A, b, acceleration, free))
    error = A @ acceleration - b
    size = jnp.abs(b) + jnp.abs(A) @ jnp.abs(acceleration) + free
    return jnp.linalg.norm(error), jnp.all(jnp.abs(error) <= rtol * size)


def verdict(finite: BoolScalar, definite: BoolScalar, consistent: BoolScalar) -> Any:
    """The result of three tests, the most basic failure first."""
    result = RESULTS.where(consistent, RESULTS.successful, RESULTS.constraints_contradict)
    result = RESULTS.where(definite, result, RESULTS.mass_not_positive_definite)
    return RESULTS.where(finite, result, RESULTS.not_finite)
