r"""Large mechanisms block by block: modules and constraints as the nodes of a graph, eliminated many at a time.

$S \lambda = b - A a$, $S = A M^{-1} A^\top$, $a = M^{-1} Q$: M has a block for each module, and S one for each pair of
constraints that meet in a module. W: inverse of the Cholesky factor of a module; B = A W^T: a constraint's rows there.

K modules of at most n coordinates, C constraints of at most m rows, each about at most P modules, lie in arrays of one
shape for all of them. Smaller ones are filled up: with the identity in M, and with zero rows.

A factorisation of S goes from node to node of the graph of constraints: D (C, m, m) on the diagonal, E (edges, m, m)
beside it, S_ij with i eliminated before j. Rows that depend on those before them are left out. G = S_ii^+ of the
remainder of a node when its turn comes; T_a = G S_ia for its neighbours a.

A step of the order takes nodes of low degree, as many as are not neighbours of each other. A chain is halved with every
step, so that N nodes take log N steps (cyclic reduction), and each is one operation on arrays.
"""

import functools as ft
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from ._expand import Candidate, Certain, Rows
from ._linalg import solve_jointly, whiten
from ._types import Partition


class Step(NamedTuple):
    """Nodes that are eliminated together, and the places of their neighbours; d: the most neighbours of a node.

    Attributes:
        nodes: The nodes, (k,).
        near: Their neighbours, (k, d); where there is none, the number of nodes.
        edges: The edge to each, from the node that goes first, (k, d); where there is none, the number of edges.
        pairs: The edge between two neighbours, from the neighbour that goes first, (k, d, d); elsewhere the number of
            edges plus one.
    """

    nodes: np.ndarray
    near: np.ndarray
    edges: np.ndarray
    pairs: np.ndarray


class Order(NamedTuple):
    """All steps, and the number of each edge, (first, second) -> number, those that elimination adds included."""

    steps: tuple[Step, ...]
    edges: dict[tuple[int, int], int]


def order_of(count: int, pairs: Iterable[tuple[int, int]]) -> Order:
    """The order for `count` nodes of which some pairs are neighbours."""
    near: list[set[int]] = [set() for _ in range(count)]
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    left, levels = set(range(count)), []
    while left:
        chosen = _apart(left, near)
        levels.append([(i, sorted(near[i])) for i in chosen])
        for i in chosen:
            for j in near[i]:
                near[j] |= near[i]
                near[j] -= {i, j}
            left.remove(i)
    turn = {i: at for at, (i, _) in enumerate(x for level in levels for x in level)}
    edges: dict[tuple[int, int], int] = {}
    for i, around in (x for level in levels for x in level):
        for j in around:
            edges[i, j] = len(edges)
    return Order(tuple(_step(level, turn, edges) for level in levels), edges)


def _apart(left: set[int], near: list[set[int]]) -> list[int]:
    """Nodes of low degree, none of which are neighbours."""
    least = min(len(near[i]) for i in left)
    low = sorted((len(near[i]), i) for i in left if len(near[i]) <= max(2 * least, least + 1))
    chosen, blocked = [], set()
    for _, i in low:
        if i not in blocked:
            chosen.append(i)
            blocked |= near[i]
    return chosen


def _step(level: list[tuple[int, list[int]]], turn: dict[int, int], edges: dict[tuple[int, int], int]) -> Step:
    count, most = len(level), max(len(around) for _, around in level)
    nodes = np.array([i for i, _ in level])
    near, to = np.full((count, most), len(turn)), np.full((count, most), len(edges))
    pairs = np.full((count, most, most), len(edges) + 1)
    for row, (i, around) in enumerate(level):
        for x, a in enumerate(around):
            near[row, x], to[row, x] = a, edges[i, a]
            for y, b in enumerate(around):
                if turn[a] < turn[b]:
                    pairs[row, x, y] = edges[a, b]
    return Step(nodes, near, to, pairs)


class Eliminated(NamedTuple):
    """The results of a step: G (k, m, m), T (k, d, m, m), the pivots of the rows (k, m), and which rows count."""

    inverse: Array
    towards: Array
    pivots: Array
    kept: Array


