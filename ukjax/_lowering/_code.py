"""The body of a function under construction, and the numbers in it; and LLVM's language.

Every number stands for `width` numbers of the same dtype, one for each state of a vector. No instruction carries a flag
that lets LLVM change the arithmetic: a number has the same bits whatever the width.
"""

import abc
import functools as ft
from collections.abc import Callable
from typing import Any, TypeVar, Union

import numpy as np


FLOATS = {"f8": "double", "f4": "float"}
BITS = {np.dtype(np.float64): np.dtype(np.int64), np.dtype(np.float32): np.dtype(np.int32)}
BOOL = np.dtype(bool)

Operand = Union["Number", float, int, bool]
# A number, or a tuple of numbers.
Results = TypeVar("Results")


def kept_as(dtype: np.dtype) -> np.dtype:
    """The dtype of a number in memory."""
    return np.dtype(np.uint8) if dtype == BOOL else np.dtype(dtype)


@ft.cache
def scalar_type(dtype: np.dtype) -> str:
    """LLVM's name of the type of one number."""
    if dtype == BOOL:
        return "i1"
    return FLOATS.get(dtype.str[1:]) or f"i{8 * dtype.itemsize}"


@ft.cache
def vector_type(width: int, dtype: np.dtype) -> str:
    """LLVM's name of the type of so many numbers."""
    one = scalar_type(np.dtype(dtype))
    return one if width == 1 else f"<{width} x {one}>"


@ft.cache
def intrinsic(width: int, name: str, dtype: np.dtype, args: tuple[np.dtype, ...], suffixes: Any) -> tuple[str, str]:
    """The declaration of an intrinsic function for so many numbers, and the beginning of a call."""

    def suffix(dtype: np.dtype) -> str:
        letter = f"{'f' if dtype.kind == 'f' else 'i'}{8 * dtype.itemsize}"
        return letter if width == 1 else f"v{width}{letter}"

    full = ".".join(["@llvm", name, *(suffix(np.dtype(x)) for x in suffixes or args[:1])])
    kinds = ", ".join(vector_type(width, x) for x in args)
    return f"declare {vector_type(width, dtype)} {full}({kinds})", f"call {vector_type(width, dtype)} {full}"


