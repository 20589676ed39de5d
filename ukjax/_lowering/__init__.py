"""Scalar programs as machine code, by LLVM: printed, cut into parts, compiled; and in C."""

from ._bind import SureWay as SureWay
from ._bind import Traceable as Traceable
from ._bind import can_be_deferred as can_be_deferred
from ._bind import mended as mended
from ._bind import type_here as type_here
from ._c import CArray as CArray
from ._c import c_function as c_function
from ._c import c_number as c_number
from ._c import c_type as c_type
from ._code import scalar_type as scalar_type
from ._compile import Machine as Machine
from ._compile import compiled as compiled
from ._compile import has_compiler as has_compiler
from ._compile import vector_width as vector_width
from ._disk import OFF as OFF
from ._disk import VARIABLE as VARIABLE
from ._disk import keep_code as keep_code
from ._handler import can_be_called as can_be_called
from ._handler import runs_machine_code as runs_machine_code
from ._kernel import Kernel as Kernel
from ._kernel import Row as Row
from ._kernel import kernel as kernel
from ._object import Target as Target
from ._object import object_code as object_code