class Factors(NamedTuple):
    """The factorisation of a matrix of C nodes with m rows each."""

    order: Order
    parts: tuple[Eliminated, ...]
    shape: tuple[int, int]

    def solve(self, y: Array) -> Array:
        """The solution x (C, m) of S x = y, zero in the rows that were left out."""
        y, leading = jnp.concatenate([y, jnp.zeros_like(y[:1])]), []
        for step, part in self._forwards():
            own = y[step.nodes]
            y = y.at[step.near].add(-jnp.einsum("kdij,ki->kdj", part.towards, own))
            leading.append(jnp.einsum("kij,kj->ki", part.inverse, own))
        x = jnp.zeros_like(y)
        for (step, part), own in zip(reversed(self._forwards()), reversed(leading), strict=True):
            x = x.at[step.nodes].set(own - jnp.einsum("kdij,kdj->ki", part.towards, x[step.near]))
        return x[:-1]

    def inverse_diagonal(self) -> Array:
        """The diagonal of the inverse of the rows that were kept, (C, m).

        It goes from the last node to the first, and finds only the blocks of the inverse Z that belong to edges: with N
        the neighbours of i, Z_iN = -T Z_NN and Z_ii = G - Z_iN T^T.  Takahashi, Fagan & Chin (1973).
        """
        C, m = self.shape
        # As in `factorise`, there are two blocks that belong to no edge: one to read, one to write.
        dtype = self.parts[0].inverse.dtype
        Z, beside = jnp.zeros((C + 1, m, m), dtype), jnp.zeros((len(self.order.edges) + 2, m, m), dtype)
        for step, part in reversed(self._forwards()):
            d = step.near.shape[1]
            among = beside[_read(step.pairs, len(self.order.edges))]  # from the neighbour that goes first
            among = among + jnp.swapaxes(jnp.swapaxes(among, 1, 2), 3, 4)
            own = np.arange(d)
            among = among.at[:, own, own].set(Z[step.near])
            towards = -jnp.einsum("kaij,kabjl->kbil", part.towards, among)
            Z = Z.at[step.nodes].set(part.inverse - jnp.einsum("kbil,kbjl->kij", towards, part.towards))
            beside = beside.at[_written(step.edges, len(self.order.edges))].set(towards)
        return jnp.diagonal(Z[:-1], axis1=1, axis2=2)

    def of_rows(self, name: str) -> Array:
        """The field `name` of all rows, (C, m)."""
        values = jnp.concatenate([getattr(part, name) for part in self.parts])
        places = np.concatenate([step.nodes for step in self.order.steps])
        return values[np.argsort(places)]

    def _forwards(self) -> list[tuple[Step, Eliminated]]:
        return list(zip(self.order.steps, self.parts, strict=True))


def factorise(order: Order, D: Array, E: Array, least: Array) -> Factors:
    """Factorises D (C, m, m), E (edges, m, m); a row counts if its pivot is larger than its entry of `least` (C, m)."""
    m = D.shape[1]
    D = jnp.concatenate([D, jnp.zeros_like(D[:1])])
    E = jnp.concatenate([E, jnp.zeros((2, m, m), E.dtype)])  # a zero block to read, and one for unwanted writes
    parts = []
    for step in order.steps:
        beside, own = E[step.edges], np.arange(step.near.shape[1])
        inverse, pivots, kept = jax.vmap(_inverse)(D[step.nodes], least[step.nodes])
        towards = jnp.einsum("kij,kdjl->kdil", inverse, beside)
        change = jnp.einsum("kaji,kbjl->kabil", beside, towards)
        D = D.at[step.near].add(-change[:, own, own])
        E = E.at[step.pairs].add(-change)
        parts.append(Eliminated(inverse, towards, pivots, kept))
    return Factors(order, tuple(parts), (D.shape[0] - 1, m))


def _read(edges: np.ndarray, count: int) -> np.ndarray:
    return np.minimum(edges, count)


def _written(edges: np.ndarray, count: int) -> np.ndarray:
    return np.where(edges == count, count + 1, edges)


def _inverse(S: Array, least: Array) -> tuple[Array, Array, Array]:
    """The inverse G (m, m), the pivots, and which rows count, (m,) each; G is zero in the rows that do not count."""
    m = S.shape[0]
    one, zero = jnp.ones_like(S[0, 0]), jnp.zeros_like(S[0, 0])
    rest = [[S[i, j] for j in range(m)] for i in range(m)]
    lower = [[one if i == j else zero for j in range(m)] for i in range(m)]  # L^-1 with S = L D L^T
    pivots, kept, inverses = [], [], []
    for j in range(m):
        pivots.append(rest[j][j])
        kept.append(pivots[j] > least[j])
        inverses.append(jnp.where(kept[j], one / jnp.where(kept[j], pivots[j], one), zero))
        for i in range(j + 1, m):
            factor = rest[i][j] * inverses[j]
            rest[i] = [rest[i][l] - factor * rest[j][l] if l > j else zero for l in range(m)]
            lower[i] = [lower[i][l] - factor * lower[j][l] if l <= j else lower[i][l] for l in range(m)]
    W, counts = jnp.stack([jnp.stack(row) for row in lower]), jnp.stack(kept)
    W = jnp.where(counts[:, None] & counts[None], W, zero)
    return (W.T * jnp.stack(inverses)[None]) @ W, jnp.stack(pivots), counts


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
