"""Elementary functions by arithmetic, of doubles, right to an ulp or two over the whole range.

They are written in LLVM's instructions, so that one state and a vector of many have the same bits on every machine that
rounds as IEEE 754 asks, a GPU included, and need no library. (NaN comes out where it goes in, and where a function has
no value.) Single precision is computed in doubles and rounded once.

Methods: arguments are reduced in parts whose products are exact, or fused (Cody & Waite 1980; Muller, Elementary
Functions, 2016); polynomials are Taylor's series (DLMF 4.19, 4.2) or interpolate at Chebyshev's points; pairs of
doubles stand for their sum, by exact sums and products (Knuth, TAOCP 4.2.2).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._code import AbstractCode, Number, Operand


F64, I64 = np.dtype(np.float64), np.dtype(np.int64)
INF = math.inf


class Pair(NamedTuple):
    """The sum of two doubles, of which the second is below the rounding error of the first."""

    high: Number
    low: Number


def two_sum(x: Number, y: Number) -> Pair:
    """The exact sum of two numbers."""
    total = x + y
    of_y = total - x
    return Pair(total, (x - (total - of_y)) + (y - of_y))


def fast_two_sum(x: Number, y: Number) -> Pair:
    """The exact sum of two numbers, the first of which is the larger."""
    total = x + y
    return Pair(total, y - (total - x))


def two_product(code: AbstractCode, x: Number, y: Operand) -> Pair:
    """The exact product of two numbers."""
    product = x * y
    return Pair(product, code.fma(x, y, -product))


def polynomial(code: AbstractCode, coefficients: Sequence[float], z: Number) -> Number:
    """The sum of c[k] z^k, by Horner's rule."""
    total: Operand = coefficients[-1]
    for c in coefficients[-2::-1]:
        total = code.fma(total, z, c)
    assert isinstance(total, Number)
    return total


# pi/2 as a sum of three doubles.
HALF_PI = (
    float.fromhex("0x1.921fb54442d18p+0"),
    float.fromhex("0x1.1a62633145c07p-54"),
    float.fromhex("-0x1.f1976b7ed8fbcp-110"),
)
# From here on, neighbouring doubles are further apart than a third of a turn: NaN.
LARGEST_ANGLE = 2.0**53
COARSE = 2.0**26  # quarter turns that are left out first
SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)]
COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(2, 10)]


class Quarter(NamedTuple):
    """Sine and cosine of the rest of an angle as pairs, and whether quarter turns, and half turns, are left out."""

    sine: Pair
    cosine: Pair
    odd: Number
    second: Number


def _quarter(code: AbstractCode, x: Number) -> Quarter:
    """Reduces an angle to |r| <= pi/4: x = k pi/2 + r."""
    a, b, c = HALF_PI
    coarse = code.nearest(x * (2.0 / math.pi / COARSE)) * COARSE
    coarse = code.select(code.abs(x) < LARGEST_ANGLE, coarse, math.nan)
    left = code.fma(coarse, -a, x)  # exact: multiples of 2^-26 below 2^26, or x itself
    fine = code.nearest(left * (2.0 / math.pi))
    left = code.fma(fine, -a, left)  # exact
    k = coarse + fine
    second = two_product(code, k, b)
    r, rest = two_sum(left, -second.high)
    r, rest = fast_two_sum(r, code.fma(k, -c, rest - second.low))
    z = r * r
    half = 0.5 * z
    near = 1.0 - half
    sine = fast_two_sum(r, code.fma(r * z, polynomial(code, SINE, z), rest * near))
    low = code.fma(z * z, polynomial(code, COSINE, z), ((1.0 - near) - half) - r * rest)
    number = fine.astype(I64)
    return Quarter(sine, fast_two_sum(near, low), (number & 1).differs(0), (number & 2).differs(0))


def sine_and_cosine(code: AbstractCode, x: Number) -> tuple[Number, Number]:
    sine, cosine, odd, second = _quarter(code, x)
    s, c = code.select(odd, cosine.high, sine.high), code.select(odd, sine.high, cosine.high)
    s = code.select(x.equals(0.0), x, s)  # -0 has the sine -0
    return code.select(second, -s, s), code.select(odd ^ second, -c, c)


