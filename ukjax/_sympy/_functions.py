"""The functions of SymPy that JAX can compute, and their code. This module imports SymPy.

Piecewise expressions are rewritten so that branches that are not taken do no harm to derivatives. JAX computes all
branches and selects. Where the branch not taken is sqrt(x) at x = -1, or at x = 0, its derivative is not finite, and 0
times that, which reverse mode comes to, is NaN. So within a branch the argument of every function is replaced by a
harmless number where the branch is not taken: the derivative of that number is zero, and that of the function is
finite. Four rewritings bring expressions to this form:

    f(P(a, b)) -> P(f(a), f(b))        for f with singular points: sqrt(Max(0, x)) is constant below 0
    P(a, 0) s  -> P(a s, 0)            for s with singular points: H(x) x^(3/2) is zero below 0
    sqrt(x^2 + y^2) -> P(sqrt(x^2 + y^2), 0), whose derivative where it vanishes is zero, as that of |x|
    P(a, b)    -> Select(c, a, b)      with a as it is under c, b under not c
"""

import math
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import sympy as typed
from sympy.printing.numpy import JaxPrinter

from ._system import Expression


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


def real(expression: Expression) -> Expression:
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

    def __init__(self, what: str, symbols: dict[Expression, Expression]):
        self.what, self.symbols = what, symbols
        self.found: dict[Expression, Expression] = {}

    def __call__(self, expression: Expression) -> Expression:
        """The expression in functions that JAX has; raises ValueError for a function of SymPy's that JAX lacks."""
        if expression not in self.found:
            self.found[expression] = self._written(expression)
        return self.found[expression]

    def _written(self, e: Expression) -> Expression:
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


def _again(e: Expression, args: list[Expression]) -> Expression:
    return e if all(a is b for a, b in zip(e.args, args, strict=True)) else e.func(*args)


def _has(e: Expression) -> bool:
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


def pieces(*pairs: tuple[Expression, Expression]) -> Expression:
    """The `Pieces` of pairs (value, condition): the value is that of the first condition that holds."""
    return Pieces(*(x for pair in pairs for x in pair))


def pairs_of(e: Expression) -> list[tuple[Expression, Expression]]:
    """The pairs (value, condition) of `Pieces`."""
    return list(zip(e.args[::2], e.args[1::2], strict=True))


def _extreme(relation: Callable) -> Callable:
    """The function for the largest or smallest of several numbers, in pieces."""
    return lambda *args: reduce(lambda a, b: pieces((a, relation(a, b, evaluate=False)), (b, True)), args)


def _step(x: Expression, at_zero: Expression = sympy.S.Half) -> Expression:
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

    def _print_Function(self, expr: Expression) -> str:
        name, args = type(expr).__name__, [self._print(x) for x in expr.args]
        if name in FUNCTIONS:
            return f"{FUNCTIONS[name]}({', '.join(args)})"
        form = BESSEL[int(expr.args[0])] if name == "besseli" else ARRANGED[name]
        return f"({form.format(*args)})"

    def _print_Select(self, expr: Expression) -> str:
        # Integers become floating-point numbers: two integers would give an array of integers.
        condition, *values = expr.args
        written = [repr(float(x)) if x.is_Integer else self._print(x) for x in values]
        return f"{JNP}where({self._print(condition)}, {', '.join(written)})"

    def _print_And(self, expr: Expression) -> str:
        return self._folded("logical_and", expr)

    def _print_Or(self, expr: Expression) -> str:
        return self._folded("logical_or", expr)

    def _folded(self, name: str, expr: Expression) -> str:
        return reduce(lambda a, b: f"{JNP}{name}({a}, {b})", [self._print(x) for x in expr.args])


# SymPy's printers have methods of their own for some of these functions.
for _name in (*FUNCTIONS, *ARRANGED, "besseli"):
    setattr(Printer, f"_print_{_name}", Printer._print_Function)


# A number at which every function of the tables is smooth, except those of `HARMLESS_OF`.
HARMLESS = sympy.Rational(1, 2)
HARMLESS_OF = {"acosh": sympy.Integer(2)}

# Functions that are smooth for every real argument: pieces may stay within.
SMOOTH = {
    "exp",
    "sin",
    "cos",
    "sinh",
    "cosh",
    "tanh",
    "atan",
    "asinh",
    "erf",
    "erfc",
    "Abs",
    "sign",
    "floor",
    "ceiling",
}
MOST = 64  # most branches to which pieces within a function are multiplied out


