"""Numbers within a scalar program, and their values in a finite field, which tell whether two are always the same.

A number is a rational function of the inputs and of other functions of them. Evaluated at a random point of the field
of P = 2^61 - 2373 elements two different ones are equal with a probability of about 1e-18, two equal ones always: sums,
products and quotients are exact there, so that neither rounding nor the unit of a coefficient plays a part (Schwartz
1980, Zippel 1979). Other functions are random elements that depend on the function and the argument only; sine and
cosine of one angle are a point of the circle, and angles that are sums of others with whole coefficients the product of
theirs.

Not recognised are roots (sqrt(x^2) is x for half of all x), functions with branches, and angles that are no such sums.
"""

import functools as ft
import hashlib
import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import jax.extend.core.primitives as prims
import jax.numpy as jnp
import numpy as np
from jax.dtypes import extended
from jax.extend.core import Primitive
from jax.typing import DTypeLike
from jaxtyping import PyTree
from numpy.typing import ArrayLike

from .._program import Parameters


class NotScalar(Exception):
    """The function does what no scalar program can: it has effects, or arrays that are too large."""


# The most entries of an array; larger ones do not belong to a small mechanism.
LARGEST = 16_384


class Node:
    """A number that is known when the program runs; other numbers are constants, NumPy scalars."""

    __slots__ = ("args", "dtype", "function", "nodes", "order", "params", "place", "primitive", "value")
    __array_ufunc__ = None

    def __init__(self, function: Callable[..., PyTree], args: tuple[Any, ...], dtype: np.dtype, order: int):
        # Arguments are entries, and those of a block arrays of entries.
        self.function, self.args, self.dtype, self.order = function, args, dtype, order
        # Those of the arguments that are nodes, which many passes ask for.
        self.nodes = tuple([x for x in args if isinstance(x, Node)])
        self.primitive: Primitive | None = None
        self.params: Parameters = {}
        self.place: tuple[int, tuple[int, ...]] | None = None  # of an entry of a block: the result, and the index there
        self.value: Value | None = None  # if known


# A number within a program: a `Node`, or a constant.
Entry = Node | np.generic
# The key that identifies an entry: the order of a node, or the type and the bytes of a constant.
Name = int | tuple[str, bytes]


class Block(Node):
    """The arrays within a program that an operation on arrays returns, each with a dtype of its own."""

    __slots__ = ("dtypes",)

    def __init__(
        self, function: Callable[..., PyTree], args: tuple[np.ndarray, ...], dtypes: tuple[np.dtype, ...], order: int
    ):
        super().__init__(function, args, np.dtype(object), order)
        self.nodes = tuple(x for array in args for x in array.flat if isinstance(x, Node))
        self.dtypes = dtypes


def constant(value: ArrayLike, dtype: DTypeLike) -> np.generic:
    """A constant of a program, which is a NumPy scalar."""
    if isinstance(value, np.generic) and value.dtype == dtype:
        return value
    return np.asarray(value, dtype)[()]  # pyright: ignore[reportReturnType]


def is_constant(x: Entry, value: float | None = None) -> bool:
    return not isinstance(x, Node) and (value is None or bool(x == value))


def name_of(x: Entry) -> Name:
    return x.order if isinstance(x, Node) else (x.dtype.char, x.tobytes())


def entries(value: ArrayLike, dtype: np.dtype) -> np.ndarray:
    """A known array as an array of constants; raises NotScalar for a large one."""
    if math.prod(np.shape(value)) > LARGEST or jnp.issubdtype(dtype, extended):
        raise NotScalar("a large array, or a random key")
    value = np.asarray(value, dtype)
    return np.fromiter(value.flat, object, value.size).reshape(value.shape)


def _divided(x: np.number, y: np.number) -> ArrayLike:
    """The quotient x / y; for integers it is truncated, and -1 where y = 0, as in XLA."""
    if not np.issubdtype(x.dtype, np.integer):
        return np.divide(x, y)
    if y == 0:
        return np.array(-1).astype(x.dtype)
    whole = abs(int(x)) // abs(int(y))
    return np.array(whole if (x < 0) == (y < 0) else -whole).astype(x.dtype)


