"""Scalar programs in C99, with the arithmetic of machine code: the same sums are fused, in the same order.

Every number is a constant of its own. Elementary functions are functions of the file, made of `_arithmetic`; of the
library `fma`, `sqrt`, `fabs`, `floor`, `ceil`, `rint`, `round`, `copysign` and `fmod` are called, which are exact or
rounded once. A long program is cut into functions that hand numbers on in an array, for compilers are slow with long
ones.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._arithmetic import F64
from ._code import BOOL, AbstractCode, Number
from ._entry import Entry, Node
from ._print import print_program
from ._program import Program
from ._schedule import fused, parts_of


# Operations of a function; compilers take longer than linearly for longer ones.
C_PART = 4000
# LLVM's names of operations, and C's.
FLOATING = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}
WHOLE = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<"}
DIVIDED = {"sdiv": "/", "udiv": "/", "srem": "%", "urem": "%", "ashr": ">>", "lshr": ">>"}
ORDER = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LIBRARY = {"roundeven": "rint", **{x: x for x in ("fma", "sqrt", "fabs", "floor", "ceil", "round", "copysign")}}


class CArray(NamedTuple):
    """An argument of a C function: an array of numbers, or one number that is passed by its value."""

    name: str
    size: int
    dtype: np.dtype
    alone: bool = False

    def declared(self, size: str | int, kept: str = "") -> str:
        """The declaration of the argument; `kept`: "const " for one that is only read."""
        kind = c_type(self.dtype)
        return f"{kind} {self.name}" if self.alone else f"{kept}{kind} {self.name}[{size}]"

    def place(self, i: int) -> str:
        return self.name if self.alone else f"{self.name}[{i}]"


def c_type(dtype: np.dtype) -> str:
    """C's name of the type of a number; truth values are of the type int."""
    if dtype == BOOL:
        return "int"
    if dtype.kind == "f":
        return "double" if dtype == F64 else "float"
    return f"{'u' if dtype.kind == 'u' else ''}int{8 * dtype.itemsize}_t"


def c_number(value: float) -> str:
    """A number in C: short decimals as they are, others by their bits."""
    if not np.isfinite(value):
        return "NAN" if np.isnan(value) else "INFINITY" if value > 0 else "(-INFINITY)"
    text = repr(float(value))
    if len(text) > 8:
        whole, p, exponent = float(value).hex().partition("p")
        text = f"{whole.rstrip('0')}{p}{exponent}" if "." in whole else f"{whole}{p}{exponent}"
    return f"({text})" if text.startswith("-") else text


class _Statement(NamedTuple):
    """A statement, the numbers that it makes, and those that it reads."""

    text: str
    makes: tuple[str, ...]
    reads: tuple[str, ...]


