"""The formulation of Udwadia and Phohomsiri, for mass matrices that may be singular.

All in coordinates in which M has a diagonal near one: D: row scales; E = I - (D A)^+ D A; K = [E M; D A].
"""

import jax.numpy as jnp

from .._linalg import finer, pseudoinverse
from ._base import AbstractPseudoinverseFormulation, SingularMass
from ._problem import with_singular_mass


class UdwadiaPhohomsiri(AbstractPseudoinverseFormulation):
    r"""$\ddot q = \begin{bmatrix} E M \\ A \end{bmatrix}^{+} \begin{bmatrix} E Q \\ b \end{bmatrix}$ with
    $E = I - A^+ A$.

    Args:
        pseudoinverse: The lineax solver for both pseudoinverses; for that of the stacked matrix with the square of its
            rank tolerance, if it is a strategy of this library.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant. The acceleration is unique if the stacked matrix has rank n; where it is
    not, `result` is `acceleration_not_unique` and the acceleration the least-norm one.

    The paper writes Q for E Q, which gives the same motion. With E the system is consistent, so that any generalised
    inverse serves. Coordinates are scaled so that M, beside A, has a diagonal near one.

    Source: Udwadia & Phohomsiri (2006); de Falco et al. (2008), eq. 42 and 43.
    """

    def _problem(self, terms):
        return with_singular_mass(terms)

    def _map(self, problem, solver, repeatedly):
        M, scaled = problem.mass, problem.H
        n = M.shape[0]
        P, rank = pseudoinverse(solver, scaled)
        E = jnp.eye(n, dtype=M.dtype) - P @ scaled
        K, total = pseudoinverse(finer(solver, M.dtype), jnp.concatenate([E @ M, scaled]))
        return SingularMass(problem, K[:, :n] @ E, K[:, n:], rank, total == n)
