"""The Udwadia-Kalaba equation: the pseudoinverse of B = A L^-T, or that of B B^T, with M = L L^T and a = M^-1 Q.

For servo constraints it also gives the verdict on rows alone, whatever forces act.
"""

import functools as ft

import jax.numpy as jnp
from jax.lax import stop_gradient

from .._collector import seldom_collecting
from .._linalg import Jacobi, SkipIfZero, finer, whiten
from .._result import RESULTS
from .._terms import Terms
from .._types import BoolScalar, RowValues, Vector
from ._base import AbstractPseudoinverseFormulation, DefiniteMass
from ._consistency import miss
from ._fast_paths import AbstractExpandedFormulation, TracedTerms, by_blocks, by_panels, by_recursion, expanded
from ._problem import WhitenedTerms, row_scales, with_completed_mass


class UdwadiaKalaba(AbstractExpandedFormulation):
    r"""$\ddot q = a + L^{-\top} B^+ (b - A a) + L^{-\top}(I - B^+ B)\,L^{-1} c$.

    The literature writes $M^{1/2}$ for L. Any root of M gives the same acceleration, because two roots differ by a
    rotation and the pseudoinverse commutes with it; and the Cholesky factor, unlike $M^{1/2}$ by eigenvalues, has a
    finite gradient where eigenvalues coincide.

    Args:
        pseudoinverse: The lineax solver that applies B^+; its rank test decides which rows are redundant. The rows of
            B are brought to about the same length first, so that neither their units nor the coordinates matter.
        consistency_rtol: A row of A q'' = b counts as met if it is missed by no more than this part of the size of its
            terms. Where rows are not met, and a finer rank test with a moderate acceleration does not meet them either,
            the constraints contradict each other.
        expand: Whether small mechanisms are computed as scalar code, each array entry by itself, factorised over the
            nonzero entries. Scalar code is many times as fast. The motion, the rank and the verdict are the same:
            matrices are used where M or the rows are not conditioned well enough for certainty. None (default) uses
            scalar code wherever it is machine code, on a CPU or an NVIDIA GPU; elsewhere, where it takes long to
            compile, in `simulate` inside of `jax.jit` and other transformations, with servos and projection, and under
            a `jax.vmap` around `equation_of_motion` or `servo_control`. With True and None, larger mechanisms made of
            modules (a `Composite` of many) are solved block by block; with False always by matrices.

    Rows may be redundant. M may be singular if it has no negative direction and [M; A] has full rank: then L is the
    factor of M and multiples of the rows, which changes nothing of the motion, and `unconstrained_acceleration` is NaN.

    Source: Udwadia & Kalaba (1992); Zhao et al. (2018), eq. 36; de Falco et al. (2008), eq. 31; non-ideal force: Liu et
    al. (2015), eq. 12 and 13; singular M: Udwadia & Schutte (2010), Acta Mechanica 213, 111-129.
    """

    @property
    def is_exact(self):
        return True

    @seldom_collecting()
    def motion(self, terms_of, *state):
        dense = ft.cache(lambda: TracedTerms.of(terms_of, state))
        found = by_recursion(self, terms_of, dense, state) if self.expand else None
        if found is None and self.expand:
            found = expanded(self, terms_of, dense())
        if found is None and self.expand is not False and self.is_svd:
            found = by_blocks(self, terms_of, dense, state, often=bool(self.expand))
        if found is None and self.expand:
            found = by_panels(self, dense())
        return self.solve(terms_of.whole(*state)) if found is None else found

    def _problem(self, terms):
        return with_completed_mass(terms)

    def _map(self, problem, solver, repeatedly):
        return DefiniteMass(problem, solver, repeatedly, self._finest(problem))


class RangeSpace(AbstractPseudoinverseFormulation):
    r"""$\ddot q = (I - H A)\,M^{-1} Q + H b$ with $H = M^{-1} A^\top (A M^{-1} A^\top)^{+}$.

    Args:
        pseudoinverse: The lineax solver that applies $(A M^{-1} A^\top)^+$. The singular values of that matrix are the
            squares of those that `UdwadiaKalaba` uses. A strategy of this library therefore does its rank test with the
            square of its tolerance (not below rounding).
        consistency_rtol: As for `UdwadiaKalaba`.

    M as for `UdwadiaKalaba`; rows may be redundant. The matrix is small if there are few constraints; squaring costs
    digits: with rows nearly dependent, an angle e between them, about eps / e^2 is lost rather than eps / e.

    Source: de Falco et al. (2008), eq. 35 and 36.
    """

    def _problem(self, terms):
        return with_completed_mass(terms)

    def _map(self, problem, solver, repeatedly):
        if isinstance(solver, SkipIfZero):  # where directions are that short, their squares are rounding errors
            return DefiniteMass(problem, solver, repeatedly)
        return DefiniteMass(problem, finer(solver, problem.B.dtype), repeatedly, squared=True)


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