def tangent(code: AbstractCode, x: Number) -> Number:
    sine, cosine, odd, _ = _quarter(code, x)
    over = Pair(*(code.select(odd, a, b) for a, b in zip(cosine, sine, strict=True)))
    under = Pair(*(code.select(odd, a, b) for a, b in zip(sine, cosine, strict=True)))
    ratio = over.high / under.high
    left = code.fma(-ratio, under.high, over.high) + (over.low - ratio * under.low)
    value = ratio + left / under.high
    value = code.select(x.equals(0.0), x, value)
    return code.select(odd, -value, value)


LN2 = (float.fromhex("0x1.62e42fefa3800p-1"), float.fromhex("0x1.ef35793c76730p-45"))
EXPONENTIAL = [1 / math.factorial(k) for k in range(2, 15)]
OVER, UNDER = 709.782712893384, -745.1332191019412  # beyond, exp is infinite or zero


def _power_of_two(code: AbstractCode, k: Number) -> Number:
    """2^k for a whole number k as a double, -1022 to 1023."""
    return ((k.astype(I64) + 1023) << 52).of_bits(F64)


def _times_power_of_two(code: AbstractCode, x: Number, k: Number) -> Number:
    """x 2^k for a whole number -2044 to 2046 as a double, rounded once at most."""
    half = code.floor(k * 0.5)
    return (x * _power_of_two(code, half)) * _power_of_two(code, k - half)


def _reduced(code: AbstractCode, x: Number, low: Operand = 0.0) -> tuple[Number, Pair]:
    """k, and the pair r with x + low = k ln 2 + r, |r| <= ln 2 / 2 or little more."""
    k = code.nearest(x * (1 / math.log(2)))
    left = code.fma(k, -LN2[0], x)  # exact: LN2[0] has 11 zeros at its end
    second = two_product(code, k, LN2[1])
    r, rest = two_sum(left, -second.high)
    return k, fast_two_sum(r, rest - second.low + low)


def _small_exponential(code: AbstractCode, r: Pair) -> Pair:
    """exp(r) - 1 for |r| <= 0.35, as a pair."""
    high, low = r
    tail = code.fma(high * high, polynomial(code, EXPONENTIAL, high), low + low * high)
    return fast_two_sum(high, tail)


def exponential(code: AbstractCode, x: Number, low: Operand = 0.0) -> Number:
    """exp(x + low)."""
    inside = code.select(x < UNDER, UNDER, code.select(x > OVER, OVER, x))
    k, r = _reduced(code, inside, low)
    p = _small_exponential(code, r)
    value = fast_two_sum(code.constant(1.0, F64), p.high)
    value = _times_power_of_two(code, value.high + (value.low + p.low), k)
    return code.select(x > OVER, INF, code.select(x < UNDER, 0.0, value))


def exponential_less_one(code: AbstractCode, x: Number) -> Number:
    inside = code.select(x < -50.0, -50.0, code.select(x > OVER, OVER, x))
    k, r = _reduced(code, inside)
    p = _small_exponential(code, r)
    # 2^k (1 + p) - 1, at half its size, for 2^1024 is no double.
    scale = _power_of_two(code, k - 1.0)
    first = two_sum(scale, code.constant(-0.5, F64))
    second = two_sum(first.high, scale * p.high)
    value = 2.0 * (second.high + (second.low + (first.low + scale * p.low)))
    value = code.select(code.abs(x) < 1e-300, x, value)
    return code.select(x > OVER, INF, value)


# (log((1 + s) / (1 - s)) / s - 2) / s^2 as a polynomial in s^2, for 1/sqrt 2 <= (1 + s) / (1 - s) <= sqrt 2.
LOGARITHM = [
    float.fromhex(x)
    for x in (
        "0x1.5555555555555p-1", "0x1.9999999999a3ap-2", "0x1.2492492476765p-2", "0x1.c71c7201f207cp-3",
        "0x1.745cf8c4c7bcap-3", "0x1.3b1c42e3df02cp-3", "0x1.0fbd2bafa02d6p-3", "0x1.0c1263e1bac13p-3",
    )
]  # fmt: skip
TWO_THIRDS = (2 / 3, float.fromhex("0x1.5555555555555p-55"))


