"""The Udwadia-Kalaba equation: the pseudoinverse of B = A L^-T, or that of B B^T, with M = L L^T and a = M^-1 Q.

There are fast paths to the motion: scalar code for small mechanisms, blocks for large ones, or panels. For servo
constraints the equation also gives the verdict on rows alone, whatever forces act.
"""

import abc
import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .. import _blocks, _expand, _panels
from .._collector import seldom_collecting
from .._linalg import AbstractDecomposition, Jacobi, SkipIfZero, finer, rank_tolerance_of, whiten
from .._lowering import Traceable, runs_machine_code
from .._program import with_constants_as_arguments, with_results
from .._result import RESULTS, is_traced
from .._rounding import rounding_errors_of
from .._terms import Terms, TermsFunctions, of_loose
from .._types import BoolScalar, Matrix, Partition, Rows, RowValues, Vector
from ._base import AbstractLoweredFormulation, AbstractPseudoinverseFormulation, DefiniteMass, Motion
from ._problem import WhitenedTerms, miss, row_scales, with_completed_mass


# With fewer constraints, matrices are as fast as blocks at one state and compile sooner. For many states matrices are
# slower, but scalar code may not be.
FEWEST_CONSTRAINTS = 8
FEWEST_AT_ONE_STATE = 32
# Operations of scalar code of a mechanism of modules for XLA: beyond, blocks compile much sooner.
MOST_OF_MODULES = 2200
# The compile time of panels grows with their number.
MOST_COORDINATES = 64
# Margin of the rank test. The smallest singular value must exceed the rank tolerance by this factor for the SVD to
# agree that the rows are independent, and fall below it by this factor for it to agree that they are not. The SVD
# compares rows whose lengths differ by up to two with the largest singular value.
RANK_MARGIN = 4.0


class AbstractExpandedFormulation(AbstractPseudoinverseFormulation, AbstractLoweredFormulation):
    """A formulation that computes small mechanisms as scalar code where its field `expand` says so.

    `expand`: True, False, or None for wherever it pays.
    """

    expand: Any = eqx.field(default=None, static=True)  # what else is given has an error of its own

    def __check_init__(self):
        if self.expand is not None and not isinstance(self.expand, bool):
            raise ValueError(f"expand must be True, False or None, but is {self.expand!r}.")

    @property
    def is_svd(self) -> bool:
        """Whether the rank is found from the singular values, so that a bound on them decides it."""
        return isinstance(self.pseudoinverse, AbstractDecomposition)

    @property
    @abc.abstractmethod
    def is_exact(self) -> bool:
        """Whether the motion is the one that satisfies all rows, which scalar code finds."""

    def with_lowering(self, often):
        pays = runs_machine_code() or (often and jax.default_backend() != "cpu")
        may = self.expand is None and pays and self.is_svd and self.is_exact
        return dataclasses.replace(self, expand=True) if may else self

    def certain(self, m, dtype):
        may = self.expand and self.is_exact
        return certainty(self.pseudoinverse, self.consistency_rtol, m, dtype) if may else None


