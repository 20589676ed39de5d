"""Scalar programs as operations of a language, LLVM's or C.

The arithmetic is decided here: a sum whose term is a product that nothing else uses is one fused operation. Elementary
functions are those of `_arithmetic`. So a program gives the same bits for one state and for vectors of any width.
"""

from collections.abc import Callable, Sequence

import jax.extend.core.primitives as prims
import numpy as np
from jax.extend.core import Primitive
from jax.lax import RoundingMethod

from . import _arithmetic as of
from ._code import BOOL, AbstractCode, Number
from ._entry import Block, Entry, Node, NotScalar
from ._program import Program, call_p, routine_of
from ._schedule import fma_p


Args = Sequence[Number]
# (the call of a routine, the numbers that are its arguments) -> the results.
PrintsCall = Callable[[Node, Callable[[Entry], Number]], list[Number]]
# Reads an input each time that it is used.
Reads = Callable[[Node], Number]


def print_program(
    code: AbstractCode,
    program: Program,
    inputs: Sequence[Number | None],
    call: PrintsCall | None = None,
    read: Reads | None = None,
) -> list[Number]:
    """Adds a program to a body; returns its outputs for these inputs. Raises NotScalar for what has no instruction.

    `call`: prints the call of a routine, if the program has such calls. `read`: reads the inputs that are None here.
    """
    return _Printer(code, program, inputs, call, read).outputs()


class _Printer:
    """A program that is being printed: its numbers so far, sines and cosines, and the products that go into sums."""

    def __init__(
        self,
        code: AbstractCode,
        program: Program,
        inputs: Sequence[Number | None],
        call: PrintsCall | None,
        read: Reads | None,
    ):
        self.code, self.program, self.read = code, program, read
        self.known = {node.order: x for node, x in zip(program.inputs, inputs, strict=True) if x is not None}
        self.turns: dict[int, tuple[Number, Number]] = {}
        self.negatives: dict[tuple[str, np.dtype], Number] = {}
        results: dict[int, list[Number]] = {}
        for node in program.steps:
            if node.primitive is call_p and call is not None:
                results[node.order] = call(node, self._of)
            elif node.place is not None and node.args[0].order in results:
                self.known[node.order] = results[node.args[0].order][node.place[0]]
            else:
                self.known[node.order] = self._printed(node)

    def outputs(self) -> list[Number]:
        return [self._of(x) for x in self.program.outputs]

    def _of(self, x: Entry) -> Number:
        if not isinstance(x, Node):
            return self.code.constant(x, x.dtype)
        return self.known[x.order] if self.read is None or x.order in self.known else self.read(x)

    def _printed(self, node: Node) -> Number:
        primitive = node.primitive
        args = [self._of(x) for x in node.args]
        dtype = np.dtype(node.dtype)
        if primitive in (prims.sin_p, prims.cos_p):
            return self._turn(node, args[0], primitive is prims.cos_p)
        if primitive in ELEMENTARY and dtype.kind == "f":
            return in_doubles(self.code, ELEMENTARY[primitive], args)
        if primitive is fma_p:
            (x, y, z), (product, addend) = args, node.params["negated"]
            x, y = (self._negative(x), y) if product else (x, y)
            return self.code.fma(x, y, self._negative(z) if addend else z)
        rule = None if primitive is None else RULES.get(primitive)
        if rule is None:
            raise NotScalar(f"{primitive}, which has no instruction")
        return rule(self.code, node, args)

    def _negative(self, x: Number) -> Number:
        """-x, made once: an elimination subtracts many products with the same factor."""
        key = x.name, x.dtype
        if key not in self.negatives:
            self.negatives[key] = -x
        return self.negatives[key]

    def _turn(self, node: Node, angle: Number, cosine: bool) -> Number:
        (x,) = node.args
        if x.order not in self.turns:
            pair = self.code.function(of.sine_and_cosine, angle.astype(of.F64))
            self.turns[x.order] = pair[0].astype(angle.dtype), pair[1].astype(angle.dtype)
        return self.turns[x.order][cosine]


def is_supported(dtype: np.dtype) -> bool:
    """Whether there are numbers of a dtype in machine code."""
    return dtype == BOOL or (dtype.kind in "iu" and dtype.itemsize <= 8) or dtype in (of.F64, np.dtype(np.float32))


def is_printable(program: Program) -> bool:
    """Whether all operations of a program can be printed, those of its routines included."""
    own = all(node.primitive is call_p or has_instruction(node) for node in program.steps)
    return own and all(is_printable(routine.program) for routine in program.routines)


