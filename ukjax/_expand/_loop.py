"""A loop of a step that is one scalar program: as machine code on a CPU, else as a loop of JAX."""

import functools as ft
import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, PyTree

from .._lowering import (
    Gathered,
    Kernel,
    Loop,
    LoopArrays,
    LoopPrograms,
    Mark,
    SavedRows,
    SavingPrograms,
    SureWay,
    Tables,
    Traceable,
    first_loop_kernel,
    run_loop,
    runs_machine_code,
    thread_loop,
    vector_width,
)
from .._lowering._entry import NotScalar
from .._lowering._program import Program
from .._program import TreeStructure, with_constants_as_arguments
from ._graph import Graph
from ._interpret import interpret
from ._piece import AbstractBatchedOp, EvalForm, exchanged
from ._scalar import ProgramOp, ScalarProgram, limits, over_batch, size_of
from ._scalar_piece import ScalarPiece
from ._tiled import fast_or_slow


class ScalarStep:
    """A step that many states repeat, as one scalar program with all the pieces in it.

    Args:
        function: (state, *others) -> (new, otherwise, found, wanted, doubt, matters). The state becomes `new`; where
            the function is in `doubt`, or a piece in it is not certain, and that `matters`, it becomes `otherwise`.
            `found`: a tree of truth values, none of which is set there. `wanted`: any tree of arrays.
        state, others: Trees of arrays of one state.
        most: Most operations of the program.

    Raises:
        NotScalar, TooLong: If there is no such program.
    """

    @classmethod
    def of(cls, function: Callable[..., tuple[PyTree, ...]], state: PyTree, *others: PyTree, most: int) -> "ScalarStep":
        """The step of a function without arrays; one for all functions that are equal, while it is in use."""
        parts, form = jax.tree_util.tree_flatten(function)
        kinds, shapes = jax.tree_util.tree_flatten((state, others))
        avals = tuple(map(jax.typeof, kinds))
        # 1, 1.0 and True are equal, as are zeros of either sign.
        exact = tuple((type(x), repr(x) if isinstance(x, float | complex) else x) for x in parts)
        key = exact, form, avals, shapes, most, jax.config.read("jax_enable_x64"), runs_machine_code()
        try:
            made = _STEPS.get(key)
        except TypeError:  # an array, or what else has no hash
            return cls(function, state, *others, most=most)
        if made is None:
            made = _STEPS[key] = cls(function, state, *others, most=most)
        return made

    def __init__(self, function: Callable[..., tuple[PyTree, ...]], state: PyTree, *others: PyTree, most: int):
        leaves, structure = jax.tree_util.tree_flatten((state, others))
        self.forms: list[TreeStructure] = []

        def flat(*leaves):
            state, others = jax.tree_util.tree_unflatten(structure, leaves)
            *trees, doubt, matters = function(state, *others)
            flats, self.forms = map(list, zip(*map(jax.tree_util.tree_flatten, trees), strict=True))
            return [jnp.asarray(x) for x in (*(x for flat in flats for x in flat), doubt, matters)]

        closed, self.further = with_constants_as_arguments(jax.make_jaxpr(flat)(*leaves))
        new, otherwise, found, _ = (form.num_leaves for form in self.forms)
        assert new == otherwise

        def build(graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
            graph.calls = runs_machine_code()
            *values, doubt, matters = interpret(graph, closed, arguments)
            flag = graph.both(matters.item(), graph.either(doubt.item(), graph.doubt()))
            states = [
                fast_or_slow(graph, flag, *both) for both in zip(values[new : 2 * new], values[:new], strict=True)
            ]
            rest = values[2 * new :]
            return [*states, *(fast_or_slow(graph, flag, np.zeros((), bool), x) for x in rest[:found]), *rest[found:]]

        self.gives = [*closed.out_avals[:new], *closed.out_avals[2 * new : -2]]
        program = ScalarProgram(closed.in_avals, self.gives, build, most, inlines=True)
        self.operation = ProgramOp(program)
        if program.program.has_arrays:
            raise NotScalar("what stays an operation on arrays")
        if not (runs_machine_code() and program.native.is_one):
            raise NotScalar("what has no machine code")


# The steps that are in use.
_STEPS: weakref.WeakValueDictionary[tuple, ScalarStep] = weakref.WeakValueDictionary()


class Saves(NamedTuple):
    """The functions that save rows at times of a table.

    Attributes:
        due: (findings, time) -> whether the time lies within the step.
        look: (findings, time) -> the row to save (n,).
        following: state -> its leaf that tells which time is the next to look at.
    """

    due: Callable[[PyTree, Array], Array]
    look: Callable[[PyTree, Array], Array]
    following: Callable[[PyTree], Any]


class Marks(NamedTuple):
    """Parts of a state that are written to rows of tables after a step.

    Attributes:
        value: state -> tree of its leaves that are written, each to a table of its own.
        flag, place: state -> its leaf that tells whether they are written, and to which row; nowhere if there is none.
        rows: The number of rows.
    """

    value: Callable[[PyTree], PyTree]
    flag: Callable[[PyTree], Any]
    place: Callable[[PyTree], Any]
    rows: int


class Gathers(NamedTuple):
    """The functions that gather rows of tables before a step, as many as are due.

    Attributes:
        gather: (state, row of the step, row of these tables) -> (whether it is due, the new state where it is).
        at: state -> its leaf that tells which row is next.
        new: state -> tree of its leaves that become new.
    """

    gather: Callable[[PyTree, PyTree, PyTree], tuple[Array, PyTree]]
    at: Callable[[PyTree], Any]
    new: Callable[[PyTree], PyTree]


class Repeats(NamedTuple):
    """The functions of one member of a batch that a `ScalarLoop` repeats; they close over no array being traced.

    Attributes:
        step: (state, stays, row) -> (new, otherwise, certain findings, other findings, doubt, matters), see
            `ScalarStep`.
        sure: (state, stays, row) -> (new, (certain findings, other findings)), where the step is in doubt.
        going, waits: state -> its leaf that tells whether the member goes on, and whether a step waits for the sure
            way.
        saves: The functions that save rows, if any are saved.
        at: state -> its leaf that tells which `row` of tables a step takes; the nearest if there is none.
        gathers: The functions that gather rows of further tables before a step, if any are gathered.
        marks: What is written to rows of tables.
        cost: (state, stays) -> a number that is larger where a member has more steps to go, as far as that is known.
    """

    step: Callable[..., tuple[PyTree, ...]]
    sure: Callable[..., tuple[PyTree, PyTree]]
    going: Callable[[PyTree], Any]
    waits: Callable[[PyTree], Any]
    saves: Saves | None = None
    at: Callable[[PyTree], Any] | None = None
    gathers: Gathers | None = None
    marks: tuple[Marks, ...] = ()
    cost: Callable[[PyTree, PyTree], Array] | None = None


class LoopEnd(NamedTuple):
    """The end of a loop: the state, the rows (T, n) with those that were saved, and the tables of each of the marks."""

    state: PyTree
    rows: Array | None
    marked: tuple[PyTree, ...]


class LoopTables(NamedTuple):
    """The tables of a loop, or their shapes and dtypes.

    Attributes:
        read: A tree of tables of as many rows, of which a step takes one.
        gathered: A tree of further ones, of which rows are gathered before a step.
    """

    read: PyTree = ()
    gathered: PyTree = ()


class ScalarLoop:
    """A step that members of a batch repeat, each until it is done, with what they save and mark on the way.

    Args:
        repeats: The functions.
        state, stays: Trees of arrays of one member, or of their shapes and dtypes.
        tables: Its tables.
        times: The table of times, likewise; None if no rows are saved.

    Raises:
        NotScalar, TooLong: If a function is no scalar program.
    """

    def __init__(
        self,
        repeats: Repeats,
        state: PyTree,
        stays: PyTree,
        tables: LoopTables = LoopTables(),
        times: ShapedArray | None = None,
    ):
        self.repeats = repeats
        shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, stays, tables))
        rows = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), shapes[2])
        step = ScalarStep.of(repeats.step, state, stays, rows.read, most=limits().derivative)
        if step.further:
            raise NotScalar("a step that closes over arrays")
        leaves, structure = jax.tree_util.tree_flatten(state)
        count, takes = len(leaves), step.operation.takes
        new, found = tuple(step.gives[:count]), tuple(step.gives[count:])
        self.findings = jax.tree_util.tree_unflatten(_joined(*step.forms[2:]), found)
        self.numbers = jax.tree_util.tree_unflatten(structure, range(count))
        looks, gather = self._looks(times), self._gather(shapes[0], rows)
        saving = SavingPrograms(*map(_program, looks)) if looks else None
        programs = LoopPrograms(step.operation.program.program, saving, gather and _program(gather))
        saved = None
        if repeats.saves is not None and times is not None:
            saved = SavedRows(times, looks[1].out_avals[0], repeats.saves.following(self.numbers))
        read = self._tables(shapes[2].read, repeats.at)
        stay = takes[count : len(takes) - len(read.tables)]
        ends = (which(self.numbers) for which in (repeats.going, repeats.waits))
        arrays = LoopArrays(
            takes[:count], found, stay, read, self._gathered(shapes[2].gathered), self._marks(), saved, *ends
        )
        kinds = ([(x.shape, x.dtype) for x in some] for some in (new, arrays.state))
        assert ft.reduce(operator.eq, kinds), "a step keeps shapes and dtypes"
        self.takes = (*arrays.state, *stay, *read.tables)
        sure = Traceable(lambda: _flat(self._sure, *shapes[:2], shapes[2].read), self.takes, (*new, *found), False)
        cost = None if repeats.cost is None else ft.cache(ft.partial(_flat, repeats.cost, *shapes[:2]))
        self.op = LoopOp(programs, arrays, sure, Traced(looks, gather, step, cost))

    def _looks(self, times: ShapedArray | None) -> list[ClosedJaxpr]:
        """The functions that save rows, traced."""
        if self.repeats.saves is None or times is None:
            return []
        time = jax.ShapeDtypeStruct((), times.dtype)
        return [_flat(f, self.findings, time) for f in (self.repeats.saves.due, self.repeats.saves.look)]

    def _gather(self, state: PyTree, rows: LoopTables) -> ClosedJaxpr | None:
        """The function that gathers rows, traced; it gives the leaves that become new."""
        gathers = self.repeats.gathers
        if gathers is None:
            return None

        def gather(state, read, gathered):
            is_due, new = gathers.gather(state, read, gathered)
            return is_due, gathers.new(new)

        return _flat(gather, state, *rows)

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(
            Mark(leaf, m.flag(self.numbers), m.place(self.numbers), m.rows)
            for m in self.repeats.marks
            for leaf in jax.tree_util.tree_leaves(m.value(self.numbers))
        )

    def _tables(self, tables: PyTree, at: Callable[[PyTree], Any] | None) -> Tables:
        flat = tuple(ShapedArray(x.shape, x.dtype) for x in jax.tree_util.tree_leaves(tables))
        return Tables(flat, 0 if at is None else at(self.numbers))

    def _gathered(self, tables: PyTree) -> Gathered:
        gathers = self.repeats.gathers
        if gathers is None:
            return Gathered(Tables(), ())
        return Gathered(self._tables(tables, gathers.at), tuple(jax.tree_util.tree_leaves(gathers.new(self.numbers))))

    def _sure(self, state: PyTree, stays: PyTree, tables: PyTree) -> tuple[PyTree, PyTree]:
        return self.repeats.sure(state, stays, () if self.repeats.at is None else _row(tables, self.repeats.at(state)))

    def __call__(
        self,
        state: PyTree,
        stays: PyTree,
        tables: LoopTables = LoopTables(),
        saves: tuple[Array, Array] | None = None,
        marked: tuple[PyTree, ...] = (),
    ) -> LoopEnd:
        """Steps a member to its end.

        Args:
            state, stays, tables: As when it was made.
            saves: The times, and rows (T, n), of which those that are saved are replaced.
            marked: For each of the marks the tree of its tables, rows of which are replaced.
        """
        found = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), self.findings)
        leaves, structure = jax.tree_util.tree_flatten(state)
        before, stay, read = (jax.tree_util.tree_leaves(x) for x in (found, stays, tables))
        given, form = jax.tree_util.tree_flatten(marked)
        times, rows = ([], []) if saves is None else ([x] for x in saves)
        results = self.op(*leaves, *before, *rows, *given, *stay, *read, *times)
        new, ended = results[: len(leaves)], results[len(leaves) + len(before) :]
        return LoopEnd(
            jax.tree_util.tree_unflatten(structure, new),
            ended[0] if rows else None,
            jax.tree_util.tree_unflatten(form, ended[len(rows) :]),
        )


