"""The range-space formulation: the pseudoinverse of the small matrix A M^-1 A^T.

W^T W = M^-1; a = M^-1 Q; B = A W^T; D: row scales; G = D A M^-1 A^T D; H = M^-1 A^T D G^+ D.
"""

from .._linalg import SkipIfZero, finer
from ._base import AbstractPseudoinverseFormulation, DefiniteMass
from ._problem import with_completed_mass


class RangeSpace(AbstractPseudoinverseFormulation):
    r"""$\ddot q = (I - H A)\,M^{-1} Q + H b$ with $H = M^{-1} A^\top (A M^{-1} A^\top)^{+}$.

    Args:
        pseudoinverse: The lineax solver that applies $(A M^{-1} A^\top)^+$. The singular values of that matrix are the
            squares of those that `UdwadiaKalaba` uses. A strategy of this library therefore does its rank test with the
            square of its tolerance (not below rounding).
        consistency_rtol: As for `UdwadiaKalaba`.

    M as for `UdwadiaKalaba`; rows may be redundant. The matrix is small if there are few constraints; squaring costs
    digits: with rows nearly dependent, an angle e between them, about eps / e^2 is lost rather than eps / e.

    Source: de Falco et al. (2008), eq. 35 and 36.
    """

    def _problem(self, terms):
        return with_completed_mass(terms)

    def _map(self, problem, solver, repeatedly):
        if isinstance(solver, SkipIfZero):  # where directions are that short, their squares are rounding errors
            return DefiniteMass(problem, solver, repeatedly)
        return DefiniteMass(problem, finer(solver, problem.B.dtype), repeatedly, squared=True)