def _split(code: AbstractCode, x: Number) -> tuple[Number, Number]:
    """The exponent e and f with x = 2^e (1 + f), 1/sqrt 2 <= 1 + f < sqrt 2, of a positive number."""
    tiny = x < 2.0**-1022
    scaled = code.select(tiny, x * 2.0**54, x)
    bits = scaled.bits()
    # Adding this carries into the exponent where the mantissa is sqrt 2 or more.
    shift = 0x3FF0000000000000 - np.float64(math.sqrt(0.5)).view(np.int64).item()
    raised = bits + shift
    exponent = (raised >> 52) - 1023
    mantissa = (bits - (exponent << 52)).of_bits(F64)
    e = exponent.astype(F64) - code.select(tiny, code.constant(54.0, F64), 0.0)
    return e, mantissa - 1.0


def logarithm(code: AbstractCode, x: Number) -> Number:
    high, low = _logarithm(code, x)
    return _where_positive(code, x, high + low)


def _where_positive(code: AbstractCode, x: Number, value: Number) -> Number:
    value = code.select(x > 0.0, value, code.select(x.equals(0.0), code.constant(-INF, F64), math.nan))
    return code.select(x.equals(INF), INF, value)


def _logarithm(code: AbstractCode, x: Number) -> Pair:
    """The logarithm of a positive, finite number, as a pair with some 64 digits."""
    e, f = _split(code, x)
    # s = f / (2 + f); 2 + f is exact as a pair.
    under = two_sum(code.constant(2.0, F64), f)
    s = f / under.high
    s_low = (code.fma(-s, under.high, f) - s * under.low) / under.high
    # log(1 + f) = 2 s + s^3 (2/3 + s^2 ...).
    square = two_product(code, s, s)
    z, z_low = fast_two_sum(square.high, code.fma(2.0 * s, s_low, square.low))
    rest = z * polynomial(code, LOGARITHM[1:], z)
    a, a_low = fast_two_sum(code.constant(TWO_THIRDS[0], F64), rest + TWO_THIRDS[1])
    za = two_product(code, z, a)
    za_low = code.fma(z, a_low, code.fma(z_low, a, za.low))
    cube = two_product(code, s, za.high)
    cube_low = code.fma(s, za_low, code.fma(s_low, za.high, cube.low))
    first = fast_two_sum(2.0 * s, cube.high)
    log = fast_two_sum(first.high, first.low + (2.0 * s_low + cube_low))
    # e ln 2, whose first part is exact.
    of_e = two_product(code, e, LN2[1])
    first = two_sum(e * LN2[0], log.high)
    return fast_two_sum(first.high, first.low + (log.low + of_e.high))


def logarithm_of_one_more(code: AbstractCode, x: Number) -> Number:
    """log(1 + x)."""
    total = two_sum(code.constant(1.0, F64), x)
    log = _logarithm(code, code.select(total.high > 0.0, total.high, 1.0))
    value = log.high + (log.low + total.low / total.high)
    value = _where_positive(code, total.high, value)
    return code.select(code.abs(x) < 1e-300, x, code.select(x.equals(INF), INF, value))


def power(code: AbstractCode, x: Number, y: Number) -> Number:
    """x^y, with the values of IEEE 754 at zeros and infinities."""
    size = code.abs(x)
    usual = (size > 0.0) & (size < INF)
    log = _logarithm(code, code.select(usual, size, 1.0))
    product = two_product(code, log.high, y)
    low = code.fma(log.low, y, product.low)
    # Beyond the range of exp only the sign counts.
    bounded = code.select(code.abs(product.high) < 1000.0, low, 0.0)
    value = exponential(code, product.high, bounded)
    whole = code.floor(y).equals(y)
    half = y * 0.5
    odd = whole & code.floor(half).differs(half) & (code.abs(y) < 2.0**53)
    # Zero and infinity.
    grows = (size > 1.0) ^ (y < 0.0)
    value = code.select(usual, value, code.select(grows, code.constant(INF, F64), 0.0))
    infinite = code.abs(y).equals(INF)
    of_infinite = code.select(
        size.equals(1.0), code.constant(1.0, F64), code.select(grows, code.constant(INF, F64), 0.0)
    )
    value = code.select(infinite, of_infinite, value)
    negative = x.bits() < 0
    value = code.select(negative & odd, -value, value)
    value = code.select(negative & ~whole & usual, code.constant(math.nan, F64), value)
    value = code.select(x.is_nan() | y.is_nan(), code.constant(math.nan, F64), value)
    return code.select(y.equals(0.0) | x.equals(1.0), code.constant(1.0, F64), value)


def power_of_two(code: AbstractCode, x: Number) -> Number:
    """2^x."""
    return power(code, code.constant(2.0, F64), x)