def _row(tables: PyTree, at: Array) -> PyTree:
    """A row of tables, the nearest if there is none."""
    return jax.tree_util.tree_map(lambda x: x[jnp.clip(at, 0, x.shape[0] - 1)], tables)


def _program(closed: ClosedJaxpr) -> Program:
    program = ScalarPiece(closed, limits().function).program.program
    if program.has_arrays:
        raise NotScalar("what stays an operation on arrays")
    return program


def _joined(*forms: TreeStructure) -> TreeStructure:
    """The structure of a tuple of trees."""
    return jax.tree_util.tree_structure(
        tuple(jax.tree_util.tree_unflatten(form, range(form.num_leaves)) for form in forms)
    )


def _flat(function: Callable[..., PyTree], *args: PyTree) -> ClosedJaxpr:
    """Traces a function of trees as one of their leaves."""
    leaves, structure = jax.tree_util.tree_flatten(args)

    def flat(*leaves):
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(structure, leaves)))

    return jax.make_jaxpr(flat)(*leaves)


class Traced(NamedTuple):
    """The functions of a loop: those that save rows, if any, the one that gathers them, its step, and the cost.

    The cost is traced when it is asked for.
    """

    looks: Sequence[ClosedJaxpr]
    gather: ClosedJaxpr | None
    step: ScalarStep
    cost: Callable[[], ClosedJaxpr] | None


