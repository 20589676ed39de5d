"""The verdict on A q'' = b: whether the rows are satisfied, and which rank counts.

Every test is done row by row. The size of a row's own terms, |b_i| + sum_j |A_ij q''_j|, has the unit of the row, so
that no unit and no scaling of rows or coordinates matters. There are three questions, with e = A q'' - b:

1. Are the rows met? |e_i| is at most `rtol` of the row's own terms, or the rounding error of the computation.
2. If not: the rank test may have dropped a direction that the rows need. With a finer tolerance, its cube, are they met
   by a moderate acceleration? It is moderate if the terms of no row become much larger than those before of the row
   and of the rows that share a coordinate with it. If no, the rows contradict each other.
3. If yes: how much was missed? A row that was missed by a small part of its own terms, s |v^T q''| where a singular
   value s passes zero next to a singular configuration, is rightly missed: what would mend it is drift divided by
   drift. The acceleration stays. A row that was missed by a large part of its terms was dropped for another reason, a
   light mass beside a heavy one; then the finer decision is the answer.

docs/pseudoinverse.md derives this. All of it is a diagnostic and carries no gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._types import BoolScalar, Rows, RowValues, Vector
from ._problem import WhitenedTerms, row_lengths


# Factor by which the terms of a row may grow before an acceleration no longer counts as moderate.
MODERATE = 100.0
# Miss that is allowed next to a singular configuration: a multiple of the rank tolerance, as a part of the row's terms,
# but never more than LARGEST_MISS of them.
MULTIPLE, LARGEST_MISS = 10.0, 1e-2


class Miss(NamedTuple):
    """The errors of the rows, the sizes of their terms, and the errors that are allowed; each (m,)."""

    error: RowValues
    terms: RowValues
    allowed: RowValues

    @property
    def none(self) -> BoolScalar:
        return jnp.all(jnp.abs(self.error) <= self.allowed)


class Verdict(NamedTuple):
    """The outcome of the three questions.

    `is_fine`: whether the finer decision about the rank counts. `consistent`: whether the decision that counts
    satisfies the rows. `drifted`: whether inconsistent rows are missed by so little that drift may be the cause.
    """

    is_fine: BoolScalar
    consistent: BoolScalar
    drifted: BoolScalar


class ConsistencyTest(NamedTuple):
    """Compares two decisions about the rank by the three questions."""

    rtol: float
    tolerance: float
    finest: float

    def is_met(self, problem: WhitenedTerms, acceleration: Vector, free: Vector) -> BoolScalar:
        """Whether the rows are satisfied, so that no finer decision is needed: question 1."""
        return miss(problem, acceleration, free, self.rtol, 0.0).none

    def __call__(self, problem: WhitenedTerms, accelerations: Float[Array, "2 n"], free: Vector) -> Verdict:
        """Answers questions 2 and 3; `accelerations`: by the coarser and by the finer decision."""
        both = jax.vmap(lambda x: miss(problem, x, free, self.rtol, self.finest))(accelerations)
        met = jnp.all(jnp.abs(both.error) <= both.allowed, axis=1)
        mended = met[1] & is_moderate(problem, both.terms[1], both.terms[0])
        part = min(MULTIPLE * self.tolerance, LARGEST_MISS)
        small = jnp.all(jnp.abs(both.error[0]) <= both.allowed[0] + part * both.terms[0])
        consistent = met[0] | mended
        near = jnp.all(jnp.abs(both.error[0]) <= both.allowed[0] + LARGEST_MISS * both.terms[0])
        return Verdict(~met[0] & mended & ~small, consistent, ~consistent & near)


def miss(problem: WhitenedTerms, acceleration: Vector, free: Vector, rtol: float, unresolved: float) -> Miss:
    """Returns the errors of the rows of a problem under an acceleration.

    Args:
        problem: The rows, and the metric.
        acceleration: q'' (n,).
        free: Size of the motion that the constraints acted against, in the metric (n,).
        rtol: Part of its own terms by which a row may be missed.
        unresolved: The finest tolerance of the rank test. A row may be missed by this part of the motion of the
            coordinates that it contains, because no decision about the rank can distinguish that from drift.
    """
    problem, acceleration, free = stop_gradient((problem, acceleration, free))
    A, b, lengths = problem.A, problem.b, row_lengths(problem.B)
    terms = terms_of(A, b, acceleration)
    x = problem.L.T @ acceleration
    allowed = rtol * terms + rounding(problem, lengths, jnp.abs(x) + free)
    if unresolved:
        involved = jnp.sqrt((problem.B != 0).astype(x.dtype) @ x**2)
        allowed = allowed + unresolved * lengths * involved
    if problem.rounding is not None:
        of_A, of_b = problem.rounding
        allowed = allowed + of_A @ jnp.abs(acceleration) + of_b
    if problem.strict is not None:
        allowed = jnp.where(problem.strict, allowed, jnp.inf)
    return Miss(A @ acceleration - b, terms, allowed)


def rounding(problem: WhitenedTerms, lengths: RowValues, x: Vector) -> RowValues:
    """Returns the rounding error of A q'' - b, where accelerations of the size of x (n,) entered q''; (m,).

    A pseudoinverse mixes all directions: each row has the rounding error of the largest, in the metric. Where M is
    ill-conditioned, products with W lose further digits.
    """
    spread = jnp.abs(problem.A) @ (jnp.abs(problem.W).T @ x)
    return 64 * jnp.finfo(x.dtype).eps * (jnp.abs(problem.b) + spread + lengths * jnp.linalg.norm(x))


def terms_of(A: Rows, b: RowValues, *accelerations: Vector) -> RowValues:
    """Returns the size of the terms of each row, |b_i| + sum_j |A_ij q''_j|, (m,)."""
    return jnp.abs(b) + jnp.abs(A) @ sum((jnp.abs(x) for x in accelerations), jnp.zeros(A.shape[1], A.dtype))


def is_moderate(problem: WhitenedTerms, terms: RowValues, before: RowValues) -> BoolScalar:
    """Whether no row's terms are much larger than `before`, in that row or in a row that shares a coordinate.

    Where rows nearly depend on each other large accelerations cancel in every row, which makes its terms grow.
    """
    D = stop_gradient(problem.D)
    shared = stop_gradient(problem.A) != 0
    of_column = jnp.max(jnp.where(shared, (D * before)[:, None], 0), axis=0, initial=0.0)
    around = jnp.max(jnp.where(shared, of_column[None], 0), axis=1, initial=0.0)
    return jnp.all(D * terms <= MODERATE * jnp.maximum(D * before, around))