class CCode(AbstractCode):
    """The body of a C function.

    `helpers`: text of the functions that it calls, by their names, which begin with `prefix`; more are added.
    """

    def __init__(self, prefix: str, helpers: dict[str, str]):
        self.prefix, self.helpers, self._count = prefix, helpers, 0
        self._statements: list[_Statement] = []

    def number(self, text: str, dtype: np.dtype, *reads: Number) -> Number:
        """Adds the number that an expression has."""
        self._count += 1
        name = f"v{self._count}"
        made = f"const {c_type(dtype)} {name} = {text};"
        self._statements.append(_Statement(made, (name,), tuple(x.name for x in reads)))
        return Number(self, name, np.dtype(dtype))

    def lines(self, outputs: Sequence[Number]) -> list[str]:
        """The statements that lead to the outputs."""
        needed, kept = {x.name for x in outputs}, list[str]()
        for text, makes, reads in reversed(self._statements):
            if not needed.isdisjoint(makes):
                needed.update(reads)
                kept.append(text)
        return kept[::-1]

    def operation(self, name, dtype, *args):
        return self.number(self._expression(name, dtype, *args), dtype, *args)

    def _expression(self, name: str, dtype: np.dtype, *args: Number) -> str:
        x, y = args[0].name, args[-1].name
        if name in FLOATING:
            return f"{x} {FLOATING[name]} {y}"
        if name == "fneg":
            return f"-{x}"
        if name == "select":
            return f"{x} ? {args[1].name} : {y}"
        if name == "frem":
            return f"{self._library('fmod', dtype)}({x}, {y})"
        if name == "fcmp uno":
            return f"{x} != {x}"
        if name.startswith(("fcmp", "icmp")):
            return f"{x} {ORDER[name.split()[1][-2:]]} {y}"
        kind = c_type(dtype)
        if name in DIVIDED:
            return f"({kind})({x} {DIVIDED[name]} {y})"
        if dtype == BOOL:
            return f"{x} {WHOLE[name]} {y}"
        # Signed numbers overflow as unsigned ones do.
        return f"({kind})((uint64_t){x} {WHOLE[name]} {'' if name == 'shl' else '(uint64_t)'}{y})"

    def cast(self, name, x, dtype):
        if name == "bitcast" and "f" in (x.dtype.kind, dtype.kind):
            return self.number(f"{self._bits(x.dtype, dtype)}({x.name})", dtype, x)
        return self.number(f"({c_type(dtype)}){x.name}", dtype, x)

    def constant(self, value, dtype):
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            text = c_number(float(np.asarray(value, dtype)))
            text = text if dtype == F64 or not text[-1].isdigit() else f"{text}f"
            return Number(self, f"(float){text}" if dtype != F64 and text[-1] == ")" else text, dtype)
        number = int(np.asarray(value).astype(dtype))
        # The least number has no literal of its own.
        least = dtype.kind == "i" and number == np.iinfo(np.int64).min
        text = "INT64_MIN" if least else f"{number}u" if dtype.kind == "u" else f"{number}"
        return Number(self, f"({text})" if text.startswith("-") else text, dtype)

    def call(self, name, dtype, *args, suffixes=()):
        given = ", ".join(x.name for x in args)
        if name in LIBRARY:
            return self.number(f"{self._library(LIBRARY[name], dtype)}({given})", dtype, *args)
        helper = self._extreme(name, dtype) if name in ("maximum", "minimum") else self._whole(dtype, args[0].dtype)
        return self.number(f"{helper}({given})", dtype, *args)

    def function(self, of, *args):
        name = f"{self.prefix}_{of.__name__}"
        code = CCode(self.prefix, self.helpers)
        results = of(code, *(Number(code, f"x{i}", x.dtype) for i, x in enumerate(args)))
        given = ", ".join(f"{c_type(x.dtype)} x{i}" for i, x in enumerate(args))
        if isinstance(results, Number):
            body = [*code.lines([results]), f"return {results.name};"]
            self._help(name, f"{c_type(results.dtype)} {name}({given})", body)
            return self.number(f"{name}({', '.join(x.name for x in args)})", results.dtype, *args)
        stores = [f"*y{i} = {y.name};" for i, y in enumerate(results)]
        places = "".join(f", {c_type(y.dtype)} *y{i}" for i, y in enumerate(results))
        self._help(name, f"void {name}({given}{places})", [*code.lines(results), *stores])
        made = tuple(f"v{self._count + 1 + i}" for i in range(len(results)))
        self._count += len(results)
        text = f"{c_type(results[0].dtype)} {', '.join(made)};"
        given = ", ".join([*(x.name for x in args), *(f"&{y}" for y in made)])
        self._statements.append(_Statement(f"{text} {name}({given});", made, tuple(x.name for x in args)))
        return tuple(Number(self, y, x.dtype) for y, x in zip(made, results, strict=True))

    def _help(self, name: str, head: str, lines: Sequence[str]) -> None:
        self.helpers.setdefault(name, "\n".join([f"static {head}", "{", *(f"    {x}" for x in lines), "}"]))

    def _library(self, name: str, dtype: np.dtype) -> str:
        return name if dtype == F64 else f"{name}f"

    def _bits(self, source: np.dtype, dtype: np.dtype) -> str:
        """The function that returns the bits of a number as a number of another kind."""
        of, to = c_type(source), c_type(dtype)
        name = f"{self.prefix}_{of}_as_{to}"
        self._help(name, f"{to} {name}({of} x)", [f"{to} y;", "memcpy(&y, &x, sizeof y);", "return y;"])
        return name

    def _extreme(self, name: str, dtype: np.dtype) -> str:
        """The larger or the smaller of two numbers: NaN if either is, and 0 is larger than -0."""
        kind, helper = c_type(dtype), f"{self.prefix}_{name}_{c_type(dtype)}"
        first, second = ("y", "x") if name == "maximum" else ("x", "y")
        lines = [
            "if (x != x) return x;",
            "if (y != y) return y;",
            f"if (x == y) return signbit(x) ? {first} : {second};",
            f"return x {'>' if name == 'maximum' else '<'} y ? x : y;",
        ]
        self._help(helper, f"{kind} {helper}({kind} x, {kind} y)", lines)
        return helper

    def _whole(self, dtype: np.dtype, source: np.dtype) -> str:
        """The function that truncates a number, to the range of an integer, and NaN to zero."""
        kind, of = c_type(dtype), c_type(source)
        helper, name = f"{self.prefix}_{of}_to_{kind}", kind.removesuffix("_t").upper()
        least = f"{name}_MIN" if dtype.kind == "i" else "0"
        low, over = (c_number(float(x)) for x in (np.iinfo(dtype).min, np.iinfo(dtype).max + 1))
        lines = [
            "if (x != x) return 0;",
            f"if (x <= {low}) return {least};",
            f"if (x >= {over}) return {name}_MAX;",
            f"return ({kind})x;",
        ]
        self._help(helper, f"{kind} {helper}({of} x)", lines)
        return helper