# The functions of NumPy that fold constants, for the primitives of `jax.lax`. (Python's operators on NumPy's numbers
# give the same, and sooner.)
FOLDED: dict[Primitive, Callable[..., ArrayLike]] = {
    prims.add_p: operator.add,
    prims.sub_p: operator.sub,
    prims.mul_p: operator.mul,
    prims.div_p: _divided,
    prims.neg_p: np.negative,
    prims.abs_p: np.abs,
    prims.sign_p: np.sign,
    prims.square_p: np.square,
    prims.sin_p: np.sin,
    prims.cos_p: np.cos,
    prims.tan_p: np.tan,
    prims.atan2_p: np.arctan2,
    prims.exp_p: np.exp,
    prims.log_p: np.log,
    prims.sqrt_p: np.sqrt,
    prims.tanh_p: np.tanh,
    prims.max_p: np.maximum,
    prims.min_p: np.minimum,
    prims.floor_p: np.floor,
    prims.ceil_p: np.ceil,
    prims.eq_p: np.equal,
    prims.ne_p: np.not_equal,
    prims.lt_p: np.less,
    prims.le_p: np.less_equal,
    prims.gt_p: np.greater,
    prims.ge_p: np.greater_equal,
    prims.not_p: np.invert,
    prims.is_finite_p: np.isfinite,
    prims.and_p: np.bitwise_and,
    prims.or_p: np.bitwise_or,
    prims.xor_p: np.bitwise_xor,
}
COMMUTATIVE = {prims.add_p, prims.mul_p, prims.max_p, prims.min_p, prims.and_p, prims.or_p, prims.eq_p, prims.ne_p}


# A safe prime, of which all powers of two that doubles have are different elements (modulo 2^61 - 1 they are only 61
# elements), and of which -1 is no square.
P = 2**61 - 2373
# Constants that differ by fewer than this many eps are taken for the same.
CLOSE = 8.0
# A constant is read as a fraction with a denominator up to this, or as a number of so many decimal digits.
LARGEST_DENOMINATOR, DIGITS = 10_000, 10
# Angles with more terms, or with larger coefficients, count as terms of their own.
MOST_TERMS, LARGEST_COEFFICIENT = 12, 8


# The terms of an angle, which are elements, each with a whole coefficient.
Angle = tuple[tuple[int, int], ...]


class Value:
    """An element of the field, and the angle that it would be, which few numbers are asked for.

    Args:
        element: The element.
        parts: Whole coefficients and the values whose sum it is, if such are known.

    Attributes:
        even: The lesser of the element and its negative.
    """

    __slots__ = ("_angle", "element", "even", "parts")

    def __init__(self, element: int, parts: "tuple[tuple[int, Value], ...]" = ()):
        self.element, self.parts = element, parts
        self.even = element if 2 * element < P else P - element
        self._angle: Angle | None = None

    @property
    def minus(self) -> "Value":
        return Value(-self.element % P, ((-1, self),))

    @property
    def angle(self) -> Angle:
        """The terms of the angle; of opposite sign those of its negative."""
        todo = [self]
        while todo:
            value = todo[-1]
            unknown = [x for _, x in value.parts if x._angle is None]
            if value._angle is None and not unknown:
                value._angle = value._sum()
            todo = todo[:-1] if value._angle is not None else todo + unknown
        assert self._angle is not None
        return self._angle

    def _sum(self) -> Angle:
        terms: dict[int, int] = {}
        for factor, value in self.parts:
            assert value._angle is not None
            for term, k in value._angle:
                terms[term] = terms.get(term, 0) + factor * k
        terms = {term: k for term, k in terms.items() if k and term}
        if not self.parts or len(terms) > MOST_TERMS or any(abs(k) > LARGEST_COEFFICIENT for k in terms.values()):
            return ((self.even, 1 if self.even == self.element else -1),)
        return tuple(sorted(terms.items()))


