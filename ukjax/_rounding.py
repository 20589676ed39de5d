r"""Sizes of the rounding errors of a function's results.

A result that cancels exactly on paper is left with the rounding errors of its terms. Its value does not differ from a
small number, but the size of its terms shows that it cancelled. To find that size, every number that goes into the
function (its inputs, the arrays that it closes over and the literals in it) is changed by a random part of about
$\delta = \epsilon^{1/2}$; to first order the result changes by

.. math:: \delta \sum_k \xi_k\, x_k\, \partial f / \partial x_k,

which is the size of its terms times $\delta$, however they cancel. The rounding errors are that change times $\epsilon
/ \delta$. Units do not matter, because all changes are relative; a zero stays zero.

Source: the condition of a function with respect to relative changes of its data: Higham (2002), Accuracy and Stability
of Numerical Algorithms, 1.6; random changes of data to see rounding errors: Chatelin & Frayssé (1996).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.interpreters import partial_eval
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike

from ._program import PLAIN_CALLS
from ._result import is_traced


Tree = TypeVar("Tree")
Lowered = Callable[..., Callable[..., Sequence[Array]]]

# Number of random changes: a size is missed only if all of them cancel, one in a thousand each.
CHANGES = 3
# Rounding errors are at most this many times eps of the terms, in functions of up to some hundred operations.
MULTIPLE = 64.0
# Part of the largest number (times eps), and absolute value, below which a number counts as zero.
LEAST_PART, LEAST = 1e7, 1e-9  # of these the first times eps


def with_rounding_errors(
    function: Callable[..., Tree], *args: Array, lowered: Lowered | None = None
) -> tuple[Tree, Tree]:
    """Returns `function(*args)` and the sizes of its rounding errors, a tree of arrays like the results.

    `args`: arrays. The function is traced and evaluated once, for a batch of four. The sizes have no gradient.
    `lowered`: as of `_in_changes`.
    """
    closed, shapes = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
    structure = jax.tree_util.tree_structure(shapes)
    pairs = map(_and_error, _in_changes(closed, args, lowered))
    values, errors = zip(*pairs, strict=True) if closed.jaxpr.outvars else ((), ())
    return jax.tree_util.tree_unflatten(structure, values), jax.tree_util.tree_unflatten(structure, errors)


def rounding_errors(function: Callable[..., Tree], *args: Array, lowered: Lowered | None = None) -> Tree:
    """Returns sizes of the rounding errors of `function(*args)`, a tree of arrays like its results; no gradients."""
    return with_rounding_errors(function, *args, lowered=lowered)[1]


def rounding_errors_of(closed: ClosedJaxpr, outputs: Sequence[int], args: Sequence[Array]) -> list[Array]:
    """Returns sizes of the rounding errors of the results number `outputs` of a program; nothing else is evaluated."""
    used = [k in outputs for k in range(len(closed.jaxpr.outvars))]
    # The dead-code elimination that JAX does before it compiles.
    jaxpr, needed = partial_eval.dce_jaxpr(closed.jaxpr, used)  # pyright: ignore
    args = [x for x, is_needed in zip(args, needed, strict=True) if is_needed]
    return [stop_gradient(_and_error(x)[1]) for x in _in_changes(ClosedJaxpr(jaxpr, closed.consts), args)]


def _in_changes(
    closed: ClosedJaxpr, args: Sequence[Array], lowered: Lowered | None = None, alone: int = 0
) -> list[Array]:
    """Returns the results of a program, unchanged and for random changes, (1 + CHANGES, ...).

    `lowered`: (function, arrays like its arguments) -> the function as it is to be evaluated for each change. If some
    first arguments are to change `alone`, there are as many changes for each of these, in turn.
    """
    literals, count = np.array(list(_literals(closed)), float), len(closed.consts)
    inputs = [*closed.consts, *args, literals]

    def evaluated(*inputs: Array) -> Sequence[Array]:
        consts = [_with_known(x, changed) for x, changed in zip(closed.consts, inputs, strict=False)]
        return _evaluated(closed, iter(inputs[-1]), [*consts, *inputs[count:-1]])

    changes = CHANGES * max(alone, 1)
    factors = [_factors(k, x, changes) for k, x in enumerate(inputs)]
    for k in range(alone):
        still = np.append(True, np.arange(changes) // CHANGES != k)
        factors[count + k] = np.where(still.reshape(-1, *(1,) * jnp.ndim(args[k])), 1, factors[count + k])

    def changed(first: Array, x: Array, factor: Array) -> Array:
        # A changed input may lie where the function has no derivative: zero times that would be NaN.
        is_real = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.where(first, x, stop_gradient(x) * factor) if is_real else x

    def flat(first: Array, *arrays: Array) -> Sequence[Array]:
        pairs = zip(arrays[len(inputs) :], arrays[: len(inputs)], strict=True)
        return evaluated(*(changed(first, *pair) for pair in pairs))

    batch, inputs = [*map(jnp.asarray, (np.arange(1 + changes) == 0, *factors))], [*map(jnp.asarray, inputs)]
    function = flat if lowered is None else lowered(flat, *(x[0] for x in batch), *inputs)
    return [*jax.vmap(function, [0] * len(batch) + [None] * len(inputs))(*batch, *inputs)]


def missed_part(function: Callable[[Array], Array], x: Array, size: Array) -> Array:
    """Returns the results of `function(x)`, ideally zero, each divided by the size of its terms: see `missed`."""
    ((_, parts),) = missed(lambda x: (function(x),), (x,), (size,))
    return parts


def missed(
    function: Callable[..., Sequence[Array]],
    xs: Sequence[Array],
    sizes: Sequence[Array],
    lowered: Lowered | None = None,
) -> list[tuple[Array, Array]]:
    """Returns the results of `function(*xs)`, one (m,) for each of xs, ideally zero, and each divided by its terms.

    The quotients have no unit, and no gradients. The terms of a result are those in which its own x is as large as its
    `size`, the largest value of each number of it along a motion, where that is larger than the number itself.
    `lowered`: as of `_in_changes`.
    """
    xs, count = stop_gradient(tuple(xs)), len(xs)
    sizes = [_at_least(size, x) for size, x in zip(stop_gradient(tuple(sizes)), xs, strict=True)]

    def sized(*args: Array) -> Sequence[Array]:
        # The value of x is unchanged, but its terms are as large as its size.
        pairs = zip(args[:count], sizes, args[count:], strict=True)
        return function(*(x + (size * one - size) for one, size, x in pairs))

    args = [*map(jnp.ones_like, xs), *xs]
    values = stop_gradient(_in_changes(jax.make_jaxpr(sized)(*args), args, lowered, count))
    own = [x[np.r_[0, 1 + k * CHANGES : 1 + (k + 1) * CHANGES]] for k, x in enumerate(values)]
    return [_as_part(*_and_error(x)) for x in own]


def _at_least(size: Array, x: Array) -> Array:
    size = jnp.maximum(size, jnp.abs(x))
    return size + LEAST_PART * float(jnp.finfo(x.dtype).eps) * jnp.max(size, initial=0.0) + LEAST


def _as_part(value: Array, error: Array) -> tuple[Array, Array]:
    """Returns values, and each divided by the size of its terms, from the sizes of rounding errors."""
    terms, tiny = error / relative_rounding(value.dtype), jnp.finfo(value.dtype).tiny
    return value, jnp.where(value == 0, 0.0, jnp.abs(value) / jnp.where(terms > 0, terms, tiny))


def relative_rounding(dtype: DTypeLike) -> float:
    """Returns the largest rounding error of a result, as a part of its terms."""
    return MULTIPLE * float(jnp.finfo(dtype).eps)


def _and_error(values: Array) -> tuple[Array, Array]:
    """Returns the unchanged result, and the size of its rounding errors, from `values` (1 + CHANGES, ...)."""
    value = values[0]
    if not jnp.issubdtype(value.dtype, jnp.floating):
        return value, jnp.zeros(value.shape, float)
    size = jnp.max(jnp.abs(stop_gradient(values[1:] - values[:1])), axis=0) / _change(value.dtype)
    return value, relative_rounding(value.dtype) * size


def _change(dtype: DTypeLike) -> float:
    """Returns the relative size of the random changes.

    A size that is zero on paper is found as a part eps / change of other terms, by rounding errors, or as a part change
    of them, by nonlinear effects. Here these are equal.
    """
    return float(jnp.finfo(dtype).eps) ** 0.5


def _factors(k: int, x: ArrayLike, count: int) -> np.ndarray:
    """Returns one, followed by the random changes of an array, (1 + count, ...), which are independent for each `k`."""
    dtype, shape = jnp.asarray(x).dtype, (1 + count, *jnp.shape(x))
    if not jnp.issubdtype(dtype, jnp.floating):
        return np.ones(shape)
    parts = np.random.default_rng(k).normal(size=(count, *shape[1:]))
    return np.concatenate([np.ones((1, *shape[1:])), 1 + _change(dtype) * parts]).astype(dtype)


def _with_known(x: Array, changed: Array) -> Array:
    """A changed array of a program, in which whole numbers and zeros, which stay what they are, are known."""
    if is_traced(x):
        return changed
    if not jnp.issubdtype(changed.dtype, jnp.floating):
        return x
    zeros = np.asarray(x) == 0
    return jnp.where(zeros, 0, changed) if zeros.any() else changed


def _literals(closed: ClosedJaxpr) -> Iterator[float]:
    """Yields floating-point literals in the order in which `_evaluated` reads them."""
    jaxpr = closed.jaxpr
    for equation in jaxpr.eqns:
        yield from (float(x.val) for x in equation.invars if _is_changed(x))
        inner = _inner(equation)
        if inner is not None:
            yield from _literals(inner)
    yield from (float(x.val) for x in jaxpr.outvars if _is_changed(x))


def _is_changed(x: Var | Literal) -> bool:
    """Whether x is a number in the program, and no zero, which stays what it is."""
    return isinstance(x, Literal) and jnp.issubdtype(x.aval.dtype, jnp.floating) and x.val != 0  # pyright: ignore


def _inner(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Returns the program that an operation calls, if the operation does nothing but call it."""
    # An operation with a rule of derivatives is not opened, so that it keeps the rule.
    called = equation.params.get(PLAIN_CALLS.get(equation.primitive.name, ""))
    return ClosedJaxpr(called, ()) if called is not None and not isinstance(called, ClosedJaxpr) else called


def _evaluated(closed: ClosedJaxpr, literals: Iterator[Array], values: Sequence[Array]) -> list[Array]:
    """Returns the results for these constants and arguments, with `literals` in place of the program's own."""
    jaxpr = closed.jaxpr
    known = dict(zip(itertools.chain(jaxpr.constvars, jaxpr.invars), values, strict=True))

    def read(x: Var | Literal) -> Array:
        if _is_changed(x):
            return next(literals).astype(x.aval.dtype)  # pyright: ignore
        return x.val if isinstance(x, Literal) else known[x]

    for equation in jaxpr.eqns:
        arguments = [read(x) for x in equation.invars]
        inner = _inner(equation)
        if inner is not None:
            found = _evaluated(inner, literals, [*inner.consts, *arguments])
        else:
            found = equation.primitive.bind(*arguments, **equation.primitive.get_bind_params(equation.params))
            found = found if equation.primitive.multiple_results else [found]
        known.update(zip(equation.outvars, found, strict=True))
    return [read(x) for x in jaxpr.outvars]