class TracedTerms(NamedTuple):
    """The terms as a traced function, and the rest of them.

    Attributes:
        closed: arrays -> M, Q, A, b, and the rows whose rounding errors are asked for.
        arrays: The state, and arrays that are being traced and that the terms are made of.
        terms: What else there is.
        inverse_dynamics: `TermsFunctions.imbalance`.
    """

    closed: ClosedJaxpr
    arrays: list[Array]
    terms: Terms
    inverse_dynamics: Partial | None

    @classmethod
    def of(cls, terms_of: TermsFunctions, state: Sequence[Array]) -> "TracedTerms":
        kept: list[Terms] = []

        def arrays(*state):
            loose: list[tuple[Array, Array]] = []

            def noted(of, *state):
                loose.extend(of(*state))
                return loose, None

            terms = terms_of.dense(*state, rows_by=noted)
            kept.append(terms)
            return (terms.M, terms.Q, terms.A, terms.b), loose

        closed, further = with_constants_as_arguments(jax.make_jaxpr(arrays)(*state))
        return cls(closed, [*state, *further], kept[0], terms_of.imbalance)

    @property
    def traced(self) -> ClosedJaxpr:
        """The function arrays -> M, Q, A, b."""
        return with_results(self.closed, range(4))

    @property
    def rounding(self) -> Callable[..., Sequence[Array]] | None:
        """The function arrays -> sizes of the rounding errors of A and b; None if these are not asked for."""
        closed, loose = self.closed, self.terms.loose

        def errors(*arrays: Array) -> Sequence[Array]:
            found = iter(rounding_errors_of(closed, range(4, len(closed.out_avals)), arrays))
            return of_loose(loose, list(zip(found, found, strict=True))) or ()

        return errors if any(loose) else None

    @property
    def imbalance(self) -> Traceable | None:
        """The function (arrays, a, l) -> Q - M a + A^T l, b - A a; None if it is to be found from the terms."""
        if self.inverse_dynamics is None or not self.rows:
            return None
        leaves, structure = jax.tree_util.tree_flatten(self.inverse_dynamics)
        place = {id(x): i for i, x in enumerate(self.arrays)}
        places = [place.get(id(x)) for x in leaves]
        # What is traced later may hold no array that is being traced now. One that is in no term is not needed.
        known = [jax.ShapeDtypeStruct(x.shape, x.dtype) if is_traced(x) else x for x in leaves]
        rows, avals = self.terms.rows, [*self.closed.in_avals, self.closed.out_avals[1], self.closed.out_avals[3]]

        def unbalanced(*args: Array) -> tuple[Vector, RowValues]:
            given = [_filled(x) if i is None else args[i] for x, i in zip(known, places, strict=True)]
            return jax.tree_util.tree_unflatten(structure, given)(rows, *args[:3], *args[-2:])

        return Traceable(lambda: jax.make_jaxpr(unbalanced)(*avals), avals, avals[-2:], False)

    @property
    def coordinates(self) -> int:
        return self.closed.out_avals[0].shape[0]

    @property
    def rows(self) -> int:
        return self.closed.out_avals[2].shape[0]

    def certain(self, formulation: AbstractPseudoinverseFormulation) -> _expand.Certain:
        """Returns the limits within which a factorisation of M and A M^-1 A^T is trusted."""
        dtype = self.closed.out_avals[0].dtype
        return certainty(formulation.pseudoinverse, formulation.consistency_rtol, self.rows, dtype)

    def solve_by(self, formulation: AbstractPseudoinverseFormulation) -> Callable[..., Motion]:
        return Partial(ft.partial(_solved, self.terms.partition, self.terms.rows), formulation)


