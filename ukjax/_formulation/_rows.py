"""The verdict on rows alone, whatever forces act, for servo constraints."""

import jax.numpy as jnp
from jax.lax import stop_gradient

from .._linalg import Jacobi, whiten
from .._result import RESULTS
from .._terms import Terms
from .._types import BoolScalar, RowValues, Vector
from ._consistency import miss
from ._metric import row_scales
from ._problem import WhitenedTerms
from ._udwadia_kalaba import UdwadiaKalaba


def in_metric(terms: Terms) -> WhitenedTerms:
    """Returns the rows without any force, in the metric of M where M is definite, else in that of the coordinates."""
    L, W, _ = whiten(terms.M, terms.partition)  # the identity where M is not definite
    B = terms.A @ W.T
    rest = jnp.zeros_like(terms.Q)
    return WhitenedTerms(terms.M, rest, terms.A, terms.b, L, W, B, row_scales(B), rest, RESULTS.successful)


def is_contradictory(rows: WhitenedTerms, rtol: float) -> BoolScalar:
    """Whether no acceleration at all satisfies A q'' = b."""
    return ~UdwadiaKalaba(Jacobi(), consistency_rtol=rtol).is_consistent(rows)


def allowance(rows: WhitenedTerms, rtol: float, acceleration: Vector, start: Vector) -> RowValues:
    """Returns the allowed error of A q'' = b for rounding and `rtol`, if q'' was reached from `start`; (m,)."""
    free = jnp.abs(rows.L.T @ stop_gradient(start))
    return stop_gradient(miss(rows, acceleration, free, rtol, 0.0).allowed)
