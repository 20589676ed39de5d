"""A loop of a step that is one scalar program: as machine code on a CPU, else as a loop of JAX."""

import functools as ft
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import Array, PyTree

from .._lowering import (
    Loop,
    LoopArrays,
    LoopPrograms,
    SureWay,
    Traceable,
    loop_kernel,
    run_loop,
    vector_width,
)
from .._lowering._entry import NotScalar
from .._program import TreeStructure
from ._piece import AbstractBatchedOp, EvalForm
from ._scalar import ScalarPiece, limits, over_batch, size_of
from ._tiled import ScalarLaneStep


class Repeats(NamedTuple):
    """The functions of one member of a batch that a `ScalarLoop` repeats; they close over no array being traced.

    Attributes:
        step: (state, stays) -> (new, otherwise, certain findings, other findings, doubt, matters), see
            `ScalarLaneStep`.
        sure: (state, stays) -> (new, (certain findings, other findings)), where the step is in doubt.
        due: (findings, time) -> whether the time lies within the step.
        look: (findings, time) -> the row to save (n,).
        going, waits, following: state -> its leaf that tells whether the member goes on, whether a step waits for the
            sure way, and which time is the next to look at.
    """

    step: Callable[..., tuple[PyTree, ...]]
    sure: Callable[..., tuple[PyTree, PyTree]]
    due: Callable[[PyTree, Array], Array]
    look: Callable[[PyTree, Array], Array]
    going: Callable[[PyTree], Any]
    waits: Callable[[PyTree], Any]
    following: Callable[[PyTree], Any]


class ScalarLoop:
    """A step that members of a batch repeat, each until it is done, with the rows to save on the way.

    Args:
        repeats: The functions.
        state, stays: Trees of arrays of one member, or of their shapes and dtypes.
        times: The table of times, likewise.

    Raises:
        NotScalar, TooLong: If a function is no scalar program.
    """

    def __init__(self, repeats: Repeats, state: PyTree, stays: PyTree, times: ShapedArray):
        most = limits().function
        step = ScalarLaneStep(repeats.step, state, stays, most=most)
        if step.further:
            raise NotScalar("a step that closes over arrays")
        leaves, structure = jax.tree_util.tree_flatten(state)
        count = len(leaves)
        new, found = tuple(step.gives[:count]), tuple(step.gives[count:])
        self.findings = jax.tree_util.tree_unflatten(_joined(*step.forms[2:]), found)
        time = jax.ShapeDtypeStruct((), times.dtype)
        looks = [_flat(f, self.findings, time) for f in (repeats.due, repeats.look)]
        numbers = jax.tree_util.tree_unflatten(structure, range(count))
        places = (which(numbers) for which in (repeats.going, repeats.waits, repeats.following))
        takes = step.operation.takes
        programs = LoopPrograms(step.operation.program.program, *(ScalarPiece(x, most).program.program for x in looks))
        arrays = LoopArrays(takes[:count], found, takes[count:], times, looks[1].out_avals[0], *places)
        kinds = ([(x.shape, x.dtype) for x in some] for some in (new, arrays.state))
        assert ft.reduce(operator.eq, kinds), "a step keeps shapes and dtypes"
        shapes = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, stays))
        sure = Traceable(lambda: _flat(repeats.sure, *shapes), takes, (*new, *found), False)
        self.op = LoopOp(programs, arrays, sure, looks)

    def __call__(self, state: PyTree, stays: PyTree, times: Array, rows: Array) -> tuple[PyTree, Array]:
        """Steps a member to its end: returns its state there, and the rows (T, n) with those that it saved."""
        found = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), self.findings)
        leaves, structure = jax.tree_util.tree_flatten(state)
        stay, before = (jax.tree_util.tree_leaves(x) for x in (stays, found))
        results = self.op(*leaves, *before, rows, *stay, times)
        return jax.tree_util.tree_unflatten(structure, results[: len(leaves)]), results[-1]


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


class LoopOp(AbstractBatchedOp):
    """A `ScalarLoop` of flat arrays: those that change, those that stay, and the times -> those that change."""

    def __init__(self, programs: LoopPrograms, arrays: LoopArrays, sure: Traceable, looks: Sequence[ClosedJaxpr]):
        super().__init__([*arrays.changed, *arrays.stays, arrays.times], arrays.changed)
        self.programs, self.arrays, self.sure, self.looks = programs, arrays, sure, looks
        self._made: dict[tuple[bool, ...], tuple] = {}

    def evaluate(self, form: EvalForm, *given: Array) -> list[Array]:
        form, arrays = form.wide(given)
        changed, size = len(self.gives), size_of(form.batched, arrays)
        flags = form.batched[changed:]
        if size and not all(form.batched[:changed]):
            pairs = zip(arrays[:changed], self.gives, strict=True)
            wide = [x if x.ndim > y.ndim else jnp.broadcast_to(x, (*size, *y.shape)) for x, y in pairs]
            arrays = [*wide, *arrays[changed:]]
        if not form.native:
            return over_batch(self._by_steps, ((bool(size),) * changed + flags))(*arrays)
        key = (bool(size), *flags)
        if key not in self._made:
            # What all members share is computed once, what belongs to a single one likewise.
            kernel = loop_kernel(self.programs, self.arrays, flags, vector_width() if size else 1)
            batched = (bool(size),) * len(self.arrays.state) + flags[:-1]
            self._made[key] = kernel, Loop(self.programs, self.arrays, SureWay(self.sure, batched, plain=True))
        kernel, loop = self._made[key]
        return run_loop(kernel, loop, bool(size), flags, arrays)

    def _by_steps(self, *arrays: Array) -> list[Array]:
        """Steps one member, by operations of JAX."""
        kinds, count = self.arrays, len(self.gives)
        *changed, rows = arrays[:count]
        *stays, times = arrays[count:]
        due, look = (jaxpr_as_fun(x) for x in self.looks)
        state = len(kinds.state)

        def left(changed: list[Array]) -> Array:
            j = changed[kinds.following]
            at = times[jnp.minimum(j, times.shape[0] - 1)]
            return (j < times.shape[0]) & due(*changed[state:], at)[0]

        def save(carry):
            changed, rows = carry
            j = changed[kinds.following]
            rows = rows.at[j].set(look(*changed[state:], times[j])[0])
            changed = [x + 1 if k == kinds.following else x for k, x in enumerate(changed)]
            return changed, rows

        def body(carry):
            changed, rows = carry
            changed = list(jaxpr_as_fun(self.sure.closed)(*changed[:state], *stays))
            return lax.while_loop(lambda carry: left(carry[0]), save, (changed, rows))

        changed, rows = lax.while_loop(lambda carry: carry[0][kinds.going], body, (changed, rows))
        return [*changed, rows]
