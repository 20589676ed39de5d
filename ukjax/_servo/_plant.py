"""A mechanism and its response to forces of actuators.

M q'' = Q + Q^c + F: passive constraint force Q^c, further force F; N: response to a force under the passive
constraints, q'' = q0'' + N F.
"""

import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._formulation import AbstractFormulation, AbstractLinearFormulation, Motion
from .._terms import Terms
from .._types import Matrix, Vector


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
    under = lambda force: Terms(terms.M, terms.Q + force, terms.A, terms.b, terms.nonideal, terms.partition)
    if terms.nonideal is None and isinstance(formulation, AbstractLinearFormulation):
        state = formulation.init(under(force))
        return Plant(terms, W, state.motion, ft.partial(_change, terms, formulation, W, state))

    def motion(force):
        motion = formulation.solve(under(force))
        return fields_of_force(motion), motion

    _, change, at = jax.linearize(motion, force, has_aux=True)
    return Plant(terms, W, at, change)


def _change(
    terms: Terms, formulation: AbstractLinearFormulation, W: Matrix, state: Any, force: Vector
) -> tuple[Array, ...]:
    """Returns the changes of the fields of a motion by a further force."""
    response = formulation.compute(state, force, jnp.zeros_like(terms.b))
    return response.acceleration, W.T @ (W @ force), response.constraint_force, jnp.zeros_like(force)
