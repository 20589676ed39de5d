r"""Coarse search for an equilibrium from a distant start.

Away from an equilibrium redundant rows contradict each other slightly, and rank decisions jump. Acceleration a and
multipliers l are therefore separate unknowns: M a = Q + G u + A^T l, A a = b, e(q, v, t) = 0, and c' = 0. These
equations are as smooth as the mechanism. As rows may depend on each other, each step is the shortest.

z: all unknowns; r: residual. Both are divided by their natural sizes (`_sizes`), which removes the units, and then by D
and C, scales of the equations and the unknowns.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array

from .._formulation import metric, row_scales
from .._linalg import SVD, AbstractPseudoinverse, pseudosolve, rank_tolerance
from .._types import BoolScalar
from ._plant import Plant
from ._sizes import Sizes


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
    plant: Plant, constant: Callable, place: Callable, away: Array, of: Array, sizes: Sizes, t: Array, max_steps: int
) -> Array:
    """Returns z with q, v, u = place(of * z) near a state where `constant` stays, from zero; `away`: step of a fall."""
    mechanism = plant.mechanism
    z = jnp.zeros_like(of)
    n = sizes.a.shape[0]

    def unbalanced(z: Array, a: Array, l: Array) -> Array:
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

    split = lambda x: jnp.split(x, [z.shape[0], z.shape[0] + n])
    whole = lambda x, _=None: unbalanced(*split(x))
    start = jnp.concatenate([z, jnp.zeros(n, z.dtype), _carried(plant, place(z), sizes, t)])
    J = jax.jacfwd(whole)(start)
    D = row_scales(J)
    C = row_scales((D[:, None] * J).T)
    eps = float(jnp.finfo(z.dtype).eps)
    scaled = lambda x, _: D * whole(C * x)

    def attempt(carry):
        i, best, least = carry
        far, is_loose = (jnp.take(jnp.array(values), i) for values in zip(*TRIES, strict=True))
        x = (start.at[: z.shape[0]].add(far.astype(z.dtype) * away)) / C
        search = optx.Dogleg(eps**0.55, eps**0.75, linear_solver=_RankTest(is_loose=is_loose))
        x = optx.least_squares(scaled, search, x, max_steps=max_steps, throw=False).value
        r = jnp.linalg.norm(scaled(x, None))
        better = r < least  # never if it is NaN
        return i + 1, jnp.where(better, x, best), jnp.where(better, r, least)

    unmet = lambda carry: (carry[0] < len(TRIES)) & (carry[2] > eps**0.5)
    carry = jnp.zeros((), int), start / C, jnp.asarray(jnp.inf, z.dtype)
    _, found, least = jax.lax.while_loop(unmet, attempt, carry)
    return jnp.where(jnp.isfinite(least), split(C * found)[0], z)


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


def settled(residual: Callable, z: Array, max_steps: int) -> Array:
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
