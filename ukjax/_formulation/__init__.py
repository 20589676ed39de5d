"""Formulations: how the constrained acceleration follows from (M, Q, A, b, c). One per file."""

from ._base import AbstractFormulation as AbstractFormulation
from ._base import Motion as Motion
from ._udwadia_kalaba import UdwadiaKalaba as UdwadiaKalaba
