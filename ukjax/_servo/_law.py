"""Laws of servos, which give the control of all servos that act together, and a mechanism as these laws see it.

M q'' = Q + Q^c + F: passive constraint force Q^c, further force F; N: response to a force under the passive
constraints, q'' = q0'' + N F; A q'' = b: servo constraints, m rows; G (n, p): actuation; C = A N G (m, p): response of
the rows to the control; d: the demand, the error of the rows without control.
"""

import abc
import functools as ft
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PyTree

from .._expand import ServoTerms
from .._formulation import AbstractFormulation, AbstractLinearFormulation, Motion, row_scales
from .._linalg import pseudoinverse, pseudosolve
from .._terms import Terms
from .._types import IntScalar, Matrix, Rows, RowValues, Scalar, Vector


class Plant(eqx.Module):
    """A mechanism at one state and under some force, with its response to further forces.

    Attributes:
        terms: M, Q, A, b of the mechanism.
        W: The inverse of the Cholesky factor of M, (n, n).
        motion: Motion under the force.
        change: A further force (n,) -> changes of the fields of the motion, the acceleration first.
    """

    terms: Terms
    W: Matrix
    motion: Motion
    change: Callable[[Array], tuple[Array, ...]]

    def admit(self, forces: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Returns N times each column of `forces`."""
        return jax.vmap(lambda force: self.change(force)[0], in_axes=1, out_axes=1)(forces)

    def under(self, force: Vector) -> Motion:
        """Returns the motion under a further force."""
        values = (x + dx for x, dx in zip(fields_of_force(self.motion), self.change(force), strict=True))
        return eqx.tree_at(fields_of_force, self.motion, tuple(values))


def fields_of_force(motion: Motion) -> tuple[Array, ...]:
    """Returns the fields of a motion that depend on the force."""
    return motion.acceleration, motion.unconstrained_acceleration, motion.constraint_force, motion.nonideal_force


def respond(terms: Terms, formulation: AbstractFormulation, W: Matrix, force: Vector) -> Plant:
    """Returns the mechanism of these terms under a force (n,); W (n, n) is the inverse of the Cholesky factor of M."""

    def under(force: Vector) -> Terms:
        return Terms(terms.M, terms.Q + force, terms.A, terms.b, terms.nonideal, terms.partition)

    if terms.nonideal is None and isinstance(formulation, AbstractLinearFormulation):
        state = formulation.init(under(force))
        return Plant(terms, W, state.motion, ft.partial(_change, terms, formulation, W, state))

    def motion(force):
        motion = formulation.solve(under(force))
        return fields_of_force(motion), motion

    _, change, at = jax.linearize(motion, force, has_aux=True)
    return Plant(terms, W, at, change)


def _change(
    terms: Terms, formulation: AbstractLinearFormulation, W: Matrix, state: PyTree, force: Vector
) -> tuple[Array, ...]:
    """Returns the changes of the fields of a motion by a further force."""
    response = formulation.compute(state, force, jnp.zeros_like(terms.b))
    return response.acceleration, W.T @ (W @ force), response.constraint_force, jnp.zeros_like(force)


class AbstractLaw(eqx.Module):
    """The law of several servos at one state.

    Attributes:
        decay: Amount by which the rows fall short of b on purpose, so that an error decays, (m,), or zero.
        exact: Whether rows that no control meets are a failure.
    """

    decay: eqx.AbstractVar[RowValues | Scalar]
    exact: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def control(
        self, plant: Plant, A: Rows, G: Float[Array, "n p"], miss: RowValues, u: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], IntScalar, RowValues]:
        """Returns the control, the rank of C, and the part of the demand that the control leaves.

        `miss` is the error of the rows under u, b - decay - A q''; for a linear plant any u serves.
        """

    @abc.abstractmethod
    def wanted(self, A: Rows, b: RowValues, G: Float[Array, "n p"]) -> ServoTerms | None:
        """Returns the least-effort problem of the law, or None if the law is not only that."""


class LeastEffort(AbstractLaw):
    """The law of least effort u^T W u: u = C^+ d + (I - C^+ C) s, with S S^T = W^-1. Liu et al. (2015), eq. 35."""

    decay: Scalar
    exact: bool = eqx.field(static=True)
    root: Float[Array, "p p"]  # S
    free: Float[Array, " p"]  # s
    self_consistent: bool = eqx.field(static=True)
    pseudoinverse: lx.AbstractLinearSolver

    def control(self, plant, A, G, miss, u):
        C = A @ plant.admit(G)
        demand = miss + C @ u
        solver, S, s = self.pseudoinverse, self.root, self.free
        inverse_of = ft.partial(_inverse, solver, S=S, scaled=self.exact)
        if not self.self_consistent:
            inverse, rank = inverse_of(C)
            u = inverse @ (demand - C @ s) + s
        else:
            # Eq. 35 with the passive force that belongs to u: u = X^+ (d - (C - X) u) + (I - X^+ X) s, linear in u.
            X = A @ (plant.W.T @ (plant.W @ G))
            inverse, _ = inverse_of(X)
            _, rank = inverse_of(C)
            right = inverse @ (demand - X @ s) + s
            u, _ = pseudosolve(solver, jnp.eye(u.shape[0], dtype=u.dtype) + inverse @ (C - X), right)
        return u, rank, demand - C @ u

    def wanted(self, A, b, G):
        return None if self.self_consistent else ServoTerms(A, b, G, self.root, self.free)


class Following(AbstractLaw):
    """The law of constraint following, by an ideal force and a decay of the error. Zhao et al. (2018), eq. 72."""

    decay: RowValues
    exact: bool = eqx.field(static=True)
    pseudoinverse: lx.AbstractLinearSolver

    def control(self, plant, A, G, miss, u):
        solver, M = self.pseudoinverse, plant.terms.M
        identity = jnp.eye(M.shape[0], dtype=M.dtype)
        N = plant.admit(identity)
        C = A @ N @ G
        demand = miss + C @ u
        metric, _ = _inverse(solver, A @ N @ A.T, jnp.eye(A.shape[0], dtype=A.dtype))
        admissible, _ = _inverse(solver, A @ N @ M, identity)
        force = A.T @ (metric @ (demand + self.decay)) - M @ (admissible @ self.decay)
        u, _ = pseudosolve(solver, G, force)
        _, rank = _inverse(solver, C, jnp.eye(G.shape[1], dtype=G.dtype))
        return u, rank, demand - C @ u

    def wanted(self, A, b, G):
        return None


def _inverse(solver: lx.AbstractLinearSolver, C: Array, S: Array, scaled: bool = True) -> tuple[Array, Array]:
    """Returns S (C S)^+, the inverse that gives the control of least effort, and the rank of C.

    Unless `scaled` is False, the rows of C are brought to about the same length first, for the sake of the rank test.
    Where they cannot all be satisfied that changes which control comes nearest.
    """
    B = C @ S
    D = row_scales(B) if scaled else jnp.ones(B.shape[0], B.dtype)
    P, rank = pseudoinverse(solver, D[:, None] * B)
    return (S @ P) * D[None], rank
