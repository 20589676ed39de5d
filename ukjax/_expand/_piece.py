"""Functions of small arrays as single operations, which know their batch, their derivatives and their transposes.

A piece takes and gives arrays of one state. Any argument of its operation may be batched: `batched` says which have the
batch as their first axis. So the evaluation of a piece sees the batch as a whole, however it is nested, and is never
differentiated: derivatives are pieces of their own.
"""

import abc
import functools as ft
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir, partial_eval
from jaxlib.mlir import ir
from jaxtyping import Array, PyTree

from .._collector import seldom_collecting
from .._lowering import Cuda, allows_machine_code, can_be_called, gpu_for, type_here
from .._lowering._entry import NotScalar
from ._graph import Graph


T = TypeVar("T")


class Shaped(Protocol):
    """An array, or the type of one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


class EvalForm(NamedTuple):
    """The form of an evaluation.

    Attributes:
        batched: Which arguments have the batch as their first axis.
        on_cpu: Whether it is on a CPU.
        native: Whether machine code can be called there.
        partitioned: Whether XLA shares arrays out among devices.
        gpu: What runs machine code as kernels of threads, if anything does.
    """

    batched: tuple[bool, ...]
    on_cpu: bool
    native: bool = False
    partitioned: bool = False
    gpu: Cuda | None = None

    @property
    def on_arrays(self) -> bool:
        """Whether functions are evaluated on arrays: XLA's CPU compiler takes too long for scalar code."""
        return self.on_cpu and not self.native

    def wide(self, arrays: Sequence[Array]) -> "tuple[EvalForm, Sequence[Array]]":
        """The form and the arrays for machine code: where a batch may be shared out among devices, all have it."""
        if not self.partitioned or not any(self.batched):
            return self, arrays
        size = next(x.shape[0] for x, b in zip(arrays, self.batched, strict=True) if b)
        wide = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(arrays, self.batched, strict=True)]
        return self._replace(batched=(True,) * len(arrays)), wide


class AbstractBatchedOp(abc.ABC):
    """A function of arrays of known shapes and dtypes, `takes` and `gives`, without derivatives."""

    takes: tuple[ShapedArray, ...]
    gives: tuple[ShapedArray, ...]

    def __init__(self, takes: Sequence[Shaped], gives: Sequence[Shaped]):
        self.takes, self.gives = (tuple(ShapedArray(x.shape, x.dtype) for x in some) for some in (takes, gives))
        self._some: dict[tuple[int, ...], AbstractBatchedOp | None] = {}

    @abc.abstractmethod
    def evaluate(self, form: EvalForm, *arrays: Array) -> list[Array]:
        """The results, all of them with the batch as their first axis if any argument is batched."""

    def along(self, axes: tuple[int | None, ...], size: int) -> "tuple[AbstractBatchedOp, list[int]] | None":
        """Returns the function for `size` members along these axes of the arguments, and their axes in the results.

        Returns None where one batch of everything is better.
        """
        return None

    def inline(self, graph: Graph, batched: tuple[bool, ...], arguments: list[np.ndarray]) -> list[np.ndarray]:
        """The results as entries of a graph, to which the doubts about them are added; raises NotScalar for arrays.

        `batched`: which arguments have a batch as their first axis; if any has, the results do.
        """
        if not any(batched):
            return self.inline_one(graph, arguments)
        return each_member(ft.partial(self.inline_one, graph), batched, arguments)

    def inline_one(self, graph: Graph, arguments: list[np.ndarray]) -> list[np.ndarray]:
        """The results of `inline` without a batch."""
        raise NotScalar("what goes by whole matrices")

    def make_some(self, outputs: tuple[int, ...]) -> "AbstractBatchedOp | None":
        """The function that gives some of the results, with the same arguments; None if that is no shorter."""
        return None

    def some(self, outputs: tuple[int, ...]) -> "AbstractBatchedOp | None":
        if outputs not in self._some:
            self._some[outputs] = self.make_some(outputs)
        return self._some[outputs]

    def __call__(self, *arrays: Array) -> list[Array]:
        return piece_p.bind(*arrays, piece=self, batched=(False,) * len(arrays))


