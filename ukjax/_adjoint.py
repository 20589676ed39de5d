"""Differentiating a trajectory in forward and in reverse mode without asking the person which.

diffrax has an adjoint for each: `ForwardMode` integrates the tangent along with the state, and
`RecursiveCheckpointAdjoint` runs back over checkpoints; the only one for both, `DirectAdjoint`, pays for every step of
`max_steps` whether taken or not. Here the derivative is a linear map of its own: applying it runs the former,
transposing it runs the latter. JAX then picks by what is asked for.
"""

from collections.abc import Callable
from typing import Any, cast

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
from jaxtyping import Array, PyTree


# integrate(inputs, adjoint) -> (ys, rest); only ys carries a derivative.
Integrate = Callable[[PyTree, diffrax.AbstractAdjoint], tuple[Array, PyTree]]


def both_modes(integrate: Integrate, inputs: PyTree) -> tuple[Array, PyTree]:
    """`integrate(inputs, ...)`, differentiable in both modes with respect to the floating leaves of `inputs`.

    `integrate` must be hashable and close over no array.
    """
    return cast(Any, _solve(inputs, integrate=integrate))


@eqx.filter_custom_jvp
def _solve(inputs, *, integrate):
    # Nothing differentiates this run, so it may use the cheapest loop.
    return integrate(inputs, diffrax.ForwardMode())


@_solve.def_jvp
def _solve_jvp(primals, tangents, *, integrate):
    (inputs,), (tangent,) = primals, tangents
    ys, rest = _solve(inputs, integrate=integrate)
    if all(leaf is None for leaf in jax.tree_util.tree_leaves(tangent, is_leaf=_is_none)):
        dys = None
    else:
        dys = eqxi.filter_primitive_bind(_derivative_p, inputs, tangent, integrate, (ys.shape, ys.dtype))
    return (ys, rest), (dys, _nones(rest))


def _is_none(x):
    return x is None


def _nones(tree):
    return jax.tree_util.tree_map(lambda _: None, tree)


def _derivative(inputs, tangent, integrate, like):
    """The derivative of the saved states at `inputs`, applied to `tangent`."""
    del like
    saved = lambda x: integrate(x, diffrax.ForwardMode())[0]
    return eqx.filter_jvp(saved, (inputs,), (tangent,))[1]


@eqxi.filter_primitive_def
def _derivative_shape(inputs, tangent, integrate, like):
    # The derivative has the shape of the saved states. Evaluating it abstractly would trace the whole run once more.
    return jax.core.ShapedArray(*like)


@eqxi.filter_primitive_jvp
def _derivative_jvp(primals, tangents):
    # Second order in forward mode: differentiate the forward run once more.
    *arguments, integrate, like = primals
    *directions, _, _ = tangents
    run = lambda inputs, tangent: _derivative(inputs, tangent, integrate, like)
    return eqx.filter_jvp(run, tuple(arguments), tuple(directions))


@eqxi.filter_primitive_transpose(materialise_zeros=True)  # pyright: ignore
def _derivative_transpose(arguments, cotangent):
    inputs, tangent, integrate, like = arguments
    saved = lambda x: integrate(x, diffrax.RecursiveCheckpointAdjoint())[0]
    _, pullback = eqx.filter_vjp(saved, inputs)
    (pulled,) = pullback(cotangent)
    wanted = lambda x, ct: ct if _is_undefined(x) else None
    pulled = jax.tree_util.tree_map(wanted, tangent, pulled, is_leaf=lambda x: x is None or _is_undefined(x))
    return _nones(inputs), pulled, _nones(integrate), _nones(like)


def _is_undefined(x):
    return isinstance(x, jax.interpreters.ad.UndefinedPrimal)


_derivative_p = eqxi.create_vprim(
    "trajectory_derivative",
    eqxi.filter_primitive_def(_derivative),
    _derivative_shape,
    _derivative_jvp,
    _derivative_transpose,
)