class Branches:
    """Writes pieces of known functions as selections whose derivatives are those of the branch taken."""

    def __init__(self):
        self.found: dict[Expression, Expression] = {}

    def __call__(self, e: Expression, active: Expression = sympy.true) -> Expression:
        """The rewritten expression, which only counts where `active` holds."""
        key = e, active
        if key not in self.found:
            self.found[key] = self._selected(e, active)
        return self.found[key]

    def _selected(self, e: Expression, active: Expression) -> Expression:
        if e.is_Atom:
            # zoo is an infinity without a sign: the expression is undefined there.
            return sympy.nan if e is sympy.zoo else e
        if isinstance(e, Pieces):
            return self._pieces(e, active)
        if isinstance(e, sympy.core.relational.Relational):
            return e.func(*map(self, e.args), evaluate=False)
        if isinstance(e, sympy.logic.boolalg.BooleanFunction):
            return e.func(*map(self, e.args))
        if isinstance(e, sympy.Mul) and (moved := _into_pieces(e)) is not None:
            return self(moved, active)
        if _is_length(e):
            base = self(e.base, active)
            there = sympy.Gt(base, 0, evaluate=False)
            return Select(there, Select(sympy.And(active, there), base, HARMLESS) ** e.exp, sympy.S.Zero)
        if _singular(e) and (folded := _folded(e)) is not None:
            return self(folded, active)
        args = [self(x, active) for x in e.args]
        if active != sympy.true and _bends(e):
            harmless = HARMLESS_OF.get(type(e).__name__, HARMLESS)
            args = [Select(active, x, harmless) if x.free_symbols else x for x in args]
        return e if all(a is b for a, b in zip(e.args, args, strict=True)) else e.func(*args)

    def _pieces(self, e: Expression, active: Expression) -> Expression:
        before, branches = sympy.true, []
        for value, condition in pairs_of(e):
            condition = self(condition)
            here = sympy.And(before, condition)
            branches.append((condition, self(value, sympy.And(active, here))))
            before = sympy.And(before, sympy.Not(condition))
        result = sympy.nan
        for condition, value in reversed(branches):
            result = value if condition == sympy.true else Select(condition, value, result)
        return result


def _bends(e: Expression) -> bool:
    """Whether an expression is no sum, product or power like x^2, so that its derivative may be infinite."""
    if isinstance(e, sympy.Pow):
        return not (e.exp.is_Integer and e.exp.is_positive)
    return not isinstance(e, sympy.Add | sympy.Mul | Select)


def _singular(e: Expression) -> bool:
    return _bends(e) and type(e).__name__ not in SMOOTH


def _is_length(e: Expression) -> bool:
    """Whether an expression is like sqrt(x^2 + y^2): smooth, or with a kink, where the sum of squares vanishes."""
    return isinstance(e, sympy.Pow) and e.exp.is_Rational and 0.5 <= e.exp < 1 and _is_sum_of_squares(e.base)


def _is_sum_of_squares(e: Expression) -> bool:
    return isinstance(e, sympy.Add) and not e.has(Pieces, sympy.Abs) and bool(e.is_nonnegative)


def _has_singular(e: Expression) -> bool:
    return any(map(_singular, sympy.preorder_traversal(e)))


def _folded(e: Expression) -> Expression:
    """A function of pieces as pieces of the function; None without pieces, or with more than `MOST` branches."""
    found = sorted(e.atoms(Pieces), key=sympy.default_sort_key)
    # Only the outermost pieces are replaced: they contain the inner ones.
    found = [p for p in found if not any(p is not q and q.has(p) for q in found)]
    if not found or math.prod(len(pairs_of(p)) for p in found) > MOST:
        return None
    pairs = []
    for branches in product(*map(pairs_of, found)):
        values = dict(zip(found, (value for value, _ in branches), strict=True))
        pairs.append((e.xreplace(values), sympy.And(*(condition for _, condition in branches))))
    return pieces(*pairs)


def _into_pieces(e: Expression) -> Expression:
    """A product with pieces that vanish somewhere, as pieces of the product; None if no other factor is singular."""
    for factor in e.args:
        inner = factor.base if isinstance(factor, sympy.Pow) and factor.exp.is_positive else factor
        if not isinstance(inner, Pieces) or all(value != 0 for value, _ in pairs_of(inner)):
            continue
        others = sympy.Mul(*(x for x in e.args if x is not factor))
        if _has_singular(others):
            moved = [(others * factor.xreplace({inner: x}) if x != 0 else x, c) for x, c in pairs_of(inner)]
            return pieces(*moved)
    return None
