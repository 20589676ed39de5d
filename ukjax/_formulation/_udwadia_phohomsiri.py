"""The formulation of Udwadia and Phohomsiri, for mass matrices that may be singular.

D: row scales; s: scale of M; E = I - (D A)^+ D A; K = [s E M; D A].
"""

import jax.numpy as jnp

from .._linalg import pseudoinverse
from ._base import AbstractPseudoinverseFormulation, row_scales, unit_size, with_singular_mass


class UdwadiaPhohomsiri(AbstractPseudoinverseFormulation):
    r"""$\ddot q = \begin{bmatrix} E M \\ A \end{bmatrix}^{+} \begin{bmatrix} E Q \\ b \end{bmatrix}$ with
    $E = I - A^+ A$.

    Args:
        pseudoinverse: The lineax solver for both pseudoinverses; for that of the stacked matrix with the square of its
            rank tolerance, if it is one of ours.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular; rows may be redundant. The acceleration is unique if the stacked matrix has rank n; where it is
    not, `result` is `acceleration_not_unique` and the acceleration the least-norm one.

    The paper writes Q for E Q, which gives the same; only with E is the system consistent, so that any generalised
    inverse serves. M is brought to size one, beside A.

    Source: Udwadia & Phohomsiri (2006); de Falco et al. (2008), eq. 42 and 43.
    """

    def _linear(self, M, Q, A, partition, again):
        n = M.shape[0]
        D, s = row_scales(A), unit_size(M)
        scaled = D[:, None] * A
        P, rank = pseudoinverse(self.pseudoinverse, scaled)
        E = jnp.eye(n, dtype=M.dtype) - P @ scaled
        K, total = pseudoinverse(self._finer(M.dtype), jnp.concatenate([s * (E @ M), scaled]))
        solve = lambda force, b: K @ jnp.concatenate([s * (E @ force), D * b])
        return with_singular_mass(M, Q, A, D, rank, solve, inverse=s * (K[:, :n] @ E), unique=total == n)