class CFunction(NamedTuple):
    """The statements of a function, and the text of the functions that are parts of it."""

    lines: list[str]
    parts: list[str]


def c_function(
    name: str, prefix: str, helpers: dict[str, str], program: Program, takes: Sequence[CArray], gives: Sequence[CArray]
) -> CFunction:
    """Prints a program whose inputs are the entries of `takes`, and whose outputs are those of `gives`, in order.

    All inputs are read before anything is written, so that results may take the place of arguments. Raises NotScalar.
    """
    program = fused(program)
    takes_entries, gives_entries = _entries(takes), _entries(gives)
    known = {node.order: x for node, x in zip(program.inputs, takes_entries, strict=True)}
    parts, lines = list[str](), list[str]()
    if program.operations > C_PART:
        known, parts, lines = _in_parts(name, prefix, helpers, program, takes, known)
        program = Program([node for node in _nodes(program.outputs) if node.order in known], program.outputs)
    code = CCode(prefix, helpers)
    found = _printed(code, program, known)
    body = code.lines(found)
    writes = [f"{place} = {x.name};" for (place, _), x in zip(gives_entries, found, strict=True)]
    return CFunction([*_unused(takes, [*lines, *body]), *lines, *body, *writes], parts)


# The places of an entry, and its dtype.
Places = dict[int, tuple[str, np.dtype]]


def _in_parts(
    name: str, prefix: str, helpers: dict[str, str], program: Program, takes: Sequence[CArray], known: Places
) -> tuple[Places, list[str], list[str]]:
    """The places of all numbers that parts hand on; the parts; and the lines that call them."""
    known, counts = dict(known), {"w": 0, "k": 0}
    parts, calls = [], []
    given = ", ".join([*(x.declared("", "const ") for x in takes), "double w[]", "int64_t k[]"])
    for i, one in enumerate(parts_of(program, C_PART)):
        code = CCode(prefix, helpers)
        found = _printed(code, one, known)
        body = code.lines(found)
        for node, x in zip(one.outputs, found, strict=True):
            array = "w" if x.dtype.kind in "fb" else "k"
            place = f"{array}[{counts[array]}]"
            counts[array] += 1
            body.append(f"{place} = {x.name};")
            assert isinstance(node, Node)
            known[node.order] = f"({c_type(x.dtype)}){place}", x.dtype
        body = [*_unused([*takes, *WORKSPACES], body), *body]
        parts.append("\n".join([f"static void {name}_part{i}({given})", "{", *(f"    {x}" for x in body), "}"]))
        calls.append(f"{name}_part{i}({', '.join([*(x.name for x in takes), 'w', 'k'])});")
    room = [f"double w[{max(counts['w'], 1)}];", f"int64_t k[{max(counts['k'], 1)}];"]
    return known, parts, [*room, *calls]


WORKSPACES = (CArray("w", 0, F64), CArray("k", 0, np.dtype(np.int64)))


def _printed(code: CCode, program: Program, known: Places) -> list[Number]:
    return print_program(code, program, [code.number(*known[node.order]) for node in program.inputs])


def _entries(arrays: Sequence[CArray]) -> list[tuple[str, np.dtype]]:
    return [(x.place(i), np.dtype(x.dtype)) for x in arrays for i in range(x.size)]


def _nodes(entries: Sequence[Entry]) -> list[Node]:
    return list({x.order: x for x in entries if isinstance(x, Node)}.values())


def _unused(takes: Sequence[CArray], lines: Sequence[str]) -> list[str]:
    """Statements that keep compilers from warning of arguments that are not used."""
    words = set(re.findall(r"\w+", " ".join(lines)))
    return [f"(void){x.name};" for x in takes if x.name not in words]
