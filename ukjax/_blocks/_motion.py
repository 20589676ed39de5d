r"""The constrained motion of a large mechanism, block by block, and whether it is certain.

$S \lambda = b - A a$, $S = A M^{-1} A^\top$, $a = M^{-1} Q$: M has a block for each module, and S one for each pair of
constraints that meet in a module. W: inverse of the Cholesky factor of a module; B = A W^T: a constraint's rows there.

K modules of at most n coordinates, C constraints of at most m rows, each about at most P modules, lie in arrays of one
shape for all of them. Smaller ones are filled up: with the identity in M, and with zero rows.
"""

import functools as ft
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .._expand import Candidate, Certain, Rows
from .._linalg import solve_jointly, whiten
from .._types import Partition
from ._factors import Factors, Order, factorise, order_of


class Shared(NamedTuple):
    """Pairs of constraints about one module: both, with the place of the module in them, and the edge between them."""

    first: np.ndarray  # (pairs, 2): constraint, place of the module in it; the one that is eliminated first
    second: np.ndarray
    edges: np.ndarray


class Places(NamedTuple):
    """The places of coordinates, modules, constraints and rows.

    Attributes:
        columns: The coordinates of each module, (K, n); the number of all coordinates where it has less.
        modules: The modules of each constraint, (C, P); K where it has less.
        within: The columns of a constraint's own rows that are about each coordinate of its modules, (C, P, n); their
            largest number where there is none.
        real: Whether each row is a row of the mechanism and no filler, (C, m).
        rows: The constraint and the row in it of all real rows, in the order of the mechanism, (2, number of rows).
        shared: The pairs of constraints about the same module.
        order: The order of elimination of the constraints.
    """

    columns: np.ndarray
    modules: np.ndarray
    within: np.ndarray
    real: np.ndarray
    rows: np.ndarray
    shared: Shared
    order: Order

    @property
    def widest(self) -> int:
        """The largest number of columns of a constraint."""
        return int(np.max(self.within, initial=0))


# For each kind of constraint, the coordinates that each constraint is about.
Groups = tuple[tuple[tuple[int, ...], ...], ...]


@ft.lru_cache(maxsize=32)
def places_of(partition: Partition, groups: Groups, rows_each: tuple[int, ...]) -> Places:
    """Finds the places from the modules, the kinds of constraints, and the number of rows of one of each kind."""
    modules = [columns for kind in partition for columns in kind]
    size, widest = sum(map(len, modules)), max(map(len, modules))
    home = {column: (k, place) for k, columns in enumerate(modules) for place, column in enumerate(columns)}
    about = [columns for kind in groups for columns in kind]
    heights = [m for kind, m in zip(groups, rows_each, strict=True) for _ in kind]
    touched = [list(dict.fromkeys(home[column][0] for column in columns)) for columns in about]
    most = max(map(len, touched))
    nothing = max(map(len, about))
    found = np.full((len(about), most), len(modules))
    within = np.full((len(about), most, widest), nothing)
    for c, (columns, near) in enumerate(zip(about, touched, strict=True)):
        found[c, : len(near)] = near
        for j, column in enumerate(columns):
            k, place = home[column]
            within[c, near.index(k), place] = j
    real = np.arange(max(heights))[None] < np.array(heights)[:, None]
    pairs = _meetings(touched)
    order = order_of(len(about), {(a, b) for (a, _), (b, _) in pairs})
    return Places(
        columns=_filled(modules, size),
        modules=found,
        within=within,
        real=real,
        rows=np.stack(np.nonzero(real)),
        shared=_oriented(pairs, order),
        order=order,
    )


def _filled(modules: Sequence[Sequence[int]], nothing: int) -> np.ndarray:
    found = np.full((len(modules), max(map(len, modules))), nothing)
    for k, columns in enumerate(modules):
        found[k, : len(columns)] = columns
    return found


