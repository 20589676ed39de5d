"""The formulation of de Falco, Pennestri and Vita, for mass matrices that may be singular.

All in coordinates in which M has a diagonal near one, where it is not zero: D: row scales; P = (D A)^+; N = P D A;
E = I - N, which projects on the admissible directions; R = (E M E)^+.
"""

import jax.numpy as jnp

from .._linalg import finer, pseudoinverse
from ._base import AbstractPseudoinverseFormulation, SingularMass
from ._problem import with_singular_mass


class PennestriDeFalco(AbstractPseudoinverseFormulation):
    r"""$\ddot q = R\,Q + (A^+ - R M A^+)\,b$ with $E = I - A^+ A$ and $R = (E M E)^+$.

    Args:
        pseudoinverse: The lineax solver for $A^+$ and $(E M E)^+$. The latter, which drift does not affect, is found
            with the square of the rank tolerance if the solver is a strategy of this library.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant. The acceleration is unique if [M; A] has full rank: the ranks of A and of
    E M E then add up to n. Where it is not unique, `result` is `acceleration_not_unique` and the acceleration the
    least-norm one, which the paper's equation gives without notice. For the rank tests, and for that norm, each
    coordinate is measured in the unit in which its own mass is about one, so that units do not matter.

    Source: de Falco et al. (2008), eq. 37 to 41.
    """

    def _problem(self, terms):
        return with_singular_mass(terms)

    def _map(self, problem, solver, repeatedly):
        M, scaled = problem.mass, problem.H
        n = M.shape[0]
        P, rank = pseudoinverse(solver, scaled)
        N = P @ scaled
        E = jnp.eye(n, dtype=M.dtype) - N
        # (E M E)^+ = E (E M E + N)^+ E, for the ranges of E and N are perpendicular. With N the rank test has something
        # to compare with: where nothing is admissible E M E is nothing but rounding errors.
        reduced = E @ M @ E + N
        inverse, directions = pseudoinverse(finer(solver, M.dtype), (reduced + reduced.T) / 2)
        R = E @ inverse @ E
        return SingularMass(problem, R, P - R @ (M @ P), rank, directions == n)
