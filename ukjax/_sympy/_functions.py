"""The functions of SymPy that JAX can compute, and their code. This module imports SymPy."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy as typed
from sympy.printing.numpy import JaxPrinter


sympy: Any = typed  # SymPy's own annotations call nearly everything Basic

JNP, SPECIAL = "jax.numpy.", "jax.scipy.special."

# JAX's functions by the name of SymPy's class. JAX has their first derivatives in both modes.
FUNCTIONS = {
    **{name: JNP + name for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "sign")},
    **{f"a{name}": f"{JNP}arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{name: JNP + name for name in ("expm1", "log1p", "exp2", "log2", "log10", "hypot", "logaddexp", "logaddexp2")},
    **{name: SPECIAL + name for name in ("erf", "erfc", "erfinv", "gamma", "beta", "polygamma")},
    "atan2": JNP + "arctan2",
    "Abs": JNP + "abs",
    "ceiling": JNP + "ceil",
    "Mod": JNP + "mod",
    "Sqrt": JNP + "sqrt",
    "Cbrt": JNP + "cbrt",
    "loggamma": SPECIAL + "gammaln",
    "Ei": SPECIAL + "expi",
}
# JAX's code by the name of SymPy's class, for functions whose arguments or results are arranged in another way.
ARRANGED = {
    "lowergamma": SPECIAL + "gammainc({0}, {1}) * " + SPECIAL + "gamma({0})",
    "uppergamma": SPECIAL + "gammaincc({0}, {1}) * " + SPECIAL + "gamma({0})",
    "fresnels": SPECIAL + "fresnel({0})[0]",
    "fresnelc": SPECIAL + "fresnel({0})[1]",
    "sinc": JNP + "sinc(({0}) / " + JNP + "pi)",
    "Si": SPECIAL + "sici({0})[0]",
    "Ci": SPECIAL + "sici({0})[1]",
}
BESSEL = {0: SPECIAL + "i0({1})", 1: SPECIAL + "i1({1})"}

# Functions in which SymPy itself rewrites others, which are named by their classes.
REWRITTEN = {
    sympy.cos: ("sec",),
    sympy.sin: ("csc",),
    sympy.tan: ("cot",),
    sympy.cosh: ("sech",),
    sympy.sinh: ("csch",),
    sympy.tanh: ("coth",),
    sympy.acos: ("asec",),
    sympy.asin: ("acsc",),
    sympy.atan: ("acot",),
    sympy.log: ("asech", "acsch", "acoth"),
    sympy.gamma: ("factorial", "binomial"),
    sympy.erf: ("erf2",),
    sympy.erfinv: ("erfcinv",),
    sympy.floor: ("frac",),
    sympy.Piecewise: ("SingularityFunction",),
}
_TARGETS = {name: target for target, names in REWRITTEN.items() for name in names}

_PLAIN = (sympy.Add, sympy.Mul, sympy.Pow)
_LOGIC = (sympy.And, sympy.Or, sympy.Not)

_INSTEAD = (
    "Write it out in functions that JAX has. In a force, put a dynamic symbol F(t) in its place, and pass "
    "specifieds={F: f} with f(q, v, t)."
)
_HINTS = {"DiracDelta": "A blow is an event of ukjax.simulate_hybrid: leave it out of the forces."}


def real(expression: Any) -> Any:
    """The expression without re, im and conjugate of real numbers, which derivatives of |x| bring in."""
    expression = sympy.sympify(expression)
    if not expression.has(sympy.re, sympy.im, sympy.conjugate):
        return expression
    same, zero = (lambda x: x), (lambda x: sympy.S.Zero)
    return expression.replace(sympy.re, same).replace(sympy.im, zero).replace(sympy.conjugate, same).doit()


class Known:
    """Writes expressions in the functions of the tables.

    `what` says in an error where an expression comes from; `symbols` maps its symbols to those of the user.
    """

    def __init__(self, what: str, symbols: dict[Any, Any]):
        self.what, self.symbols = what, symbols
        self.found: dict[Any, Any] = {}

    def __call__(self, expression: Any) -> Any:
        """The expression in functions that JAX has; raises ValueError for a function of SymPy's that JAX lacks."""
        if expression not in self.found:
            self.found[expression] = self._written(expression)
        return self.found[expression]

    def _written(self, e: Any) -> Any:
        if e.is_Atom:
            if e is sympy.I:
                raise ValueError(f"method has the imaginary unit in {self.what}, which must be real.")
            return e
        name = type(e).__name__
        if isinstance(e, sympy.Piecewise):
            return pieces(*((self(value), self(condition)) for value, condition in e.args))
        if isinstance(e, sympy.core.relational.Relational):
            return e.func(*map(self, e.args), evaluate=False)
        if isinstance(e, sympy.Contains):
            return self(e.args[1].as_relational(e.args[0]))
        if isinstance(e, sympy.logic.boolalg.BooleanFunction) and not isinstance(e, _LOGIC):
            return self(sympy.to_nnf(e, simplify=False))
        if isinstance(e, (*_PLAIN, *_LOGIC)) or _has(e):
            return _again(e, [self(x) for x in e.args])
        if name in _IN_PIECES:
            return _IN_PIECES[name](*map(self, e.args))
        for other in (e.rewrite(_TARGETS[name]) if name in _TARGETS else e, e.doit()):
            if not other.has(type(e)):
                return self(other)
        text = str(e.xreplace(self.symbols))
        where = f"{text if len(text) < 60 else name} in {self.what}"
        raise ValueError(f"method has {where}, but JAX has no {name}. {_HINTS.get(name, _INSTEAD)}")


