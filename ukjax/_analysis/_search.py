r"""Near an equilibrium, from afar.

There redundant rows contradict each other, if ever so little, and what decides about ranks jumps. So acceleration a and
multipliers l are unknowns of their own: M a = Q + G u + A^T l, A a = b, e(q, v, t) = 0, and c' = 0. All of it is as
smooth as the mechanism, and as rows may depend on each other, each step is the shortest.

z: all unknowns; D, C: scales of the equations and the unknowns; r: residual.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array

from .._formulation import metric, row_scales
from .._linalg import SVD, pseudosolve
from .._manifold import exact
from ._plant import Plant


# Where the search goes on if it finds nothing from the start: so many times the way of a fall from there, which leaves
# places, such as a chain of level rods, where no small change makes it any better.
TRIES = (0.0, 1.0, -1.0, 3.0)
FALL = 0.3  # of the size of the coordinates


def near_equilibrium(
    plant: Plant, constant: Callable, place: Callable, z: Array, away: Array, t: Array, max_steps: int
) -> Array:
    """z with q, v, u = place(z), where `constant(q, v, t)` is about to stay; `away`: the way of a fall."""
    mechanism = plant.mechanism
    n = place(z)[1].shape[0]

    def unbalanced(z: Array, a: Array, l: Array) -> Array:
        q, v, u = place(z)
        terms, pull = mechanism.terms(q, v, t, plant.applied(q, v, t, u)), 0.0
        carried = terms.A.T @ l
        if terms.nonideal is not None:
            # Of the ideal force alone it would be a function; that differs by what of c lies along the rows.
            pull = terms.nonideal(carried)
        changes = jax.jvp(lambda *s: constant(*s), (q, v, t), (mechanism.rates(q, v, t), a, jnp.ones_like(t)))[1]
        errors = mechanism.position_error(q, t), mechanism.velocity_error(q, v, t)
        return jnp.concatenate([terms.M @ a - terms.Q - carried - pull, terms.A @ a - terms.b, *errors, changes])

    split = lambda x: jnp.split(x, [z.shape[0], z.shape[0] + n])
    whole = lambda x, _=None: unbalanced(*split(x))
    start = jnp.concatenate([z, jnp.zeros(n, z.dtype), _carried(plant, place, z, t)])
    J = jax.jacfwd(whole)(start)
    D = row_scales(J)
    C = row_scales((D[:, None] * J).T)
    eps = float(jnp.finfo(z.dtype).eps)
    search = optx.Dogleg(eps**0.55, eps**0.75, linear_solver=exact(z.dtype))
    scaled = lambda x, _: D * whole(C * x)

    def attempt(carry):
        i, best, least = carry
        x = (start.at[: z.shape[0]].add(jnp.take(jnp.array(TRIES, z.dtype), i) * away)) / C
        x = optx.least_squares(scaled, search, x, max_steps=max_steps, throw=False).value
        r = jnp.linalg.norm(scaled(x, None))
        better = r < least  # never if it is NaN
        return i + 1, jnp.where(better, x, best), jnp.where(better, r, least)

    unmet = lambda carry: (carry[0] < len(TRIES)) & (carry[2] > eps**0.5)
    carry = jnp.zeros((), int), start / C, jnp.asarray(jnp.inf, z.dtype)
    _, found, least = jax.lax.while_loop(unmet, attempt, carry)
    return jnp.where(jnp.isfinite(least), split(C * found)[0], z)


def _carried(plant: Plant, place: Callable, z: Array, t: Array) -> Array:
    """Multipliers l (m,) that come nearest to holding the mechanism at rest: Q + A^T l is least in the metric of M^-1.

    From zero the first steps would make up for the forces that constraints carry, and lead away from an equilibrium
    nearby.
    """
    q, v, u = place(z)
    terms = plant.mechanism.terms(q, v, t, plant.applied(q, v, t, u))
    if not terms.A.shape[0]:
        return jnp.zeros(0, z.dtype)
    W = metric(terms.M, terms.A).W
    B = terms.A @ W.T
    D = row_scales(B)
    l = -D * pseudosolve(SVD(), (D[:, None] * B).T, W @ terms.Q)[0]
    return jnp.where(jnp.all(jnp.isfinite(l)), l, 0.0)


def settled(residual: Callable, z: Array, max_steps: int) -> Array:
    """The same a few steps of Gauss's and Newton's method further, by the equations as they are."""
    tolerance = 4096 * float(jnp.finfo(z.dtype).eps)
    search = optx.GaussNewton(tolerance, tolerance, linear_solver=SVD())
    found = optx.least_squares(residual, search, z, max_steps=max_steps, throw=False).value
    return jnp.where(jnp.all(jnp.isfinite(found)), found, z)


def fall(plant: Plant, q: Array, v: Array, t: Array, u: Array) -> Array:
    """A displacement (n,) in the direction in which the mechanism sets off from rest, as far as there is to go."""
    _, a, _ = plant.rates(q, jnp.zeros_like(v), t, u)
    a = jnp.where(jnp.all(jnp.isfinite(a)), a, 0.0)
    size, largest = jnp.max(jnp.abs(q)), jnp.max(jnp.abs(a))
    return FALL * jnp.where(size > 0, size, 1.0) * a / jnp.where(largest > 0, largest, 1.0)
