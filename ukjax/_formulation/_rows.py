"""The verdict on rows alone, whatever forces act: for servo constraints."""

import jax.numpy as jnp
from jax.lax import stop_gradient

from .._linalg import Jacobi, whiten
from .._mechanism import Terms
from .._result import RESULTS
from .._types import BoolScalar, RowValues, Vector
from ._consistency import miss
from ._problem import with_definite_mass
from ._udwadia_kalaba import UdwadiaKalaba


def is_contradictory(terms: Terms, rtol: float) -> BoolScalar:
    """Whether no acceleration at all satisfies A q'' = b; M is the metric, if it can be one."""
    rows = _with_metric(terms)
    motion = UdwadiaKalaba(Jacobi(), consistency_rtol=rtol).solve(rows)
    return motion.result == RESULTS.constraints_contradict


def allowance(terms: Terms, rtol: float, acceleration: Vector, start: Vector) -> RowValues:
    """By how much A q'' = b may be missed for rounding and `rtol`, if q'' was reached from `start`; (m,)."""
    problem = with_definite_mass(stop_gradient(_with_metric(terms)))
    free = jnp.abs(problem.L.T @ stop_gradient(start))
    return miss(problem, acceleration, free, rtol, 0.0).allowed


def _with_metric(terms: Terms) -> Terms:
    _, _, definite = whiten(terms.M, terms.partition)
    M = jnp.where(definite, terms.M, jnp.eye(terms.M.shape[0], dtype=terms.M.dtype))
    return Terms(M, jnp.zeros_like(terms.Q), terms.A, terms.b, None, terms.partition)
