"""A scalar program on arrays, as machine code, with operations of JAX between its parts where it has some.

An operation on arrays (LAPACK, a table, a callback), and one for which machine code has no instruction, stays one of
JAX. The program is cut into levels: the level of a number is the count of such operations, one after the other, on the
way to it. A level is one kernel.
"""

import functools as ft
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jaxtyping import Array

from ._bind import SureWay, evaluate, mended
from ._compile import vector_width
from ._entry import Block, Entry, Node
from ._gpu import Cuda
from ._kernel import Kernel, Row, interpreted_first, kernel
from ._print import has_instruction, is_printable, is_supported
from ._program import Program
from ._thread import row_kernel


class NativeProgram:
    """A scalar program between arrays, `takes` and `gives` of one state, as machine code.

    Attributes:
        is_possible: Whether machine code has numbers of all its dtypes.
    """

    def __init__(self, program: Program, takes: Sequence[ShapedArray], gives: Sequence[ShapedArray]):
        self.program, self.takes, self.gives = program, tuple(takes), tuple(gives)
        self.kernels: dict[tuple[bool, bool, tuple[bool, ...]], Kernel] = {}
        self.kernels_along: dict[tuple[tuple[bool, ...], tuple[bool, ...], int], Kernel] = {}
        self.is_one = is_printable(program)
        dtypes = {np.dtype(x.dtype) for x in (*program.inputs, *program.steps, *program.outputs)}
        self.is_possible = all(is_supported(x) for x in dtypes if x != np.dtype(object))

    @classmethod
    def of(cls, program: Program, takes: Sequence[ShapedArray], gives: Sequence[ShapedArray]) -> "NativeProgram":
        """The native program; `takes` may have arrays more than the program has inputs, which it does not use."""
        missing = sum(x.size for x in takes) - len(program.inputs)
        further = [x.dtype for x in takes for _ in range(x.size)][len(program.inputs) :] if missing else []
        return cls(Program([*program.inputs, *map(_unused, further)], program.outputs), takes, gives)

    def __call__(
        self,
        batched: Sequence[bool],
        arrays: Sequence[Array],
        way: SureWay | None = None,
        gpu: Cuda | None = None,
    ) -> list[Array] | None:
        """The results for arrays of which those that are `batched` have the batch as their first axis.

        `way`: computes all results but the last for states where that is set. `gpu`: where it is to run; None if a
        kernel needs more memory than that has.
        """
        flags = tuple(batched)
        if not self.gives:
            return []
        if not self.is_one:
            try:
                found = _Levels(self.program, self.takes, self.gives, gpu)(flags, arrays)
            except _TooLarge:
                return None
            return found if way is None else [*mended(way, found[-1], arrays, found[:-1]), found[-1]]
        key = gpu is not None, way is not None, flags
        if key not in self.kernels:
            self.kernels[key] = printed(self.program, self.takes, self.gives, flags, *key[:2])
        if gpu is not None and not gpu.fits(self.kernels[key], False):
            return None
        return evaluate(self.kernels[key], flags, self.gives, arrays, way)

    def along(
        self, directions: Sequence[bool], count: int, batched: Sequence[bool], arrays: Sequence[Array]
    ) -> list[Array] | None:
        """The results for `count` directions of each state, on a CPU, at the axis after the batch.

        Returns None where there is no kernel of the whole program. `directions`: which arrays have one for each
        direction. Some of the others are `batched`.
        """
        if not (self.is_possible and self.is_one):
            return None
        flags = tuple(batched)
        key = tuple(directions), flags, count
        if key not in self.kernels_along:
            kinds = zip(self.takes, flags, directions, strict=True)
            rows = [Row(x.size, np.dtype(x.dtype), b, count if turns else 1) for x, b, turns in kinds]
            results = [Row(x.size, np.dtype(x.dtype), directions=count) for x in self.gives]
            prints = ft.partial(kernel, self.program, rows, results, vector_width())
            self.kernels_along[key] = interpreted_first(self.program, prints)
        gives = [ShapedArray((count, *x.shape), x.dtype) for x in self.gives]
        return evaluate(self.kernels_along[key], flags, gives, arrays)


def printed(
    program: Program,
    takes: Sequence[ShapedArray],
    gives: Sequence[ShapedArray],
    batched: Sequence[bool],
    threads: bool,
    judges: bool = False,
) -> Kernel:
    """The kernel of a program between arrays, for threads or, if there is a batch, as wide as this CPU.

    `judges`: whether the last result tells which states need the sure way.
    """
    wide = any(batched)
    rows = [Row(x.size, np.dtype(x.dtype), b or not wide) for x, b in zip(takes, batched, strict=True)]
    results = [Row(x.size, np.dtype(x.dtype)) for x in gives]
    if threads:
        return row_kernel(program, rows, results, judges)
    prints = ft.partial(kernel, program, rows, results, vector_width() if wide else 1)
    return interpreted_first(program, prints)


class _TooLarge(Exception):
    """A kernel needs more memory than a GPU has."""