class Mantissas:
    """Numbers from 1/2 to 1 with their elements; numbers within `eps` of each other are the same."""

    def __init__(self, eps: float):
        self.eps = eps
        self.cells: dict[int, tuple[float, int]] = {}
        self.numbers, self.elements = np.empty(64), list[int]()

    def find(self, number: float) -> int | None:
        """The element of a number, if it is known."""
        cell = round(number / self.eps)
        for near in (cell, cell - 1, cell + 1):
            known, element = self.cells.get(near, (0.0, 0))
            if abs(known - number) <= self.eps * number:
                return element
        return None

    def put(self, number: float, element: int) -> None:
        count = len(self.elements)
        if count == len(self.numbers):
            self.numbers = np.resize(self.numbers, 2 * count)
        self.numbers[count] = number
        self.elements.append(element)
        self.cells[round(number / self.eps)] = number, element

    def find_product(self, number: float) -> int | None:
        """The element of a number that is the product of two known ones, and of a power of two."""
        known = self.numbers[: len(self.elements)]
        order = np.argsort(known)
        ordered = known[order]
        # In this order they are nearly sorted, and found sooner.
        others, exponents = np.frexp(number / ordered)
        at = np.searchsorted(ordered, others * (1 - 2 * self.eps))
        near = ordered[np.minimum(at, len(known) - 1)] <= others * (1 + 2 * self.eps)
        for i in np.flatnonzero(near & (at < len(known))):
            found = self.find(float(others[i]))
            if found is not None:
                return found * self.elements[order[i]] * _power_of_two(int(exponents[i])) % P
        return None


class Constants:
    """Floating-point numbers as elements of the field.

    A number within rounding of a simple or decimal fraction is that: 0.1 + 0.2 is 0.3. Others are random elements,
    which lie on the circle: where c is known sqrt(1 - c^2) is known too, so that the cosine and the sine of a fixed
    angle belong together. A number computed from constants has the element computed from theirs.
    """

    def __init__(self):
        # By the mantissa, as numbers that differ by powers of two belong together.
        self.known: dict[np.dtype, Mantissas] = {}
        self.seen: dict[tuple[np.dtype, float], int] = {}

    def element(self, x: np.generic) -> int:
        number = float(x)
        if number == 0:
            return 0
        found = self.seen.get((x.dtype, abs(number)))
        if found is None:
            found = self.seen[x.dtype, abs(number)] = self._element(abs(number), self._of(x.dtype))
        return found if number > 0 else -found % P

    def _of(self, dtype: np.dtype) -> Mantissas:
        if dtype not in self.known:
            self.known[dtype] = Mantissas(CLOSE * float(jnp.finfo(dtype).eps))
        return self.known[dtype]

    def _element(self, number: float, known: Mantissas) -> int:
        mantissa, exponent = math.frexp(number)
        found = known.find(mantissa)
        if found is None:
            found = _simple(number, exponent, known.eps)
            if found is None:
                found = known.find_product(mantissa)
            if found is None:
                found = self._on_circle(number, known)
            else:
                known.put(mantissa, found)
        return found * _power_of_two(exponent) % P

    def computed(self, primitive: Primitive, args: Sequence[np.generic], x: np.generic) -> None:
        """Records the result of an operation on constants."""
        operation = ARITHMETIC.get(primitive)
        if operation is None or x.dtype.kind != "f":
            return
        number = abs(float(x))
        if number == 0 or (x.dtype, number) in self.seen or not all(map(math.isfinite, (number, *map(float, args)))):
            return
        known, element = self._of(x.dtype), operation(*map(self.element, args)) % P
        mantissa, exponent = math.frexp(number)
        if not element:
            # What rounding leaves of a sum that is zero is a few units of a last digit, such as 3 / 2^60. Numbers with
            # the same mantissa, such as 3, are not zero. A power of two may be meant, such as eps.
            if mantissa != 0.5:
                self.seen[x.dtype, number] = 0
            return
        found = known.find(mantissa)
        if found is None:
            found = _simple(number, exponent, known.eps)
            if found is None:
                found = element * (1 if float(x) > 0 else -1) * _power_of_two(-exponent) % P
            known.put(mantissa, found)
        self.seen[x.dtype, number] = found * _power_of_two(exponent) % P

    def _on_circle(self, number: float, known: Mantissas) -> int:
        """A new element for the mantissa of a number; one below 1 is taken for a cosine, whose sine is recorded too."""
        mantissa, exponent = math.frexp(number)
        exponent = min(exponent, 0)
        cosine = math.ldexp(mantissa, exponent)
        sine = math.sqrt((1 - cosine) * (1 + cosine))
        of_cosine, of_sine = _point(drawn("constant", cosine))
        found = of_cosine * _power_of_two(-exponent) % P
        known.put(mantissa, found)
        other, exponent = math.frexp(sine)
        if known.find(other) is None and _fraction(sine, known.eps) is None:
            known.put(other, of_sine * _power_of_two(-exponent) % P)
        return found


