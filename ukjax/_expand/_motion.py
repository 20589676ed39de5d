"""The constrained motion of a small mechanism as a scalar program, and by a fallback where that is not certain.

x: what the terms M, Q, A, b depend on; a = M^-1 Q; S = A M^-1 A^T; q'' = a + M^-1 A^T l with S l = b - A a, refined
once. It is factorised over the entries that are not zero.

The derivative is that of M q'' - A^T l = Q, A q'' = b, solved with the same factors: with r1, r2 the changes of
Q - M q'' + A^T l and b - A q'' at constant q'' and l,

    M dq'' - A^T dl = r1,  A dq'' = r2,

and its transpose, which takes the gradient of one number, p . (Q - M q'' + A^T l) + s . (b - A q''). So derivatives
take no M and no A where a system knows these two vectors, the imbalance, without them: by inverse dynamics.
"""

import abc
import functools as ft
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.lax import stop_gradient
from jax.tree_util import Partial
from jaxtyping import Array, PyTree

from .._linalg import whiten
from .._lowering import Traceable
from .._lowering._entry import Entry, NotScalar, constant
from .._program import TreeStructure, called, with_constants_as_arguments, with_results
from .._result import is_traced
from ._fast_or_slow import FastOrSlowOp, guarded_by
from ._graph import Graph, TooLong
from ._interpret import interpret
from ._piece import AbstractSmallOp, each_member, exchanged, traced, traced_cotangent
from ._scalar import ScalarProgram, grown, limits
from ._scalar_kkt import Certain, ScalarKKT
from ._scalar_piece import (
    AbstractCertainPiece,
    AbstractJudgedSlope,
    CertainScalars,
    PlainPiece,
    ScalarPiece,
    adjoint_program,
    inlined,
)
from ._symmetric import combined, product