class Number:
    """A number in a body, or a constant; operators add instructions to the body."""

    __slots__ = ("code", "dtype", "name")
    __hash__ = object.__hash__

    def __init__(self, code: "AbstractCode", name: str, dtype: np.dtype):
        self.code, self.name, self.dtype = code, name, dtype

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    def _with(self, instruction: str, other: Operand) -> "Number":
        return self.code.operation(instruction, self.dtype, self, self.code.like(other, self))

    def __add__(self, other: Operand) -> "Number":
        return self._with("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Operand) -> "Number":
        return self._with("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Operand) -> "Number":
        return self._with("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Operand) -> "Number":
        return self._with("fdiv", other)

    def __radd__(self, other: Operand) -> "Number":
        return self.code.like(other, self) + self

    def __rsub__(self, other: Operand) -> "Number":
        return self.code.like(other, self) - self

    def __rmul__(self, other: Operand) -> "Number":
        return self.code.like(other, self) * self

    def __rtruediv__(self, other: Operand) -> "Number":
        return self.code.like(other, self) / self

    def __neg__(self) -> "Number":
        if self.is_float:
            return self.code.operation("fneg", self.dtype, self)
        return self.code.like(0, self) - self

    def __and__(self, other: Operand) -> "Number":
        return self._with("and", other)

    def __or__(self, other: Operand) -> "Number":
        return self._with("or", other)

    def __xor__(self, other: Operand) -> "Number":
        return self._with("xor", other)

    def __invert__(self) -> "Number":
        return self ^ (True if self.dtype == BOOL else -1)

    def __lshift__(self, other: Operand) -> "Number":
        return self._with("shl", other)

    def __rshift__(self, other: Operand) -> "Number":
        return self._with("ashr" if self.dtype.kind == "i" else "lshr", other)

    def _compared(self, of_floats: str, of_integers: str, other: Operand) -> "Number":
        if self.is_float:
            instruction = f"fcmp {of_floats}"
        else:
            sign = "s" if self.dtype.kind == "i" else "u"
            instruction = f"icmp {of_integers if of_integers in ('eq', 'ne') else sign + of_integers}"
        return self.code.operation(instruction, BOOL, self, self.code.like(other, self))

    def __lt__(self, other: Operand) -> "Number":
        return self._compared("olt", "lt", other)

    def __le__(self, other: Operand) -> "Number":
        return self._compared("ole", "le", other)

    def __gt__(self, other: Operand) -> "Number":
        return self._compared("ogt", "gt", other)

    def __ge__(self, other: Operand) -> "Number":
        return self._compared("oge", "ge", other)

    def equals(self, other: Operand) -> "Number":
        return self._compared("oeq", "eq", other)

    def differs(self, other: Operand) -> "Number":
        return self._compared("une", "ne", other)

    def is_nan(self) -> "Number":
        return self.code.operation("fcmp uno", BOOL, self, self)

    def bits(self) -> "Number":
        """The bits of a floating-point number, as a signed integer."""
        return self.code.cast("bitcast", self, BITS[self.dtype])

    def of_bits(self, dtype: np.dtype) -> "Number":
        return self.code.cast("bitcast", self, dtype)

    def astype(self, dtype: np.dtype) -> "Number":
        """Converts as XLA does: integers from floats are truncated, at most their range, and zero for NaN."""
        dtype, source = np.dtype(dtype), self.dtype
        if dtype == source:
            return self
        if dtype == BOOL:
            return self.differs(0)
        if source == BOOL or (source.kind in "iu" and dtype.kind == "f"):
            if source == BOOL and dtype.kind in "iu":
                return self.code.cast("zext", self, dtype)
            return self.code.cast("sitofp" if source.kind == "i" else "uitofp", self, dtype)
        if source.kind == "f" and dtype.kind == "f":
            return self.code.cast("fpext" if dtype.itemsize > source.itemsize else "fptrunc", self, dtype)
        if source.kind == "f":
            kind = "fptosi" if dtype.kind == "i" else "fptoui"
            return self.code.call(f"{kind}.sat", dtype, self, suffixes=(dtype, source))
        if dtype.itemsize > source.itemsize:
            return self.code.cast("sext" if source.kind == "i" else "zext", self, dtype)
        if dtype.itemsize < source.itemsize:
            return self.code.cast("trunc", self, dtype)
        return self.code.cast("bitcast", self, dtype)


class AbstractCode(abc.ABC):
    """The body of a function under construction, in some language.

    Names of operations are those of LLVM: "fadd", "icmp slt", "sitofp".
    """

    @abc.abstractmethod
    def operation(self, name: str, dtype: np.dtype, *args: Number) -> Number:
        """Adds an operation on numbers, of the same dtype unless it is a "select"."""

    @abc.abstractmethod
    def cast(self, name: str, x: Number, dtype: np.dtype) -> Number:
        """Adds a conversion; "bitcast" between integers of one size changes the sign's meaning only."""

    @abc.abstractmethod
    def constant(self, value: float | int | bool | np.generic, dtype: np.dtype) -> Number:
        """Returns a known number."""

    @abc.abstractmethod
    def call(self, name: str, dtype: np.dtype, *args: Number, suffixes: tuple[np.dtype, ...] = ()) -> Number:
        """Adds a call of an intrinsic function of LLVM; `suffixes`: dtypes in its name, by default that of `args`."""

    @abc.abstractmethod
    def function(self, of: Callable[..., Results], *args: Number) -> Results:
        """Adds the operations of a function (code, *args) -> a number or several, or a call of them."""

    def like(self, value: Operand, other: Number) -> Number:
        """The value as a number of the dtype of another."""
        return value if isinstance(value, Number) else self.constant(value, other.dtype)

    def fma(self, x: Operand, y: Operand, z: Operand) -> Number:
        """x y + z, rounded once."""
        one = next(n for n in (x, y, z) if isinstance(n, Number))
        return self.call("fma", one.dtype, *(self.like(n, one) for n in (x, y, z)))

    def select(self, which: Number, x: Operand, y: Operand) -> Number:
        """x where `which` is set, else y."""
        one = next(n for n in (x, y) if isinstance(n, Number))
        return self.operation("select", one.dtype, which, self.like(x, one), self.like(y, one))

    def abs(self, x: Number) -> Number:
        return self.call("fabs", x.dtype, x)

    def sqrt(self, x: Number) -> Number:
        return self.call("sqrt", x.dtype, x)

    def floor(self, x: Number) -> Number:
        return self.call("floor", x.dtype, x)

    def nearest(self, x: Number) -> Number:
        """The nearest whole number, the even one of two."""
        return self.call("roundeven", x.dtype, x)

    def copysign(self, x: Number, sign: Number) -> Number:
        return self.call("copysign", x.dtype, x, sign)


class Code(AbstractCode):
    """The body of a function for vectors of `width` numbers, in LLVM's language.

    Attributes:
        lines: Instructions in order.
        declared: Declarations of the intrinsic functions that are called.
    """

    def __init__(self, width: int = 1):
        self.width, self.lines, self.declared, self._count = width, [], set(), 0

    def type_of(self, dtype: np.dtype) -> str:
        return vector_type(self.width, dtype)

    def typed(self, x: Number) -> str:
        """The number with its type, as an operand."""
        return f"{self.type_of(x.dtype)} {x.name}"

    def name(self) -> str:
        """A name that is not used yet."""
        self._count += 1
        return f"%v{self._count}"

    def instruction(self, text: str, dtype: np.dtype) -> Number:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return Number(self, name, np.dtype(dtype))

    def operation(self, name, dtype, *args):
        if name == "select":
            return self.instruction(f"select {', '.join(map(self.typed, args))}", dtype)
        return self.instruction(f"{name} {', '.join([self.typed(args[0]), *(x.name for x in args[1:])])}", dtype)

    def cast(self, name, x, dtype):
        if name == "bitcast" and self.type_of(x.dtype) == self.type_of(dtype):
            return Number(self, x.name, dtype)
        return self.instruction(f"{name} {self.typed(x)} to {self.type_of(dtype)}", dtype)

    def constant(self, value, dtype):
        dtype = np.dtype(dtype)
        if dtype == BOOL:
            text = "true" if value else "false"
        elif dtype.kind == "f":
            # A float of 32 bits too is written by the bits of the double that it is.
            number = float(np.asarray(value, dtype))
            text = f"0x{np.float64(number).view(np.uint64):016X}"
        else:
            text = str(int(np.asarray(value).astype(dtype)))
        if self.width > 1:
            text = "<" + ", ".join([f"{scalar_type(dtype)} {text}"] * self.width) + ">"
        return Number(self, text, dtype)

    def call(self, name, dtype, *args, suffixes=()):
        declaration, begin = intrinsic(self.width, name, dtype, tuple(x.dtype for x in args), tuple(suffixes))
        self.declared.add(declaration)
        return self.instruction(f"{begin}({', '.join(map(self.typed, args))})", dtype)

    def function(self, of, *args):
        return of(self, *args)

    def load(self, place: str, dtype: np.dtype) -> Number:
        """The number in a slot, one for each state of a vector."""
        kind = kept_as(dtype)
        return self.instruction(f"load {self.type_of(kind)}, ptr {place}, align 8", kind).astype(dtype)

    def load_shared(self, place: str, dtype: np.dtype) -> Number:
        """The number in a slot, the same for all states of a vector."""
        kind, one = kept_as(dtype), scalar_type(kept_as(dtype))
        found = self.instruction(f"load {one}, ptr {place}, align 8", kind)
        if self.width > 1:
            many, zeros = self.type_of(kind), f"<{self.width} x i32> zeroinitializer"
            whole = self.instruction(f"insertelement {many} poison, {one} {found.name}, i32 0", kind)
            found = self.instruction(f"shufflevector {many} {whole.name}, {many} poison, {zeros}", kind)
        return found.astype(dtype)

    def store(self, place: str, x: Number) -> None:
        """Puts a number into a slot."""
        self.lines.append(f"  store {self.typed(x.astype(kept_as(x.dtype)))}, ptr {place}, align 8")
