r"""Coarse search for an equilibrium from a distant start, and natural sizes of its unknowns and equations.

Away from an equilibrium redundant rows contradict each other slightly, and rank decisions jump. Acceleration a and
multipliers l are therefore separate unknowns: M a = Q + G u + A^T l, A a = b, e(q, v, t) = 0, and c' = 0. These
equations are as smooth as the mechanism. As rows may depend on each other, each step is the shortest.

z: all unknowns; r: residual. Both are divided by their natural sizes, which removes the units, and then by scales of
the equations and the unknowns.

C: scales of the coordinates in the metric of the mass matrix, in which all accelerations have one unit; E: scales by
which the constraints compare coordinates, in which all displacements have one unit, and all speeds. Displacements of a
heavy body are as large as of a light one, while its accelerations are less; s_d, s_v, s_a: sizes of displacements,
speeds and accelerations in these units; N = dq / dd; G: actuation; c: quantities that must stay constant.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.lax import stop_gradient
from jaxtyping import Array

from .._formulation import balancing_scales, coordinate_scales, metric, row_scales
from .._linalg import SVD, AbstractPseudoinverse, pseudosolve, rank_tolerance
from .._manifold import Rounding
from .._rounding import with_rounding_errors
from .._types import BoolScalar, Coordinates, Rows, RowValues, Scalar, Vector
from ._plant import Plant


# Part of the largest size below which a size is small; masses of a ratio of 1e12 give larger ones.
SMALL = 1e-8


class Sizes(NamedTuple):
    """Sizes of the unknowns, and of the changes of the equations with them.

    Attributes:
        d: Displacements (n,); v: speeds (n,); u: inputs (p,); a: accelerations (n,); l: multipliers (m,).
        force: M a - Q - A^T l (n,); row: A a - b (m,); error: errors of position and velocity (r,); change: c' (k,).
        scales: C (n,).
    """

    d: Vector
    v: Vector
    u: Array
    a: Vector
    l: RowValues
    force: Vector
    row: RowValues
    error: Array
    change: Array
    scales: Vector


def sizes_of(plant: Plant, constant: Callable[..., Array], q: Coordinates, v: Vector, t: Scalar, u: Array) -> Sizes:
    """Returns sizes from the terms of the constraints, the coordinates, and the forces and their derivatives."""
    q, v, t, u = stop_gradient((q, v, t, u))
    mechanism, rest = plant.mechanism, jnp.zeros_like(v)
    terms = mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    M, Q, A, b = stop_gradient((terms.M, terms.Q, terms.A, terms.b))
    C = coordinate_scales(M, A)
    N, moved = mechanism.displacements(q, t, v.shape[0])
    position, of_d = _rows(lambda q, d, t: mechanism.position_error(mechanism.retract(q, d, t), t), q, rest, t)
    velocity, of_v = _rows(mechanism.velocity_error, q, v, t)
    levers = jnp.maximum(position.levers, jnp.abs(of_d)), jnp.maximum(velocity.levers, jnp.abs(of_v)), jnp.abs(A)
    _, E = balancing_scales(jnp.concatenate(levers), C)
    along = _lengths(of_d, position, E), _lengths(of_v, velocity, E)

    s_d = _first(_least(position.terms / along[0]), _largest(moved / E), 1.0)

    def force(d: Vector) -> Vector:
        """Returns Q after a displacement."""
        return mechanism.terms(mechanism.retract(q, d, t), v, t, plant.applied(mechanism.retract(q, d, t), v, t, u)).Q

    stiffness = C[:, None] * stop_gradient(jax.jacfwd(force)(rest)) * E[None]
    rows = jnp.linalg.norm(A * C[None], axis=1)
    rows = jnp.where(rows > 0, rows, 1.0)
    s_v = _largest(v / E)
    s_a = _first(_largest(C * Q, b / rows, s_d * stiffness), s_v**2 / s_d, s_d)
    s_v = jnp.maximum(s_v, jnp.sqrt(s_a * s_d))

    G = jnp.linalg.norm(C[:, None] * stop_gradient(plant.matrix(q, t, v.shape[0])), axis=0)
    with_q, with_v = stop_gradient(jax.jacfwd(lambda q, v: constant(q, v, t), argnums=(0, 1))(q, v))
    change = jnp.linalg.norm(with_q @ N * E[None], axis=1) * s_v + jnp.linalg.norm(with_v * C[None], axis=1) * s_a
    return Sizes(
        d=s_d * E,
        v=s_v * E,
        u=jnp.maximum(jnp.abs(u), s_a / jnp.where(G > 0, G, 1.0)),
        a=s_a * C,
        l=s_a / rows,
        force=s_a / C,
        row=s_a * rows,
        error=jnp.concatenate([s_d * along[0] + position.terms, s_v * along[1] + velocity.terms]),
        change=jnp.where(change > 0, change, 1.0),
        scales=C,
    )


def _rows(function: Callable[..., Array], q: Coordinates, x: Vector, t: Scalar) -> tuple[Rounding, Rows]:
    """Returns rounding errors of function(q, x, t) (m,) and of its Jacobian in x (m, n), and that Jacobian."""

    def with_jacobian(q: Coordinates, x: Vector, t: Scalar) -> tuple[Array, Rows]:
        return function(q, x, t), jax.jacfwd(lambda x: function(q, x, t))(x)

    (_, J), errors = with_rounding_errors(with_jacobian, q, x, t)
    return Rounding(*errors), stop_gradient(J)


def _lengths(J: Rows, rounding: Rounding, C: Vector) -> RowValues:
    """Returns the lengths of rows, (m,); of their terms for rows of rounding errors, and one without terms."""
    none = jnp.all(jnp.abs(J) <= rounding.rows, axis=1)
    lengths = jnp.linalg.norm(jnp.where(none[:, None], rounding.levers, J) * C[None], axis=1)
    return jnp.where(lengths > 0, lengths, 1.0)


def _largest(*values: Array) -> Scalar:
    return jnp.max(jnp.abs(jnp.concatenate([x.reshape(-1) for x in values])), initial=0.0)


def _least(sizes: Array) -> Scalar:
    """Returns the least size that is not small beside the largest; zero if there is none.

    Rows that nearly vanish have very large sizes.
    """
    counts = sizes > SMALL * jnp.max(sizes, initial=0.0)
    least = jnp.min(sizes, where=counts, initial=jnp.inf)
    return jnp.where(jnp.any(counts), least, 0.0)


def _first(*sizes: Array | float) -> Scalar:
    """Returns the first that is positive and finite, or the last."""
    *others, found = sizes
    for size in reversed(others):
        found = jnp.where((size > 0) & jnp.isfinite(size), size, found)
    return jnp.asarray(found)


# Restarts if the search fails from the start: the distance of a fall from there, in units of one fall. A fall leaves
# places, such as a chain of level rods, where no small change improves anything. The second entry says whether rows
# that are almost redundant are left out. Off the constraints redundant rows are of this kind, and contradict each
# other; but so are those of light bodies beside heavy ones, which count.
TRIES = tuple((far, is_loose) for far in (0.0, 1.0, -1.0, 3.0) for is_loose in (False, True))
FALL = 0.3  # of the size of displacements


class _RankTest(AbstractPseudoinverse):
    """The rank test of `SVD`, or one that drops rounding errors only, as decided at run time."""

    is_loose: BoolScalar
    rtol: float | None = eqx.field(default=None, static=True)

    def solve(self, B, Y):
        tolerances = rank_tolerance(0.0, B.dtype), rank_tolerance(None, B.dtype)
        X, rank = SVD().solve_at(B, Y, tolerances)
        return jnp.where(self.is_loose, X[1], X[0]), jnp.where(self.is_loose, rank[1], rank[0])


def near_equilibrium(
    plant: Plant, constant: Callable[..., Array], place: Callable[[Array], tuple[Array, Array, Array]], away: Array,
    of: Array, sizes: Sizes, t: Array, max_steps: int,
) -> Array:  # fmt: skip
    """Returns z with q, v, u = place(of * z) near a state where `constant` stays, from zero; `away`: step of a fall."""
    mechanism = plant.mechanism
    z = jnp.zeros_like(of)
    n = sizes.a.shape[0]
    ends = [z.shape[0], z.shape[0] + n]

    def unbalanced(x: Array) -> Array:
        z, a, l = jnp.split(x, ends)
        (q, v, u), a, l = place(of * z), sizes.a * a, sizes.l * l
        terms, pull = mechanism.terms(q, v, t, plant.applied(q, v, t, u)), 0.0
        carried = terms.A.T @ l
        if terms.nonideal is not None:
            # A non-ideal force would be a function of the ideal force alone; `carried` differs by the part of c along
            # the rows.
            pull = terms.nonideal(carried)
        changes = jax.jvp(lambda *s: constant(*s), (q, v, t), (mechanism.rates(q, v, t), a, jnp.ones_like(t)))[1]
        errors = mechanism.position_error(q, t), mechanism.velocity_error(q, v, t)
        r = terms.M @ a - terms.Q - carried - pull, terms.A @ a - terms.b, *errors, changes
        return jnp.concatenate(r) / jnp.concatenate([sizes.force, sizes.row, sizes.error, sizes.change])

    start = jnp.concatenate([z, jnp.zeros(n, z.dtype), _carried(plant, place(z), sizes, t)])
    J = jax.jacfwd(unbalanced)(start)
    D = row_scales(J)
    C = row_scales((D[:, None] * J).T)
    eps = float(jnp.finfo(z.dtype).eps)

    def scaled(x: Array, _: None) -> Array:
        return D * unbalanced(C * x)

    def attempt(carry):
        i, best, least = carry
        far, is_loose = (jnp.take(jnp.array(values), i) for values in zip(*TRIES, strict=True))
        x = (start.at[: z.shape[0]].add(far.astype(z.dtype) * away)) / C
        search = optx.Dogleg(eps**0.55, eps**0.75, linear_solver=_RankTest(is_loose=is_loose))
        x = optx.least_squares(scaled, search, x, max_steps=max_steps, throw=False).value
        r = jnp.linalg.norm(scaled(x, None))
        better = r < least  # never if it is NaN
        return i + 1, jnp.where(better, x, best), jnp.where(better, r, least)

    def is_unmet(carry):
        return (carry[0] < len(TRIES)) & (carry[2] > eps**0.5)

    carry = jnp.zeros((), int), start / C, jnp.asarray(jnp.inf, z.dtype)
    _, found, least = jax.lax.while_loop(is_unmet, attempt, carry)
    return jnp.where(jnp.isfinite(least), jnp.split(C * found, ends)[0], z)


def _carried(plant: Plant, state: tuple[Array, Array, Array], sizes: Sizes, t: Array) -> Array:
    """Returns multipliers l (m,), in their sizes, that come nearest to holding the mechanism at rest.

    Q + A^T l is least in the metric of M^-1. From zero multipliers the first steps would compensate the forces that
    constraints carry, and lead away from an equilibrium nearby.
    """
    q, v, u = state
    terms = plant.mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    if not terms.A.shape[0]:
        return jnp.zeros(0, q.dtype)
    W = metric(terms.M, terms.A, all_are_real=True).W
    B = sizes.l[:, None] * (terms.A @ W.T)
    l = -pseudosolve(SVD(), B.T, W @ terms.Q)[0]
    return jnp.where(jnp.all(jnp.isfinite(l)), l, 0.0)


def settled(residual: Callable[[Array, None], Array], z: Array, max_steps: int) -> Array:
    """Returns z after a few Gauss-Newton steps on the original equations."""
    tolerance = 4096 * float(jnp.finfo(z.dtype).eps)
    search = optx.GaussNewton(tolerance, tolerance, linear_solver=SVD(1e-8))
    found = optx.least_squares(residual, search, z, max_steps=max_steps, throw=False).value
    return jnp.where(jnp.all(jnp.isfinite(found)), found, z)


def fall(plant: Plant, q: Array, v: Array, t: Array, u: Array, sizes: Sizes) -> Array:
    """Returns a displacement (n,) in the direction of the initial acceleration from rest, of natural size."""
    _, a, _ = plant.rates(q, jnp.zeros_like(v), t, u)
    a = jnp.where(jnp.all(jnp.isfinite(a)), a, 0.0) / sizes.scales
    largest = jnp.max(jnp.abs(a))
    return FALL * sizes.d * a / jnp.where(largest > 0, largest, 1.0)
