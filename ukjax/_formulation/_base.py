"""What every formulation takes and gives, and what those share in which a pseudoinverse does the work.

n: coordinates; m: constraint rows; c: non-ideal force.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check
from .._expand import Certain
from .._linalg import SVD, AbstractPseudoinverse, Jacobi, Seldom, only_where, rank_tolerance, rank_tolerance_of
from .._result import RESULTS, worst
from .._terms import Terms, TermsOf
from .._types import BoolScalar, IntScalar, RowValues, Scalar, Vector
from ._consistency import Judge
from ._linear import AbstractLinearMap, Response
from ._problem import Problem


class Motion(eqx.Module):
    """The motion at one state.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2]. If the constraints contradict each other it is a least-squares one;
            if it is not unique, one of many; if the terms are unusable it is NaN. `result` tells.
        unconstrained_acceleration: a = M^-1 Q (n,); NaN where M is singular.
        constraint_force: The ideal constraint force, which does no virtual work (n,) [N or N m].
        nonideal_force: What acts of the non-ideal force c (n,) [N or N m].
        rank: Rank of A found by the rank test of the pseudoinverse.
        residual: Euclidean norm of A q'' - b.
        result: `RESULTS`; empty message if all went well.
        drifted: If the rows contradict each other, whether by a hundredth of their own terms at most, as redundant rows
            do at a state off the constraints. False if they do not.
        constraint_forces: What of `constraint_force` each constraint makes, by its name, (n,) [N or N m]; None unless
            `equation_of_motion(reactions=True)` was asked, as the multipliers.
        multipliers: Lagrange multipliers of each constraint's rows, by its name, (m,): A^T lambda is its force. Where
            rows depend on each other the sum over all constraints alone is determined; these are the multipliers of
            least Euclidean norm, of the rows as they are written, so that equal rigid supports share equally.
    """

    acceleration: Vector
    unconstrained_acceleration: Vector
    constraint_force: Vector
    nonideal_force: Vector
    rank: IntScalar
    residual: Scalar
    result: Any
    drifted: BoolScalar
    constraint_forces: dict[str, Vector] | None = None
    multipliers: dict[str, Array] | None = None


class AbstractFormulation(eqx.Module):
    """How the constrained acceleration follows from (M, Q, A, b, c)."""

    @abc.abstractmethod
    def solve(self, terms: Terms) -> Motion:
        """Returns the motion; `rank`, `residual` and `result` are always filled."""


class AbstractStateFormulation(AbstractFormulation):
    """A formulation that looks at what the terms are functions of."""

    @abc.abstractmethod
    def motion(self, terms_of: TermsOf, *state: Array) -> Motion:
        """`solve(terms_of.dense(*state))`, computed in whatever way."""

    @abc.abstractmethod
    def certain(self, m: int, dtype: Any) -> Certain | None:
        """When factors of M and of A M^-1 A^T, with m rows, give its answer; None if they are not to be asked."""

    @abc.abstractmethod
    def for_use(self, often: bool) -> AbstractFormulation:
        """The same with all choices made that depend on how it is used: for many states, or `often`, or for one."""


def motion_by(formulation: AbstractFormulation, terms_of: TermsOf, *state: Array) -> Motion:
    """The motion at a state of which the terms are a function."""
    if isinstance(formulation, AbstractStateFormulation):
        return formulation.motion(terms_of, *state)
    return formulation.solve(terms_of.whole(*state))


def certain_of(formulation: AbstractFormulation, m: int, dtype: Any) -> Certain | None:
    """When factors of M and of A M^-1 A^T, with m rows, give a formulation's answer; None if they are not asked."""
    return formulation.certain(m, dtype) if isinstance(formulation, AbstractStateFormulation) else None


def for_use(formulation: AbstractFormulation, often: bool) -> AbstractFormulation:
    """The formulation with all choices made that depend on how it is used."""
    return formulation.for_use(often) if isinstance(formulation, AbstractStateFormulation) else formulation


class AbstractLinearFormulation(AbstractFormulation):
    """A formulation that factorises once what the motion under any force then follows from."""

    @abc.abstractmethod
    def init(self, terms: Terms) -> Any:
        """The factorisation at one state, a pytree; the rank is decided for the force and the b of `terms`.

        Its attribute `motion` is the `Motion` under these.
        """

    @abc.abstractmethod
    def compute(self, state: Any, force: Vector, b: RowValues) -> Response:
        """The motion under `force` (n,) with `b` (m,), linear in both. A non-ideal force is not part of it."""


class Factorisation(eqx.Module):
    """The motion as linear maps, which hold two decisions about the rank, and whether the finer one counts.

    Attributes:
        motion: Under the force and the b, and the non-ideal force, for which the rank was decided.
    """

    maps: tuple[AbstractLinearMap, ...]
    is_fine: BoolScalar
    motion: Motion


class _Decision(NamedTuple):
    """The motion under one force, by which maps and which decision about the rank, and whether the rows are met, or
    nearly."""

    response: Response
    maps: tuple[AbstractLinearMap, ...]
    is_fine: BoolScalar
    consistent: BoolScalar
    drifted: BoolScalar


