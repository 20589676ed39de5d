"""Scalar programs as machine code, by LLVM: printed, cut into parts, compiled."""

from ._compile import Machine as Machine
from ._compile import compiled as compiled
from ._compile import has_compiler as has_compiler
from ._compile import vector_width as vector_width
from ._kernel import Kernel as Kernel
from ._kernel import Row as Row
from ._kernel import kernel as kernel
