"""Formulations: how the constrained acceleration follows from (M, Q, A, b, c). One per file."""

from ._base import AbstractFormulation as AbstractFormulation
from ._base import AbstractLinearFormulation as AbstractLinearFormulation
from ._base import Motion as Motion
from ._kernel_projection import AbstractKernel as AbstractKernel
from ._kernel_projection import KernelProjection as KernelProjection
from ._kernel_projection import ObliqueProjector as ObliqueProjector
from ._kernel_projection import OrthogonalComplement as OrthogonalComplement
from ._kernel_projection import OrthogonalProjector as OrthogonalProjector
from ._kernel_projection import Orthonormalization as Orthonormalization
from ._lagrange_multiplier import LagrangeMultiplier as LagrangeMultiplier
from ._linear import Response as Response
from ._pennestri_de_falco import PennestriDeFalco as PennestriDeFalco
from ._problem import Problem as Problem
from ._problem import row_scales as row_scales
from ._problem import unit_size as unit_size
from ._range_space import RangeSpace as RangeSpace
from ._recursive import Level as Level
from ._recursive import Recursive as Recursive
from ._recursive import covariance as covariance
from ._recursive import gain as gain
from ._rows import allowance as allowance
from ._rows import in_metric as in_metric
from ._rows import is_contradictory as is_contradictory
from ._udwadia_kalaba import UdwadiaKalaba as UdwadiaKalaba
from ._udwadia_phohomsiri import UdwadiaPhohomsiri as UdwadiaPhohomsiri
