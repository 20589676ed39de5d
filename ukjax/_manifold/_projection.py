"""Projection back to the constraint manifold.

y = (q, v) side by side; e: constraint errors; J: their Jacobian; d: the step back, J d = -e; D: row scales;
G: metric, W^T W = G^-1; B = D J W^T.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array

from .. import _check, _expand
from .._constraint import are_rates
from .._formulation import certainty, completed, coordinate_scales, row_scales
from .._linalg import SVD, AbstractDecomposition, power_of_two, pseudosolve, whiten
from .._mechanism import AbstractLinkedSystem, Mechanism
from .._program import uses
from .._rounding import relative_rounding, rounding_errors
from .._types import BoolScalar, Matrix, Rows, RowValues, Scalar, Vector


# Dependent rows are dependent only at a state where all of them hold; elsewhere they are missed by the square of the
# drift. They contradict each other if they are missed by more than this part of what they move.
CURVED = 1e-3
# Rows that count are to be met but for this many rounding errors of the state. The pseudoinverse does so, factors may
# miss them by more next to a singular configuration.
EXACT = 4.0
# A projection fails if a row remains missed by more than this part of its terms, and by more than the effect of this
# many rounding errors of the state.
OFF, ROUNDINGS = 1e-5, 1e3
# Part of the largest terms that may be rounding errors of a constraint, within which a projection does not jump.
LEAST = 1e-9


class Projection(eqx.Module):
    r"""Returns the state to the constraint manifold after every accepted step, along the shortest way.

    Positions are found by Newton's method, then velocities by one linear solve, or by Newton's method if constraints
    are not linear in v. Both use the metric of the mass matrix:

    $$q \leftarrow q - M^{-1/2} (J M^{-1/2})^{+}\,\Phi(q, t), \qquad
      v \leftarrow v - M^{-1/2} (A M^{-1/2})^{+}\,[\dot\Phi; \psi](q, v, t)$$

    The initial state and the saved ones are projected too. An `AccelerationConstraint` has nothing to return to. An
    adaptive step is made shorter in three cases: a row of the positions remains missed by more than 1e-5 of its own
    terms; positions move by more than a tenth of the step itself; or velocities miss constraints that are not linear in
    them. A run that cannot go on so ends with `RESULTS.projection_off_constraints`. Units do not matter to that, but
    the origin of the coordinates does: begin neither at a million lengths from the origin nor, at constant steps, at
    rest in it.

    Args:
        iterations: Newton steps. The drift of one integration step is small, so that two leave
            rounding errors only.
        pseudoinverse: The lineax solver for the pseudoinverse. Its rank test decides which directions are corrected:
            close to a singular configuration a small drift along a small singular value would be a long way to go.

    M may be singular: rows are added to it, as J^T D^2 J, which does not change the shortest step.

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
        sizes: "ConstraintSizes | None" = None,
    ) -> Array:
        """Returns the state nearest to y = (q, v) that satisfies the constraints; its position is found first.

        `expand`: whether small mechanisms are computed as scalar code, as in `UdwadiaKalaba`. `coordinates`: the number
        of entries of y that are q, one half if omitted. `sizes`: sizes of the rows. With these the state is NaN if its
        position remains off the constraints, and rows may differ in length by more than rounding errors do.
        """
        q, v = jnp.split(y, [y.shape[0] // 2 if coordinates is None else coordinates])
        n = v.shape[0]

        def towards(q: Array, v: Array, t: Array, of_speeds: BoolScalar) -> Linearisation:
            """Linearises errors in velocity if `of_speeds`, else in position; rows without such an error are zero."""
            rows = mechanism.error_rows(q, v, t)
            counts = jnp.where(of_speeds, rows.of_velocity, rows.of_position)
            A = rows.A if np.all(rows.of_velocity & rows.of_position) else jnp.where(counts[:, None], rows.A, 0.0)
            size_of_q = q if mechanism.kinematics is None else jnp.max(jnp.abs(q)) * jnp.ones_like(v)
            at = Linearisation(
                M=mechanism.mass(q, t, n),
                e=jnp.where(of_speeds, rows.velocity, rows.position),
                J=A,
                size=jnp.where(of_speeds, v, size_of_q),
                # A further step follows that of positions.
                curved=jnp.where(of_speeds, 0.0, CURVED),
                counts=counts,
            )
            if sizes is None:
                return at
            ones = jnp.ones(len(rows.A), q.dtype)
            lengths = jnp.where(
                of_speeds,
                ones.at[rows.of_velocity].set(sizes.velocity.lengths),
                ones.at[rows.of_position].set(sizes.position.lengths),
            )
            positions = rows.position[rows.of_position], rows.A[rows.of_position]
            return at._replace(lengths=lengths, left=(sizes.position.missed(*positions, size_of_q),))

        def nearer(state: tuple[Array, Array], turn: Array) -> tuple[tuple[Array, Array], Array]:
            (q, v), of_speeds = state, turn > of_q - 0.5
            way, missed = jnp.split(self.shortest(towards, (q, v, t, of_speeds), expand), [n])
            return (jnp.where(of_speeds, q, mechanism.retract(q, way, t)), jnp.where(of_speeds, v + way, v)), missed

        curved = _is_curved(mechanism, q, v, t)
        # A retraction returns quaternions to unit length too.
        moves_q = mechanism.kinematics is not None or jax.eval_shape(mechanism.position_error, q, t).shape[0] > 0
        of_q, of_v = self.iterations if moves_q else 0, self.iterations if curved else 1
        # A loop, even for few steps: one step to compile, in each of the places where a simulation projects. Turns are
        # counted by floating-point numbers, as scalar code has a copy of a step for each that whole numbers tell apart.
        (q, v), missed = jax.lax.scan(nearer, (q, v), jnp.arange(of_q + of_v, dtype=y.dtype))
        missed = missed[-1]
        if curved and sizes is not None:
            missed = jnp.concatenate([missed, sizes.velocity.missed(*mechanism.velocity_rows(q, v, t), v)])
        arrived = jnp.all(stop_gradient(missed) <= 1)
        return jnp.concatenate([q, v]) + jnp.where(arrived, 0.0, jnp.nan).astype(y.dtype)

    def shortest(self, towards: Callable[..., "Linearisation"], state: Sequence[Array], expand: bool) -> Array:
        """Returns one step of Newton's method, the shortest to the linearised constraints.

        The field `left` of the linearisation is appended to the step.
        """
        m, n = jax.eval_shape(towards, *state).J.shape
        if not m:
            return jnp.zeros(n, state[0].dtype)
        found, solver = None, self.pseudoinverse

        by_matrices = Partial(_by_matrices, solver)
        if expand and isinstance(solver, AbstractDecomposition):
            # The residual is that of a least-squares problem, and no more than rounding where that can be solved.
            certain = certainty(solver, 1e-6, m, state[0].dtype)
            certain = certain._replace(push=certain.residual)

            def as_scalars(at: Linearisation) -> tuple[Array, BoolScalar, BoolScalar]:
                way, clear, smooth = _by_factors(certain, at)
                return jnp.concatenate([way, *at.left]), clear, smooth

            found = _expand.guarded_scalars(towards, by_matrices, as_scalars, _expand.limits().function, state)
        return by_matrices(towards(*state)) if found is None else found


def _is_curved(mechanism: Mechanism, q: Array, v: Array, t: Array) -> bool:
    """Whether velocity constraints are not affine in v, as rates of positions are, and rows of a system's own."""
    system = mechanism.system
    own = system.own_constraints if isinstance(system, AbstractLinkedSystem) else ()
    others = [c for name, c in mechanism.named_constraints.items() if name not in own]

    def error(v: Array) -> Array:
        return jnp.concatenate([mechanism.velocity_error_of(c, q, v, t) for c in others])

    return not are_rates(others) and uses(jax.jacfwd(error), v)[0]


def _moved(mechanism: Mechanism, q: Array, t: Array, d: Vector) -> RowValues:
    """Returns the position errors at the coordinates after a displacement d."""
    return mechanism.position_error(mechanism.retract(q, d, t), t)


class RowSizes(NamedTuple):
    """Sizes of the rows of position or velocity errors at a state, whatever their units; without gradients.

    Attributes:
        lengths: Powers of two, about the lengths of the rows if none of their terms cancelled, (m,).
        terms: The sizes of the terms of the errors (m,).
        scales: Scales of the coordinates, in the metric of the mass matrix, (n,).
    """

    lengths: RowValues
    terms: RowValues
    scales: Vector

    def missed(self, error: RowValues, J: Rows, size: Vector) -> RowValues:
        """Returns errors as parts of the allowed errors (m,), where coordinates are as large as `size` (n,)."""
        error, J, size = stop_gradient((error, J, jnp.abs(size)))
        eps = float(jnp.finfo(error.dtype).eps)
        terms = jnp.maximum(self.terms, jnp.sum(jnp.abs(J) * size[None], axis=1))
        rounding = ROUNDINGS * eps * self.lengths * jnp.max(size / self.scales, initial=0.0)
        allowed = max(OFF, 8 * eps**0.5) * terms + rounding
        return jnp.abs(error) / jnp.maximum(allowed, jnp.finfo(error.dtype).tiny)


class ConstraintSizes(NamedTuple):
    """Sizes of the rows of position errors and of velocity errors, at the start of a motion.

    They are found once, and not at every step, so that verdicts do not change on the way. A row that is shorter
    elsewhere by rounding has no slope there, however long other rows are. `coordinates`: scales of q in the metric of
    the mass matrix (N,).
    """

    position: RowSizes
    velocity: RowSizes
    coordinates: Vector

    @property
    def scales(self) -> tuple[Vector, Array]:
        """Scales of the coordinates, and the least distance in these that a jump covers."""
        least = max(LEAST, ROUNDINGS * float(jnp.finfo(self.coordinates.dtype).eps))
        return self.coordinates, least * jnp.max(self.position.terms / self.position.lengths, initial=0.0)

    @staticmethod
    def of(mechanism: Mechanism, q: Array, v: Array, t: Array) -> "ConstraintSizes":
        def moved(d: Array, q: Array, t: Array) -> RowValues:
            return _moved(mechanism, q, t, d)

        def velocity_error(v: Array, q: Array, t: Array) -> RowValues:
            return mechanism.velocity_error(q, v, t)

        errors: list[tuple[Callable[..., RowValues], Array]] = [(moved, jnp.zeros_like(v))]
        if not are_rates(mechanism.constraints):
            errors.append((velocity_error, v))
        # One kernel for an error, which is evaluated for every change of its numbers.
        rounding = [rounding_errors(error, x, q, t, lowered=_expand.scalars) for error, x in errors]
        args = (q, v, t, *rounding)
        found = _expand.scalars(ft.partial(ConstraintSizes._of, mechanism), *args)(*args)
        return stop_gradient(found)

    @staticmethod
    def _of(mechanism: Mechanism, q: Array, v: Array, t: Array, *rounding: RowValues) -> "ConstraintSizes":
        n = v.shape[0]
        M, (moves, of_q) = stop_gradient(mechanism.mass(q, t, n)), mechanism.displacements(q, t, n)

        def sizes(rounding: RowValues, J: Rows, size: Array) -> RowSizes:
            """Returns the sizes of an error with slopes J by what is as large as `size` (n,)."""
            J, terms = stop_gradient(J), rounding / relative_rounding(q.dtype)
            C = coordinate_scales(M, J)
            # A row whose terms cancel gets the length that they have relative to x.
            most = jnp.max(size / C, initial=0.0)
            of_terms = terms / jnp.where(most > 0, most, 1.0)
            lengths = jnp.maximum(jnp.max(jnp.abs(J) * C[None], axis=1, initial=0.0), of_terms)
            return RowSizes(power_of_two(jnp.where(lengths > 0, lengths, 1.0)), terms, C)

        rows = mechanism.error_rows(q, v, t)
        position = velocity = sizes(rounding[0], rows.A[rows.of_position], of_q)
        if len(rounding) > 1:
            velocity = sizes(rounding[1], rows.A[rows.of_velocity], jnp.abs(v))
        largest = jnp.max(jnp.abs(moves) * position.scales[None], axis=1)
        return ConstraintSizes(position, velocity, jnp.where(largest > 0, largest, 1.0))


class Linearisation(NamedTuple):
    """Constraints linearised near a state, the metric M, and the size of the state (n,), for its rounding errors.

    `curved`: the part of the step by which rows that depend on others may be missed. `counts`: the rows that are there;
    others, and their slopes, are zero. `lengths`: lengths of the rows elsewhere, which decide, whatever the units,
    which rows have a slope here; (m,) or one. `left`: arrays to be returned after the step, so that one program
    computes both.
    """

    M: Matrix
    e: RowValues
    J: Rows
    size: Vector
    curved: Scalar | float = 0.0
    counts: Array | bool = True
    lengths: RowValues | float = 1.0
    left: tuple[RowValues, ...] = ()


def _by_matrices(solver: lx.AbstractLinearSolver, at: Linearisation) -> Array:
    return jnp.concatenate([_by_pseudoinverse(solver, at), *at.left])


def _by_pseudoinverse(solver: lx.AbstractLinearSolver, at: Linearisation) -> Array:
    """Returns d = -W^T B^+ D e."""
    e, J = at.e / at.lengths, at.J / jnp.reshape(at.lengths, (-1, 1))
    _, W, _ = whiten(completed(at.M, J))
    B = J @ W.T
    D = row_scales(B)  # the rank test is not to depend on the units of rows
    return -W.T @ pseudosolve(solver, D[:, None] * B, D * e)[0]


def _by_factors(certain: _expand.Certain, at: Linearisation) -> tuple[Array, BoolScalar, BoolScalar]:
    """Returns d with M d = J^T l and J d = -e, whether d is certain, and whether its derivatives are."""
    least, rest = certain.dependent**2, jnp.zeros_like(at.size)
    way, multipliers = _expand.constrained(least, at.M, rest, at.J, -at.e)
    (M, e, J, size, curved, counts, *_), d, multipliers = stop_gradient((at, way, multipliers))
    S = _expand.SchurComplement.of(M, J, least).S
    rows = _expand.pivots(S, least)
    push = jnp.sqrt(jnp.abs(multipliers @ e))
    missed = e + J @ d
    # Allowed errors: the rounding errors of the state; of rows that depend on others also a part of the step.
    rounding = EXACT * jnp.finfo(e.dtype).eps * (jnp.sqrt(jnp.abs(size @ (M @ size))) + push)
    allowed = jnp.where(rows.kept, rounding, curved * push + rounding)
    near = jnp.abs(missed) <= allowed * jnp.sqrt(jnp.abs(jnp.diag(S)))
    missed = jnp.where(near, 0.0, missed)
    clear = _expand.are_clear(certain, S, rows, jnp.zeros_like(e), e, missed, push) & _expand.is_definite(certain, M)
    clear &= jnp.all(near | ~rows.kept) & jnp.isfinite(jnp.sum(d))
    return way, clear, clear & jnp.all(rows.kept | ~jnp.asarray(counts))