def _again(e: Any, args: list[Any]) -> Any:
    return e if all(a is b for a, b in zip(e.args, args, strict=True)) else e.func(*args)


def _has(e: Any) -> bool:
    name = type(e).__name__
    if name == "besseli":
        return e.args[0] in BESSEL
    if name == "polygamma":
        return bool(e.args[0].is_Integer)
    return name in FUNCTIONS or name in ARRANGED


class Pieces(sympy.Function):
    """Pieces(e1, c1, e2, c2, ...), a Piecewise that SymPy does not rewrite."""

    def _eval_is_extended_real(self) -> bool:
        return True


def pieces(*pairs: tuple[Any, Any]) -> Any:
    """The `Pieces` of pairs (value, condition): the value is that of the first condition that holds."""
    return Pieces(*(x for pair in pairs for x in pair))


def pairs_of(e: Any) -> list[tuple[Any, Any]]:
    """The pairs (value, condition) of `Pieces`."""
    return list(zip(e.args[::2], e.args[1::2], strict=True))


def _extreme(relation: Any) -> Callable:
    """The function for the largest or smallest of several numbers, in pieces."""
    of_two = lambda a, b: pieces((a, relation(a, b, evaluate=False)), (b, True))
    return lambda *args: reduce(of_two, args)


def _step(x: Any, at_zero: Any = sympy.S.Half) -> Any:
    before, here = sympy.Lt(x, 0, evaluate=False), sympy.Eq(x, 0, evaluate=False)
    return pieces((sympy.S.Zero, before), (at_zero, here), (sympy.S.One, True))


_IN_PIECES = {"Max": _extreme(sympy.Ge), "Min": _extreme(sympy.Le), "Heaviside": _step}


class Select(sympy.Function):
    """Select(c, a, b), which is a where c holds, and b elsewhere; SymPy does not rewrite it."""

    nargs = 3

    def _eval_is_extended_real(self) -> bool:
        return True


class Printer(JaxPrinter):
    """Prints the code, with every function by its whole name, and conditions as scalars."""

    def __init__(self):
        super().__init__({"fully_qualified_modules": True, "inline": True, "allow_unknown_functions": False})

    def _print_Function(self, expr: Any) -> str:
        name, args = type(expr).__name__, [self._print(x) for x in expr.args]
        if name in FUNCTIONS:
            return f"{FUNCTIONS[name]}({', '.join(args)})"
        form = BESSEL[int(expr.args[0])] if name == "besseli" else ARRANGED[name]
        return f"({form.format(*args)})"

    def _print_Select(self, expr: Any) -> str:
        # Integers become floating-point numbers: two integers would give an array of integers.
        condition, *values = expr.args
        written = [repr(float(x)) if x.is_Integer else self._print(x) for x in values]
        return f"{JNP}where({self._print(condition)}, {', '.join(written)})"

    def _print_And(self, expr: Any) -> str:
        return self._folded("logical_and", expr)

    def _print_Or(self, expr: Any) -> str:
        return self._folded("logical_or", expr)

    def _folded(self, name: str, expr: Any) -> str:
        return reduce(lambda a, b: f"{JNP}{name}({a}, {b})", [self._print(x) for x in expr.args])


# SymPy's printers have methods of their own for some of these functions.
for _name in (*FUNCTIONS, *ARRANGED, "besseli"):
    setattr(Printer, f"_print_{_name}", Printer._print_Function)
