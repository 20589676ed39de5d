"""Whether rows and rank were decided well: the one verdict on A q'' = b.

Everything is judged row by row. The size of a row's own terms, |b_i| + sum_j |A_ij q''_j|, has the unit of the row, so
that no unit and no scaling of rows or coordinates matters. Three questions, with e = A q'' - b:

1. Are the rows met? |e_i| is at most `rtol` of the row's own terms, or what the last digits of the computation are.
2. If not: the rank test may have dropped a direction that the rows ask for. With a finer tolerance, its cube, are they
   met, and by a moderate acceleration: one that makes the terms of no row much larger than those of it and of the rows
   that share a coordinate with it are? If no, the rows contradict each other.
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
from ._metric import row_lengths
from ._problem import Problem


# By how much the terms of a row may grow before an acceleration no longer counts as moderate.
MODERATE = 100.0
# How many times the rank tolerance a row may be missed by next to a singular configuration, as a part of its terms; but
# never by more than LARGEST_MISS of them.
MULTIPLE, LARGEST_MISS = 10.0, 1e-2


class Miss(NamedTuple):
    """By how much the rows are missed, beside what is allowed; each (m,)."""

    error: RowValues
    terms: RowValues
    allowed: RowValues

    @property
    def none(self) -> BoolScalar:
        return jnp.all(jnp.abs(self.error) <= self.allowed)


class Verdict(NamedTuple):
    """Whether the finer decision about the rank is the one that counts, whether that one meets the rows, and whether
    they are missed by so little that drift may be why."""

    is_fine: BoolScalar
    consistent: BoolScalar
    drifted: BoolScalar


class Judge(NamedTuple):
    """Judges two decisions about the rank: all three questions."""

    rtol: float
    tolerance: float
    finest: float

    def is_met(self, problem: Problem, acceleration: Vector, free: Vector) -> BoolScalar:
        """Whether the rows are met, so that no finer decision is needed: question 1."""
        return miss(problem, acceleration, free, self.rtol, 0.0).none

    def __call__(self, problem: Problem, accelerations: Float[Array, "2 n"], free: Vector) -> Verdict:
        """Questions 2 and 3; `accelerations`: by the coarser and by the finer decision."""
        both = jax.vmap(lambda x: miss(problem, x, free, self.rtol, self.finest))(accelerations)
        met = jnp.all(jnp.abs(both.error) <= both.allowed, axis=1)
        mended = met[1] & is_moderate(problem, both.terms[1], both.terms[0])
        part = min(MULTIPLE * self.tolerance, LARGEST_MISS)
        small = jnp.all(jnp.abs(both.error[0]) <= both.allowed[0] + part * both.terms[0])
        consistent = met[0] | mended
        near = jnp.all(jnp.abs(both.error[0]) <= both.allowed[0] + LARGEST_MISS * both.terms[0])
        return Verdict(~met[0] & mended & ~small, consistent, ~consistent & near)


def miss(problem: Problem, acceleration: Vector, free: Vector, rtol: float, unresolved: float) -> Miss:
    """How the rows of a problem are missed by an acceleration.

    Args:
        problem: The rows, and the metric.
        acceleration: q'' (n,).
        free: Size of the motion that the constraints acted against, in the metric (n,).
        rtol: What part of its own terms a row may be missed by.
        unresolved: The finest tolerance of the rank test: below it a row may be missed by this part of all that the
            coordinates do which it contains, because no decision about the rank can tell it from drift.
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


def rounding(problem: Problem, lengths: RowValues, x: Vector) -> RowValues:
    """What rounding makes of A q'' - b, where accelerations of the size of x (n,) went into q''; (m,).

    A pseudoinverse mixes all directions: each row gets the last digits of the largest, in the metric. And where M is
    ill-conditioned, products with W lose some.
    """
    spread = jnp.abs(problem.A) @ (jnp.abs(problem.W).T @ x)
    return 64 * jnp.finfo(x.dtype).eps * (jnp.abs(problem.b) + spread + lengths * jnp.linalg.norm(x))


def terms_of(A: Rows, b: RowValues, *accelerations: Vector) -> RowValues:
    """The size of the terms of each row, |b_i| + sum_j |A_ij q''_j|, (m,)."""
    return jnp.abs(b) + jnp.abs(A) @ sum((jnp.abs(x) for x in accelerations), jnp.zeros(A.shape[1], A.dtype))


def is_moderate(problem: Problem, terms: RowValues, before: RowValues) -> BoolScalar:
    """Whether no row's terms are much larger than they were `before`, in it or in a row that shares a coordinate.

    Where rows nearly depend on each other large accelerations cancel in every row, which grows its terms.
    """
    D = stop_gradient(problem.D)
    shared = stop_gradient(problem.A) != 0
    of_column = jnp.max(jnp.where(shared, (D * before)[:, None], 0), axis=0, initial=0.0)
    around = jnp.max(jnp.where(shared, of_column[None], 0), axis=1, initial=0.0)
    return jnp.all(D * terms <= MODERATE * jnp.maximum(D * before, around))
