"""The motion of a small mechanism by scalar code."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from .._expand import Certain, motion_or
from .._linalg import rank_tolerance_of
from .._mechanism import Terms
from .._result import RESULTS
from ._base import AbstractPseudoinverseFormulation, Motion


# Beyond it compiling takes longer than what is gained: see docs/expand.md.
MOST_OPERATIONS = 2000
# How many times the rank tolerance the smallest singular value must be, for the SVD to agree that the rows are
# independent, and how many times smaller, that they are not: it compares rows whose lengths differ by up to two with
# the largest singular value.
CLEARLY = 4.0


def expanded(
    formulation: AbstractPseudoinverseFormulation, terms_of: Callable[..., Terms], state: Sequence[Array]
) -> Motion | None:
    """The motion at a state, or None if it can't be had in this way.

    Where the scalar program is not certain of it, `formulation` is asked.
    """
    kept: list[Terms] = []

    def arrays(*state):
        terms = terms_of(*state)
        kept.append(terms)
        return terms.M, terms.Q, terms.A, terms.b

    traced: Any = jax.make_jaxpr(arrays)(*state)
    (terms,) = kept
    mass, _, rows, _ = traced.out_avals
    dtype = mass.dtype
    eps = float(jnp.finfo(dtype).eps)
    if terms.nonideal is not None or mass.size == 0:
        return None

    def by_matrices(M, Q, A, b):
        return formulation.solve(Terms(M, Q, A, b, None, terms.partition, terms.rows))

    def certainly(acceleration, unconstrained, constraint_force, residual, independent):
        return Motion(
            acceleration=acceleration,
            unconstrained_acceleration=unconstrained,
            constraint_force=constraint_force,
            nonideal_force=jnp.zeros_like(acceleration),
            rank=jnp.sum(independent),
            residual=residual,
            result=RESULTS.successful,
        )

    tolerance, root = rank_tolerance_of(formulation.pseudoinverse, dtype), max(1, rows.shape[0]) ** 0.5
    certain = Certain(
        rank=CLEARLY * tolerance * root,
        dependent=tolerance / (CLEARLY * root),
        pivot=eps**0.6,
        residual=min(1e-3 * formulation.consistency_rtol, eps**0.5),
    )
    return motion_or(by_matrices, certainly, certain, MOST_OPERATIONS, traced, list(state))
