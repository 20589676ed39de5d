"""How the control follows from what it is to do: the laws of servos, of all that act at once together.

A q'' = b: servo constraints, m rows; G (n, p): actuation; C = A N G (m, p): how the rows answer to the control, with N
what the passive constraints leave of a force; d: the demand, what the rows miss without control.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .._expand import Wanted
from .._formulation import row_scales
from .._linalg import pseudoinverse, pseudosolve
from .._types import IntScalar, Rows, RowValues, Scalar
from ._plant import Plant


class AbstractLaw(eqx.Module):
    """The law of several servos at one state.

    Attributes:
        decay: What the rows are to fall short of b, so that an error decays, (m,), or zero.
        exact: Whether rows that no control meets are a failure.
    """

    decay: eqx.AbstractVar[RowValues | Scalar]
    exact: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def control(
        self, plant: Plant, A: Rows, G: Float[Array, "n p"], miss: RowValues, u: Float[Array, " p"]
    ) -> tuple[Float[Array, " p"], IntScalar, RowValues]:
        """The control, the rank of C, and what the control leaves of the demand.

        `miss` is what the rows miss under u, b - decay - A q''; of a plant that is linear any u serves.
        """

    @abc.abstractmethod
    def wanted(self, A: Rows, b: RowValues, G: Float[Array, "n p"]) -> Wanted | None:
        """What of least effort is asked for, if that is all there is to the law; None for others."""


class LeastEffort(AbstractLaw):
    """Liu et al. (2015), eq. 35: u = C^+ d + (I - C^+ C) s, of least effort u^T W u, with S S^T = W^-1."""

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
        inverse_of = lambda C: _inverse(solver, C, S, scaled=self.exact)
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
        return None if self.self_consistent else Wanted(A, b, G, self.root @ self.root.T, self.free)


class Following(AbstractLaw):
    """Zhao et al. (2018), eq. 72: the ideal force for the rows, and a force that is not ideal for the decay."""

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


def _inverse(solver: Any, C: Array, S: Array, scaled: bool = True) -> tuple[Array, Array]:
    """S (C S)^+, the inverse that gives the control of least effort, and the rank of C.

    Unless `scaled` is False, the rows of C are brought to about the same length first, for the sake of the rank test;
    where they cannot all be satisfied that changes which control comes nearest.
    """
    B = C @ S
    D = row_scales(B) if scaled else jnp.ones(B.shape[0], B.dtype)
    P, rank = pseudoinverse(solver, D[:, None] * B)
    return (S @ P) * D[None], rank
