"""A loop of a step that is one scalar program: as machine code on a CPU, else as a loop of JAX."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
from .._program import with_constants_as_arguments
from ._piece import AbstractBatchedOp, EvalForm
from ._scalar import ScalarPiece, limits, over_batch, size_of
from ._tiled import ScalarLaneStep


class Repeats(NamedTuple):
    """The functions of one member of a batch that a `ScalarLoop` repeats.

    Attributes:
        step: (state, stays) -> (new, otherwise, certain findings, other findings, doubt, matters): see `ScalarLaneStep`.
        sure: (state, stays) -> (new, findings), where the step is in doubt; findings as a pair of such trees.
        due: (findings, time) -> whether the time lies within the step.
        look: (findings, time) -> the row to save (n,).
        going, waits, following: state -> its leaf that tells whether the member goes on, whether a step waits for the
            sure way, and which time is the next to look at.
    """

    step: Callable[..., tuple[PyTree, ...]]
    sure: Callable[..., tuple[PyTree, PyTree]]
    due: Callable[[PyTree, Array], Array]
    look: Callable[[PyTree, Array], Array]
    going: Callable[[PyTree], Array]
    waits: Callable[[PyTree], Array]
    following: Callable[[PyTree], Array]


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
        step = ScalarLaneStep(repeats.step, state, stays, most=limits().function)
        sure, more = with_constants_as_arguments(_flat(repeats.sure, state, stays))
        sure = _with_unused(sure, len(sure.in_avals) - len(more), [jax.typeof(x) for x in step.further])
        state_leaves, structure = jax.tree_util.tree_flatten(state)
        numbers = jax.tree_util.tree_unflatten(structure, range(len(state_leaves)))
        findings = jax.eval_shape(lambda *both: repeats.sure(*both)[1], state, stays)
        time = jax.ShapeDtypeStruct((), times.dtype)
        due, look = (_flat(f, findings, time) for f in (repeats.due, repeats.look))
        (row,) = look.out_avals
        self.further, self.findings = [*step.further, *more], findings
        takes = [*step.operation.takes, *map(jax.typeof, more)]
        self.op = LoopOp(
            LoopPrograms(step.operation.program.program, *(ScalarPiece(x, limits().function).program.program for x in (due, look))),
            LoopArrays(
                tuple(takes[: len(state_leaves)]),
                tuple(ShapedArray(x.shape, x.dtype) for x in jax.tree_util.tree_leaves(findings)),
                tuple(takes[len(state_leaves) :]),
                ShapedArray(times.shape, times.dtype),
                row,
                len(takes) - len(state_leaves) - len(more),
                *(which(numbers) for which in (repeats.going, repeats.waits, repeats.following)),
            ),
            sure,
            (due, look),
        )

    def __call__(self, state: PyTree, stays: PyTree, times: Array, rows: Array) -> tuple[PyTree, Array]:
        """Steps a member to its end: returns its state there, and the rows (T, n) with those that it saved."""
        found = jax.tree_util.tree_map(lambda x: jnp.zeros(x.shape, x.dtype), self.findings)
        leaves, structure = jax.tree_util.tree_flatten(state)
        arrays = [*leaves, *jax.tree_util.tree_leaves(found), rows]
        arrays += [*jax.tree_util.tree_leaves(stays), *self.further, times]
        results = self.op(*arrays)
        return jax.tree_util.tree_unflatten(structure, results[: len(leaves)]), results[-1]


def _flat(function: Callable[..., PyTree], *args: PyTree) -> ClosedJaxpr:
    """Traces a function of trees as one of their leaves."""
    leaves, structure = jax.tree_util.tree_flatten(args)
    return jax.make_jaxpr(lambda *xs: jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(structure, xs))))(
        *leaves
    )


def _with_unused(closed: ClosedJaxpr, place: int, avals: Sequence[ShapedArray]) -> ClosedJaxpr:
    """The program with further arguments at a place, which it does not use."""
    if not avals:
        return closed
    given = [*closed.in_avals[:place], *avals, *closed.in_avals[place:]]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given]
    return jax.make_jaxpr(lambda *xs: jaxpr_as_fun(closed)(*xs[:place], *xs[place + len(avals) :]))(*shapes)


class LoopOp(AbstractBatchedOp):
    """A `ScalarLoop` of flat arrays: those that change, those that stay, and the times -> those that change."""

    def __init__(
        self, programs: LoopPrograms, arrays: LoopArrays, sure: ClosedJaxpr, looks: tuple[ClosedJaxpr, ClosedJaxpr]
    ):
        super().__init__([*arrays.changed, *arrays.stays, arrays.times], arrays.changed)
        self.programs, self.arrays, self.sure, self.looks = programs, arrays, sure, looks
        self._made: dict[tuple[bool, ...], tuple] = {}

    def evaluate(self, form: EvalForm, *arrays: Array) -> list[Array]:
        form, arrays = form.wide(arrays)
        changed, size = len(self.gives), size_of(form.batched, arrays)
        flags = form.batched[changed:]
        if size and not all(form.batched[:changed]):
            given = zip(arrays[:changed], self.gives, strict=True)
            arrays = [*(jnp.broadcast_to(x, (*size, *y.shape)) for x, y in given), *arrays[changed:]]
        if not form.native:
            return over_batch(self._by_steps, ((bool(size),) * changed + flags))(*arrays)
        key = (bool(size), *flags)
        if key not in self._made:
            # What all members share is computed once, what belongs to a single one likewise.
            kernel = loop_kernel(self.programs, self.arrays, flags, vector_width() if size else 1)
            batched = (bool(size),) * len(self.arrays.state) + flags[:-1]
            self._made[key] = kernel, Loop(self.programs, self.arrays, SureWay(Traceable.of(self.sure), batched, plain=True))
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
            changed = list(jaxpr_as_fun(self.sure)(*changed[:state], *stays))
            return lax.while_loop(lambda carry: left(carry[0]), save, (changed, rows))

        changed, rows = lax.while_loop(lambda carry: carry[0][kinds.going], body, (changed, rows))
        return [*changed, rows]
