r"""The constrained motion with a dense M, for many states at a time, and whether it is certain.

$M \ddot q = Q + A^\top \lambda$, $S \lambda = b - A a$, $S = A M^{-1} A^\top$, $a = M^{-1} Q$. M is made, and
factorised, for a tile of states after the other: otherwise its transfer from and to the memory would take longest.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.lax import stop_gradient
from jaxtyping import Array

from .._expand import Candidate, Certain, Rows, with_constants_as_arguments
from .._linalg import at_tolerance, solve_jointly, with_derivative
from ._factors import Factors
from ._forward import TILE, Forward, Solution, diagonal, eliminated


def panel_motion(certain: Certain, terms: ClosedJaxpr, state: Sequence[Array]) -> Candidate:
    """The motion from `terms`, a traced function of the state that returns M, Q, A, b.

    Gradients: of the accelerations and forces, any number of times in either mode, where `smooth`.
    """
    closed, further = with_constants_as_arguments(terms)
    found = _solution(Forward(closed, certain), (*state, *further))
    fixed = stop_gradient(found)
    kept = fixed.pivots > certain.dependent**2 * fixed.squares
    rows = Rows(fixed.squares, fixed.pivots, kept, fixed.b, fixed.demand, fixed.missed)
    push = jnp.sqrt(jnp.abs(jnp.sum(fixed.multipliers * fixed.demand)))
    independent = fixed.bound < 1 / (certain.rank * max(1, kept.shape[0]) ** 0.5)
    usable = fixed.definite & independent & jnp.isfinite(jnp.sum(fixed.acceleration))
    clear = usable & rows.are_clear(certain, push)
    return Candidate(
        acceleration=found.acceleration,
        unconstrained=found.free,
        constraint_force=found.force,
        residual=jnp.linalg.norm(fixed.missed),
        kept=kept,
        clear=clear,
        smooth=clear & jnp.all(kept),
    )


def _found(forward: Forward, x: tuple[Array, ...]) -> Solution:
    return Solution(*forward(*x))


def _found_jvp(primals, tangents):
    """Solves M dx + A^T (-dl) = d(Q - M x + A^T l), A dx = d(b - A x), at constant x and l, with -l as an unknown."""
    (forward, x), (_, dx) = primals, tangents
    found = _solution(*primals)
    # Numbers that are not finite must not reach the gradients of other states of a batch, not even times zero.
    okay = stop_gradient(jnp.isfinite(jnp.sum(found.acceleration) + jnp.sum(found.free)))
    only = lambda y: jnp.where(okay, y, jnp.zeros_like(y))
    q, a, multipliers = map(only, (found.acceleration, found.free, found.multipliers))
    moving = tuple(i for i, y in enumerate(dx) if y is not None)
    slope = forward.unbalanced.tangent(moving)
    r1, r2, r3, r4 = map(only, slope(*x, q, multipliers, a, *(dx[i] for i in moving)))
    M, _, A, _ = jaxpr_as_fun(forward.terms)(*x)
    n, M, A = q.shape[0], jnp.where(okay, M, jnp.eye(q.shape[0], dtype=q.dtype)), only(A)
    B = stop_gradient(jnp.concatenate([M, A]))
    F = at_tolerance(_factors, forward.certain.dependent, tile=TILE)(B, jnp.zeros_like(B[:, :1]))[0]
    linear = lambda y: (M @ y[0] + A.T @ y[1], A @ y[0])
    change, less = solve_jointly(linear, (r1, r2), lambda y: _solved(F, *y))
    alone = lambda _, y: _solved(F[:n, :n], y, y[:0])[0]
    free = jax.lax.custom_linear_solve(lambda y: M @ y, r3, alone, symmetric=True)
    still = jax.tree_util.tree_map(lambda _: None, found)
    return found, still._replace(acceleration=change, free=free, multipliers=-less, force=r4 - A.T @ less)


_solution = with_derivative(_found, _found_jvp)


# The factors of one state serve many right-hand sides.


def _factors(dependent: float, B: Array, _: Array) -> tuple[Array, Array]:
    """The factors of M and S in one array (n + m, n + m, batch), from B = [M; A]."""
    n, m = B.shape[1], B.shape[0] - B.shape[1]
    mass, rows, sides = eliminated(dependent, B[:n], B[n:], B[:0])
    with_inverses = lambda f: f.L.at[jnp.arange(len(f.L)), jnp.arange(len(f.L))].set(f.inverses)
    beside = jnp.zeros((n, m, B.shape[-1]), B.dtype)
    whole = [[with_inverses(mass), beside], [sides.Y, with_inverses(rows)]]
    return jnp.concatenate([jnp.concatenate(row, axis=1) for row in whole]), jnp.zeros(B.shape[-1], int)


def panel_solve(M: Array, y: Array) -> Array:
    """The solution M^-1 y (n, k) for a definite M (n, n), for many states at a time."""

    def solve(_, y):
        F = at_tolerance(_factors, 0.0, tile=TILE)(stop_gradient(M), jnp.zeros_like(M[:, :1]))[0]
        return at_tolerance(_solved_last, len(M), tile=TILE)(F, y)[0]

    return jax.lax.custom_linear_solve(lambda x: M @ x, y, solve, symmetric=True)


def _solved(F: Array, f: Array, y: Array) -> tuple[Array, Array]:
    """The solution x, l of M x + A^T l = f, A x = y."""
    X = at_tolerance(_solved_last, len(f), tile=TILE)(F, jnp.concatenate([f, y])[:, None])[0][:, 0]
    return X[: len(f)], X[len(f) :]


def _solved_last(n: int, F: Array, Y: Array) -> tuple[Array, Array]:
    """The solution [x; l] for the right-hand sides Y = [f; y] (n + m, k, batch)."""
    part = lambda F: Factors(F, diagonal(F), diagonal(F))
    mass, rows, levers = part(F[:n, :n]), part(F[n:, n:]), F[n:, :n]
    start = mass.lower(Y[:n])
    scaled = mass.inverses[:, None] * start
    multipliers = rows.solve(jnp.sum(levers[:, :, None] * scaled[None], axis=1) - Y[n:])
    push = jnp.sum(levers[:, :, None] * multipliers[:, None], axis=0)
    x = mass.upper(mass.inverses[:, None] * (start - push))
    return jnp.concatenate([x, multipliers]), jnp.zeros(F.shape[-1], int)