def has_instruction(node: Node) -> bool:
    """Whether an operation can be printed."""
    if node.primitive is call_p:
        return is_printable(routine_of(node).program)
    if node.place is not None:
        return node.args[0].primitive is call_p
    primitive, dtype = node.primitive, np.dtype(node.dtype)
    if primitive is None or isinstance(node, Block):
        return False
    if primitive in (prims.sin_p, prims.cos_p) or primitive in ELEMENTARY:
        return dtype.kind == "f"
    if primitive is prims.reduce_precision_p:
        return (
            node.params["exponent_bits"] == np.finfo(dtype).nexp
            and node.params["mantissa_bits"] <= np.finfo(dtype).nmant
        )
    return primitive in RULES and not (primitive is prims.pow_p and dtype.kind != "f")


def in_doubles(code: AbstractCode, function: Callable[..., Number], args: Args) -> Number:
    """An elementary function of doubles for numbers of any precision, rounded once."""
    return code.function(function, *(x.astype(of.F64) for x in args)).astype(args[0].dtype)


ELEMENTARY: dict[Primitive, Callable[..., Number]] = {
    prims.tan_p: of.tangent,
    prims.asin_p: of.arcsine,
    prims.acos_p: of.arccosine,
    prims.atan_p: of.arctangent,
    prims.atan2_p: of.arctangent_of_two,
    prims.sinh_p: of.hyperbolic_sine,
    prims.cosh_p: of.hyperbolic_cosine,
    prims.tanh_p: of.hyperbolic_tangent,
    prims.asinh_p: of.inverse_hyperbolic_sine,
    prims.acosh_p: of.inverse_hyperbolic_cosine,
    prims.atanh_p: of.inverse_hyperbolic_tangent,
    prims.exp_p: of.exponential,
    prims.exp2_p: of.power_of_two,
    prims.expm1_p: of.exponential_less_one,
    prims.log_p: of.logarithm,
    prims.log1p_p: of.logarithm_of_one_more,
    prims.logistic_p: of.logistic,
    prims.cbrt_p: of.cube_root,
}


def _add(code: AbstractCode, node: Node, args: Args) -> Number:
    return args[0] | args[1] if args[0].dtype == BOOL else args[0] + args[1]


def _sub(code: AbstractCode, node: Node, args: Args) -> Number:
    return args[0] - args[1]


def _mul(code: AbstractCode, node: Node, args: Args) -> Number:
    return args[0] & args[1] if args[0].dtype == BOOL else args[0] * args[1]


def _div(code: AbstractCode, node: Node, args: Args) -> Number:
    """The quotient; of integers truncated, -1 where the divisor is zero, as in XLA."""
    x, y = args
    if x.is_float:
        return x / y
    quotient, _ = _divided(code, x, y)
    return code.select(y.equals(0), -1, quotient)


def _rem(code: AbstractCode, node: Node, args: Args) -> Number:
    """The remainder with the sign of the dividend; of integers the dividend where the divisor is zero."""
    x, y = args
    if x.is_float:
        return code.operation("frem", x.dtype, x, y)
    _, remainder = _divided(code, x, y)
    return code.select(y.equals(0), x, remainder)


def _divided(code: AbstractCode, x: Number, y: Number) -> tuple[Number, Number]:
    sign = "s" if x.dtype.kind == "i" else "u"
    unsafe = y.equals(0)
    if sign == "s":
        unsafe = unsafe | (y.equals(-1) & x.equals(np.iinfo(x.dtype).min))
    divisor = code.select(unsafe, 1, y)
    quotient = code.operation(f"{sign}div", x.dtype, x, divisor)
    return quotient, code.operation(f"{sign}rem", x.dtype, x, divisor)


def _neg(code: AbstractCode, node: Node, args: Args) -> Number:
    return -args[0]


def _abs(code: AbstractCode, node: Node, args: Args) -> Number:
    (x,) = args
    if x.is_float:
        return code.abs(x)
    return x if x.dtype.kind == "u" else code.select(x < 0, -x, x)


def _sign(code: AbstractCode, node: Node, args: Args) -> Number:
    (x,) = args
    one = code.like(1, x)
    if x.dtype.kind == "u":
        return code.select(x.equals(0), 0, one)
    return code.select(x > 0, one, code.select(x < 0, -one, x))


def _square(code: AbstractCode, node: Node, args: Args) -> Number:
    return args[0] * args[0]


def _sqrt(code: AbstractCode, node: Node, args: Args) -> Number:
    return code.sqrt(args[0])


def _rsqrt(code: AbstractCode, node: Node, args: Args) -> Number:
    return 1.0 / code.sqrt(args[0])


def _larger(code: AbstractCode, node: Node, args: Args) -> Number:
    x, y = args
    return code.call("maximum", x.dtype, x, y) if x.is_float else code.select(x > y, x, y)


def _smaller(code: AbstractCode, node: Node, args: Args) -> Number:
    x, y = args
    return code.call("minimum", x.dtype, x, y) if x.is_float else code.select(x < y, x, y)