def each_member(
    function: Callable[[list[np.ndarray]], list[np.ndarray]], batched: Sequence[bool], arguments: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The results of a function of entries for one member of a batch after the other."""
    size = next(len(x) for x, b in zip(arguments, batched, strict=True) if b)

    def member(i: int) -> list[np.ndarray]:
        return [x[i : i + 1].reshape(x.shape[1:]) if b else x for x, b in zip(arguments, batched, strict=True)]

    return [np.stack(x) for x in zip(*(function(member(i)) for i in range(size)), strict=True)]


class AbstractSmallOp(AbstractBatchedOp):
    """A batchwise function whose derivatives are pieces too."""

    def __init__(self, takes: Sequence[Shaped], gives: Sequence[Shaped]):
        super().__init__(takes, gives)
        self._tangents: dict[tuple[int, ...], AbstractSmallOp] = {}
        self._cotangents: dict[tuple[tuple[int, ...], tuple[int, ...]], AbstractSmallOp] = {}

    @abc.abstractmethod
    def make_tangent(self, moving: tuple[int, ...]) -> "AbstractSmallOp":
        """The piece (arguments, tangents of those that are `moving`) -> tangents of the inexact results."""

    @abc.abstractmethod
    def make_cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> "AbstractSmallOp":
        """The piece (arguments, cotangents of the `given` results) -> cotangents of the `moving` arguments."""

    def tangent(self, moving: tuple[int, ...]) -> "AbstractSmallOp":
        if moving not in self._tangents:
            piece = self._tangents[moving] = self.make_tangent(moving)
            piece.tangent_of = self, moving
        return self._tangents[moving]

    def cotangent(self, moving: tuple[int, ...], given: tuple[int, ...]) -> "AbstractSmallOp":
        if (moving, given) not in self._cotangents:
            piece = self._cotangents[moving, given] = self.make_cotangent(moving, given)
            piece.cotangent_of = self, moving, given
        return self._cotangents[moving, given]

    def some(self, outputs):
        if self.tangent_of is not None:
            base, moving = self.tangent_of
            base = base.some(tuple(base.inexact[k] for k in outputs))
            return base.tangent(moving) if isinstance(base, AbstractSmallOp) else None
        if self.cotangent_of is not None:
            base, moving, given = self.cotangent_of
            return base.cotangent(tuple(moving[k] for k in outputs), given)
        return super().some(outputs)

    def depends(self, argument: int, given: tuple[int, ...]) -> bool:
        """Whether some of the `given` results may depend on an argument."""
        return True

    # The piece of which this is the tangent, and which of its arguments are moving.
    tangent_of: "tuple[AbstractSmallOp, tuple[int, ...]] | None" = None
    # The piece of which these are cotangents, of which of its arguments, and by which of its results.
    cotangent_of: "tuple[AbstractSmallOp, tuple[int, ...], tuple[int, ...]] | None" = None

    @property
    def inexact(self) -> tuple[int, ...]:
        """The results that have derivatives."""
        return tuple(i for i, x in enumerate(self.gives) if jnp.issubdtype(x.dtype, jnp.inexact))


# A change of a program, such as to its derivative.
Change = Callable[[ClosedJaxpr], ClosedJaxpr]


class AbstractChangedPiece(AbstractSmallOp):
    """A piece whose derivatives are pieces of changed programs."""

    def __init__(self, takes: Sequence[Shaped], gives: Sequence[Shaped]):
        super().__init__(takes, gives)
        self._transposed: dict[tuple[tuple[int, ...], tuple[int, ...]], AbstractSmallOp] = {}

    @abc.abstractmethod
    def through(self, change: Change) -> AbstractSmallOp:
        """A piece of the changed function, evaluated like this one."""

    def make_tangent(self, moving):
        return self.through(lambda closed: traced_tangent(closed, moving, self.inexact))

    def make_cotangent(self, moving, given):
        return self.through(lambda closed: traced_cotangent(closed, moving, given))

    def transposed(self, linear: tuple[int, ...], given: tuple[int, ...]) -> AbstractSmallOp:
        """The piece (arguments not `linear`, cotangents of the `given` results) -> those of the `linear` arguments."""
        if (linear, given) not in self._transposed:
            self._transposed[linear, given] = self.through(lambda closed: _traced_transpose(closed, linear, given))
        return self._transposed[linear, given]


def traced_tangent(closed: ClosedJaxpr, moving: Sequence[int], results: Sequence[int]) -> ClosedJaxpr:
    """The function (arguments, tangents of those that are `moving`) -> tangents of some results."""
    count = len(closed.in_avals)

    def tangent(*args):
        along = _along(closed, args[:count], moving, results)
        return jax.jvp(along, [args[i] for i in moving], list(args[count:]))[1]

    return traced(tangent, closed.in_avals, [closed.in_avals[i] for i in moving])


def traced_cotangent(closed: ClosedJaxpr, moving: Sequence[int], results: Sequence[int]) -> ClosedJaxpr:
    """The function (arguments, cotangents of some results) -> cotangents of the arguments that are `moving`."""
    count = len(closed.in_avals)

    def cotangent(*args):
        along = _along(closed, args[:count], moving, results)
        return jax.vjp(along, *(args[i] for i in moving))[1](list(args[count:]))

    return traced(cotangent, closed.in_avals, [closed.out_avals[i] for i in results])


def _traced_transpose(closed: ClosedJaxpr, linear: Sequence[int], results: Sequence[int]) -> ClosedJaxpr:
    """The function (arguments not `linear`, cotangents of some results) -> cotangents of the `linear` arguments."""
    known = [i for i in range(len(closed.in_avals)) if i not in linear]

    def transpose(*args):
        zeros = [jnp.zeros(closed.in_avals[i].shape, closed.in_avals[i].dtype) for i in linear]
        values = exchanged([None] * len(closed.in_avals), known, args[: len(known)])
        return jax.vjp(_along(closed, values, linear, results), *zeros)[1](list(args[len(known) :]))

    return traced(transpose, (closed.in_avals[i] for i in known), (closed.out_avals[i] for i in results))


def _along(
    closed: ClosedJaxpr, values: Sequence[Array | None], moving: Sequence[int], results: Sequence[int]
) -> Callable[..., list[Array]]:
    """Some results as a function of the arguments that are `moving`; the others stay."""
    function = jaxpr_as_fun(closed)

    def along(*moved):
        out = function(*exchanged(values, moving, moved))
        return [out[i] for i in results]

    return along


def exchanged(values: Sequence[T], places: Sequence[int], others: Sequence[T]) -> list[T]:
    """A copy of `values` with `others` at some places."""
    found = list(values)
    for i, x in zip(places, others, strict=True):
        found[i] = x
    return found


def traced(function: Callable[..., PyTree], *avals: Iterable[Shaped]) -> ClosedJaxpr:
    """Traces a function for arrays like `avals`."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for group in avals for x in group]
    return jax.make_jaxpr(function)(*structs)


piece_p = Primitive("piece")
piece_p.multiple_results = True


@ft.cache
def _compiled(piece: AbstractBatchedOp, batched: tuple[bool, ...]) -> Callable[..., list[Array]]:
    return jax.jit(ft.partial(piece_p.bind, piece=piece, batched=batched))


@piece_p.def_impl
def _impl(*arrays, piece, batched):
    """Calls a piece by itself. JAX's check for NaN would evaluate it so again, and again."""
    with jax.debug_nans(False), jax.debug_infs(False):
        found = _compiled(piece, batched)(*arrays)
    for setting, is_wrong in (("jax_debug_nans", jnp.isnan), ("jax_debug_infs", jnp.isinf)):
        if getattr(jax.config, setting) and any(
            jnp.issubdtype(x.dtype, jnp.inexact) and bool(jnp.any(is_wrong(x))) for x in found
        ):
            raise FloatingPointError(f"invalid value in a function as scalar code, by {setting}")
    return found


@piece_p.def_abstract_eval
def _shapes(*avals, piece, batched):
    sizes = {aval.shape[0] for aval, is_batched in zip(avals, batched) if is_batched}
    assert len(sizes) <= 1, sizes
    return [type_here((*sizes, *x.shape), x.dtype) for x in piece.gives]


@seldom_collecting()
def _lowered(ctx: mlir.LoweringRuleContext, *operands: ir.Value, piece: AbstractBatchedOp, batched: tuple[bool, ...]):
    """Lowers a piece, to machine code where it can; but a program that is exported must run where there is none."""
    platforms = ctx.module_context.platforms
    on_cpu, devices = tuple(platforms) == ("cpu",), getattr(ctx.module_context.axis_context, "num_devices", 1)
    may = allows_machine_code() and not ctx.module_context.lowering_parameters.for_export
    # XLA cannot share kernels of threads out: outside of a `jax.shard_map` it compiles what several GPUs compute.
    gpu = gpu_for(platforms) if may and devices == 1 else None
    form = EvalForm(batched, on_cpu, gpu is not None or (may and on_cpu and can_be_called()), devices != 1, gpu)
    return mlir.lower_fun(ft.partial(piece.evaluate, form), multiple_results=True)(ctx, *operands)


mlir.register_lowering(piece_p, _lowered)


def _jvp(primals, tangents, *, piece, batched):
    out = piece_p.bind(*primals, piece=piece, batched=batched)
    moving = tuple(i for i, x in enumerate(tangents) if not isinstance(x, ad.Zero))
    changes = [tangents[i] for i in moving]
    flags = tuple(batched[i] for i in moving)
    known = len(piece.tangent_of[0].takes) if piece.tangent_of else len(primals)
    if known < len(primals) and moving == tuple(range(known, len(primals))):
        # Linear in these arguments: the tangent is the same function of their tangents.
        values, where, slope = (*primals[:known], *changes), (*batched[:known], *flags), piece
    else:
        values, where, slope = (*primals, *changes), (*batched, *flags), piece.tangent(moving)
    moved = piece_p.bind(*values, piece=slope, batched=where)
    found = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in out]
    for i, x in zip(piece.inexact, moved, strict=True):
        found[i] = jnp.broadcast_to(x, out[i].shape)
    return out, found