class LoopOp(AbstractBatchedOp):
    """A `ScalarLoop` of flat arrays: those that change, and others -> those that change."""

    def __init__(self, programs: LoopPrograms, arrays: LoopArrays, sure: Traceable, traced: Traced):
        super().__init__([*arrays.changed, *arrays.others], arrays.changed)
        self.programs, self.arrays, self.sure, self.traced = programs, arrays, sure, traced
        self._made: dict[tuple[bool, ...], tuple[Kernel, Loop]] = {}

    def evaluate(self, form: EvalForm, *given: Array) -> list[Array]:
        form, arrays = form.wide(given)
        changed, size = len(self.gives), size_of(form.batched, arrays)
        flags = form.batched[changed:]
        if size and not all(form.batched[:changed]):
            pairs = zip(arrays[:changed], self.gives, strict=True)
            wide = [x if x.ndim > y.ndim else jnp.broadcast_to(x, (*size, *y.shape)) for x, y in pairs]
            arrays = [*wide, *arrays[changed:]]
        key = (form.gpu is not None, bool(size), *flags)
        if form.native and key not in self._made:
            # What all members share is computed once, what belongs to a single one likewise.
            if form.gpu is not None:
                kernel = thread_loop(self.programs, self.arrays, flags, bool(size))
            else:
                kernel = first_loop_kernel(self.programs, self.arrays, flags, vector_width() if size else 1)
            state = len(self.arrays.state)
            batched = (bool(size),) * state + flags[: len(self.sure.in_avals) - state]
            self._made[key] = kernel, Loop(self.programs, self.arrays, SureWay(self.sure, batched, plain=True))
        if not form.native or (form.gpu is not None and not form.gpu.fits(self._made[key][0], True)):
            return over_batch(self._by_steps, ((bool(size),) * changed + flags))(*arrays)
        order = () if form.gpu is None or not size else (self._longest_first(arrays, flags),)
        return run_loop(*self._made[key], bool(size), flags, [*arrays, *order])

    def _longest_first(self, arrays: Sequence[Array], flags: Sequence[bool]) -> Array:
        """The members by their cost, the largest first: threads that work side by side have about as many steps."""
        if self.traced.cost is None:
            return jnp.arange(arrays[0].shape[0], dtype=jnp.int32)
        state, first, stays = len(self.arrays.state), len(self.gives), len(self.arrays.stays)
        batched = (True,) * state + tuple(flags[:stays])
        given = [*arrays[:state], *arrays[first : first + stays]]
        (cost,) = over_batch(jaxpr_as_fun(self.traced.cost()), batched)(*given)
        return jnp.argsort(-cost).astype(jnp.int32)

    def _by_steps(self, *arrays: Array) -> list[Array]:
        """Steps one member, by operations of JAX."""
        kinds, count = self.arrays, len(self.gives)
        state = len(kinds.state)
        changed, others = arrays[:count], arrays[count:]
        rest, further = others[: len(self.sure.in_avals) - state], others[len(self.sure.in_avals) - state :]
        found = state + len(kinds.findings)

        def body(carry):
            changed, ended = list(carry[:found]), list(carry[found:])
            changed = self._gathered(changed, rest, further)
            changed = list(jaxpr_as_fun(self.sure.closed)(*changed[:state], *rest))
            for k, m in enumerate(kinds.marks, len(ended) - len(kinds.marks)):
                place = changed[m.place]
                there = changed[m.flag] & (place >= 0)
                ended[k] = ended[k].at[jnp.where(there, place, m.rows)].set(changed[m.array], mode="drop")
            if kinds.saved is not None:
                changed, ended[0] = self._saved(changed, ended[0], further[-1])
            return (*changed, *ended)

        return list(lax.while_loop(lambda carry: carry[kinds.going], body, tuple(changed)))

    def _gathered(self, changed: list[Array], rest: Sequence[Array], further: Sequence[Array]) -> list[Array]:
        """Gathers all rows that are due before a step."""
        if self.traced.gather is None:
            return changed
        gather, kinds = jaxpr_as_fun(self.traced.gather), self.arrays
        read = _row(rest[len(kinds.stays) :], changed[kinds.read.at])
        state, tables = len(kinds.state), kinds.gathered.tables

        def found(changed):
            return gather(*changed[:state], *read, *_row(further[: len(tables.tables)], changed[tables.at]))

        def renew(changed):
            return exchanged(changed, kinds.gathered.new, found(changed)[1:])

        return list(lax.while_loop(lambda changed: found(changed)[0], renew, changed))

    def _saved(self, changed: list[Array], rows: Array, times: Array) -> tuple[list[Array], Array]:
        """Saves rows at all times within the last step."""
        due, look = (jaxpr_as_fun(x) for x in self.traced.looks)
        assert self.arrays.saved is not None
        state, following = len(self.arrays.state), self.arrays.saved.following

        def left(carry):
            changed, _ = carry
            j = changed[following]
            at = times[jnp.minimum(j, times.shape[0] - 1)]
            return (j < times.shape[0]) & due(*changed[state:], at)[0]

        def save(carry):
            changed, rows = carry
            j = changed[following]
            rows = rows.at[j].set(look(*changed[state:], times[j])[0])
            return exchanged(changed, [following], [j + 1]), rows

        return lax.while_loop(left, save, (changed, rows))
