"""The input of a formulation at one state, in units in which rows and masses can be compared, and the verdict on rows.

L L^T = M, W = L^-1, or those of the metric G that takes the place of M where it is singular, of M and the rows; x =
L^T q'': acceleration in that metric, all of whose entries have one unit, sqrt(kg) m/s^2 or the like; B = A W^T: the
rows there; D: row scales; w = W Q: the free motion; C: scales of the coordinates, C M C has a diagonal near one. For
formulations that take M unchanged, which may be singular, L and W are diagonal: they give each coordinate a unit in
which its own mass is about one.

The verdict on A q'' = b says whether the rows are satisfied, and which rank counts. Every test is done row by row. The
size of a row's own terms, |b_i| + sum_j |A_ij q''_j|, has the unit of the row, so that no unit and no scaling of rows
or coordinates matters. There are three questions, with e = A q'' - b:

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

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from .._linalg import power_of_two, whiten, whiten_first
from .._result import RESULTS
from .._terms import Terms
from .._types import BoolScalar, Matrix, Partition, Rows, RowValues, Vector


# Sweeps of `balancing_scales` over rows and columns.
SWEEPS = 64
# An entry counts as rounding below this part of the largest of its row; a mass ratio of 1e12 leaves larger ones.
ROUNDED = 1e-9
# An entry whose terms cancel to less than this part is the size of another state; as the cut-off of `SVD`.
CANCELLED = 1e-4


class Metric(NamedTuple):
    """A metric that leads to the same constrained motion as M does.

    Attributes:
        L: The Cholesky factor of the metric (n, n); the identity where there is no metric.
        W: The inverse of L (n, n).
        is_mass: Whether the metric is M, which is positive definite.
        regular: Whether there is a metric.
    """

    L: Matrix
    W: Matrix
    is_mass: BoolScalar
    regular: BoolScalar


def metric(M: Matrix, A: Rows, partition: Partition | None = None, all_are_real: bool = False) -> Metric:
    r"""Returns the metric of M where M is positive definite, else of `completed` where that is and M is semidefinite.

    A batch in which every M is positive definite is factorised once, as by `whiten`. `all_are_real`: as for
    `row_scales`.
    """
    C = coordinate_scales(M, A)
    return Metric(*whiten_first(M, _completed(M, A, C, all_are_real), shifted(M, C), partition))


def completed(M: Matrix, A: Rows) -> Matrix:
    r"""Returns $G = M + A^\top D^2 A$, which leads to the same constrained motion as M does.

    Adding rows that are met exactly does not change the motion: M a - Q = A^T lambda if and only if G a - Q = A^T
    lambda' for another lambda'. Nothing is regularised. G is definite if [M; A] has full rank. With D the rows are
    about as long as one in the metric of M, so that neither the unit of a row nor that of a coordinate or a mass
    matters.

    Source: Udwadia & Schutte (2010), Acta Mechanica 213, 111-129, where the added matrix is A^+ A. Here it is A^T A.
    """
    return _completed(M, A, coordinate_scales(M, A), False)


def _completed(M: Matrix, A: Rows, C: Vector, all_are_real: bool) -> Matrix:
    rows = row_scales(A * C[None], all_are_real)[:, None] * A
    return M + rows.T @ rows


def shifted(M: Matrix, C: Vector) -> Matrix:
    """Returns M with a small addition to its diagonal: positive definite unless M has a negative direction."""
    return M + jnp.diag(jnp.finfo(M.dtype).eps ** 0.5 / C**2)


def coordinate_scales(M: Matrix, A: Rows) -> Vector:
    """Returns C (n,), powers of two for which C M C has a diagonal near one, so that units do not matter.

    A coordinate without a mass gets its scale from the rows. In rows that connect it with coordinates of known scale,
    its largest scaled entry becomes as large as theirs. The scales spread in this way from one coordinate to the next.
    Coordinates that no row connects with a mass get the scale that their rows have among themselves. No gradient.
    """
    M, A = stop_gradient((M, A))
    sizes, diagonal = jnp.abs(A), jnp.abs(jnp.diagonal(M))
    # An entry that may be the rounding error of its row is followed last: its inverse would be a scale without meaning.
    solid = jnp.where(sizes > jnp.finfo(A.dtype).eps * jnp.max(sizes, axis=1, keepdims=True, initial=0.0), sizes, 0)

    def spread(sizes: Rows, known: Array, C: Vector) -> Vector:
        """Returns the largest entry of each column (n,) in rows whose largest known entry is one."""
        of_row = jnp.max(jnp.where(known[None], sizes * C[None], 0), axis=1, initial=0.0)
        parts = sizes / jnp.where(of_row > 0, of_row, 1)[:, None]
        return jnp.max(jnp.where((of_row > 0)[:, None], parts, 0), axis=0, initial=0.0)

    def following(sizes: Rows, known: Array, C: Vector) -> tuple[Array, Vector]:
        """Returns which coordinates have scales after these spread along the rows, and the scales."""

        def step(carry):
            known, C, _ = carry
            found = spread(sizes, known, C)
            new = ~known & (found > 0)
            return known | new, jnp.where(new, inverse_powers(found), C), jnp.any(new & ~jnp.all(known | new))

        start = known, C, jnp.any(known) & ~jnp.all(known)
        known, C, _ = jax.lax.while_loop(lambda carry: carry[2], step, start)
        return known, C

    known = diagonal > 0
    known, C = following(sizes, *following(solid, known, inverse_powers(jnp.sqrt(diagonal))))
    return jnp.where(known, C, inverse_powers(spread(sizes, ~known, jnp.ones_like(C))))


def inverse_powers(sizes: Array) -> Array:
    """Returns the powers of two that bring sizes to about one; one for a size of zero."""
    return 1 / power_of_two(jnp.where(sizes > 0, sizes, 1.0))


def balancing_scales(A: Rows, levers: Rows, C: Vector) -> tuple[RowValues, Vector]:
    """Returns powers of two, D (m,) and E (n,): entries of A E differ little, and rows of D A E are about one long.

    A rank test of D A E depends neither on units nor on masses. In the metric of M, rows that only a heavy body
    distinguishes differ by the root of a mass ratio. That may be less than the difference of redundant rows off the
    constraints. `levers`: sizes that the entries of A would have if none of their terms cancelled. They may be far too
    large, so they count only in rows that have no other entries.
    """
    sizes = jnp.abs(A)
    entries = sizes * C[None]
    real = (sizes > CANCELLED * levers) & (entries > ROUNDED * jnp.max(entries, axis=1, keepdims=True, initial=0.0))
    counts, logs = real.astype(sizes.dtype), jnp.log2(jnp.where(real, sizes, 1.0))

    def mean(x: Array, axis: int) -> Array:
        return jnp.sum(counts * x, axis) / jnp.maximum(jnp.sum(counts, axis), 1)

    def closer(_, E: Vector) -> Vector:
        D = -mean(logs + E[None], 1)
        return jnp.where(jnp.any(real, axis=0), -mean(logs + D[:, None], 0), E)

    E = jnp.exp2(jnp.round(jax.lax.fori_loop(0, SWEEPS, closer, jnp.log2(C))))
    terms = jnp.where(jnp.any(real, axis=1, keepdims=True), jnp.where(real, sizes, 0), levers)
    return 1 / power_of_two(row_lengths(terms * E[None])), E


def row_scales(B: Rows, all_are_real: bool = False) -> RowValues:
    """Returns powers of two that bring the rows of B (m, n) to about the same length; (m,).

    The rank test then measures angles between rows, whatever their units, and no digit is lost. Unless `all_are_real`,
    a row as short as the rounding errors of the longest keeps its length relative to the longest.

    Where the rows are consistent the solution does not depend on the scales, and otherwise they are constant almost
    everywhere: no gradient.
    """
    lengths = row_lengths(B)
    if all_are_real:
        return 1 / power_of_two(lengths)
    return 1 / power_of_two(jnp.where(is_rounding(lengths), jnp.max(lengths, initial=0.0), lengths))


def row_lengths(B: Rows) -> RowValues:
    """Returns the lengths of the rows of B (m, n), (m,); the longest length, or one, for a row of zeros."""
    B = stop_gradient(B)
    # Squares of very small or very large numbers must neither vanish nor overflow.
    sizes = jnp.max(jnp.abs(B), axis=1, initial=0.0)
    units = power_of_two(jnp.where(sizes > 0, sizes, 1.0))
    lengths = units * jnp.linalg.norm(B / units[:, None], axis=1)
    longest = jnp.max(lengths, initial=0.0)
    return jnp.where(lengths > 0, lengths, jnp.where(longest > 0, longest, 1.0))


def is_rounding(lengths: RowValues) -> Array:
    """Whether each row is as short, beside the longest, as the rounding errors of its entries; (m,)."""
    return lengths < 8 * jnp.finfo(lengths.dtype).eps * jnp.max(lengths, initial=0.0)


class WhitenedTerms(eqx.Module):
    """The equations M q'' = Q and A q'' = b at one state.

    Attributes:
        M: (n, n); Q: (n,); A: (m, n); b: (m,): as the mechanism gives them.
        L: (n, n); W: (n, n); B: (m, n): see above.
        D: Scales of the rows of B, (m,).
        unconstrained: a = M^-1 Q (n,), or NaN.
        result: `RESULTS` of the mass matrix.
        strict: Whether each row must be met, (m,); None for all.
        is_mass: Whether the metric is that of M; None if it always is.
        rounding: Sizes of the rounding errors of A (m, n) and of b (m,), if they are known.
    """

    M: Matrix
    Q: Vector
    A: Rows
    b: RowValues
    L: Matrix
    W: Matrix
    B: Rows
    D: RowValues
    unconstrained: Vector
    result: RESULTS
    strict: Array | None = None
    is_mass: BoolScalar | None = None
    rounding: tuple[Rows, RowValues] | None = None

    @property
    def mass(self) -> Matrix:
        """W M W^T, the mass matrix in the metric."""
        return self.W @ self.M @ self.W.T

    @property
    def H(self) -> Rows:
        """The rows in the metric, of about unit length."""
        return self.D[:, None] * self.B

    def where(self, needed: BoolScalar) -> "WhitenedTerms":
        """Returns this problem where `needed`, zeros elsewhere, which `SkipIfZero` skips."""
        M, A, B = (jnp.where(needed, x, jnp.zeros_like(x)) for x in (self.M, self.A, self.B))
        return eqx.tree_at(lambda p: (p.M, p.A, p.B), self, (M, A, B))


def with_definite_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem for M > 0, in the coordinates in which M is the identity."""
    M, Q, A = terms.M, terms.Q, terms.A
    L, W, definite = whiten(M, terms.partition)
    B = A @ W.T
    D = row_scales(B, terms.rounding is not None)
    result = RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, W.T @ (W @ Q), result, rounding=terms.rounding)


