"""The interface of formulations, and the code common to those that use a pseudoinverse.

Such a formulation factorises once, and then has the motion at a state as a linear map of force and b.

n: coordinates; m: constraint rows; c: non-ideal force; L L^T = M, W = L^-1; w = W force; B = A W^T; D: row scales;
H = D B; x: change of w by the constraints.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from .. import _check
from .._expand import Certain
from .._linalg import (
    SVD,
    AbstractDecomposition,
    AbstractPseudoinverse,
    Jacobi,
    SkipIfZero,
    only_where,
    pseudoinverse,
    pseudoinverse_at,
    pseudosolve,
    pseudosolve_at,
    rank_tolerance,
    rank_tolerance_of,
)
from .._result import RESULTS, worst
from .._show import AbstractShown, Report, outcome, shortened, values
from .._terms import Terms, TermsFunctions
from .._types import BoolScalar, IntScalar, Matrix, Rows, RowValues, Scalar, Vector
from ._problem import ConsistencyTest, WhitenedTerms


class Response(NamedTuple):
    """The motion under a force and b; from a linear map, by each of r decisions about the rank along the first axis.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2].
        constraint_force: Force that the constraints add (n,) [N or N m].
        rank: Rank of A found by the rank test.
        unique: Whether the acceleration is unique: [M; A] has full rank.
    """

    acceleration: Array
    constraint_force: Array
    rank: Array
    unique: Array


class AbstractLinearMap(eqx.Module):
    """A linear map (force (n,), b (m,)) -> r `Response`s."""

    @abc.abstractmethod
    def __call__(self, force: Vector, b: RowValues) -> Response:
        """Returns the motion under this force and b; of two decisions by one factorisation the coarser is first."""

    @abc.abstractmethod
    def free(self, force: Vector) -> Vector:
        """Size of the motion that the constraints act against, in the metric of the problem (n,)."""


def one_response(acceleration: Vector, force: Vector, rank: IntScalar, unique: BoolScalar) -> Response:
    """Returns the response by a single decision about the rank."""
    return Response(acceleration[None], force[None], rank[None], unique[None])


class DefiniteMass(AbstractLinearMap):
    """The map by the pseudoinverse of H or, `squared`, by that of H H^T; P (r, n, m) holds it for repeated use.

    A pseudoinverse that knows the singular values decides at two tolerances, of which `finest` is the second. Where the
    metric is not that of M (`is_mass` is false), the constraints add M q'' - force.
    """

    M: Matrix
    L: Matrix
    W: Matrix
    B: Rows
    D: RowValues
    P: Array | None
    rank: Array | None
    is_mass: BoolScalar | None
    solver: lx.AbstractLinearSolver
    finest: float | None = eqx.field(static=True)
    squared: bool = eqx.field(static=True)

    def __init__(
        self,
        problem: WhitenedTerms,
        solver: lx.AbstractLinearSolver,
        repeatedly: bool,
        finest: float | None = None,
        squared: bool = False,
    ):
        self.M, self.L, self.W, self.B, self.D = problem.M, problem.L, problem.W, problem.B, problem.D
        self.is_mass = problem.is_mass
        self.solver, self.finest, self.squared = solver, finest, squared
        self.P = self.rank = None
        if repeatedly and self.B.shape[0]:
            H = problem.H
            P, self.rank = self._inverse(H @ H.T if squared else H)
            self.P = H.T @ P if squared else P

    def __call__(self, force, b):
        w = self.W @ force
        X, rank = self._corrections(self.D * (b - self.B @ w))
        acceleration, added = (w[None] + X) @ self.W, X @ self.L.T
        if self.is_mass is not None:
            added = jnp.where(self.is_mass, added, acceleration @ self.M - force[None])
        return Response(acceleration, added, rank, jnp.ones(rank.shape, bool))

    def free(self, force):
        return jnp.abs(self.W @ force)

    def _corrections(self, y: RowValues) -> tuple[Array, Array]:
        """Returns x (r, n) and the rank (r,)."""
        if self.B.shape[0] == 0:
            return jnp.zeros((1, self.B.shape[1]), self.B.dtype), jnp.zeros(1, int)
        if self.P is not None and self.rank is not None:
            return self.P @ y, self.rank
        H = self.D[:, None] * self.B
        if not self.squared:
            return self._solution(H, y)
        multipliers, rank = self._solution(H @ H.T, y)
        return multipliers @ H, rank

    def _inverse(self, matrix: Array) -> tuple[Array, Array]:
        if isinstance(self.solver, AbstractDecomposition):
            return pseudoinverse_at(self.solver, matrix, self._tolerances(self.solver))
        P, rank = pseudoinverse(self.solver, matrix)
        return P[None], rank[None]

    def _solution(self, matrix: Array, y: RowValues) -> tuple[Array, Array]:
        if isinstance(self.solver, AbstractDecomposition):
            return pseudosolve_at(self.solver, matrix, y, self._tolerances(self.solver))
        x, rank = pseudosolve(self.solver, matrix, y)
        return x[None], rank[None]

    def _tolerances(self, solver: AbstractDecomposition) -> tuple[float, ...]:
        first = rank_tolerance_of(solver, self.B.dtype)
        return (first,) if self.finest is None else (first, self.finest)


class SingularMass(AbstractLinearMap):
    """The map L^T q'' = F W force + G D b for an M that may be singular; `unique`: whether [M; A] has full rank.

    Rounding errors of the map leave an error of the rows, which G corrects once.
    """

    M: Matrix
    A: Rows
    W: Matrix
    D: RowValues
    F: Matrix
    G: Array
    rank: IntScalar
    unique: BoolScalar

    def __init__(self, problem: WhitenedTerms, F: Matrix, G: Array, rank: IntScalar, unique: BoolScalar):
        self.M, self.A, self.W, self.D = problem.M, problem.A, problem.W, problem.D
        self.F, self.G, self.rank, self.unique = F, G, rank, unique

    def __call__(self, force, b):
        first = self.W.T @ (self.F @ (self.W @ force) + self.G @ (self.D * b))
        acceleration = first + self.W.T @ (self.G @ (self.D * (b - self.A @ first)))
        return one_response(acceleration, self.M @ acceleration - force, self.rank, self.unique)

    def free(self, force):
        # Where the constraints leave no freedom F is nothing but rounding errors, which are those of a free motion.
        size = jnp.abs(self.W @ force)
        return jnp.abs(self.F) @ size + jnp.max(size, initial=0.0)


class Motion(AbstractShown):
    """The motion at one state.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2]. If the constraints contradict each other it is a least-squares one;
            if it is not unique, one of many; if the terms are unusable it is NaN. `result` says which.
        unconstrained_acceleration: a = M^-1 Q (n,); NaN where M is singular.
        constraint_force: The ideal constraint force, which does no virtual work (n,) [N or N m].
        nonideal_force: Acting part of the non-ideal force c (n,) [N or N m].
        rank: Rank of A found by the rank test of the pseudoinverse.
        residual: Euclidean norm of A q'' - b.
        result: `RESULTS`; empty message if all went well.
        drifted: Whether the rows contradict each other, but by a hundredth of their own terms at most, as redundant
            rows do at a state off the constraints.
        constraint_forces: Share of each constraint in `constraint_force`, by its name, (n,) [N or N m]; None, like
            `multipliers`, unless computed by `equation_of_motion(reactions=True)`.
        multipliers: Lagrange multipliers of each constraint's rows, by its name, (m,): A^T lambda is its force. Where
            rows depend on each other only the sum over all constraints is determined. These are the multipliers of
            least Euclidean norm for the rows as the user wrote them, so that equal rigid supports share equally.
    """

    acceleration: Vector
    unconstrained_acceleration: Vector
    constraint_force: Vector
    nonideal_force: Vector
    rank: IntScalar
    residual: Scalar
    result: RESULTS
    drifted: BoolScalar
    constraint_forces: dict[str, Vector] | None = None
    multipliers: dict[str, Array] | None = None

    def _report(self) -> Report:
        rows = [
            ("acceleration [m/s^2 or rad/s^2]", values(self.acceleration)),
            ("without constraints", values(self.unconstrained_acceleration)),
            ("constraint force [N or N m]", values(self.constraint_force)),
            ("non-ideal force [N or N m]", values(self.nonideal_force)),
            ("rank of the constraints", values(self.rank)),
            ("residual of the constraints", values(self.residual)),
        ]
        rows += [(f"force of {name}", values(x)) for name, x in (self.constraint_forces or {}).items()]
        rows += [(f"multipliers of {name}", values(x)) for name, x in (self.multipliers or {}).items()]
        shown, more = shortened(rows)
        return Report(f"Motion: {outcome(self.result)}", shown, notes=more)


class AbstractFormulation(eqx.Module):
    """A method to compute the constrained acceleration from (M, Q, A, b, c)."""

    @abc.abstractmethod
    def solve(self, terms: Terms) -> Motion:
        """Returns the motion; `rank`, `residual` and `result` are always filled."""


class AbstractLoweredFormulation(AbstractFormulation):
    """A formulation that may use the terms as functions of the state, not only their values."""

    @abc.abstractmethod
    def motion(self, terms_of: TermsFunctions, *state: Array) -> Motion:
        """Returns the motion of `solve(terms_of.dense(*state))`, by a fast path where one applies."""

    @abc.abstractmethod
    def certain(self, m: int, dtype: DTypeLike) -> Certain | None:
        """Returns the limits within which factors of M and A M^-1 A^T (m rows) give the answer, or None."""

    @abc.abstractmethod
    def with_lowering(self, often: bool) -> AbstractFormulation:
        """Returns this formulation with all choices made that depend on whether it is used `often`, for many states."""


def motion_by(formulation: AbstractFormulation, terms_of: TermsFunctions, *state: Array) -> Motion:
    """Returns the motion at a state by a formulation, from terms that are functions of the state."""
    if isinstance(formulation, AbstractLoweredFormulation):
        return formulation.motion(terms_of, *state)
    return formulation.solve(terms_of.whole(*state))


def certain_of(formulation: AbstractFormulation, m: int, dtype: DTypeLike) -> Certain | None:
    """Returns `certain` of a formulation, or None if it has no fast path."""
    return formulation.certain(m, dtype) if isinstance(formulation, AbstractLoweredFormulation) else None


def with_lowering(formulation: AbstractFormulation, often: bool) -> AbstractFormulation:
    """Returns the formulation with all choices made that depend on its use."""
    return formulation.with_lowering(often) if isinstance(formulation, AbstractLoweredFormulation) else formulation


class AbstractLinearFormulation(AbstractFormulation):
    """A formulation that factorises once, and then gives the motion under any force."""

    @abc.abstractmethod
    def init(self, terms: Terms) -> PyTree:
        """Returns the factorisation at one state, a pytree; the rank is decided for the force and the b of `terms`.

        Its attribute `motion` is the `Motion` under that force and b.
        """

    @abc.abstractmethod
    def compute(self, state: PyTree, force: Vector, b: RowValues) -> Response:
        """Returns the motion under `force` (n,) with `b` (m,), linear in both and without a non-ideal force."""


class Factorisation(eqx.Module):
    """The motion as linear maps, which hold two decisions about the rank, and whether the finer one counts.

    Attributes:
        motion: Motion under the force, the b and the non-ideal force for which the rank was decided.
    """

    maps: tuple[AbstractLinearMap, ...]
    is_fine: BoolScalar
    motion: Motion


class _Decision(NamedTuple):
    """The motion under one force, the maps that gave it, and the verdict on the rank and the rows."""

    response: Response
    maps: tuple[AbstractLinearMap, ...]
    is_fine: BoolScalar
    consistent: BoolScalar
    drifted: BoolScalar


class AbstractPseudoinverseFormulation(AbstractLinearFormulation):
    """A formulation that uses a pseudoinverse, with a test of the consistency of the rows."""

    pseudoinverse: lx.AbstractLinearSolver = SVD()
    consistency_rtol: float = 1e-6

    def __check_init__(self):
        _check.instance(self.pseudoinverse, lx.AbstractLinearSolver, "pseudoinverse", "ukjax.SVD()")
        _check.tolerance(self.consistency_rtol, "consistency_rtol")

    def init(self, terms: Terms) -> Factorisation:
        return self._factorise(terms, True)

    def compute(self, state: Factorisation, force: Vector, b: RowValues) -> Response:
        return _chosen(state.is_fine, *(one(force, b) for one in state.maps))

    def solve(self, terms: Terms) -> Motion:
        if terms.nonideal is not None:
            return self._factorise(terms, True).motion
        # The names of rows are left out: they would make JAX trace again for mechanisms of the same shapes.
        M, Q, A, b = terms.M, terms.Q, terms.A, terms.b
        return _solved(self, Terms(M, Q, A, b, partition=terms.partition, rounding=terms.rounding))

    def is_consistent(self, problem: WhitenedTerms) -> BoolScalar:
        """Whether some decision about the rank satisfies the rows of a problem, under its force."""
        return self._decide(problem, self._map(problem, self.pseudoinverse, False), problem.Q, False).consistent

    def _factorise(self, terms: Terms, repeatedly: bool) -> Factorisation:
        """Guards the terms, adds the non-ideal force, and tests the motion.

        The ideal force is what the constraints add to Q. The non-ideal force c acts only as far as the constraints let
        it, which is what the same map makes of c with b = 0. Liu et al. (2015), eq. 12 and 13.
        """
        terms, finite = _usable(terms)
        problem = self._problem(terms)
        first = self._map(problem, self.pseudoinverse, repeatedly)
        decision = self._decide(problem, first, terms.Q, repeatedly)
        ideal_force, nonideal_force = decision.response.constraint_force, jnp.zeros_like(terms.Q)
        if terms.nonideal is not None:
            c = terms.nonideal(ideal_force)
            finite = finite & _all_finite(c)
            c = jnp.where(finite, c, jnp.zeros_like(c))
            decision = self._decide(problem, first, terms.Q + c, repeatedly)
            nonideal_force = c + (decision.response.constraint_force - ideal_force)

        acceleration, _, rank, unique = decision.response
        usable = finite & (problem.result != RESULTS.mass_not_positive_definite)

        def mask(value: Array) -> Array:
            return jnp.where(usable, value, jnp.nan)

        residual = jnp.linalg.norm(stop_gradient(terms.A @ acceleration - terms.b))
        motion = Motion(
            acceleration=mask(acceleration),
            unconstrained_acceleration=mask(problem.unconstrained),
            constraint_force=mask(ideal_force),
            nonideal_force=mask(nonideal_force),
            rank=rank,
            residual=mask(residual),
            result=worst(
                RESULTS.where(finite, RESULTS.successful, RESULTS.not_finite),
                problem.result,
                RESULTS.where(unique, RESULTS.successful, RESULTS.acceleration_not_unique),
                RESULTS.where(decision.consistent, RESULTS.successful, RESULTS.constraints_contradict),
            ),
            drifted=decision.drifted,
        )
        return Factorisation(decision.maps, decision.is_fine, motion)

    @abc.abstractmethod
    def _problem(self, terms: Terms) -> WhitenedTerms:
        """Returns the terms in the metric in which the rank is decided."""

    @abc.abstractmethod
    def _map(self, problem: WhitenedTerms, solver: lx.AbstractLinearSolver, repeatedly: bool) -> AbstractLinearMap:
        """Returns the constrained motion as a linear map, which will be applied once or `repeatedly`.

        Where one factorisation also gives the decision at the finest tolerance, the map may hold both.
        """

    def _finest(self, problem: WhitenedTerms) -> float:
        """Returns the tolerance of the finer decision about the rank.

        It is the cube of the first tolerance, not its square, the next natural cut. Below the last cut nothing can be
        decided, and drift and masses that differ by ten decades lie between the two.
        """
        dtype = problem.A.dtype
        return rank_tolerance(rank_tolerance_of(self.pseudoinverse, dtype) ** 3, dtype)

    def _decide(self, problem: WhitenedTerms, first: AbstractLinearMap, force: Vector, repeatedly: bool) -> _Decision:
        """Returns the motion under a force, with the rank that the rows themselves confirm: see `_consistency`."""
        tolerance, finest = rank_tolerance_of(self.pseudoinverse, problem.A.dtype), self._finest(problem)
        test = ConsistencyTest(self.consistency_rtol, tolerance, finest)
        maps, responses, free = (first,), first(force, problem.b), first.free(force)
        missed = ~test.is_met(problem, responses.acceleration[0], free)
        if responses.rank.shape[0] == 1:
            second = self._map(problem.where(missed), self._seldom(finest), repeatedly)
            maps, others = (first, second), second(force, problem.b)
            responses = _stacked(responses, others)
        verdict = only_where(missed, test, problem, responses.acceleration, free)
        chosen = _chosen(verdict.is_fine, responses)
        return _Decision(chosen, maps, verdict.is_fine, ~missed | verdict.consistent, missed & verdict.drifted)

    def _seldom(self, finest: float) -> SkipIfZero:
        """Returns the solver that decides the rank more finely: `Jacobi`, or `SVD` for itself and foreign solvers.

        Jacobi finds small singular values exactly, calls no LAPACK, and compiles sooner than most strategies twice.
        """
        own = isinstance(self.pseudoinverse, AbstractPseudoinverse) and not isinstance(self.pseudoinverse, SVD)
        return SkipIfZero(Jacobi(finest) if own else SVD(finest), finest)


@eqx.filter_jit
def _solved(formulation: AbstractPseudoinverseFormulation, terms: Terms) -> Motion:
    """Returns the motion without a non-ideal force; JAX traces this once for mechanisms of the same shapes."""
    return formulation._factorise(terms, False).motion


def _stacked(*responses: Response) -> Response:
    return jax.tree_util.tree_map(lambda *xs: jnp.concatenate(xs), *responses)


def _chosen(is_fine: BoolScalar, *responses: Response) -> Response:
    """Returns the last of all responses where the finer decision counts, otherwise the first."""
    return jax.tree_util.tree_map(lambda x: jnp.where(is_fine, x[-1], x[0]), _stacked(*responses))


def _usable(terms: Terms) -> tuple[Terms, BoolScalar]:
    """Returns the terms, zero if any is not finite and in rows of rounding errors, and whether all are finite.

    Unusable terms are replaced before they are used, and the answer is made NaN at the end: a NaN inside a
    factorisation would also reach the gradients of other states.
    """
    arrays = terms.M, terms.Q, terms.A, terms.b
    finite = _all_finite(*arrays)
    M, Q, A, b = (jnp.where(finite, x, jnp.zeros_like(x)) for x in arrays)
    rounding = jax.tree_util.tree_map(
        lambda x: jnp.where(finite & jnp.isfinite(x), x, jnp.zeros_like(x)), terms.rounding
    )
    return Terms(M, Q, A, b, terms.nonideal, terms.partition, rounding=rounding).without_rounding, finite


def _all_finite(*arrays: Array) -> BoolScalar:
    return stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in arrays])))
