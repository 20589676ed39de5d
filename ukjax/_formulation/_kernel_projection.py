"""Projection on the kernel of the constraints, by a choice of operators (Orsino 2017, section 3).

S: operator on to ker A, level by level, S_{r+1} = S_r C_{r+1} with C on to ker(A~ S_r); D: row scales. All quantities
are in coordinates in which M has a diagonal near one.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check
from .._linalg import SVD, finer, new_rows, one_at_a_time, pseudoinverse, rank_tolerance_of
from .._result import is_traced
from .._types import Matrix, Numbers, Rows
from ._base import AbstractPseudoinverseFormulation, SingularMass
from ._problem import with_singular_mass
from ._recursive import parts_of, sizes_of


# LAPACK on a CPU is not given a batch: see `SVD`.
_full_svd = one_at_a_time(lambda B: jnp.linalg.svd(B, full_matrices=True)[1:])


class AbstractKernel(eqx.Module):
    """A method to compute an operator on to the kernel of a matrix."""

    @abc.abstractmethod
    def onto(self, B: Rows, solver: lx.AbstractLinearSolver) -> Matrix:
        """Returns C (n, n), whose columns span ker B for B (m, n)."""


class OrthogonalProjector(AbstractKernel):
    r"""$I - B^{+} B$: symmetric and idempotent. Proposition 3.1 (iii)."""

    def onto(self, B, solver):
        return jnp.eye(B.shape[1], dtype=B.dtype) - pseudoinverse(solver, B)[0] @ B


class ObliqueProjector(AbstractKernel):
    r"""$I - B^{g} B$ with $B^{g} = W (B W)^{+}$, a {1}-inverse for every diagonal weight $W$ of the coordinates.

    The projector is idempotent, but not symmetric: what it removes lies along other directions. Proposition 3.1 (ii).

    Args:
        weight: (n,), positive, one for each coordinate; 1, 2, 3, ... if omitted.
    """

    weight: Array | None

    def __init__(self, weight: Numbers | None = None):
        self.weight = None if weight is None else _check.floating(weight, "weight")
        if weight is not None and not is_traced(self.weight) and not np.all(np.asarray(self.weight) > 0):
            raise ValueError(f"weight must be positive, one for each coordinate, but is {self.weight}.")

    def onto(self, B, solver):
        n = B.shape[1]
        weight = jnp.arange(1, n + 1, dtype=B.dtype) if self.weight is None else self.weight.astype(B.dtype)
        if weight.shape != (n,):
            raise ValueError(f"weight must have shape ({n},), one for each coordinate, but has shape {weight.shape}.")
        inverse = weight[:, None] * pseudoinverse(solver, B * weight[None])[0]
        return jnp.eye(n, dtype=B.dtype) - inverse @ B


class OrthogonalComplement(AbstractKernel):
    """A basis of the kernel in the first columns, one for each degree of freedom, and zeros in the others.

    Proposition 3.1 (i): the natural orthogonal complement of multibody dynamics is one.
    """

    def onto(self, B, solver):
        n = B.shape[1]
        C = OrthogonalProjector().onto(B, solver)
        # The basis of the SVD may turn freely. Only the derivative of the kernel matters, and C has it.
        fixed = stop_gradient(B)
        values, Vt = _full_svd(fixed)
        values = jnp.zeros(n, B.dtype).at[: values.shape[0]].set(values)
        order = jnp.argsort(values)
        size = jnp.max(values, initial=0.0)
        free = values <= rank_tolerance_of(solver, B.dtype) * size
        basis = jnp.where(free[None], Vt.T, 0)[:, order]
        return C @ basis


class Orthonormalization(AbstractKernel):
    r"""$I - \hat B^\top \hat B$ with the rows of $\hat B$ orthonormalised one by one. Proposition 3.1 (iv)."""

    def onto(self, B, solver):
        C = jnp.eye(B.shape[1], dtype=B.dtype)
        tolerance = rank_tolerance_of(solver, B.dtype)
        for row in B:
            rest = row @ C
            rest = rest @ C  # twice is enough
            square = rest @ rest
            new = new_rows(rest, row, tolerance)
            C = C - jnp.where(new, rest[:, None] * rest[None] / jnp.where(new, square, 1), 0)
        return C


class KernelProjection(AbstractPseudoinverseFormulation):
    r"""$\begin{bmatrix} S^\top M \\ A \end{bmatrix} \ddot q = \begin{bmatrix} S^\top (Q + \varphi) \\ b \end{bmatrix}$
    with S an operator on to ker A, found level by level.

    $S_{r+1} = S_r C_{r+1}$, $C_{r+1}$ an operator on to the kernel of $\tilde A_{r+1} S_r$ (theorem 3.2). The choice of
    operator does not matter for the motion; `kernel` makes it. With `OrthogonalProjector` it is the formulation of
    Udwadia and Phohomsiri. The non-ideal force $\varphi$ is the mechanism's `nonideal`.

    Args:
        levels: Number of rows of each level, in the order of the mechanism's constraints; None for all at once.
        kernel: `OrthogonalProjector()`, `ObliqueProjector()`, `OrthogonalComplement()` or `Orthonormalization()`.
        pseudoinverse: The lineax solver for the projectors, and for the stacked system; the latter with the square of
            the rank tolerance if it is a strategy of this library.
        consistency_rtol: As for `UdwadiaKalaba`.

    M may be singular, if [M; A] has rank n; rows may be redundant, within a level or between levels.

    Raises:
        ValueError: If `levels` are not positive integers; while tracing, if they do not add up to the rows.

    Gradients: with respect to everything where the rank of every level is locally constant.

    Source: Orsino (2017), eq. 3.4, theorem 3.2 and corollary 3.3.
    """

    levels: tuple[int, ...] | None = eqx.field(static=True, kw_only=True)
    kernel: AbstractKernel = eqx.field(kw_only=True)

    def __init__(
        self,
        levels: object = None,
        kernel: object = OrthogonalProjector(),
        *,
        pseudoinverse: lx.AbstractLinearSolver = SVD(),
        consistency_rtol: float = 1e-6,
    ):
        if not isinstance(kernel, AbstractKernel):
            raise TypeError(f"kernel must be such as ukjax.formulation.OrthogonalProjector(), but is {kernel!r}.")
        self.levels = None if levels is None else sizes_of(levels)
        self.kernel, self.pseudoinverse, self.consistency_rtol = kernel, pseudoinverse, consistency_rtol

    def _problem(self, terms):
        return with_singular_mass(terms)

    def _map(self, problem, solver, repeatedly):
        M, scaled = problem.mass, problem.H
        m, n = scaled.shape
        tolerance = rank_tolerance_of(solver, M.dtype)
        S = jnp.eye(n, dtype=M.dtype)
        for part in parts_of((m,) if self.levels is None else self.levels, m):
            B = scaled[part] @ S
            B = jnp.where(new_rows(B, scaled[part], tolerance)[:, None], B, 0)
            S = S @ self.kernel.onto(B, solver) if part.size else S
        _, rank = pseudoinverse(solver, scaled)
        K, total = pseudoinverse(finer(solver, M.dtype), jnp.concatenate([S.T @ M, scaled]))
        return SingularMass(problem, K[:, :n] @ S.T, K[:, n:], rank, total == n)