ad.primitive_jvps[piece_p] = _jvp


def _transpose(cotangents, *args, piece, batched):
    if piece.tangent_of is None:
        return _transpose_of_linear(cotangents, args, piece, batched)
    base, moving = piece.tangent_of
    known = len(base.takes)
    there = [(i, x) for i, x in zip(base.inexact, cotangents, strict=True) if not isinstance(x, ad.Zero)]
    given, has_batch = tuple(i for i, _ in there), any(batched)
    used = tuple(i for i in moving if base.depends(i, given))
    flags = (*batched[:known], *(has_batch,) * len(there))
    back = base.cotangent(used, given)
    found = dict(zip(used, piece_p.bind(*args[:known], *(x for _, x in there), piece=back, batched=flags), strict=True))
    linear = []
    for i, x, is_batched in zip(moving, args[known:], batched[known:], strict=True):
        if i not in found:
            linear.append(ad.Zero(x.aval))
        else:
            # The cotangent of what all members of a batch share is the sum over the members.
            linear.append(jnp.sum(found[i], axis=0) if has_batch and not is_batched else found[i])
    return [None] * known + linear


def _transpose_of_linear(cotangents, args, piece, batched):
    """The transpose of a piece that is linear in some of its arguments, and is the tangent of no known piece."""
    linear = tuple(i for i, x in enumerate(args) if ad.is_undefined_primal(x))
    there = [(i, x) for i, x in enumerate(cotangents) if not isinstance(x, ad.Zero)]
    given, has_batch = tuple(i for i, _ in there), any(batched)
    known = [i for i in range(len(args)) if i not in linear]
    back = piece.transposed(linear, given)
    flags = (*(batched[i] for i in known), *(has_batch,) * len(there))
    found = piece_p.bind(*(args[i] for i in known), *(x for _, x in there), piece=back, batched=flags)
    results: list[Array | None] = [None] * len(args)
    for i, x in zip(linear, found, strict=True):
        results[i] = jnp.sum(x, axis=0) if has_batch and not batched[i] else x
    return results


