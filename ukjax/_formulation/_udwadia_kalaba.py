"""The Udwadia-Kalaba equation: the pseudoinverse of B = A L^-T, with M = L L^T and a = M^-1 Q."""

from ._base import AbstractPseudoinverseFormulation
from ._linear import DefiniteMass
from ._problem import with_definite_mass


class UdwadiaKalaba(AbstractPseudoinverseFormulation):
    r"""$\ddot q = a + L^{-\top} B^+ (b - A a) + L^{-\top}(I - B^+ B)\,L^{-1} c$.

    The literature writes $M^{1/2}$ for L. Any root of M gives the same acceleration, because two roots differ by a
    rotation and the pseudoinverse commutes with it; and the Cholesky factor, unlike $M^{1/2}$ by eigenvalues, has a
    finite gradient where eigenvalues coincide.

    Args:
        pseudoinverse: The lineax solver that applies B^+; its rank test decides which rows are redundant. The rows of
            B are brought to about the same length first, so that neither their units nor the coordinates matter.
        consistency_rtol: A row of A q'' = b counts as met if it is missed by no more than this part of the size of its
            terms. Where rows are not met, and a finer rank test with a moderate acceleration does not meet them either,
            the constraints contradict each other.

    Needs M > 0; rows may be redundant.

    Source: Udwadia & Kalaba (1992); Zhao et al. (2018), eq. 36; de Falco et al. (2008), eq. 31; non-ideal force: Liu et
    al. (2015), eq. 12 and 13.
    """

    def _problem(self, terms):
        return with_definite_mass(terms)

    def _map(self, problem, solver, repeatedly):
        return DefiniteMass(problem, solver, repeatedly, self._finest(problem))
