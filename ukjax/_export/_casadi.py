"""Exported functions as `casadi.Function`s: symbolic, with the zeros of their derivatives known to CasADi."""

import importlib.util
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.extend.core.primitives as prims
import numpy as np
from jax.extend.core import Primitive

from .._expand import Entry, Node, Program
from ._program import Exported


if TYPE_CHECKING:
    import casadi


# A symbolic number of CasADi, or a number.
Symbol = Any


def has_casadi() -> bool:
    return importlib.util.find_spec("casadi") is not None


def casadi_file(name: str, one: Exported) -> bytes:
    """The file that `casadi.Function.load` reads. Raises ValueError if CasADi lacks an operation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        casadi_function(name, one).save(str(path))
        return path.read_bytes()


def casadi_function(name: str, one: Exported) -> "casadi.Function":
    """The function with the arguments of the header, and `certain` as its last result. Raises ValueError."""
    import casadi

    rules = _rules()
    takes = [casadi.SX.sym(x.name, x.total) for x in one.quantity.takes]
    inputs = [x[i] for x, about in zip(takes, one.quantity.takes, strict=True) for i in range(about.total)]
    known: dict[int, Symbol] = {node.order: x for node, x in zip(one.program.inputs, inputs, strict=True)}

    def of(x: Entry) -> Symbol:
        return known[x.order] if isinstance(x, Node) else float(x)

    *results, certain = one.program.outputs
    program = Program(one.program.inputs, [*(unguarded(x, certain) for x in results), certain])
    for node in program.steps:
        known[node.order] = _made(rules, one.name, node, [of(x) for x in node.args])
    outputs = [casadi.SX(of(x)) for x in program.outputs]
    sizes = [x.total for x in one.quantity.gives]
    ends = np.cumsum([0, *sizes])
    gives = [casadi.vertcat(*outputs[begin : begin + size]) for begin, size in zip(ends, sizes, strict=False)]
    named = [x.name for x in one.quantity.takes], [*(x.name for x in one.quantity.gives), "certain"]
    return casadi.Function(name, takes, [*gives, outputs[-1]], *named)


def unguarded(x: Entry, certain: Entry) -> Entry:
    """A result as it is also where it is not certain: that depends on all arguments, and would hide zeros of slopes."""
    if isinstance(x, Node) and x.primitive is prims.select_n_p and x.args[0] is certain:
        return x.args[2]
    return x


def _made(rules: dict[Primitive, Callable[..., Symbol]], name: str, node: Node, args: list[Symbol]) -> Symbol:
    """The symbol of an operation. Raises ValueError if CasADi has none."""
    dtype, primitive = np.dtype(node.dtype), node.primitive
    is_whole = any(np.dtype(x.dtype).kind in "iu" for x in (node, *node.args))
    if primitive is prims.integer_pow_p:
        return args[0] ** node.params["y"]
    if primitive is prims.reduce_precision_p and dtype == np.float64:
        return _rounded(args[0], node.params["mantissa_bits"])
    if primitive is prims.convert_element_type_p and dtype.kind in "fb" and not is_whole:
        return args[0] != 0 if dtype.kind == "b" else args[0]
    if primitive is None or primitive not in rules or is_whole or dtype.itemsize == 4:
        raise ValueError(
            f"what={name!r} cannot be exported to CasADi: {primitive} of {dtype} is no operation there. It has real "
            "numbers of double precision only. Leave it out of what, or change the mechanism."
        )
    return rules[primitive](*args)


def _rounded(x: Symbol, digits: int) -> Symbol:
    """A number to so many binary digits; scales of rows are powers of two."""
    import casadi as ca

    unit = 2.0 ** (ca.floor(ca.log(ca.fabs(x)) / np.log(2.0)) - digits)
    return ca.if_else(x == 0, 0.0, ca.floor(x / unit + 0.5) * unit)


def _rules() -> dict[Primitive, Callable[..., Symbol]]:
    """The operations of CasADi, by those of JAX."""
    import casadi as ca

    def chosen(which: Symbol, no: Symbol, yes: Symbol) -> Symbol:
        return ca.if_else(which, yes, no)

    def clamped(low: Symbol, x: Symbol, high: Symbol) -> Symbol:
        return ca.fmin(ca.fmax(x, low), high)

    def cube_root(x: Symbol) -> Symbol:
        return ca.sign(x) * ca.fabs(x) ** (1 / 3)

    def logistic(x: Symbol) -> Symbol:
        return 0.5 * (1 + ca.tanh(0.5 * x))

    def is_finite(x: Symbol) -> Symbol:
        return ca.fabs(x) <= sys.float_info.max

    def square(x: Symbol) -> Symbol:
        return x * x

    def inverse_root(x: Symbol) -> Symbol:
        return 1 / ca.sqrt(x)

    def power_of_two(x: Symbol) -> Symbol:
        return 2.0**x

    return {
        prims.add_p: ca.plus, prims.sub_p: ca.minus, prims.mul_p: ca.times, prims.div_p: ca.rdivide,
        prims.rem_p: ca.fmod, prims.neg_p: lambda x: -x, prims.abs_p: ca.fabs, prims.sign_p: ca.sign,
        prims.square_p: square, prims.sqrt_p: ca.sqrt, prims.rsqrt_p: inverse_root, prims.cbrt_p: cube_root,
        prims.max_p: ca.fmax, prims.min_p: ca.fmin, prims.floor_p: ca.floor, prims.ceil_p: ca.ceil,
        prims.clamp_p: clamped, prims.select_n_p: chosen, prims.is_finite_p: is_finite,
        prims.sin_p: ca.sin, prims.cos_p: ca.cos, prims.tan_p: ca.tan, prims.asin_p: ca.asin, prims.acos_p: ca.acos,
        prims.atan_p: ca.atan, prims.atan2_p: ca.atan2, prims.sinh_p: ca.sinh, prims.cosh_p: ca.cosh,
        prims.tanh_p: ca.tanh, prims.asinh_p: ca.asinh, prims.acosh_p: ca.acosh, prims.atanh_p: ca.atanh,
        prims.exp_p: ca.exp, prims.exp2_p: power_of_two, prims.expm1_p: ca.expm1, prims.log_p: ca.log,
        prims.log1p_p: ca.log1p, prims.logistic_p: logistic, prims.pow_p: ca.power,
        prims.and_p: ca.logic_and, prims.or_p: ca.logic_or, prims.xor_p: ca.ne, prims.not_p: ca.logic_not,
        prims.eq_p: ca.eq, prims.ne_p: ca.ne, prims.lt_p: ca.lt, prims.le_p: ca.le, prims.gt_p: ca.gt,
        prims.ge_p: ca.ge,
    }  # fmt: skip