def _filled(leaf: PyTree) -> PyTree:
    """The leaf as an array: where it is only the type of one, which no result depends on, NaN or zeros."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    return jnp.full(leaf.shape, jnp.nan if jnp.issubdtype(leaf.dtype, jnp.inexact) else 0, leaf.dtype)


def _solved(
    partition: Partition | None,
    rows: tuple[tuple[str, int], ...] | None,
    formulation: AbstractPseudoinverseFormulation,
    M: Matrix,
    Q: Vector,
    A: Rows,
    b: RowValues,
    *rounding: Array,
) -> Motion:
    errors = (rounding[0], rounding[1]) if rounding else None
    return formulation.solve(Terms(M, Q, A, b, None, partition, rows, errors))


def expanded(
    formulation: AbstractPseudoinverseFormulation, terms_of: TermsFunctions, dense: TracedTerms
) -> Motion | None:
    """Returns the motion at a state by scalar code, or None if scalar code does not apply.

    Where the scalar program is not certain of the motion, `formulation` computes it.
    """
    if dense.terms.nonideal is not None or dense.coordinates == 0:
        return None
    most = _expand.limits().function
    if terms_of.modular is not None and not runs_machine_code():
        most = min(most, MOST_OF_MODULES)
    return _expand.guarded_motion(
        dense.solve_by(formulation),
        _certainly,
        dense.certain(formulation),
        most,
        dense.traced,
        dense.arrays,
        dense.rounding,
        dense.imbalance,
    )


def by_recursion(
    formulation: AbstractPseudoinverseFormulation,
    terms_of: TermsFunctions,
    dense: Callable[[], TracedTerms],
    state: Sequence[Array],
) -> Motion | None:
    """Returns the motion of an unconstrained system that needs no M (`terms_of.free`), or None if there is none.

    Where the recursion is not certain of the motion, `formulation` computes it.
    """
    free = terms_of.free
    if free is None:
        return None
    terms, certain = dense(), dense().certain(formulation)
    others = terms.arrays[len(state) :] if free.acceleration is None else []

    def found(*arrays):
        if free.acceleration is None:
            M, Q, _, _ = jaxpr_as_fun(terms.traced)(*arrays)
            acceleration, (pivots, diagonal) = _expand.solve(M, Q), (_expand.pivots(M).pivots, jnp.diag(M))
        else:
            acceleration, (pivots, diagonal) = free.acceleration(*arrays)
        definite = jnp.all(pivots > certain.pivot * diagonal)
        return acceleration, definite & jnp.isfinite(jnp.sum(acceleration))

    try:
        lowerings = free.lowering, free.slopes_lowering
        acceleration, clear = _expand.tiled_dynamics(found, state, others, free.slopes, *lowerings)
    except (_expand.TooLong, _expand.NotScalar):
        return None
    # The rest of the motion is known: nothing else need be computed, nor carried through derivatives.
    slow = Partial(_without_constraints, terms.solve_by(formulation))
    none, zero = jnp.zeros_like(acceleration), jnp.zeros((), acceleration.dtype)
    known = _certainly(acceleration, acceleration, none, zero, jnp.zeros(0, bool))
    acceleration, result = _expand.guarded(
        slow, (acceleration, known.result), clear, clear, terms.traced, terms.arrays, terms.rounding
    )
    return dataclasses.replace(known, acceleration=acceleration, unconstrained_acceleration=acceleration, result=result)


def _without_constraints(solve: Callable[..., Motion], *terms: Array) -> tuple[Vector, RESULTS]:
    motion = solve(*terms)
    return motion.acceleration, motion.result


def by_blocks(
    formulation: AbstractPseudoinverseFormulation,
    terms_of: TermsFunctions,
    dense: Callable[[], TracedTerms],
    state: Sequence[Array],
    often: bool,
) -> Motion | None:
    """Returns the motion at a state block by block, or None without modules or with few constraints.

    Where the block factorisation is not certain of the motion, `formulation` computes it.
    """
    modular, fewest = terms_of.modular, FEWEST_CONSTRAINTS if often else FEWEST_AT_ONE_STATE
    if modular is None or sum(map(len, modular.groups)) < fewest:
        return None
    masses, Q, rows = modular.terms(*state)
    places = _blocks.places_of(modular.partition, modular.groups, tuple(A.shape[1] for A, _ in rows))
    tolerance = rank_tolerance_of(formulation.pseudoinverse, Q.dtype)
    root = float(places.rows.shape[1]) ** 0.5
    certain = _expand.Certain(
        rank=RANK_MARGIN * tolerance,
        dependent=tolerance / (RANK_MARGIN * root),
        **_accurate(formulation.consistency_rtol, Q.dtype),
    )
    # Rounding errors of some hundred blocks add up.
    certain = certain._replace(push=certain.residual)
    found = _blocks.block_motion(places, certain, masses, Q, rows)
    return _where_clear(formulation, dense(), found)


def by_panels(formulation: AbstractPseudoinverseFormulation, dense: TracedTerms) -> Motion | None:
    """Returns the motion by M as a whole, for many states at a time, or None if there are too many coordinates.

    Where the panels are not certain of the motion, `formulation` computes it.
    """
    if dense.terms.nonideal is not None or not 0 < dense.coordinates <= MOST_COORDINATES:
        return None
    found = _panels.panel_motion(dense.certain(formulation), dense.traced, dense.arrays)
    return _where_clear(formulation, dense, found)


def _where_clear(formulation: AbstractPseudoinverseFormulation, dense: TracedTerms, found: _expand.Candidate) -> Motion:
    motion = _certainly(found.acceleration, found.unconstrained, found.constraint_force, found.residual, found.kept)
    slow = dense.solve_by(formulation)
    return _expand.guarded(slow, motion, found.clear, found.smooth, dense.traced, dense.arrays, dense.rounding)


def certainty(
    pseudoinverse: lx.AbstractLinearSolver, consistency_rtol: float, m: int, dtype: DTypeLike
) -> _expand.Certain:
    """Returns the limits within which a factorisation of m rows decides as a pseudoinverse does."""
    tolerance, root = rank_tolerance_of(pseudoinverse, dtype), max(1, m) ** 0.5
    accurate = _accurate(consistency_rtol, dtype)
    return _expand.Certain(rank=RANK_MARGIN * tolerance * root, dependent=tolerance / (RANK_MARGIN * root), **accurate)


def _accurate(consistency_rtol: float, dtype: DTypeLike) -> dict[str, float]:
    """Returns the limits within which masses and residuals are trusted."""
    eps = float(jnp.finfo(dtype).eps)
    # In single precision rounding alone is more than a small part of the tolerance.
    residual = max(min(1e-3 * consistency_rtol, eps**0.5), 32 * eps)
    return {"pivot": eps**0.6, "residual": residual, "push": min(residual, 1024 * eps)}


def _certainly(
    acceleration: Array, unconstrained: Array, constraint_force: Array, residual: Array, independent: Array
) -> Motion:
    return Motion(
        acceleration=acceleration,
        unconstrained_acceleration=unconstrained,
        constraint_force=constraint_force,
        nonideal_force=jnp.zeros_like(acceleration),
        rank=jnp.sum(independent),
        residual=residual,
        result=RESULTS.successful,
        drifted=jnp.asarray(False),
    )


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
