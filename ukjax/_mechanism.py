"""Mechanism: a system and what constrains it."""

from collections.abc import Callable, Iterable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Float

from . import _check
from ._constraint import AbstractConstraint
from ._system import AbstractModularSystem, AbstractSystem, applied_force
from ._types import Matrix, Partition, Rows, RowValues, Scalar, Vector


class Terms(eqx.Module):
    """What the equation of motion is made of at one state; `nonideal` maps the ideal constraint force to c.

    `partition` tells the blocks of M where it is block-diagonal.
    """

    M: Matrix
    Q: Vector
    A: Rows
    b: RowValues
    nonideal: Callable[[Vector], Vector] | None = None
    partition: Partition | None = eqx.field(static=True, default=None)


class Mechanism(eqx.Module):
    r"""A system, its constraints, and the non-ideal part of what they do.

    Args:
        system: `System`, `LagrangianSystem`, or your own subclass of `AbstractSystem`.
        constraints: One `AbstractConstraint` or any number of them; all are enforced together.
        nonideal: `nonideal(q, v, t, ideal_force)`, shape (n,) [N or N m]: the force c whose work the constraints do
            (friction); only its part along admissible directions acts.

    Raises:
        TypeError: If `system` or a constraint is something else.

    Source: Udwadia & Kalaba (1992); the non-ideal force: Liu et al. (2015), eq. 7 to 13.
    """

    system: AbstractSystem
    constraints: tuple[AbstractConstraint, ...]
    nonideal: Callable | None

    def __init__(
        self,
        system: AbstractSystem,
        constraints: AbstractConstraint | Iterable[AbstractConstraint] = (),
        nonideal: Callable | None = None,
    ):
        if not isinstance(system, AbstractSystem):
            raise TypeError(
                f"system must be a ukjax.System, ukjax.LagrangianSystem or ukjax.AbstractSystem, but is "
                f"{type(system).__name__}."
            )
        if isinstance(constraints, AbstractConstraint):
            constraints = (constraints,)
        elif callable(constraints) or not isinstance(constraints, Iterable):
            what = "a function" if callable(constraints) else type(constraints).__name__
            raise TypeError(_NOT_A_CONSTRAINT.format("constraints", what))
        constraints = tuple(constraints)
        for i, constraint in enumerate(constraints):
            if not isinstance(constraint, AbstractConstraint):
                raise TypeError(_NOT_A_CONSTRAINT.format(f"constraints[{i}]", type(constraint).__name__))
        self.system = system
        self.constraints = constraints
        signature = "nonideal(q, v, t, ideal_force) -> (n,)"
        self.nonideal = nonideal if nonideal is None else _check.function(nonideal, "nonideal", signature)

    def terms(self, q: Vector, v: Vector, t: Scalar, applied: Any = None) -> Terms:
        """M, Q, A, b and the non-ideal force at one state; ValueError, while tracing, on a wrong shape."""
        n = q.shape[0]
        M = _check.output(self.system.mass(q, t), (n, n), q.dtype, "mass(q, t)", f"q has {n} coordinates.")
        Q = applied_force(self.system.force(q, v, t), q, "force(q, v, t)")
        if applied is not None:
            Q = Q + applied_force(applied, q, "applied")
        rows = [constraint.rows(q, v, t) for constraint in self.constraints]
        A = jnp.concatenate([A for A, _ in rows]) if rows else jnp.zeros((0, n), q.dtype)
        b = jnp.concatenate([b for _, b in rows]) if rows else jnp.zeros(0, q.dtype)
        nonideal = None if self.nonideal is None else Partial(_nonideal_force, self.nonideal, q, v, t)
        partition = self.system.partition if isinstance(self.system, AbstractModularSystem) else None
        return Terms(M, Q, A, b, nonideal, partition)

    def position_error(self, q: Vector, t: Scalar) -> Float[Array, " r"]:
        """Φ of every holonomic constraint, in order."""
        return _concatenate([c.position_error(q, t) for c in self.constraints], q)

    def velocity_error(self, q: Vector, v: Vector, t: Scalar) -> Float[Array, " r"]:
        """Φ̇ of every holonomic and ψ of every nonholonomic constraint, in order."""
        return _concatenate([c.velocity_error(q, v, t) for c in self.constraints], q)


_NOT_A_CONSTRAINT = (
    "{} must be a ukjax.Holonomic, Nonholonomic or AccelerationConstraint, but is {}. Wrap your function: "
    "ukjax.Holonomic(phi) for phi(q, t), ukjax.Nonholonomic(psi) for psi(q, v, t)."
)


def _nonideal_force(function: Callable, q: Vector, v: Vector, t: Scalar, ideal: Vector) -> Vector:
    return applied_force(function(q, v, t, ideal), q, "nonideal(q, v, t, ideal_force)")


def _concatenate(parts: list[Array], q: Array) -> Array:
    return jnp.concatenate(parts) if parts else jnp.zeros(0, q.dtype)
