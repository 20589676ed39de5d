"""Mechanisms from SymPy's equations of motion."""

from ._from_sympy import from_sympy as from_sympy
from ._system import SympySystem as SympySystem
