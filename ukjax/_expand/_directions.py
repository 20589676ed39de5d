"""The product of a Jacobian and many directions, each of which comes by itself in a derivative."""

import math

import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array


# J (*states, n, k), x (*directions, k) -> J x (*states, n, *directions).
directional_p = Primitive("directional")


def directional(J: Array, x: Array) -> Array:
    """The product J x of a matrix (n, k) and a vector (k,).

    Under `jax.jacfwd` the vectors are those of the standard basis, the same for all states of a batch: the result is J
    itself then, and nothing need be multiplied. That is checked at run time.
    """
    return directional_p.bind(J, x)


def _product(J: Array, x: Array) -> Array:
    """The product J x, without a check whether x is the standard basis."""
    return lax.dot_general(J, x, (((J.ndim - 1,), (x.ndim - 1,)), ((), ())))


def _evaluated(J: Array, x: Array) -> Array:
    *directions, k = x.shape
    if math.prod(directions) != k or J.ndim == 2:
        return _product(J, x)
    is_basis = jnp.all(x.reshape(k, k) == jnp.eye(k, dtype=x.dtype))
    # A loop of one round or of none: a conditional would copy J even where J does not change.
    multiply = lambda carry: (_product(carry[0].reshape(J.shape), x), jnp.asarray(True))
    itself = J.reshape(*J.shape[:-1], *directions)
    return lax.while_loop(lambda carry: ~carry[1], multiply, (itself, is_basis))[0]


@directional_p.def_impl
def _impl(J, x):
    return _evaluated(J, x)


@directional_p.def_abstract_eval
def _shape(J, x):
    return ShapedArray((*J.shape[:-1], *x.shape[:-1]), J.dtype)


mlir.register_lowering(directional_p, mlir.lower_fun(_evaluated, multiple_results=False))


def _jvp(primals, tangents):
    (J, x), (dJ, dx) = primals, tangents
    change = [] if isinstance(dJ, ad.Zero) else [_product(dJ, x)]
    change += [] if isinstance(dx, ad.Zero) else [directional_p.bind(J, dx)]
    return directional_p.bind(J, x), sum(change[1:], change[0])


ad.primitive_jvps[directional_p] = _jvp


def _transpose(cotangent, J, x):
    """The transpose by x; that by J is not needed, for `_jvp` has an ordinary product there."""
    if J.ndim == 2 and x.aval.ndim == 1:
        return None, directional_p.bind(J.T, cotangent)
    lead = tuple(range(J.ndim - 1))
    found = lax.dot_general(J, cotangent, ((lead, lead), ((), ())))
    return None, jnp.moveaxis(found, 0, -1)


ad.primitive_transposes[directional_p] = _transpose


def _batch(args, dims):
    (J, x), (of_J, of_x) = args, dims
    if of_J is None:
        return directional_p.bind(J, jnp.moveaxis(x, of_x, 0)), J.ndim - 1
    J = jnp.moveaxis(J, of_J, 0)
    if of_x is None:
        return directional_p.bind(J, x), 0
    # Each J has directions of its own.
    x = jnp.moveaxis(x, of_x, 0)
    return lax.dot_general(J, x, (((J.ndim - 1,), (x.ndim - 1,)), ((0,), (0,)))), 0


batching.primitive_batchers[directional_p] = _batch