def _meetings(touched: Sequence[Sequence[int]]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of constraints that meet in a module, each with the place of the module in it."""
    at: dict[int, list[tuple[int, int]]] = {}
    for c, near in enumerate(touched):
        for place, k in enumerate(near):
            at.setdefault(k, []).append((c, place))
    return [(a, b) for here in at.values() for i, b in enumerate(here) for a in here[:i]]


def _oriented(pairs: Sequence[tuple[tuple[int, int], tuple[int, int]]], order: Order) -> Shared:
    turned = [(a, b) if (a[0], b[0]) in order.edges else (b, a) for a, b in pairs]
    first, second = (np.array([pair[side] for pair in turned], int).reshape(-1, 2) for side in (0, 1))
    return Shared(first, second, np.array([order.edges[a[0], b[0]] for a, b in turned], int))


class _Blocks(NamedTuple):
    """M (K, n, n), the rows of each constraint in each of its modules (C, P, m, n), and b (C, m)."""

    M: Array
    A: Array
    b: Array


class _Judged(NamedTuple):
    """The data for the verdict on a solution, by module (K, n) and by constraint (C, m).

    b; q'' and the multipliers; the error b - A q''; and the demand beyond free motion, b - A a.
    """

    b: Array
    motion: Array
    multipliers: Array
    missed: Array
    demand: Array


def block_motion(
    places: Places, certain: Certain, masses: Sequence[Array], Q: Array, rows: Sequence[tuple[Array, Array]]
) -> Candidate:
    """The motion from M (k, n_k, n_k) of each kind of module, Q (n,), and A (k, m, n_k), b (k, m) of each kind of rows.

    Gradients: of the accelerations and forces, any number of times in either mode, where `smooth`.
    """
    # Numbers that are not finite must not reach the gradients of other states of a batch, not even times zero.
    terms = tuple(masses), Q, tuple(rows)
    finite = stop_gradient(jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree_util.tree_leaves(terms)])))
    masses, Q, rows = jax.tree_util.tree_map(lambda x: jnp.where(finite, x, jnp.zeros_like(x)), terms)
    blocks = _arranged(places, masses, rows)
    force = jnp.append(Q, jnp.zeros((), Q.dtype))[places.columns]
    fixed = jax.tree_util.tree_map(stop_gradient, blocks)
    _, W, definite = jax.vmap(whiten)(fixed.M)
    factors, S = _factorised(places, certain, fixed, W)
    # Symmetric, with -lambda as the second unknown; its derivatives solve the same equations again.
    motion, multipliers = solve_jointly(
        lambda x: _times(places, blocks, *x), (force, blocks.b), lambda y: _solved(places, fixed, W, factors, *y)
    )
    pushed = _spread(places, blocks.A, -multipliers)
    free = jax.lax.custom_linear_solve(
        lambda x: jnp.einsum("kij,kj->ki", blocks.M, x), force, lambda _, y: _over_mass(W, y), symmetric=True
    )

    def vector(x: Array) -> Array:
        return jnp.zeros(Q.shape[0] + 1, Q.dtype).at[places.columns].set(x)[:-1]

    kept = factors.of_rows("kept") & places.real
    missed = blocks.b - _gathered(places, blocks.A, motion)
    demand = blocks.b - _gathered(places, blocks.A, free)
    judged = stop_gradient(_Judged(blocks.b, motion, -multipliers, missed, demand))
    sound = finite & jnp.all(definite) & _is_definite_enough(fixed.M, W, certain)
    clear = sound & _is_clear(places, certain, factors, S, judged)
    return Candidate(
        acceleration=vector(motion),
        unconstrained=vector(free),
        constraint_force=vector(pushed),
        residual=jnp.linalg.norm(judged.missed),
        kept=kept[tuple(places.rows)],
        clear=clear,
        smooth=clear & jnp.all(kept == places.real),
    )


def _arranged(places: Places, masses: Sequence[Array], rows: Sequence[tuple[Array, Array]]) -> _Blocks:
    C, m = places.real.shape
    n, dtype = places.columns.shape[1], masses[0].dtype
    identity = jnp.eye(n, dtype=dtype)

    def widen(M: Array) -> Array:
        return jnp.broadcast_to(identity, (M.shape[0], n, n)).at[:, : M.shape[1], : M.shape[1]].set(M)

    def fill(x: Array, *sizes: int) -> Array:
        return jnp.pad(x, [(0, 0), *((0, size - x.shape[i + 1]) for i, size in enumerate(sizes))])

    A = jnp.concatenate([fill(A, m, places.widest + 1) for A, _ in rows])
    own = np.arange(C)[:, None, None, None], np.arange(m)[None, None, :, None], places.within[:, :, None, :]
    return _Blocks(jnp.concatenate([widen(M) for M in masses]), A[own], jnp.concatenate([fill(b, m) for _, b in rows]))


def _factorised(places: Places, certain: Certain, blocks: _Blocks, W: Array) -> tuple[Factors, tuple[Array, Array]]:
    """Factorises S; also returns its blocks, on the diagonal (C, m, m) and beside it (edges, m, m)."""
    B = jnp.einsum("cpmj,cpij->cpmi", blocks.A, _of_modules(places, W))
    D = jnp.einsum("cpmi,cpli->cml", B, B)
    # A filler row stands alone.
    D = D + jnp.asarray(np.eye(D.shape[1])[None] * ~places.real[:, :, None], D.dtype)
    E = jnp.zeros((len(places.order.edges), *D.shape[1:]), D.dtype)
    first, second, edges = places.shared
    meeting = jnp.einsum("emi,eli->eml", B[first[:, 0], first[:, 1]], B[second[:, 0], second[:, 1]])
    E = E.at[edges].add(meeting)
    return factorise(places.order, D, E, certain.dependent**2 * _squares(D)), (D, E)


def _squares(D: Array) -> Array:
    """The squares of the lengths of the rows, (C, m)."""
    return jnp.diagonal(D, axis1=1, axis2=2)


def _of_modules(places: Places, x: Array) -> Array:
    """The values of each constraint's modules, (C, P, ...), from those of all modules, (K, ...)."""
    return jnp.concatenate([x, jnp.zeros_like(x[:1])])[places.modules]


def _gathered(places: Places, A: Array, x: Array) -> Array:
    """The product A x (C, m) of x (K, n)."""
    return jnp.einsum("cpmj,cpj->cm", A, _of_modules(places, x))


def _spread(places: Places, A: Array, multipliers: Array) -> Array:
    """The product A^T l (K, n) of l (C, m)."""
    each = jnp.einsum("cpmj,cm->cpj", A, multipliers)
    count, n = places.columns.shape
    return jnp.zeros((count + 1, n), A.dtype).at[places.modules].add(each)[:-1]


def _over_mass(W: Array, force: Array) -> Array:
    """The acceleration M^-1 f (K, n)."""
    return jnp.einsum("kji,kj->ki", W, jnp.einsum("kij,kj->ki", W, force))


def _times(places: Places, blocks: _Blocks, x: Array, multipliers: Array) -> tuple[Array, Array]:
    """The products M x + A^T l (K, n) and A x (C, m)."""
    push = _spread(places, blocks.A, multipliers)
    return jnp.einsum("kij,kj->ki", blocks.M, x) + push, _gathered(places, blocks.A, x)


def _solved(places: Places, blocks: _Blocks, W: Array, factors: Factors, force: Array, b: Array) -> tuple[Array, Array]:
    """The solution x (K, n), l (C, m) of M x + A^T l = force, A x = b, as far as the rows are independent."""

    def under(l: Array) -> Array:
        return _over_mass(W, force - _spread(places, blocks.A, l))

    multipliers = jnp.zeros_like(b)
    for _ in range(2):  # once, and once more for the digits that the squares of S lose
        multipliers = multipliers - factors.solve(b - _gathered(places, blocks.A, under(multipliers)))
    return under(multipliers), multipliers


def _is_definite_enough(M: Array, W: Array, certain: Certain) -> Array:
    pivots = 1 / jnp.diagonal(W, axis1=1, axis2=2) ** 2
    return jnp.all(pivots > certain.pivot * jnp.diagonal(M, axis1=1, axis2=2))


def _is_clear(places: Places, certain: Certain, factors: Factors, S: tuple[Array, Array], judged: _Judged) -> Array:
    """Whether every row is met, and surely independent of others or surely dependent."""
    squares, kept, pivots = _squares(S[0]), factors.of_rows("kept"), factors.of_rows("pivots")
    # For rows of unit length, the trace of the inverse of S bounds the inverse of its smallest eigenvalue, and the
    # largest sum of a row of S bounds its largest eigenvalue.
    inverse = jnp.sum(jnp.where(kept, factors.inverse_diagonal() * squares, 0))
    independent = certain.rank**2 * inverse * _largest(places, *S) < 1
    push = jnp.sqrt(jnp.abs(jnp.sum(judged.multipliers * judged.demand)))
    rows = Rows(squares, pivots, kept, judged.b, judged.demand, judged.missed)
    good = rows.are_clear(certain, push, jnp.asarray(places.real))
    return good & independent & jnp.isfinite(jnp.sum(judged.motion))


def _largest(places: Places, D: Array, E: Array) -> Array:
    """A bound of the largest eigenvalue of S, rows of unit length: the largest sum of the sizes in a row."""
    squares = _squares(D)
    scale = jnp.where(squares > 0, 1 / jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)
    first, second = (np.array(side, int) for side in zip(*places.order.edges, strict=True)) if len(E) else ([], [])
    total = jnp.einsum("cij,cj->ci", jnp.abs(D), scale)
    if len(E):
        total = total.at[first].add(jnp.einsum("eij,ej->ei", jnp.abs(E), scale[second]))
        total = total.at[second].add(jnp.einsum("eij,ei->ej", jnp.abs(E), scale[first]))
    return jnp.max(scale * total, initial=0.0)