class _Levels:
    """The levels of a program, evaluated one after the other."""

    def __init__(self, program: Program, takes: Sequence[ShapedArray], gives: Sequence[ShapedArray], gpu: Cuda | None):
        self.program, self.takes, self.gives, self.gpu = program, takes, gives, gpu
        self.level: dict[int, int] = {node.order: 0 for node in program.inputs}
        self.kept: dict[int, list[Node]] = {}  # operations of JAX, by the level that their arguments have
        for node in program.steps:
            below = max((self.level.get(x.order, 0) for x in node.nodes), default=0)
            is_entry = node.place is not None
            if not is_entry and not has_instruction(node):
                self.kept.setdefault(below, []).append(node)
                below += 1
            self.level[node.order] = below

    def __call__(self, batched: tuple[bool, ...], arrays: Sequence[Array]) -> list[Array]:
        """The results; all numbers of later levels have the batch if any argument has."""
        self.wide = any(batched)
        self.size = next((x.shape[:1] for x, b in zip(arrays, batched, strict=True) if b), ())
        self.arrays, self.batched = list(arrays), list(batched)
        inputs = iter(self.program.inputs)
        # Each array with the numbers that are its entries; None for an entry that is no number of the program.
        self.entries: list[list[Node | None]] = [[next(inputs) for _ in range(x.size)] for x in self.takes]
        top = max(self.kept) + 1
        for level in range(top):
            self._evaluate(level)
        return self._kernel(self.gives, list(self.program.outputs))

    def _evaluate(self, level: int) -> None:
        """Computes the numbers of a level that later ones need, and its operations of JAX."""
        later = [x for node in self.program.steps if self.level[node.order] > level for x in self._read(node)]
        later += [x for x in self.program.outputs if isinstance(x, Node)]
        known = {x.order for some in self.entries for x in some if x is not None}
        carried = {x.order: x for x in later if self.level[x.order] == level and x.order not in known}
        carried = {i: x for i, x in carried.items() if x.place is None}
        kinds = sorted({np.dtype(x.dtype) for x in carried.values()}, key=str)
        rows = [[x for x in carried.values() if x.dtype == kind] for kind in kinds]
        gives = [ShapedArray((len(row),), kind) for row, kind in zip(rows, kinds, strict=True)]
        outputs: list[Entry] = [x for row in rows for x in row]
        asked: list[tuple[Node, list[Array | None]]] = []
        for node in self.kept.get(level, ()):
            given: list[Array | None] = []
            for x in node.args:
                entries = x if isinstance(x, np.ndarray) else _alone(x)
                whole = self._whole(entries) if isinstance(node, Block) else None
                given.append(whole)
                if whole is None:
                    gives.append(ShapedArray(entries.shape, _dtype(entries)))
                    outputs += list(entries.ravel())
            asked.append((node, given))
        found = self._kernel(gives, outputs)
        for row in rows:
            self._add(found.pop(0), list(row))
        for node, given in asked:
            self._apply(node, [found.pop(0) if x is None else x for x in given])

    def _read(self, node: Node) -> list[Node]:
        return [x for x in node.nodes if not isinstance(x, Block)]

    def _add(self, array: Array, entries: "list[Node | None]") -> None:
        self.arrays.append(array)
        self.entries.append(entries)
        self.batched.append(self.wide)

    def _whole(self, entries: np.ndarray) -> Array | None:
        """The array of entries that are constant, or are a whole result of an operation; else None."""
        flat = [*entries.ravel()]
        if not any(isinstance(x, Node) for x in flat):
            return jnp.asarray(np.array(flat, _dtype(entries)).reshape(entries.shape))
        found = next((k for k, known in enumerate(self.entries) if known and known[0] is flat[0]), None)
        if found is None or len(self.entries[found]) != len(flat):
            return None
        array = self.arrays[found]
        same = all(x is y for x, y in zip(flat, self.entries[found], strict=True))
        return array if same and array.shape[self.batched[found] :] == entries.shape else None

    def _apply(self, node: Node, given: list[Array]) -> None:
        """Computes an operation of JAX."""
        if not isinstance(node, Block):
            self._add(node.function(*given), [node])
            return
        ranks = [entries.ndim for entries in node.args]
        axes = tuple(0 if x.ndim > rank else None for x, rank in zip(given, ranks, strict=True))
        has_batch = any(axis == 0 for axis in axes)
        results = jax.vmap(node.function, in_axes=axes)(*given) if has_batch else node.function(*given)
        places = {x.place: x for x in self.program.steps if x.place is not None and x.args[0] is node}
        for k, x in enumerate(results):
            shape = x.shape[has_batch:]
            whole = x if has_batch or not self.wide else jnp.broadcast_to(x, (*self.size, *shape))
            self._add(whole, [places.get((k, i)) for i in np.ndindex(shape)])

    def _kernel(self, gives: Sequence[ShapedArray], outputs: list[Entry]) -> list[Array]:
        if not gives:
            return []
        inputs: list[Node] = []
        takes = []
        for array, entries, b in zip(self.arrays, self.entries, self.batched, strict=True):
            takes.append(ShapedArray(array.shape[b:], array.dtype))
            inputs += [x if x is not None else _unused(array.dtype) for x in entries]
        flags = tuple(self.batched)
        made = printed(Program(inputs, outputs), takes, gives, flags, self.gpu is not None)
        if self.gpu is not None and not self.gpu.fits(made, False):
            raise _TooLarge
        return evaluate(made, flags, gives, self.arrays)


def _alone(x: Entry) -> np.ndarray:
    found = np.empty((), object)
    found[()] = x
    return found


_count = 0


def _unused(dtype: np.dtype) -> Node:
    """A number of an array that the program does not use."""
    global _count
    _count -= 1
    return Node(lambda: None, (), np.dtype(dtype), _count)


def _dtype(entries: np.ndarray) -> np.dtype:
    return np.dtype(entries.ravel()[0].dtype) if entries.size else np.dtype(float)
