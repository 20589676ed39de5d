r"""Mechanisms of some dozens of coordinates: the motion with a dense M, factorised for many states at a time.

$M \ddot q = Q + A^\top \lambda$, $S \lambda = b - A a$, $S = A M^{-1} A^\top$, $a = M^{-1} Q$. M is made, and
factorised, for a tile of states after the other, with the batch as the last axis of every array: otherwise its transfer
from and to the memory would take longest.

Dense symmetric matrices become S = L D L^T by panels of a few columns. The last axis is that of the batch. A panel is
factorised column by column, and then subtracted from the remainder at once. So the remainder is gone through once for
each panel, and gets smaller each time. A barrier keeps each panel from being computed again for every use.

S: (n, n, batch) semidefinite; L: unit lower triangular.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.lax import stop_gradient
from jaxtyping import Array

from ._expand import (
    AbstractBatchedOp,
    Candidate,
    Certain,
    PlainPiece,
    Rows,
    over_batch,
    short_program,
    size_of,
    traced,
)
from ._linalg import at_tolerance, in_tiles, solve_jointly, with_derivative


T = TypeVar("T")


def fusion_barrier(function: Callable[..., T], *arrays: Array) -> T:
    """Computes `function` of arrays once, behind a barrier to fusion; the first array has entries of floating dtype.

    XLA's compiler for the CPU fuses a computation into each of its uses, and so repeats it for every one of them: of
    the panels of a factorisation, each made of the one before, it computes the first as often as there are panels. It
    does not fuse across the border of a conditional whose branch it cannot know. A GPU has no such barrier, which would
    make it wait.
    """

    def apart(*arrays):
        # This is always true, but the compiler cannot know it.
        always = ~(jnp.ravel(arrays[0])[0] < -jnp.inf)

        def empty(*xs):
            return jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *xs))

        return jax.lax.cond(always, function, empty, *arrays)

    return jax.lax.platform_dependent(*arrays, cpu=apart, default=function)


# Columns of a panel; with fewer columns it takes longer to compile.
WIDTH = 4


class Factors(NamedTuple):
    """L without its diagonal, (n, n, batch); the inverses of D, 0 for rows left out; the pivots; (n, batch) each.

    A row whose pivot is no more than a given number depends on those before it, and is left out: solutions are those of
    S with these rows and columns struck out.
    """

    L: Array
    inverses: Array
    pivots: Array

    @property
    def kept(self) -> Array:
        """Whether each row counts, (n, batch)."""
        return self.inverses > 0

    def lower(self, y: Array) -> Array:
        """The product L^-1 y, (n, k, batch)."""
        done, rest = [y[:0]], y
        for start, width in _panels(len(y)):
            L = self.L[start:, start : start + width]
            top = [rest[j] for j in range(width)]
            for j in range(width):
                for i in range(j + 1, width):
                    top[i] = top[i] - L[i, j] * top[j]
            done.append(jnp.stack(top))
            rest = rest[width:] - sum(L[width:, j, None] * top[j][None] for j in range(width))
        return jnp.concatenate(done)

    def upper(self, y: Array) -> Array:
        """The product L^-T y, (n, k, batch)."""
        done = y[:0]
        for start, width in reversed(_panels(len(y))):
            L = self.L[start:, start : start + width]
            top = [y[start + j] - jnp.sum(L[width:, j, None] * done, axis=0) for j in range(width)]
            for j in reversed(range(width)):
                for i in range(j + 1, width):
                    top[j] = top[j] - L[i, j] * top[i]
            done = jnp.concatenate([jnp.stack(top), done])
        return done

    def solve(self, y: Array) -> Array:
        """The solution S^-1 y, (n, k, batch), 0 in the rows that were left out."""
        return self.upper(self.inverses[:, None] * self.lower(y))

    def inverse_bound(self, lengths: Array) -> Array:
        r"""A bound of $\|\hat R^{-1}\|_\infty$, (batch,); $\hat R^\top \hat R$: the kept part of S, for unit rows.

        `lengths` (n, batch): lengths of the rows. The bound uses the comparison matrix of R: Higham (2002), Accuracy
        and stability of numerical algorithms, 8.3.
        """
        comparison = self._replace(L=-jnp.abs(self.L))
        sizes = comparison.upper(jnp.sqrt(self.inverses)[:, None])[:, 0]
        return jnp.max(sizes * lengths, axis=0, initial=0.0)


class Elimination(NamedTuple):
    """The factors of S, Y L^-T (k, n, batch), and the remainder of Z: Z - Y S^-1 Y^T, (k, k, batch)."""

    factors: Factors
    Y: Array
    left: Array


def eliminate(S: Array, Y: Array, Z: Array, least: Array) -> Elimination:
    """Eliminates the first block of [[S, Y^T], [Y, Z]]; a row counts if its pivot is larger than `least` (n, batch).

    S (n, n, batch), Y (k, n, batch), Z (k, k, batch).
    """
    n, columns, inverses, pivots = len(S), [], [], []
    rest = jnp.concatenate([jnp.concatenate([S, Y]), jnp.concatenate([jnp.swapaxes(Y, 0, 1), Z])], axis=1)
    for start, width in _panels(n):
        panel, own, pivot, rest = fusion_barrier(ft.partial(_panel, width), rest, least[start : start + width])
        columns.append(jnp.concatenate([jnp.zeros((start, *panel.shape[1:]), panel.dtype), panel]))
        inverses.append(own)
        pivots.append(pivot)
    if not n:
        empty = jnp.zeros((0, Z.shape[-1]), Z.dtype)
        return Elimination(Factors(S, empty, empty), Y, Z)
    whole, inverse = jnp.concatenate(columns, axis=1), jnp.concatenate(inverses)
    return Elimination(Factors(whole[:n] * inverse[None], inverse, jnp.concatenate(pivots)), whole[n:], rest)


def _panel(width: int, rest: Array, least: Array) -> tuple[Array, Array, Array, Array]:
    """Eliminates a panel: returns the columns of L D, the inverses and the pivots of D, and the remainder."""
    panel, inverses, pivots = [rest[:, j] for j in range(width)], [], []
    for j in range(width):
        pivot = panel[j][j]
        kept = pivot > least[j]
        inverses.append(jnp.where(kept, 1 / jnp.where(kept, pivot, 1), 0))
        pivots.append(pivot)
        for i in range(j + 1, width):
            panel[i] = panel[i] - panel[j] * (panel[j][i] * inverses[j])
    rest = rest[width:, width:]
    for column, inverse in zip(panel, inverses, strict=True):
        below = column[width:]
        rest = rest - below[:, None] * (below * inverse)[None]
    return jnp.stack(panel, axis=1), jnp.stack(inverses), jnp.stack(pivots), rest


def _panels(n: int) -> list[tuple[int, int]]:
    """The first column and the width of each panel."""
    return [(start, min(WIDTH, n - start)) for start in range(0, n, WIDTH)]


# States of a tile: 22 x 20 numbers for each of them are 110 kB together, which stay in the cache.
TILE = 32


class Solution(NamedTuple):
    """The data of a motion and of the verdict on it.

    q'', a, A^T l, l; b, b - A a, b - A q''; the diagonal and the pivots of S; the bound of the inverse of the rows, of
    unit length; whether M is definite.
    """

    acceleration: Array
    free: Array
    force: Array
    multipliers: Array
    b: Array
    demand: Array
    missed: Array
    squares: Array
    pivots: Array
    bound: Array
    definite: Array


class Forward(AbstractBatchedOp):
    """The function x -> `Solution`, where `terms` makes M, Q, A, b of x."""

    def __init__(self, terms: ClosedJaxpr, certain: Certain):
        _, Q, _, b = terms.out_avals
        n, m = (jax.ShapeDtypeStruct(like.shape, Q.dtype) for like in (Q, b))
        number, flag = jax.ShapeDtypeStruct((), Q.dtype), jax.ShapeDtypeStruct((), bool)
        super().__init__(terms.in_avals, [n, n, n, *[m] * 6, number, flag])
        self.terms, self.certain = terms, certain
        function = jaxpr_as_fun(terms)
        self.mass = traced(lambda *x: function(*x)[:1], terms.in_avals)
        self.sides = traced(lambda *x: function(*x)[1:], terms.in_avals)
        # Most of A is zero in many mechanisms.
        self.program = short_program(self.sides)
        self.size = n, m

    @ft.cached_property
    def unbalanced(self) -> PlainPiece:
        """The piece (x, q'', l, a) -> Q - M q'' + A^T l, b - A q'', Q - M a, A^T l.

        The derivative of a piece is transposed as a whole, so that functions with a reverse-mode rule only will do.
        """
        terms = jaxpr_as_fun(self.terms)

        def unbalanced(*args):
            *x, q, multipliers, a = args
            M, Q, A, b = terms(*x)
            return Q - M @ q + A.T @ multipliers, b - A @ q, Q - M @ a, A.T @ multipliers

        n, m = self.size
        return PlainPiece(traced(unbalanced, self.takes, (n, m, n)))

    def evaluate(self, form, *arrays):
        if not any(form.batched):
            alone = form._replace(batched=(True,) * len(arrays))
            return [x[0] for x in self.evaluate(alone, *(x[None] for x in arrays))]
        (size,) = size_of(form.batched, arrays)
        start = [jnp.zeros((size, *x.shape), x.dtype) for x in self.gives]
        if not size:
            return start
        entries = [] if self.program is None else [self.program.entries(form, *arrays)]
        whole = [*arrays, *entries]
        of_tile = ft.partial(self._tile, form.batched)
        if not (form.on_cpu and size > TILE):
            return of_tile(*whole)
        axes = [*(0 if b else None for b in form.batched), *([-1] if entries else [])]
        return in_tiles(of_tile, TILE, start, axes, whole)

    def _tile(self, batched: Sequence[bool], *arrays: Array) -> list[Array]:
        x, entries = arrays[: len(batched)], arrays[len(batched) :]
        # Together where both are arrays, so that common parts, such as the places of bodies, are found once.
        of = self.mass if entries else self.terms
        terms = [*_last(of, batched, x), *(self._split(*entries) if entries else ())]
        # With the batch last, a scalar of each state broadcasts against its vectors, as intended.
        with jax.numpy_rank_promotion("allow"):
            found = _solution_of(self.certain, *terms)
        return [jnp.moveaxis(x, -1, 0) for x in found]

    def _split(self, entries: Array) -> list[Array]:
        """Splits the entries of Q, A, b, one after the other, into these arrays."""
        avals = self.sides.out_avals
        parts = jnp.split(entries, np.cumsum([y.size for y in avals])[:-1])
        return [part.reshape(*y.shape, entries.shape[-1]) for part, y in zip(parts, avals, strict=True)]


def _last(closed: ClosedJaxpr, batched: Sequence[bool], x: Sequence[Array]) -> list[Array]:
    """The results of a traced function for a tile, with the batch last; the first of x is q."""
    function = over_batch(jaxpr_as_fun(closed), tuple(batched))
    return fusion_barrier(lambda *x: [jnp.moveaxis(y, 0, -1) for y in function(*x)], *x)


def _solution_of(certain: Certain, M: Array, Q: Array, A: Array, b: Array) -> Solution:
    m = len(b)
    mass, rows, sides = eliminated(certain.dependent, M, A, Q[None])
    levers, demand = mass.inverses * sides.Y, b + sides.left[m, :m]
    multipliers = rows.solve(demand[:, None])[:, 0]

    def pushed(l: Array) -> Array:
        return jnp.sum(l[:, None] * levers[:m], axis=0)

    def missing(x: Array) -> Array:
        return b - jnp.sum(A * x, axis=1)

    both = mass.upper(jnp.stack([levers[m], pushed(multipliers)], axis=1))
    free, first = both[:, 0], both[:, 0] + both[:, 1]
    # A second solve restores the digits that the squares of S lose.
    more = rows.solve(missing(first)[:, None])[:, 0]
    acceleration = first + mass.upper(pushed(more)[:, None])[:, 0]
    multipliers = multipliers + more
    squares, own = diagonal(-sides.left[:m, :m]), diagonal(M)
    off, eps = M - jnp.swapaxes(M, 0, 1), jnp.finfo(M.dtype).eps
    symmetric = jnp.all(off**2 <= eps * own[:, None] * own[None], axis=(0, 1))
    return Solution(
        acceleration=acceleration,
        free=free,
        force=jnp.sum(A * multipliers[:, None], axis=0),
        multipliers=multipliers,
        b=b,
        demand=demand,
        missed=missing(acceleration),
        squares=squares,
        pivots=rows.pivots,
        bound=rows.inverse_bound(jnp.sqrt(jnp.abs(squares))),
        definite=symmetric & jnp.all(mass.pivots > certain.pivot * own, axis=0),
    )


def eliminated(dependent: float, M: Array, A: Array, further: Array) -> tuple[Factors, Factors, Elimination]:
    """The factors of M and of S, whose rows count beyond the part `dependent`^2, and the elimination of M."""
    n, m = len(M), len(A)
    Y, size = jnp.concatenate([A, further]), m + len(further)

    def zeros(*shape: int) -> Array:
        return jnp.zeros((*shape, M.shape[-1]), M.dtype)

    sides = eliminate(M, Y, zeros(size, size), zeros(n))
    S = -sides.left[:m, :m]
    rows = eliminate(S, zeros(0, m), zeros(0, 0), dependent**2 * diagonal(S)).factors
    return sides.factors, rows, sides


def diagonal(S: Array) -> Array:
    return jnp.moveaxis(jnp.diagonal(S), -1, 0)


def panel_motion(certain: Certain, terms: ClosedJaxpr, arrays: Sequence[Array]) -> Candidate:
    """The motion from `terms`, a traced function of arrays, such as the state, that returns M, Q, A, b.

    Gradients: of the accelerations and forces, any number of times in either mode, where `smooth`.
    """
    found = _solution(Forward(terms, certain), tuple(arrays))
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

    def only(y: Array) -> Array:
        return jnp.where(okay, y, jnp.zeros_like(y))

    q, a, multipliers = map(only, (found.acceleration, found.free, found.multipliers))
    moving = tuple(i for i, y in enumerate(dx) if y is not None)
    slope = forward.unbalanced.tangent(moving)
    r1, r2, r3, r4 = map(only, slope(*x, q, multipliers, a, *(dx[i] for i in moving)))
    M, _, A, _ = jaxpr_as_fun(forward.terms)(*x)
    n, M, A = q.shape[0], jnp.where(okay, M, jnp.eye(q.shape[0], dtype=q.dtype)), only(A)
    B = stop_gradient(jnp.concatenate([M, A]))
    F = at_tolerance(_factors, forward.certain.dependent, tile=TILE)(B, jnp.zeros_like(B[:, :1]))[0]
    change, less = solve_jointly(lambda y: (M @ y[0] + A.T @ y[1], A @ y[0]), (r1, r2), lambda y: _solved(F, *y))
    free = jax.lax.custom_linear_solve(
        lambda y: M @ y, r3, lambda _, y: _solved(F[:n, :n], y, y[:0])[0], symmetric=True
    )
    still = jax.tree_util.tree_map(lambda _: None, found)
    return found, still._replace(acceleration=change, free=free, multipliers=-less, force=r4 - A.T @ less)


_solution = with_derivative(_found, _found_jvp)


# The factors of one state serve many right-hand sides.


def _factors(dependent: float, B: Array, _: Array) -> tuple[Array, Array]:
    """The factors of M and S in one array (n + m, n + m, batch), from B = [M; A]."""
    n, m = B.shape[1], B.shape[0] - B.shape[1]
    mass, rows, sides = eliminated(dependent, B[:n], B[n:], B[:0])
    # The diagonals, which are ones in L, hold the inverses of D.
    on_mass, on_rows = (f.L.at[jnp.arange(len(f.L)), jnp.arange(len(f.L))].set(f.inverses) for f in (mass, rows))
    beside = jnp.zeros((n, m, B.shape[-1]), B.dtype)
    whole = [[on_mass, beside], [sides.Y, on_rows]]
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
    mass, rows = (Factors(part, diagonal(part), diagonal(part)) for part in (F[:n, :n], F[n:, n:]))
    levers = F[n:, :n]
    start = mass.lower(Y[:n])
    scaled = mass.inverses[:, None] * start
    multipliers = rows.solve(jnp.sum(levers[:, :, None] * scaled[None], axis=1) - Y[n:])
    push = jnp.sum(levers[:, :, None] * multipliers[:, None], axis=0)
    x = mass.upper(mass.inverses[:, None] * (start - push))
    return jnp.concatenate([x, multipliers]), jnp.zeros(F.shape[-1], int)
