"""Formulations of the constrained acceleration beside `ukjax.UdwadiaKalaba`, the default."""

from ._formulation import AbstractKernel as AbstractKernel
from ._formulation import KernelProjection as KernelProjection
from ._formulation import LagrangeMultiplier as LagrangeMultiplier
from ._formulation import Level as Level
from ._formulation import ObliqueProjector as ObliqueProjector
from ._formulation import OrthogonalComplement as OrthogonalComplement
from ._formulation import OrthogonalProjector as OrthogonalProjector
from ._formulation import Orthonormalization as Orthonormalization
from ._formulation import PennestriDeFalco as PennestriDeFalco
from ._formulation import RangeSpace as RangeSpace
from ._formulation import Recursive as Recursive
from ._formulation import UdwadiaPhohomsiri as UdwadiaPhohomsiri
