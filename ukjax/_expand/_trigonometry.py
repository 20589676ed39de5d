"""Sine and cosine by arithmetic alone, for loops that are to have vector instructions.

XLA calls the C library for every sine and cosine of doubles, one number at a time, and around each call all that a loop
holds in registers goes to memory. Here x = k pi/2 + r with |r| <= pi/4, and both are the sine and cosine of r, in this
or the other order and up to signs, by Taylor's series (DLMF 4.19). pi/2 is subtracted in parts that are short enough
for their products with k to be exact (Cody and Waite, Software Manual for the Elementary Functions, 1980); k in two
parts, a multiple of 2^26 and the rest. The rounding error of r is kept beside it (Knuth's exact sum, TAOCP 4.2.2).
"""

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


# From here on, neighbouring doubles are further apart than a third of a turn.
LARGEST = 2.0**53
# The parts whose sum is pi/2: three of 26 bits, and the rest.
PARTS = (
    float.fromhex("0x1.921fb50000000p+0"),
    float.fromhex("0x1.110b460000000p-26"),
    float.fromhex("0x1.1a62630000000p-54"),
    float.fromhex("0x1.8a2e03707344ap-81"),
)
COARSE = 2.0**26  # quarter turns
SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)]
COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(2, 9)]
# The approximate number of operations for sine and cosine together.
OPERATIONS = 75


def sine_and_cosine(x: Array) -> tuple[Array, Array]:
    """Computes sin x and cos x for doubles, wrong by less than an ulp; NaN where |x| is 2^53 or more."""
    r, rest, quarters = _reduced(x)
    z = r * r
    half = 0.5 * z
    sine = r + (r * z * _polynomial(SINE, z) + rest * (1.0 - half))
    near = 1.0 - half
    cosine = near + (((1.0 - near) - half) + (z * z * _polynomial(COSINE, z) - r * rest))
    pairs = jnp.floor(0.5 * quarters)
    odd, second = 0.5 * quarters != pairs, 0.5 * pairs != jnp.floor(0.5 * pairs)
    s, c = lax.select(odd, cosine, sine), lax.select(odd, sine, cosine)
    return lax.select(second, -s, s), lax.select(odd != second, -c, c)


def _reduced(x: Array) -> tuple[Array, Array, Array]:
    """The remainder r, its rounding error, and the number of quarter turns left out, less a multiple of four."""
    a, b, c, d = PARTS
    turns = lax.round(x * (2.0 / math.pi / COARSE), lax.RoundingMethod.TO_NEAREST_EVEN)
    turns = COARSE * lax.select(jnp.abs(x) < LARGEST, turns, jnp.full_like(x, jnp.nan))
    left, third = (x - turns * a) - turns * b, turns * c
    quarters = lax.round((left - third) * (2.0 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    left = ((left - quarters * a) - quarters * b) - third
    r, rest = _sum(left, -(quarters * c))
    r, rest = _sum(r, rest - (turns * d + quarters * d))
    return r, rest, quarters


def _sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The sum x + y, and its rounding error."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


def _polynomial(coefficients: list[float], z: Array) -> Array:
    total = jnp.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * z + c
    return total
