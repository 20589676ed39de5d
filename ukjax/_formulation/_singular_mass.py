"""The formulations for mass matrices that may be singular.

All are in coordinates in which M has a diagonal near one, where it is not zero. D: row scales; P = (D A)^+; N = P D A;
E = I - N, which projects on the admissible directions; lambda: multipliers.
"""

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array

from .._linalg import SkipIfZero, finer, pseudoinverse
from .._types import Matrix, Rows
from ._base import AbstractPseudoinverseFormulation, SingularMass
from ._problem import inverse_powers, with_singular_mass


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


class LagrangeMultiplier(AbstractPseudoinverseFormulation):
    r"""$\begin{bmatrix} M & A^\top \\ A & 0 \end{bmatrix} \begin{bmatrix} \ddot q \\ -\lambda \end{bmatrix} =
    \begin{bmatrix} Q \\ b \end{bmatrix}$, by a pseudoinverse.

    Args:
        pseudoinverse: The lineax solver for the augmented system, with the square of its rank tolerance if it is a
            strategy of this library, and for the rank of A.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant, which makes the multipliers ambiguous but not the acceleration. The
    acceleration is unique if the rank of the augmented matrix is n plus the rank of A; where it is not, `result` is
    `acceleration_not_unique` and the acceleration the least-norm one. This formulation is for comparison: the usual
    method, which solves the system without a pseudoinverse, fails on a redundant row.

    Source: de Falco et al. (2008), eq. 23; Xu & Liu (2017), eq. 10.
    """

    def _problem(self, terms):
        return with_singular_mass(terms)

    def _map(self, problem, solver, repeatedly):
        M, H = problem.mass, problem.H
        m, n = H.shape
        # Rows may be independent only by a light mass; where they seem to contradict, that mass is not to matter.
        E = _by_rows(M, H) if isinstance(solver, SkipIfZero) else jnp.ones(n + m, M.dtype)
        lower = jnp.concatenate([H, jnp.zeros((m, m), M.dtype)], axis=1)
        augmented = E[:, None] * jnp.concatenate([jnp.concatenate([M, H.T], axis=1), lower]) * E[None]
        K, total = pseudoinverse(finer(solver, M.dtype), augmented)
        K = E[:, None] * K * E[None]
        _, rank = pseudoinverse(solver, augmented[n:, :n])
        return SingularMass(problem, K[:n, :n], K[:n, n:], rank, total == n + rank)


def _by_rows(M: Matrix, H: Rows) -> Array:
    """Returns scales E (n + m,) that bring M and the rows and columns of H in E K E to about one.

    E holds powers of two. The largest entry of M, and of each row and column of H, then is about one.
    """
    M, H = stop_gradient((jnp.abs(M), jnp.abs(H)))
    of_columns = inverse_powers(jnp.max(H, axis=0, initial=0.0))
    of_rows = inverse_powers(jnp.max(H * of_columns[None], axis=1, initial=0.0))
    s = inverse_powers(jnp.sqrt(jnp.max(of_columns[:, None] * M * of_columns[None], initial=0.0)))
    return jnp.concatenate([s * of_columns, of_rows / s])
