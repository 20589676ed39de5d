"""Systems from SymPy, which `ukjax.from_sympy` makes."""

from ._sympy import SympySystem as SympySystem
