"""Back to the constraint manifold.

y = (q, v) side by side; e: constraint errors; J: their Jacobian; d: the way back, J d = -e; D: row scales;
G: metric, W^T W = G^-1; B = D J W^T.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check, _expand
from .._constraint import AccelerationConstraint, Holonomic, members_of
from .._formulation import certainty, completed
from .._linalg import SVD, AbstractDecomposition, pseudosolve, whiten
from .._mechanism import Mechanism
from .._program import uses
from .._types import BoolScalar, Matrix, Rows, RowValues, Vector
from ._nearest import linearised


# Rows that depend on others do so at the state that all of them hold at: off it they are missed by the square of the
# drift. They contradict each other if they are missed by more than this part of what they move.
CURVED = 1e-3
# Next to a singular configuration factors return less exactly than the pseudoinverse does, which leaves rounding errors
# only; so they are trusted this many times as far from it as elsewhere.
FAR = 24.0
# A projection has not arrived if it ends off the constraints by more than this part of the largest coordinate; no
# coordinate counts as smaller than LEAST_SIZE, in its own unit.
OFF, LEAST_SIZE = 1e-5, 1e-6


class Projection(eqx.Module):
    r"""Returns the state to the constraint manifold after every accepted step, along the shortest way.

    Positions by Newton's method, then velocities by one linear solve, or by Newton's method if constraints are not
    linear in v, both in the metric of the mass matrix:

    $$q \leftarrow q - M^{-1/2} (J M^{-1/2})^{+}\,\Phi(q, t), \qquad
      v \leftarrow v - M^{-1/2} (A M^{-1/2})^{+}\,[\dot\Phi; \psi](q, v, t)$$

    The initial state and the saved ones are projected too. An `AccelerationConstraint` has nothing to return to. Where
    the positions end off the constraints by more than 1e-5 of the largest coordinate, or move by more than a tenth of
    the step itself, or velocities miss constraints that are not linear in them, an adaptive step is made shorter, and a
    run that cannot go on so is `RESULTS.projection_off_constraints`. This one verdict knows units and where coordinates
    are counted from: write rows, and lengths beside angles, in units in which they are about one, and begin neither at
    a million lengths from the origin nor, at constant steps, at rest in it. With a row 1e12 times as long as another,
    or lengths in micrometres, what began far away may end 1e-4 to 1e-2 off the constraints and count as there.

    Args:
        iterations: Newton steps. The drift of one integration step is small, so that two leave
            rounding errors only.
        pseudoinverse: The lineax solver for the pseudoinverse. Its rank test decides which directions are corrected:
            close to a singular configuration a small drift along a small singular value would be a long way to go.

    M may be singular: rows are added to it, as J^T D^2 J, which changes nothing about which step is the shortest.

    Raises:
        ValueError: If `iterations` is not a positive integer.
        TypeError: If `pseudoinverse` is not a lineax solver.

    Gradients: forward and reverse mode, where the rank of A is locally constant.

    Source: the projection methods for differential-algebraic equations: Hairer & Wanner (1996), Solving Ordinary
    Differential Equations II, VII.2; the metric is Gauss's.
    """

    iterations: int = eqx.field(default=2, converter=lambda x: _check.count(x, "iterations"), static=True)
    pseudoinverse: lx.AbstractLinearSolver = SVD()

    def __check_init__(self):
        _check.instance(self.pseudoinverse, lx.AbstractLinearSolver, "pseudoinverse", "ukjax.SVD()")

    def __call__(
        self,
        mechanism: Mechanism,
        t: Array,
        y: Array,
        expand: bool = False,
        coordinates: int | None = None,
        checked: bool = False,
    ) -> Array:
        """The state nearest to y = (q, v) that satisfies the constraints; its position first.

        `expand`: whether small mechanisms are computed as scalar code, as in `UdwadiaKalaba`; `coordinates`: how many
        of the numbers in y are q, one half if omitted; `checked`: whether the state is NaN if its position ends off the
        constraints.
        """
        q, v = jnp.split(y, [y.shape[0] // 2 if coordinates is None else coordinates])
        rest = jnp.zeros_like(v)

        def towards(error: Callable[[Array], Array], q: Array, t: Array, size: Array) -> Linearisation:
            return Linearisation(mechanism.mass(q, t, v.shape[0]), error(rest), jax.jacfwd(error)(rest), size)

        def along_q(q: Array, t: Array) -> Linearisation:
            size = q if mechanism.kinematics is None else jnp.max(jnp.abs(q)) * jnp.ones_like(v)
            return towards(lambda d: mechanism.position_error(mechanism.retract(q, d, t), t), q, t, size)

        def along_v(q: Array, v: Array, t: Array) -> Linearisation:
            at = towards(lambda d: mechanism.velocity_error(q, v + d, t), q, t, v)
            return at._replace(left=_left(mechanism, q, v, t)) if checked else at

        step = lambda q, _: (mechanism.retract(q, self.shortest(along_q, (q, t), expand, CURVED), t), None)
        # A loop, however few the steps: one to compile, in each of the three places where a simulation projects.
        q, _ = jax.lax.scan(step, q, length=self.iterations)
        n, curved = v.shape[0], _is_curved(mechanism, q, v, t)
        if curved and self.iterations > 1:
            nearer = lambda v, _: (v + self.shortest(along_v, (q, v, t), expand, CURVED)[:n], None)
            v, _ = jax.lax.scan(nearer, v, length=self.iterations - 1)
        back = self.shortest(along_v, (q, v, t), expand, 0.0)
        if back.shape == v.shape:
            return jnp.concatenate([q, v + back])
        way, left = back[:-1], stop_gradient(back[-1])
        size = jnp.maximum(jnp.max(jnp.abs(stop_gradient(q)), initial=0.0), LEAST_SIZE)
        off = max(OFF, 8 * float(jnp.finfo(y.dtype).eps) ** 0.5)
        arrived = left <= off * size
        if curved:
            arrived &= jnp.all(_missed_in_velocity(mechanism, q, v + way, t) <= off)
        return jnp.concatenate([q, v + way]) + jnp.where(arrived, 0.0, jnp.nan).astype(y.dtype)

    def shortest(
        self, towards: Callable[..., "Linearisation"], state: Sequence[Array], expand: bool, curved: float
    ) -> Array:
        """One step of Newton's method, the shortest to the linearised constraints.

        What depends on other rows may be missed by the part `curved` of the way, as a further step follows. If a
        linearisation says what is left of positions, a last entry is how far from the constraints that is.
        """
        m, n = jax.eval_shape(towards, *state).J.shape
        if not m:
            return jnp.zeros(n, state[0].dtype)
        found, solver = None, self.pseudoinverse

        def by_matrices(*state: Array) -> Array:
            at = towards(*state)
            return _with_left(_by_pseudoinverse(solver, at), at)

        if expand and isinstance(solver, AbstractDecomposition):
            # The residual is that of a least-squares problem, and no more than rounding where that can be solved.
            certain = certainty(solver, 1e-6, m, state[0].dtype)
            certain = certain._replace(rank=FAR * certain.rank, push=certain.residual)

            def as_scalars(*state: Array) -> tuple[Array, BoolScalar, BoolScalar]:
                at = towards(*state)
                way, clear, smooth = _by_factors(certain, curved, at)
                return _with_left(way, at), clear, smooth

            found = _expand.scalar_or(by_matrices, as_scalars, _expand.MOST_OPERATIONS, state)
        return by_matrices(*state) if found is None else found


def _is_curved(mechanism: Mechanism, q: Array, v: Array, t: Array) -> bool:
    """Whether velocity constraints are not affine in v, as those that are rates of positions are."""
    if all(isinstance(one, Holonomic | AccelerationConstraint) for c in mechanism.constraints for one in members_of(c)):
        return False
    return uses(jax.jacfwd(lambda v: mechanism.velocity_error(q, v, t)), v)[0]


def _missed_in_velocity(mechanism: Mechanism, q: Array, v: Array, t: Array) -> RowValues:
    """The velocity errors as parts of what their rows make of v (m,)."""
    q, v, t = stop_gradient((q, v, t))
    error = lambda v: mechanism.velocity_error(q, v, t)
    rows = jnp.abs(stop_gradient(jax.jacfwd(error)(v))) * (jnp.abs(v) + LEAST_SIZE)[None]
    size = jnp.maximum(jnp.sum(rows, axis=1), jnp.finfo(v.dtype).tiny)
    return stop_gradient(jnp.abs(error(v))) / size


class Linearisation(NamedTuple):
    """Constraints near a state, the metric M, and the size of the state (n,), for what rounding makes of it.

    `left`: of velocity constraints, the errors of the positions that they are the rates of, zero where they are of
    none; None if that is not asked.
    """

    M: Matrix
    e: RowValues
    J: Rows
    size: Vector
    left: RowValues | None = None


def _left(mechanism: Mechanism, q: Array, v: Array, t: Array) -> RowValues:
    """The position errors of the constraints that have as many as velocity errors (m,); zero for the others."""
    errors = []
    for constraint in mechanism.constraints:
        m = jax.eval_shape(lambda c=constraint: mechanism.velocity_error_of(c, q, v, t)).shape[0]
        error = constraint.position_error(q, t)
        errors.append(error if error.shape[0] == m else jnp.zeros(m, q.dtype))
    return jnp.concatenate([jnp.zeros(0, q.dtype), *errors])


def _with_left(way: Array, at: Linearisation) -> Array:
    """The way, and how far it is to the row that is missed most, to first order: its error over its length."""
    if at.left is None:
        return way
    left, J = stop_gradient((at.left, at.J))
    lengths = jnp.sqrt(jnp.sum(J * J, axis=1))
    # Next to where a row has no slope it is missed by squares.
    lengths = lengths + 1e-3 * jnp.max(lengths)
    far = jnp.max(jnp.abs(left) / jnp.where(lengths > 0, lengths, 1.0))
    return jnp.concatenate([way, far[None]])


def _by_pseudoinverse(solver: lx.AbstractLinearSolver, at: Linearisation) -> Array:
    """d = -W^T B^+ D e"""
    _, W, _ = whiten(completed(at.M, at.J))
    rows = linearised(at.e, at.J, W)
    return -W.T @ pseudosolve(solver, rows.B, rows.error)[0]


def _by_factors(certain: _expand.Certain, curved: float, at: Linearisation) -> tuple[Array, BoolScalar, BoolScalar]:
    """d with M d = J^T l, J d = -e, whether that is certain, and whether its derivatives are."""
    least, rest = certain.dependent**2, jnp.zeros_like(at.size)
    way, multipliers = _expand.constrained(least, at.M, rest, at.J, -at.e)
    (M, e, J, size, _), d, multipliers = stop_gradient((at, way, multipliers))
    S = _expand.RowsThroughMass.of(M, J, least).S
    rows = _expand.pivots(S, least)
    push = jnp.sqrt(jnp.abs(multipliers @ e))
    missed = e + J @ d
    # Of the way, and of what rounding makes of the state.
    part = curved * push + 4 * jnp.finfo(e.dtype).eps * jnp.sqrt(jnp.abs(size @ (M @ size)))
    near = jnp.abs(missed) <= part * jnp.sqrt(jnp.abs(jnp.diag(S)))
    missed = jnp.where(~rows.kept & near, 0.0, missed)
    clear = _expand.are_clear(certain, S, rows, jnp.zeros_like(e), e, missed, push) & _expand.is_definite(certain, M)
    clear &= jnp.isfinite(jnp.sum(d))
    return way, clear, clear & jnp.all(rows.kept)