def cube_root(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    usual = (size > 0.0) & (size < INF)
    inside = code.select(usual, size, 1.0)
    log = _logarithm(code, inside)
    third = two_product(code, log.high, 1 / 3)
    rest = code.fma(log.high, 1 / 3 * 2.0**-54, code.fma(log.low, 1 / 3, third.low))
    value = exponential(code, third.high, rest)
    return code.select(usual, code.copysign(value, x), x)


# (atan(u) / u - 1) / u^2 as a polynomial in u^2, for |u| <= tan(pi/8).
ARCTANGENT = [
    float.fromhex(x)
    for x in (
        "-0x1.5555555555555p-2", "0x1.9999999999952p-3", "-0x1.249249248d684p-3", "0x1.c71c71c2f37e8p-4",
        "-0x1.745d165a9c002p-4", "0x1.3b139279535a8p-4", "-0x1.110e81459346ep-4", "0x1.e19978381e052p-5",
        "-0x1.ac761b5db4f38p-5", "0x1.74c9760b1bea4p-5", "-0x1.1aff6533dd0e5p-5", "0x1.0a5f8c60d732cp-6",
    )
]  # fmt: skip
PI = (math.pi, float.fromhex("0x1.1a62633145c07p-53"))


def _arctangent(code: AbstractCode, over: Pair, under: Pair) -> Pair:
    """The arctangent of a ratio of numbers that are not negative, not both zero, and finite."""
    swapped = over.high > under.high
    a, a_low = (code.select(swapped, u, o) for o, u in zip(over, under, strict=True))
    b, b_low = (code.select(swapped, o, u) for o, u in zip(over, under, strict=True))
    # Beyond tan(pi/8) it is pi/4 + atan((a - b) / (a + b)).
    beyond = a > b * (math.sqrt(2) - 1)
    difference, total = two_sum(a, -b), two_sum(a, b)
    n, n_low = (code.select(beyond, x, y) for x, y in zip(_plus(difference, a_low - b_low), (a, a_low), strict=True))
    d, d_low = (code.select(beyond, x, y) for x, y in zip(_plus(total, a_low + b_low), (b, b_low), strict=True))
    u = n / d
    u_low = (code.fma(-u, d, n) + (n_low - u * d_low)) / d
    z = u * u
    value = fast_two_sum(u, code.fma(u * z, polynomial(code, ARCTANGENT, z), u_low * (1.0 - z)))
    zero = code.constant(0.0, F64)
    quarter = two_sum(code.select(beyond, code.constant(PI[0] / 4, F64), zero), value.high)
    low = quarter.low + (value.low + code.select(beyond, code.constant(PI[1] / 4, F64), zero))
    high, low = fast_two_sum(quarter.high, low)
    other = two_sum(code.constant(PI[0] / 2, F64), -high)
    swapped_low = other.low + (PI[1] / 2 - low)
    return Pair(code.select(swapped, other.high, high), code.select(swapped, swapped_low, low))


def _plus(x: Pair, low: Number) -> Pair:
    return Pair(x.high, x.low + low)


def arctangent_of_two(code: AbstractCode, y: Number, x: Number) -> Number:
    """The angle of the point (x, y), with the signs of zeros and the angles of infinities of IEEE 754."""
    over, under = code.abs(y), code.abs(x)
    largest = code.select(over > under, over, under)
    # Both infinite: the diagonal. Both zero: the axis.
    infinite = largest.equals(INF)
    over = code.select(infinite, code.select(over.equals(INF), code.constant(1.0, F64), 0.0), over)
    under = code.select(infinite, code.select(under.equals(INF), code.constant(1.0, F64), 0.0), under)
    zero = largest.equals(0.0)
    under = code.select(zero, code.constant(1.0, F64), under)
    # To a size at which products neither overflow nor lose digits.
    scale = code.select(largest > 2.0**500, code.constant(2.0**-600, F64), 1.0)
    scale = code.select(largest < 2.0**-500, code.constant(2.0**600, F64), scale)
    none = code.constant(0.0, F64)
    small = over * scale
    angle = _arctangent(code, Pair(small, none), Pair(under * scale, none))
    back = two_sum(code.constant(PI[0], F64), -angle.high)
    left = x.bits() < 0
    value = code.select(left, back.high + (back.low + (PI[1] - angle.low)), angle.high + angle.low)
    # A small angle is the ratio, which may have no scale: denormal numbers.
    value = code.select(~left & (over < under * 2.0**-30) & ~zero & ~infinite, over / under, value)
    value = code.copysign(value, y)
    return code.select(x.is_nan() | y.is_nan(), math.nan, value)


def arctangent(code: AbstractCode, x: Number) -> Number:
    return arctangent_of_two(code, x, code.constant(1.0, F64))


def _leg(code: AbstractCode, x: Number) -> Pair:
    """sqrt(1 - x^2) as a pair; NaN beyond 1."""
    square = two_product(code, x, x)
    rest = two_sum(code.constant(1.0, F64), -square.high)
    high, low = fast_two_sum(rest.high, rest.low - square.low)
    root = code.sqrt(high)
    correction = (code.fma(-root, root, high) + low) / (2.0 * root)
    return Pair(root, code.select(root > 0.0, correction, 0.0))


def arcsine(code: AbstractCode, x: Number) -> Number:
    size, none = code.abs(x), code.constant(0.0, F64)
    leg = _leg(code, size)
    angle = _arctangent(code, Pair(size, none), leg)
    value = code.copysign(angle.high + angle.low, x)
    value = code.select(size < 1e-150, x, value)
    return code.select(size <= 1.0, value, math.nan)


def arccosine(code: AbstractCode, x: Number) -> Number:
    size, none = code.abs(x), code.constant(0.0, F64)
    leg = _leg(code, size)
    angle = _arctangent(code, leg, Pair(size, none))
    back = two_sum(code.constant(PI[0], F64), -angle.high)
    left = x < 0.0
    value = code.select(left, back.high + (back.low + (PI[1] - angle.low)), angle.high + angle.low)
    return code.select(size <= 1.0, value, math.nan)


def _large_half_exponential(code: AbstractCode, size: Number) -> Number:
    """exp(size) / 2, up to where it overflows itself."""
    k, r = _reduced(code, code.select(size > 720.0, 720.0, size))
    p = _small_exponential(code, r)
    return _times_power_of_two(code, 1.0 + (p.high + p.low), k - 1.0)


def hyperbolic_sine(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    t = exponential_less_one(code, code.select(size < 22.0, size, 22.0))
    value = code.select(size < 22.0, 0.5 * (t + t / (t + 1.0)), _large_half_exponential(code, size))
    value = code.select(size < 1e-300, size, value)
    return code.copysign(code.select(x.is_nan(), x, value), x)


def hyperbolic_cosine(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    t = exponential_less_one(code, code.select(size < 22.0, size, 22.0))
    value = code.select(size < 22.0, code.fma(t, t / (2.0 * (1.0 + t)), 1.0), _large_half_exponential(code, size))
    return code.select(x.is_nan(), x, value)


def hyperbolic_tangent(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    t = exponential_less_one(code, 2.0 * code.select(size < 22.0, size, 22.0))
    value = code.select(size < 1e-300, size, t / (t + 2.0))
    return code.copysign(code.select(x.is_nan(), x, value), x)


def inverse_hyperbolic_sine(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    inside = code.select(size < 2.0**28, size, 1.0)
    square = inside * inside
    small = logarithm_of_one_more(code, inside + square / (1.0 + code.sqrt(1.0 + square)))
    large = logarithm(code, size) + math.log(2)
    value = code.select(size < 2.0**28, small, large)
    value = code.select(size < 1e-150, size, value)
    return code.copysign(code.select(x.is_nan(), x, value), x)


def inverse_hyperbolic_cosine(code: AbstractCode, x: Number) -> Number:
    t = code.select(x < 2.0**28, x - 1.0, 1.0)
    small = logarithm_of_one_more(code, t + code.sqrt(2.0 * t + t * t))
    value = code.select(x < 2.0**28, small, logarithm(code, x) + math.log(2))
    return code.select(x >= 1.0, value, math.nan)


def inverse_hyperbolic_tangent(code: AbstractCode, x: Number) -> Number:
    size = code.abs(x)
    value = 0.5 * logarithm_of_one_more(code, 2.0 * size / (1.0 - size))
    value = code.select(size.equals(1.0), code.constant(INF, F64), value)
    value = code.select(size < 1e-300, size, value)
    return code.select(size <= 1.0, code.copysign(value, x), math.nan)


def logistic(code: AbstractCode, x: Number) -> Number:
    """1 / (1 + exp(-x))."""
    small = exponential(code, -code.abs(x))
    return code.select(x < 0.0, small, code.constant(1.0, F64)) / (1.0 + small)