def with_completed_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem in the metric of M, completed by the rows where M is singular; all rows must be met."""
    M, Q, A = terms.M, terms.Q, terms.A
    all_are_real = terms.rounding is not None
    L, W, definite, regular = metric(M, A, terms.partition, all_are_real)
    B = A @ W.T
    D = row_scales(B, all_are_real)
    result = RESULTS.where(regular, RESULTS.successful, RESULTS.mass_not_positive_definite)
    unconstrained = jnp.where(definite | ~regular, W.T @ (W @ Q), jnp.nan)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, unconstrained, result, is_mass=definite, rounding=terms.rounding)


def with_singular_mass(terms: Terms) -> WhitenedTerms:
    """Returns the problem for an M that may be singular; M must have no negative direction."""
    M, Q, A = terms.M, terms.Q, terms.A
    _, V, definite = whiten(M)
    unconstrained = jnp.where(definite, V.T @ (V @ Q), jnp.nan)
    C = coordinate_scales(M, A)
    B = A * C[None]
    D = row_scales(B, terms.rounding is not None)
    _, _, semidefinite = whiten(stop_gradient(shifted(M, C)))
    result = RESULTS.where(semidefinite, RESULTS.successful, RESULTS.mass_not_positive_definite)
    L, W = jnp.diag(1 / C), jnp.diag(C)
    return WhitenedTerms(M, Q, A, terms.b, L, W, B, D, unconstrained, result, rounding=terms.rounding)


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