ad.primitive_transposes[piece_p] = _transpose


def _batch(args, dims, *, piece, batched):
    mapped = [d is not None for d in dims]
    size = next(x.shape[d] for x, d, m in zip(args, dims, mapped) if m)
    inner = next((_inner_size(x, d, m) for x, d, m, b in zip(args, dims, mapped, batched) if b), None)
    together = piece.along(tuple(dims), size) if inner is None else None
    if together is not None:
        return piece_p.bind(*args, piece=together[0], batched=batched), together[1]
    moved = [jnp.moveaxis(x, d, 0) if m else x for x, d, m in zip(args, dims, mapped)]
    if inner is None:
        return piece_p.bind(*moved, piece=piece, batched=tuple(mapped)), [0] * len(piece.gives)
    flat, flags = flattened(moved, mapped, batched, size, inner)
    out = piece_p.bind(*flat, piece=piece, batched=flags)
    return [x.reshape(size, inner, *x.shape[1:]) for x in out], [0] * len(out)


def flattened(
    arrays: Sequence[Array], outer: Sequence[bool], inner: Sequence[bool], size: int, count: int
) -> tuple[list[Array], tuple[bool, ...]]:
    """Arrays in which two batches, their first axes, are made one; and which arrays have it.

    `outer`, `inner`: which arrays have the batch of `size`, and which have that of `count` after it.
    """
    flat = []
    for x, m, b in zip(arrays, outer, inner, strict=True):
        if m or b:
            rest = x.shape[m + b :]
            x = x if m else x[None]
            x = x if b else jnp.expand_dims(x, 1)
            x = jnp.broadcast_to(x, (size, count, *rest)).reshape(size * count, *rest)
        flat.append(x)
    return flat, tuple(m or b for m, b in zip(outer, inner, strict=True))


def _inner_size(x: Array, d: int | None, mapped: bool) -> int:
    return x.shape[0] if not mapped or d != 0 else x.shape[1]


batching.primitive_batchers[piece_p] = _batch


def _only_used(used: list[bool], *others: Any) -> tuple[list[bool], JaxprEqn | None]:
    """Leaves out results that a program does not use; the equation is the last of what JAX hands over."""
    equation: JaxprEqn = others[-1]  # JAX 0.12 tells before it which arguments are known to be live
    count, piece = len(equation.invars), equation.params["piece"]
    if not any(used):
        return [False] * count, None
    some = None if all(used) else piece.some(tuple(i for i, is_used in enumerate(used) if is_used))
    if some is not None:
        outvars = [x for x, is_used in zip(equation.outvars, used, strict=True) if is_used]
        equation = equation.replace(outvars=outvars, params={**equation.params, "piece": some})
    return [True] * count, equation


partial_eval.dce_rules[piece_p] = _only_used
