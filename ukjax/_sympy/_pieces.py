r"""Piecewise expressions, rewritten so that branches that are not taken do no harm to derivatives.

JAX computes all branches and selects. Where the branch not taken is sqrt(x) at x = -1, or at x = 0, its derivative is
not finite, and 0 times that, which reverse mode comes to, is NaN. So within a branch the argument of every function is
replaced by a harmless number where the branch is not taken: the derivative of that number is zero, and that of the
function is finite. Four rewritings bring expressions to this form:

    f(P(a, b)) -> P(f(a), f(b))        for f with singular points: sqrt(Max(0, x)) is constant below 0
    P(a, 0) s  -> P(a s, 0)            for s with singular points: H(x) x^(3/2) is zero below 0
    sqrt(x^2 + y^2) -> P(sqrt(x^2 + y^2), 0), whose derivative where it vanishes is zero, as that of |x|
    P(a, b)    -> Select(c, a, b)      with a as it is under c, b under not c
"""

import math
from itertools import product
from typing import Any

from ._functions import Pieces, Select, pairs_of, pieces, sympy


HARMLESS = sympy.Rational(1, 2)  # where every function of `_functions` is smooth, except those of `HARMLESS_OF`
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
        self.found: dict[Any, Any] = {}

    def __call__(self, e: Any, active: Any = sympy.true) -> Any:
        """The rewritten expression, which only counts where `active` holds."""
        key = e, active
        if key not in self.found:
            self.found[key] = self._selected(e, active)
        return self.found[key]

    def _selected(self, e: Any, active: Any) -> Any:
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

    def _pieces(self, e: Any, active: Any) -> Any:
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


def _bends(e: Any) -> bool:
    """Whether an expression is no sum, product or power like x^2, so that its derivative may be infinite."""
    if isinstance(e, sympy.Pow):
        return not (e.exp.is_Integer and e.exp.is_positive)
    return not isinstance(e, sympy.Add | sympy.Mul | Select)


def _singular(e: Any) -> bool:
    return _bends(e) and type(e).__name__ not in SMOOTH


def _is_length(e: Any) -> bool:
    """Whether an expression is like sqrt(x^2 + y^2): smooth, or with a kink, where the sum of squares vanishes."""
    return isinstance(e, sympy.Pow) and e.exp.is_Rational and 0.5 <= e.exp < 1 and _is_sum_of_squares(e.base)


def _is_sum_of_squares(e: Any) -> bool:
    return isinstance(e, sympy.Add) and not e.has(Pieces, sympy.Abs) and bool(e.is_nonnegative)


def _has_singular(e: Any) -> bool:
    return any(map(_singular, sympy.preorder_traversal(e)))


def _folded(e: Any) -> Any:
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


def _into_pieces(e: Any) -> Any:
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
