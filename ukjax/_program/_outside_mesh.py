"""Programs that are traced outside of a `jax.shard_map` around them.

Inside of a shard_map JAX keeps track of what may vary over its mesh, and requires every loop to begin with values that
vary as they do at its end. The loops of a library begin with constants, which do not vary. Here the whole function is
traced as if there were no mesh; inside of the shard_map it is one operation, whose results vary as far as any argument.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, PyTree

from ._compile import not_tracing
from ._substitute import Traced, with_arguments
from ._unbatch import unbatch_lapack


def outside_mesh(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """Calls `function(*arguments)`, a pytree of arrays, as one operation if an argument varies over a mesh."""
    if not_tracing():
        return function(*arguments)
    arrays, others = eqx.partition(arguments, eqx.is_array)
    flat, structure = jax.tree_util.tree_flatten(arrays)
    if not _axes(flat):
        return function(*arguments)
    made = []

    def call(*flat):
        results = function(*eqx.combine(jax.tree_util.tree_unflatten(structure, flat), others))
        flat, form = jax.tree_util.tree_flatten(results)
        made.append(form)
        return flat

    results = _bind(call, [jnp.asarray(x) for x in flat])
    return jax.tree_util.tree_unflatten(made[0], results)


def as_single_op(function: Traced, *arguments: PyTree) -> PyTree:
    """Calls `function(*arguments)` as one operation of a `jax.shard_map`, within which it is not traced again."""
    closed = function.hoisted.closed
    jaxpr = with_arguments(closed.jaxpr, [*closed.jaxpr.constvars, *closed.jaxpr.invars])
    results = _apart_p.bind(*map(jnp.asarray, closed.consts), *function.leaves(arguments), jaxpr=jaxpr, origin=None)
    return jax.tree_util.tree_unflatten(function.hoisted.structure, results)


class _Origin(NamedTuple):
    """The function that an operation is the derivative of, and the arguments by which it is taken.

    `before`: the number of arguments of the operation before those of the function.
    """

    closed: ClosedJaxpr
    active: tuple[int, ...]
    before: int = 0


def _varying(x: Array) -> frozenset[str]:
    """The axes of a mesh over which an array varies; JAX up to 0.9 calls them vma."""
    kind = jax.typeof(x)
    return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", frozenset())


def _axes(arrays: Sequence[Array]) -> frozenset[str]:
    return frozenset().union(*(_varying(x) for x in arrays))


def _like(arrays: Sequence[Array]) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]


def _function(jaxpr: Jaxpr) -> Callable[..., list[Array]]:
    return jaxpr_as_fun(ClosedJaxpr(jaxpr, ()))


def _bind(function: Callable, arguments: Sequence[Array], origin: _Origin | None = None) -> list[Array]:
    """Binds the operation that computes `function(*arguments)`, a list of arrays."""
    closed = jax.make_jaxpr(function)(*_like(arguments))
    # What the function closed over becomes its first arguments.
    hoisted = closed.consts

    def whole(*flat):
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, flat[: len(hoisted)]))(*flat[len(hoisted) :])

    jaxpr = jax.make_jaxpr(whole)(*_like([jnp.asarray(x) for x in hoisted]), *_like(arguments)).jaxpr
    if origin is not None:
        origin = origin._replace(before=origin.before + len(hoisted))
    flat = [*(jnp.asarray(x) for x in hoisted), *arguments]
    axes = _axes(flat)
    flat = [jax.lax.pcast(x, tuple(sorted(axes - _varying(x))), to="varying") for x in flat]
    return _apart_p.bind(*flat, jaxpr=jaxpr, origin=origin)


_apart_p = Primitive("outside_mesh")
_apart_p.multiple_results = True


@_apart_p.def_impl
def _run(*arguments, jaxpr, origin):
    return jax.jit(_function(jaxpr))(*arguments)


@_apart_p.def_effectful_abstract_eval
def _types(*arguments, jaxpr, origin):
    kinds = [x.aval for x in jaxpr.outvars]
    if hasattr(arguments[0], "mat"):
        mesh, mat = arguments[0].sharding.mesh, arguments[0].mat
        places = [jax.NamedSharding(mesh, jax.P(*[None] * kind.ndim)) for kind in kinds]
        kinds = [kind.update(sharding=x, manual_axis_type=mat) for kind, x in zip(kinds, places, strict=True)]
    elif hasattr(arguments[0], "vma"):
        kinds = [kind.update(vma=arguments[0].vma) for kind in kinds]
    return kinds, jaxpr.effects


def _lower(context, *arguments, jaxpr, origin):
    closed = ClosedJaxpr(jaxpr, ())
    if "cpu" in context.module_context.platforms:
        mesh = getattr(context.module_context.axis_context, "mesh", None)
        closed = unbatch_lapack(closed, () if mesh is None else tuple(mesh.shape.items()))
    return mlir.core_call_lowering(context, *arguments, name="outside_mesh", call_jaxpr=closed)


mlir.register_lowering(_apart_p, _lower)


def _smooth(jaxpr: Jaxpr) -> list[int]:
    """The indices of the results that have a derivative."""
    return [i for i, x in enumerate(jaxpr.outvars) if jnp.issubdtype(jnp.result_type(x.aval), jnp.inexact)]


def _of_active(closed: ClosedJaxpr, active: Sequence[int], arguments: Sequence[Array]) -> Callable[..., list[Array]]:
    """The smooth results as a function of the active arguments."""

    def function(*values):
        flat = list(arguments)
        for i, value in zip(active, values, strict=True):
            flat[i] = value
        results = jaxpr_as_fun(closed)(*flat)
        return [results[i] for i in _smooth(closed.jaxpr)]

    return function


def _derive(arguments, tangents, *, jaxpr, origin):
    results = _apart_p.bind(*arguments, jaxpr=jaxpr, origin=origin)
    active = tuple(i for i, x in enumerate(tangents) if not isinstance(x, ad.Zero))
    smooth = dict.fromkeys(range(len(results)))
    if active and _smooth(jaxpr):
        n, closed = len(arguments), ClosedJaxpr(jaxpr, ())

        def derivative(*flat):
            at = _of_active(closed, active, flat[:n])
            return jax.jvp(at, tuple(flat[i] for i in active), tuple(flat[n:]))[1]

        given = [*arguments, *(tangents[i] for i in active)]
        smooth |= dict(zip(_smooth(jaxpr), _bind(derivative, given, _Origin(closed, active)), strict=True))
    zeros = [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in results]
    return results, [zero if smooth[i] is None else smooth[i] for i, zero in enumerate(zeros)]


ad.primitive_jvps[_apart_p] = _derive


def _transpose(cotangents, *arguments, jaxpr, origin):
    assert origin is not None, "JAX transposes what is linear, and of these operations that is derivatives only"
    n = len(arguments) - len(origin.active)
    at, directions = arguments[origin.before : n], arguments[n:]
    given = [i for i, x in enumerate(cotangents) if not isinstance(x, ad.Zero)]

    def pull(*flat):
        function = _of_active(origin.closed, origin.active, flat[: len(at)])
        kinds, pullback = jax.vjp(function, *(flat[i] for i in origin.active))
        values = [jnp.zeros_like(x) for x in kinds]
        for i, value in zip(given, flat[len(at) :], strict=True):
            values[i] = value
        return pullback(values)

    pulled = _bind(pull, [*at, *(cotangents[i] for i in given)]) if given else [None] * len(directions)
    undefined = [ad.is_undefined_primal(x) for x in directions]
    return [None] * n + [x if wanted else None for x, wanted in zip(pulled, undefined, strict=True)]


ad.primitive_transposes[_apart_p] = _transpose


def _batch(arguments, axes, *, jaxpr, origin):
    if origin is None:
        return (bound := _bind(jax.vmap(_function(jaxpr), axes), arguments)), [0] * len(bound)
    # A derivative and the function it is one of are to have the same batch, so that the transpose has it too.
    size = next(x.shape[axis] for x, axis in zip(arguments, axes, strict=True) if axis is not None)
    whole = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arguments, axes, strict=True)
    ]
    n = len(arguments) - len(origin.active)
    of = jax.make_jaxpr(jax.vmap(jaxpr_as_fun(origin.closed)))(*_like(whole[origin.before : n]))
    bound = _bind(jax.vmap(_function(jaxpr)), whole, origin._replace(closed=of))
    return bound, [0] * len(bound)


batching.primitive_batchers[_apart_p] = _batch