ARITHMETIC = {
    prims.add_p: lambda x, y: x + y,
    prims.sub_p: lambda x, y: x - y,
    prims.mul_p: lambda x, y: x * y,
    prims.div_p: lambda x, y: _quotient(x, y),
    prims.neg_p: lambda x: -x,
}


def _simple(number: float, exponent: int, eps: float) -> int | None:
    """The element of the mantissa of a simple or short decimal fraction; None for another number."""
    fraction = _fraction(number, eps)
    if fraction is not None:
        return _quotient(fraction.numerator, fraction.denominator) * _power_of_two(-exponent) % P
    # A very small or large number may be a simple one times a power of two.
    fraction = _fraction(math.ldexp(number, -exponent), eps)
    return None if fraction is None else _quotient(fraction.numerator, fraction.denominator)


def _fraction(number: float, eps: float) -> Fraction | None:
    """The simple or short decimal fraction that a number stands for, or None."""
    # The convergents of the continued fraction: no other fraction with a denominator as small is as near.
    p, q, before, below, rest = math.floor(number), 1, 1, 0, number % 1.0
    while q <= LARGEST_DENOMINATOR:
        if abs(p / q - number) <= eps * number / 2:
            return Fraction(p, q)
        if rest < 1 / LARGEST_DENOMINATOR:
            break
        whole, rest = divmod(1 / rest, 1.0)
        p, before = int(whole) * p + before, p
        q, below = int(whole) * q + below, q
    decimal = f"{number:.{DIGITS}g}"
    return Fraction(decimal) if abs(float(decimal) - number) <= eps * number / 2 else None


def _quotient(x: int, y: int) -> int:
    return x * pow(y, -1, P) % P if y % P else 0


@ft.cache
def _power_of_two(exponent: int) -> int:
    return pow(2, exponent, P)


def _point(t: int) -> tuple[int, int]:
    """The point of the circle with the parameter t."""
    over = pow(1 + t * t, -1, P)  # never zero: -1 is no square
    return (1 - t * t) * over % P, 2 * t * over % P


def drawn(*of: object) -> int:
    """A random element, always the same for the same arguments."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=16).digest(), "big") % (P - 4) + 2


# (arguments, their values) -> the value of an operation.
ValueRule = Callable[..., Value | None]


def value_of(rule: ValueRule, args: Sequence[Entry], constants: Constants) -> Value | None:
    """The value of the result of an operation by its rule; None if nothing more is known of it."""
    values = [x.value if isinstance(x, Node) else _of_constant(x, constants) for x in args]
    return None if None in values else rule(args, *values)


def _of_constant(x: np.generic, constants: Constants) -> Value | None:
    return Value(constants.element(x)) if x.dtype.kind == "f" and math.isfinite(x) else None


def _product(args: Sequence[Entry], x: Value, y: Value) -> Value:
    element = x.element * y.element % P
    factor = args[0]  # where a constant stands
    if not isinstance(factor, Node) and (number := float(factor)).is_integer():
        return Value(element, ((int(number), y),))
    return Value(element)


def _ratio(_: Sequence[Entry], x: Value, y: Value) -> Value | None:
    return Value(x.element * pow(y.element, -1, P) % P) if y.element else None


def _exp(_: Sequence[Entry], x: Value) -> Value:
    power = drawn("exp", x.even)
    return Value(power if x.even == x.element else pow(power, -1, P))


VALUES: dict[Primitive, ValueRule] = {
    prims.add_p: lambda _, x, y: Value((x.element + y.element) % P, ((1, x), (1, y))),
    prims.sub_p: lambda _, x, y: Value((x.element - y.element) % P, ((1, x), (-1, y))),
    prims.mul_p: _product,
    prims.neg_p: lambda _, x: x.minus,
    prims.div_p: _ratio,
    prims.sin_p: lambda _, x: Value(_on_circle(x)[1]),
    prims.cos_p: lambda _, x: Value(_on_circle(x)[0]),
    prims.exp_p: _exp,
}


def _on_circle(x: Value) -> tuple[int, int]:
    """The cosine and sine of an angle: the product of (c + i s) of its terms to the powers of their coefficients."""
    cosine, sine = 1, 0
    for term, k in x.angle:
        c, s = _point(drawn("angle", term))
        s = s if k > 0 else -s
        for _ in range(abs(k)):
            cosine, sine = (cosine * c - sine * s) % P, (sine * c + cosine * s) % P
    return cosine, sine