def _floor(code: AbstractCode, node: Node, args: Args) -> Number:
    return code.floor(args[0])


def _ceil(code: AbstractCode, node: Node, args: Args) -> Number:
    return code.call("ceil", args[0].dtype, args[0])


def _round(code: AbstractCode, node: Node, args: Args) -> Number:
    even = node.params["rounding_method"] is RoundingMethod.TO_NEAREST_EVEN
    return code.call("roundeven" if even else "round", args[0].dtype, args[0])


def _is_finite(code: AbstractCode, node: Node, args: Args) -> Number:
    return code.abs(args[0]) < np.inf


def _clamp(code: AbstractCode, node: Node, args: Args) -> Number:
    low, x, high = args
    return _smaller(code, node, [_larger(code, node, [x, low]), high])


def _select_n(code: AbstractCode, node: Node, args: Args) -> Number:
    which, *cases = args
    if which.dtype == BOOL:
        return code.select(which, cases[-1], cases[0]) if len(cases) > 1 else cases[0]
    found = cases[-1]
    for i in reversed(range(len(cases) - 1)):
        found = code.select(which <= i, cases[i], found)
    return found


def _convert(code: AbstractCode, node: Node, args: Args) -> Number:
    return args[0].astype(np.dtype(node.dtype))


def _integer_pow(code: AbstractCode, node: Node, args: Args) -> Number:
    """x^k by squaring, for whole k."""
    (x,), k = args, node.params["y"]
    total, square, left = None, x, abs(k)
    while left:
        if left % 2:
            total = square if total is None else total * square
        square, left = square * square if left > 1 else square, left // 2
    total = code.like(1, x) if total is None else total
    return 1.0 / total if k < 0 else total


def _pow(code: AbstractCode, node: Node, args: Args) -> Number:
    x, y = args
    if not x.is_float:
        raise NotScalar("a power of an integer")
    return in_doubles(code, of.power, [x, y.astype(of.F64)])


def _power_of_two(code: AbstractCode, node: Node, args: Args) -> Number:
    """Rounds a number to fewer digits, to the nearest, the even one of two."""
    (x,) = args
    digits, kept = np.finfo(x.dtype).nmant, node.params["mantissa_bits"]
    if node.params["exponent_bits"] != np.finfo(x.dtype).nexp or kept > digits:
        raise NotScalar("a precision with fewer exponents")
    bits, left = x.bits(), digits - kept
    if left == 0:
        return x
    last = (bits >> left) & 1
    rounded = (bits + (last + ((1 << (left - 1)) - 1))) & ~((1 << left) - 1)
    return code.select(code.abs(x) < np.inf, rounded.of_bits(x.dtype), x)


def _bitwise(operator: str) -> Callable[[AbstractCode, Node, Args], Number]:
    def rule(code: AbstractCode, node: Node, args: Args) -> Number:
        return getattr(args[0], operator)(args[1])

    return rule


def _not(code: AbstractCode, node: Node, args: Args) -> Number:
    return ~args[0]


def _compare(operator: str) -> Callable[[AbstractCode, Node, Args], Number]:
    def rule(code: AbstractCode, node: Node, args: Args) -> Number:
        x, y = args
        if x.dtype == BOOL and operator not in ("equals", "differs"):
            x, y = (n.astype(np.dtype(np.uint8)) for n in args)
        return getattr(x, operator)(y)

    return rule


RULES: dict[Primitive, Callable[[AbstractCode, Node, Args], Number]] = {
    prims.add_p: _add,
    prims.sub_p: _sub,
    prims.mul_p: _mul,
    prims.div_p: _div,
    prims.rem_p: _rem,
    prims.neg_p: _neg,
    prims.abs_p: _abs,
    prims.sign_p: _sign,
    prims.square_p: _square,
    prims.sqrt_p: _sqrt,
    prims.rsqrt_p: _rsqrt,
    prims.max_p: _larger,
    prims.min_p: _smaller,
    prims.floor_p: _floor,
    prims.ceil_p: _ceil,
    prims.round_p: _round,
    prims.is_finite_p: _is_finite,
    prims.clamp_p: _clamp,
    prims.select_n_p: _select_n,
    prims.convert_element_type_p: _convert,
    prims.integer_pow_p: _integer_pow,
    prims.pow_p: _pow,
    prims.reduce_precision_p: _power_of_two,
    prims.and_p: _bitwise("__and__"),
    prims.or_p: _bitwise("__or__"),
    prims.xor_p: _bitwise("__xor__"),
    prims.not_p: _not,
    prims.eq_p: _compare("equals"),
    prims.ne_p: _compare("differs"),
    prims.lt_p: _compare("__lt__"),
    prims.le_p: _compare("__le__"),
    prims.gt_p: _compare("__gt__"),
    prims.ge_p: _compare("__ge__"),
}
