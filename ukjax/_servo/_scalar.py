"""The verdict on a motion under servos that scalar code has found.

Symbols are those of `_motion`, and of `_expand._constrained`, which finds the motion.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _expand
from .._types import BoolScalar


# Part of a row's response to the control, squared, that the passive constraints must leave.
LOST = 1e-12


class Tolerances(NamedTuple):
    """Limits within which factors of the mechanism's rows, and of those of the servos, are trusted."""

    passive: _expand.Certain
    servo: _expand.Certain

    @property
    def least(self) -> tuple[float, float]:
        """Parts of a row, squared, that must be independent of other rows for the row to count."""
        return self.passive.dependent**2, self.servo.dependent**2


class Certificate(NamedTuple):
    """The ranks of A and of C, whether they and the motion are certain, and whether its derivatives are."""

    rank: Array
    reached: Array
    clear: BoolScalar
    smooth: BoolScalar


def certify(
    judges: Tolerances, terms: _expand.KKTTerms, wanted: _expand.ServoTerms, found: _expand.Controlled
) -> Certificate:
    """Returns the verdict on a motion that scalar code has found."""
    terms, wanted, found = stop_gradient((terms, wanted, found))
    (M, _, A, b), (H, h, _, V, _), S = terms, wanted, found.S
    passive, answers = (_expand.pivots(*x) for x in zip((S, found.K), judges.least, strict=True))

    demand = b - A @ found.free
    push = jnp.sqrt(jnp.abs(found.multipliers @ demand))
    clear = _expand.are_clear(judges.passive, S, passive, b, demand, b - A @ found.x, push)
    push = jnp.sqrt(jnp.abs(found.g @ found.lacking))
    clear &= _expand.are_clear(judges.servo, found.K, answers, h, found.lacking, h - H @ found.wanted_x, push)
    # Responses of the size of rounding errors do not count.
    clear &= jnp.all(jnp.diag(found.K) >= LOST * jnp.diag(found.without @ V @ found.without.T))
    clear &= _expand.is_definite(judges.passive, M) & jnp.isfinite(jnp.sum(found.x))
    smooth = clear & jnp.all(passive.kept) & jnp.all(answers.kept)
    return Certificate(jnp.sum(passive.kept), jnp.sum(answers.kept), clear, smooth)
