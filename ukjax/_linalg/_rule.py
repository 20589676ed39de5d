"""A function with its own derivative rule, as a JAX primitive.

`jax.custom_jvp` is not enough: JAX forgets such a rule when a loop that holds it is differentiated in reverse mode. A
second derivative then goes through the algorithm, past the rule (JAX 0.10, `jax.lax.scan`, which moves operations out
of the loop). For a pseudoinverse that is NaN at repeated singular values. A primitive is opaque to everything but its
rules.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
from jax.core import ShapedArray


def with_derivative(function: Callable, derivative: Callable) -> Callable:
    """Returns `function` as a primitive whose tangents are those of `derivative(primals, tangents)`.

    Arguments may be arrays or other objects; results are arrays. `derivative` returns the outputs and their tangents,
    None for an output without tangent. It receives a tangent for every array of floating dtype.
    """

    # Traced once for arguments of one kind, however often a program uses it.
    traced = eqx.filter_jit(function)

    @eqxi.filter_primitive_def
    def shapes(*args):
        arrays, static = eqx.partition(args, lambda x: isinstance(x, (ShapedArray, jax.Array)))
        structs = jax.tree_util.tree_map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arrays)
        # No mesh, as at compile time, so that JAX finds the function traced there.
        with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
            out = eqx.filter_eval_shape(traced, *eqx.combine(structs, static))
        return jax.tree_util.tree_map(lambda x: ShapedArray(x.shape, x.dtype), out)

    @eqxi.filter_primitive_jvp
    def jvp(primals, tangents):
        full: Any = jax.tree_util.tree_map(eqxi.materialise_zeros, primals, tangents, is_leaf=lambda x: x is None)
        return derivative(primals, full)

    name = function.__name__.strip("_")
    p = eqxi.create_vprim(name, eqxi.filter_primitive_def(traced), shapes, jvp, None)
    return lambda *args: eqxi.filter_primitive_bind(p, *args)