class AbstractPseudoinverseFormulation(AbstractLinearFormulation):
    """A formulation in which a pseudoinverse does the work: what its subclasses share."""

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
        # The names of rows would tell apart mechanisms of the same shapes.
        M, Q, A, b = terms.M, terms.Q, terms.A, terms.b
        return _solved(self, Terms(M, Q, A, b, partition=terms.partition, rounding=terms.rounding))

    def is_consistent(self, problem: Problem) -> BoolScalar:
        """Whether some decision about the rank meets the rows of a problem, under its force."""
        return self._decide(problem, self._map(problem, self.pseudoinverse, False), problem.Q, False).consistent

    def _factorise(self, terms: Terms, repeatedly: bool) -> Factorisation:
        """Guards what goes in, adds the non-ideal force, and judges what comes out.

        The ideal force is what the constraints add to Q; the non-ideal one, c, then acts as far as they let it, which
        is what the same map makes of it with b = 0.  Liu et al. (2015), eq. 12 and 13.
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
        mask = lambda value: jnp.where(usable, value, jnp.nan)
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
    def _problem(self, terms: Terms) -> Problem:
        """The terms in the metric in which the rank is decided."""

    @abc.abstractmethod
    def _map(self, problem: Problem, solver: lx.AbstractLinearSolver, repeatedly: bool) -> AbstractLinearMap:
        """The constrained motion as a linear map, which will be applied once or `repeatedly`.

        Where the same factorisation gives the decision at the finest tolerance too, it may hold both.
        """

    def _finest(self, problem: Problem) -> float:
        """The tolerance of the finer decision about the rank.

        It is not the square of the first, the next natural cut, but its cube: of what lies below the last one nothing
        can be told, and drift and masses that differ by ten decades lie between the two.
        """
        dtype = problem.A.dtype
        return rank_tolerance(rank_tolerance_of(self.pseudoinverse, dtype) ** 3, dtype)

    def _decide(self, problem: Problem, first: AbstractLinearMap, force: Vector, repeatedly: bool) -> _Decision:
        """The motion under a force, with the rank that the rows themselves bear out: see `_consistency`."""
        tolerance, finest = rank_tolerance_of(self.pseudoinverse, problem.A.dtype), self._finest(problem)
        judge = Judge(self.consistency_rtol, tolerance, finest)
        maps, responses, free = (first,), first(force, problem.b), first.free(force)
        missed = ~judge.is_met(problem, responses.acceleration[0], free)
        if responses.rank.shape[0] == 1:
            second = self._map(problem.where(missed), self._seldom(finest), repeatedly)
            maps, others = (first, second), second(force, problem.b)
            responses = _stacked(responses, others)
        verdict = only_where(missed, judge, problem, responses.acceleration, free)
        chosen = _chosen(verdict.is_fine, responses)
        return _Decision(chosen, maps, verdict.is_fine, ~missed | verdict.consistent, missed & verdict.drifted)

    def _seldom(self, finest: float) -> Seldom:
        """What decides the rank more finely, where it is needed: `Jacobi`, or `SVD` for itself and foreign solvers.

        Jacobi finds small singular values exactly, calls no LAPACK, and compiles sooner than most strategies twice.
        """
        own = isinstance(self.pseudoinverse, AbstractPseudoinverse) and not isinstance(self.pseudoinverse, SVD)
        return Seldom(Jacobi(finest) if own else SVD(finest), finest)


@eqx.filter_jit
def _solved(formulation: AbstractPseudoinverseFormulation, terms: Terms) -> Motion:
    """The motion without a non-ideal force. JAX traces it once for mechanisms of the same shapes."""
    return formulation._factorise(terms, False).motion


def _stacked(*responses: Response) -> Response:
    return jax.tree_util.tree_map(lambda *xs: jnp.concatenate(xs), *responses)


def _chosen(is_fine: BoolScalar, *responses: Response) -> Response:
    """The last of all responses where the finer decision counts, otherwise the first."""
    return jax.tree_util.tree_map(lambda x: jnp.where(is_fine, x[-1], x[0]), _stacked(*responses))


def _usable(terms: Terms) -> tuple[Terms, BoolScalar]:
    """The terms, or zeros where one of them is not finite, and whether they are. A row of rounding errors is zero, too.

    Unusable terms are replaced before they are used, and the answer is made NaN at the end: a NaN inside a
    factorisation would also reach the gradients of states that are all right.
    """
    arrays = terms.M, terms.Q, terms.A, terms.b
    finite = _all_finite(*arrays)
    M, Q, A, b = (jnp.where(finite, x, jnp.zeros_like(x)) for x in arrays)
    zero = lambda x: jnp.where(finite & jnp.isfinite(x), x, jnp.zeros_like(x))
    rounding = jax.tree_util.tree_map(zero, terms.rounding)
    return Terms(M, Q, A, b, terms.nonideal, terms.partition, rounding=rounding).without_rounding, finite


def _all_finite(*arrays: Array) -> BoolScalar:
    return stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in arrays])))