class MotionPiece(AbstractCertainPiece):
    """The piece x -> q'' (n,), a (n,), constraint force (n,), |A q'' - b|, which rows depend on no others (m,), whether
    all of that is certain, and whether its derivatives are, too.

    Args:
        closed: x -> M, Q, A, b.
        certain: The thresholds for being certain.
        limit: Most operations of the program; raises TooLong if it has more, and NotScalar.
        vanishing: Whether rows may be nothing but the rounding errors of their terms.
        imbalance: x, q'', l -> Q - M q'' + A^T l, b - A q''; None to find them from the terms.

    Attributes:
        terms: x -> M, Q, A, b, a piece too.
    """

    def __init__(
        self,
        closed: ClosedJaxpr,
        certain: Certain,
        limit: int,
        vanishing: bool = False,
        imbalance: Traceable | None = None,
    ):
        mass, force, rows, _ = closed.out_avals
        n, dtype = force.shape[0], mass.dtype
        vector, number = jax.ShapeDtypeStruct((n,), dtype), jax.ShapeDtypeStruct((), dtype)
        flags = [jax.ShapeDtypeStruct(shape, bool) for shape in ((rows.shape[0],), (), ())]
        super().__init__(closed.in_avals, (vector, vector, vector, number, *flags))
        self.closed, self.limit, self.dtype, self.size = closed, limit, dtype, (rows.shape[0], n)
        self.certain, self.vanishing, self.imbalance = certain, vanishing, imbalance
        self._balances: dict[tuple[int, ...], ClosedJaxpr] = {}

        found: list[np.ndarray] = []  # M, Q, A, b

        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            found.extend(interpret(graph, closed, arguments))
            return self.found(graph, found)

        self.program = ScalarProgram(self.takes, self.gives, build, limit)
        self.terms = ScalarPiece(closed, limit, self.program.part(closed.out_avals, found))

    @property
    def scalar(self):
        return self.program

    def inline_one(self, graph, arguments):
        copied = self.program.copied(graph, arguments)
        return self.found(graph, interpret(graph, self.closed, arguments)) if copied is None else copied

    def found(self, graph: Graph, terms: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results from M, Q, A, b, as entries of a graph."""
        solved = self.from_terms(graph, terms)
        force = solved.force(solved.multipliers)
        vectors = map(column, (solved.acceleration, solved.free, force))
        clear = solved.clear()
        flags = column(solved.kept), alone(clear), alone(graph.both(clear, solved.few_depend))
        return [*vectors, alone(solved.residual()), *flags]

    def solved(self, graph: Graph, arguments: list[np.ndarray]) -> ScalarKKT:
        return self.from_terms(graph, interpret(graph, self.closed, arguments))

    def from_terms(self, graph: Graph, terms: Sequence[np.ndarray]) -> ScalarKKT:
        M, Q, A, b = terms
        return ScalarKKT(graph, M, Q, A, b, self.certain, self.dtype, self.vanishing)

    def evaluate(self, form, *arrays):
        return self.program.evaluate(form, *arrays)

    def balance(self, given: Sequence[int]) -> ClosedJaxpr:
        """The function (x, q'', l, a) -> Q - M q'' + A^T l, b - A q'', and what derivatives of `given` values need too.

        That is Q - M a for a, and A^T l for the constraint force.
        """
        further = tuple(i for i in (1, 2) if i in given)
        if further not in self._balances:
            (m, n), count = self.size, len(self.takes)
            vectors = [jax.ShapeDtypeStruct((k,), self.dtype) for k in (n, m, n)]
            by = self._balance_by_terms if self.imbalance is None else self._balance_by_inverse_dynamics
            self._balances[further] = traced(lambda *x: by(further, x[:count], *x[count:]), self.takes, vectors)
        return self._balances[further]

    def _balance_by_terms(
        self, further: Sequence[int], x: Sequence[Array], acceleration: Array, multipliers: Array, free: Array
    ) -> list[Array]:
        M, Q, A, b = jaxpr_as_fun(self.closed)(*x)
        force = A.T @ multipliers
        every = {1: Q - M @ free, 2: force}
        return [Q - M @ acceleration + force, b - A @ acceleration, *(every[i] for i in further)]

    def _balance_by_inverse_dynamics(
        self, further: Sequence[int], x: Sequence[Array], acceleration: Array, multipliers: Array, free: Array
    ) -> list[Array]:
        assert self.imbalance is not None
        of = jaxpr_as_fun(self.imbalance.closed)
        found = list(of(*x, acceleration, multipliers))
        if 1 in further:
            found.append(of(*x, free, jnp.zeros_like(multipliers))[0])
        if 2 in further:  # the imbalance is affine in the multipliers
            found.append(jax.jvp(lambda l: of(*x, acceleration, l)[0], (multipliers,), (multipliers,))[1])
        return found

    def make_tangent(self, moving):
        return _Tangent(self, moving, range(4))

    def make_cotangent(self, moving, given):
        return _Cotangent(self, moving, given)

    def judged_tangent(self, moving, given):
        return JudgedSlope(_Tangent(self, moving, given))

    def make_judged_cotangent(self, moving, given):
        return JudgedSlope(_Cotangent(self, moving, given))

    def dense(self, *x: Array) -> tuple[Array, Array, Array]:
        """q'', a and the constraint force by matrices, to be differentiated any number of times."""
        M, Q, A, b = jaxpr_as_fun(self.closed)(*x)
        _, W, _ = whiten(M)
        a = W.T @ (W @ Q)
        if not A.shape[0]:
            return a, a, jnp.zeros_like(a)
        B = A @ W.T
        # With the rows that depend on others struck out, as in the scalar program.
        kept = self(*map(stop_gradient, x))[4]
        S = jnp.where(kept[:, None] & kept[None], B @ B.T, jnp.eye(A.shape[0], dtype=A.dtype))
        _, V, _ = whiten(S)
        force = A.T @ (V.T @ (V @ jnp.where(kept, b - A @ a, 0)))
        return a + W.T @ (W @ force), a, force


def column(values: Sequence[Entry]) -> np.ndarray:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def alone(value: Entry) -> np.ndarray:
    found = np.empty((), object)
    found[()] = value
    return found


class _Derived(AbstractSmallOp):
    """A derivative of a motion; further derivatives are those of dense matrices."""

    base: MotionPiece

    @abc.abstractmethod
    def from_solved(self, solved: ScalarKKT, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """The results as entries of a graph."""

    @abc.abstractmethod
    def dense(self, *args: Array) -> Sequence[Array]:
        """The results by matrices."""

    @ft.cached_property
    def program(self) -> ScalarProgram | None:
        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            return self.from_solved(self.solved(graph, arguments), arguments)

        try:
            return ScalarProgram(self.takes, self.gives, build, grown(self.base.limit))
        except (TooLong, NotScalar):
            return None

    def solved(self, graph: Graph, arguments: list[np.ndarray]) -> ScalarKKT:
        return self.base.solved(graph, arguments[: len(self.base.takes)])

    @ft.cached_property
    def plain(self) -> PlainPiece:
        return PlainPiece(traced(lambda *args: list(self.dense(*args)), self.takes))

    def evaluate(self, form, *arrays):
        way = self.plain if self.program is None else self.program
        return way.evaluate(form, *arrays)

    def make_tangent(self, moving):
        return self.plain.make_tangent(moving)

    def make_cotangent(self, moving, given):
        return self.plain.make_cotangent(moving, given)


class _Tangent(_Derived):
    """The piece (x, dx of those that are `moving`) -> tangents of the `given` values; 0 for the residual."""

    def __init__(self, base: MotionPiece, moving: tuple[int, ...], given: Sequence[int]):
        self.base, self.moving, self.given = base, moving, tuple(given)
        takes = (*base.takes, *(base.takes[i] for i in moving))
        super().__init__(takes, [base.gives[i] for i in given])
        self.changes = ft.cache(self._make_changes)

    def _make_changes(self) -> ClosedJaxpr:
        """The function (x, dx, q'', l, a) -> the changes of the balance."""
        balance, count, moving = self.base.balance(self.given), len(self.base.takes), self.moving

        def changes(*args):
            x, dx, solution = args[:count], args[count:-3], args[-3:]

            def along(*moved):
                return jaxpr_as_fun(balance)(*exchanged(x, moving, moved), *solution)

            return jax.jvp(along, [x[i] for i in moving], list(dx))[1]

        return traced(changes, self.takes, balance.in_avals[count:])

    def from_solved(self, solved, arguments):
        return self._response(solved, *inlined(solved.graph, *self._changes(solved, arguments)))

    def of_directions(
        self, solved: ScalarKKT, batched: tuple[bool, ...], arguments: list[np.ndarray]
    ) -> list[np.ndarray]:
        """The results as entries of a graph, for a batch of directions at one state."""
        changes, _, given = self._changes(solved, arguments)
        rows = zip(*inlined(solved.graph, changes, (*batched, *(False,) * 3), given), strict=True)
        return [np.stack(x) for x in zip(*(self._response(solved, *row) for row in rows), strict=True)]

    def _changes(self, solved: ScalarKKT, arguments: list[np.ndarray]) -> tuple[ClosedJaxpr, tuple[bool, ...], list]:
        given = [*arguments, *_solution(solved)]
        return self.changes(), (False,) * len(given), given

    def _response(self, solved: ScalarKKT, *changes: np.ndarray) -> list[np.ndarray]:
        graph, (r1, r2, *further) = solved.graph, map(list, changes)
        change, multipliers = solved.respond(r1, r2)
        found = {0: column(change), 3: alone(constant(0, self.base.dtype))}
        if 1 in self.given:
            found[1] = column(solved.mass.solve(further[0]))
        if 2 in self.given:
            found[2] = column(combined(graph, graph.add, further[-1], solved.force(multipliers)))
        return [found[i] for i in self.given]

    def dense(self, *args):
        count = len(self.base.takes)
        x, dx = args[:count], args[count:]

        def along(*moved: Array) -> tuple[Array, Array, Array]:
            return self.base.dense(*exchanged(x, self.moving, moved))

        changes = *jax.jvp(along, [x[i] for i in self.moving], list(dx))[1], jnp.zeros((), self.base.dtype)
        return [changes[i] for i in self.given]


class _Cotangent(_Derived):
    """The piece (x, cotangents of those `given` of q'', a, force, residual) -> cotangents of those `moving` of x."""

    def __init__(self, base: MotionPiece, moving: tuple[int, ...], given: tuple[int, ...]):
        self.base, self.moving, self.given = base, moving, given
        super().__init__((*base.takes, *(base.gives[i] for i in given)), [base.takes[i] for i in moving])

    @ft.cached_property
    def adjoint(self) -> ScalarProgram | None:
        """The program of `gradient`; None if there is none."""
        balance = self.base.balance(self.given)
        count = len(balance.out_avals)
        try:
            program = adjoint_program(balance, self.moving, range(count), grown(self.base.limit))
        except (TooLong, NotScalar):
            return None
        return program.some(range(count, len(program.gives)))

    @ft.cached_property
    def gradient(self) -> ClosedJaxpr:
        """The function (x, q'', l, a, cotangents of the balance) -> cotangents of x, derived by JAX."""
        balance = self.base.balance(self.given)
        return traced_cotangent(balance, self.moving, range(len(balance.out_avals)))

    def from_solved(self, solved, arguments):
        graph, base, count = solved.graph, self.base, len(self.base.takes)
        zeros = [constant(0, base.dtype)] * base.size[1]
        weights = {i: list(x) for i, x in zip(self.given, arguments[count:], strict=True) if i < 3}
        on_acceleration, on_force = (weights.get(i) or zeros for i in (0, 2))
        # Of p . (Q - M q'' + A^T l) + s . (b - A q'') + f . (Q - M a) + (weights of the force) . A^T l, f: M^-1 (of a).
        on_balance = list(_adjoint(solved, on_acceleration, on_force))
        if 1 in weights:
            on_balance.append(solved.mass.solve(weights[1]))
        if 2 in weights:
            on_balance.append(on_force)
        given = [*arguments[:count], *_solution(solved), *map(column, on_balance)]
        copied = None if self.adjoint is None else self.adjoint.copied(graph, given)
        return interpret(graph, self.gradient, given) if copied is None else copied

    def dense(self, *args):
        count = len(self.base.takes)
        x, weights = args[:count], dict(zip(self.given, args[count:], strict=True))

        def work(*moved):
            out = self.base.dense(*exchanged(x, self.moving, moved))
            return sum((weights[i] @ out[i] for i in weights if i < 3), jnp.zeros((), self.base.dtype))

        return jax.grad(work, argnums=tuple(range(len(self.moving))))(*(x[i] for i in self.moving))


class JudgedSlope(AbstractJudgedSlope):
    """A derivative of a motion, and whether it is certain."""

    def __init__(self, slope: _Derived):
        super().__init__(slope.takes, (*slope.gives, jax.ShapeDtypeStruct((), bool)))
        self.slope, self.limit = slope, grown(slope.base.limit)

    def every(self, graph, batched, arguments):
        slope, count = self.slope, len(self.slope.base.takes)
        if any(batched) and (any(batched[:count]) or not isinstance(slope, _Tangent)):
            return each_member(lambda one: self.every(graph, (False,) * len(one), one), batched, arguments)
        solved = slope.solved(graph, arguments)
        smooth = alone(graph.both(solved.clear(), solved.few_depend))
        if not any(batched):
            return [*slope.from_solved(solved, arguments), smooth]
        assert isinstance(slope, _Tangent)
        found = slope.of_directions(solved, batched, arguments)
        return [*found, np.repeat(smooth[None], len(found[0]))]


def _solution(solved: ScalarKKT) -> list[np.ndarray]:
    """q'', the multipliers of least norm, and a."""
    return [column(x) for x in (solved.acceleration, solved.least(solved.multipliers), solved.free)]


def _adjoint(
    solved: ScalarKKT, on_acceleration: Sequence[Entry], on_force: Sequence[Entry]
) -> tuple[list[Entry], list[Entry]]:
    """The solution p, s of M p + A^T s = w, -A p = A f, for weights w on acceleration and f on constraint force."""
    graph = solved.graph
    start = solved.mass.solve(on_acceleration)
    if not len(solved.A):
        return start, []
    total = combined(graph, graph.add, start, on_force)
    s = solved.least(solved.rows.solve(product(graph, solved.A, total, solved.dtype)))
    return combined(graph, graph.sub, start, solved.pushed(s)), s


def guarded_motion(
    otherwise: Callable[..., PyTree],
    found: Callable[[Array, Array, Array, Array, Array], PyTree],
    certain: Certain,
    limit: int,
    terms: ClosedJaxpr,
    arrays: Sequence[Array],
    more: Callable[..., Sequence[Array]] | None = None,
    imbalance: Traceable | None = None,
) -> PyTree | None:
    """A tree of arrays from M, Q, A, b at a state, by `found` from a scalar program, or by the fallback `otherwise`.

    Args:
        otherwise: (M, Q, A, b, and the results of `more`) -> the tree.
        found: (q'', a, constraint force, residual, rows that count) -> the tree, where the program is certain of them.
        certain: The thresholds for being certain.
        limit: Most operations of the program.
        terms: arrays -> M, Q, A, b, traced, without constants that are being traced.
        arrays: The state, and whatever else the terms are made of.
        more: arrays -> further arguments of `otherwise`.
        imbalance: As for `MotionPiece`.

    Returns:
        The tree; None if there is no such program.
    """
    try:
        piece = MotionPiece(terms, certain, limit, more is not None, imbalance)
    except (TooLong, NotScalar):
        return None
    tree, structure = _leaves_of(found, piece.gives[:-2])
    slow, arrays = _slow_way(otherwise, piece.terms, more, arrays, tree.out_avals, bool(terms.effects))
    return jax.tree_util.tree_unflatten(structure, FastOrSlowOp(piece, tree, slow)(*arrays))


def _slow_way(
    otherwise: Callable[..., PyTree],
    terms: Callable[..., Sequence[Array]],
    more: Callable[..., Sequence[Array]] | None,
    arrays: Sequence[Array],
    gives: Sequence[ShapedArray],
    has_effects: bool,
) -> tuple[Traceable, Sequence[Array]]:
    """The leaves that `otherwise` makes of the results of `terms` and `more`; and the arrays that it takes.

    It is traced when it is needed, unless `otherwise`, a pytree, has arrays in it that are being traced now.
    """

    def leaves(*arrays: Array) -> list[Array]:
        further = [] if more is None else more(*arrays)
        return jax.tree_util.tree_leaves(otherwise(*terms(*arrays), *further))

    if not is_traced(otherwise):
        avals = [ShapedArray(x.shape, x.dtype) for x in arrays]
        return Traceable(lambda: traced(leaves, avals), avals, gives, has_effects), arrays
    closed, further = with_constants_as_arguments(jax.make_jaxpr(leaves)(*arrays))
    return Traceable.of(closed), [*arrays, *further]


def guarded(
    otherwise: Callable[..., PyTree],
    found: PyTree,
    clear: Array,
    smooth: Array,
    terms: ClosedJaxpr,
    arrays: Sequence[Array],
    more: Callable[..., Sequence[Array]] | None = None,
) -> PyTree:
    """A tree of arrays: `found` where it is `clear`, and its derivatives where it is `smooth`, or else `otherwise`.

    `otherwise`, `terms`, `arrays`, `more`: as for `guarded_motion`. `otherwise` is evaluated only where it is needed.
    """
    of = ScalarPiece(terms, limits().function)
    leaves, structure = jax.tree_util.tree_flatten(found)
    leaves = [jnp.asarray(x) for x in leaves]
    gives = [ShapedArray(x.shape, x.dtype) for x in leaves]
    slow, arrays = _slow_way(otherwise, of, more, arrays, gives, bool(terms.effects))
    return jax.tree_util.tree_unflatten(structure, guarded_by(slow)(~clear, ~smooth, *arrays, *leaves))


def guarded_scalars(
    problem: Callable[..., PyTree],
    otherwise: Callable[[PyTree], PyTree],
    found: Callable[[PyTree], tuple[PyTree, Array, Array]],
    limit: int,
    state: Sequence[Array],
) -> PyTree | None:
    """A tree of arrays at a state, by `found` as scalar code where that is certain, or by the fallback `otherwise`.

    Args:
        problem: (*state) -> a pytree, from which both find the tree.
        otherwise: problem -> the tree. Here and above, the arrays that it closes over are those of a `Partial`.
        found: problem -> the tree, whether it is certain, and whether its derivatives are; raises NotScalar where it
            is not possible.
        limit: Most operations of the program.
        state: Arrays.

    Returns:
        The tree; None if there is no such program.
    """
    structures: list[TreeStructure] = []
    asked: list[Callable[[Sequence[Array]], PyTree]] = []

    def leaves(*state):
        given, rest = eqx.partition(problem(*state), eqx.is_array)
        given, structure = jax.tree_util.tree_flatten(given)
        asked.append(lambda arrays: eqx.combine(jax.tree_util.tree_unflatten(structure, arrays), rest))
        tree, clear, smooth = found(asked[0](given))
        flat, structure_of_tree = jax.tree_util.tree_flatten(tree)
        structures.append(structure_of_tree)
        return [*map(jnp.asarray, flat), clear, smooth], given

    try:
        closed, further = with_constants_as_arguments(jax.make_jaxpr(leaves)(*state))
        count = structures[0].num_leaves + 2
        piece = CertainScalars(with_results(closed, range(count)), limit)
    except (TooLong, NotScalar):
        return None

    of_leaves = Partial(lambda otherwise, *leaves: otherwise(asked[0](leaves)), otherwise)
    tree, _ = _leaves_of(lambda *values: values, piece.gives[:-2])
    slow, arrays = _slow_way(
        of_leaves,
        ft.partial(called, with_results(closed, range(count, len(closed.out_avals)))),
        None,
        [*state, *further],
        tree.out_avals,
        bool(closed.effects),
    )
    return jax.tree_util.tree_unflatten(structures[0], FastOrSlowOp(piece, tree, slow)(*arrays))


def _leaves_of(found: Callable[..., PyTree], values: Sequence[ShapedArray]) -> tuple[ClosedJaxpr, TreeStructure]:
    """The leaves of the tree that `found` makes of values like these, and its structure."""
    structures: list[TreeStructure] = []

    def leaves(*values):
        flat, structure = jax.tree_util.tree_flatten(found(*values))
        structures.append(structure)
        return [jnp.asarray(x) for x in flat]

    return traced(leaves, values), structures[0]
