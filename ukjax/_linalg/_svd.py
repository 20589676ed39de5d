"""The pseudoinverse by singular value decomposition."""

import functools as ft
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ._base import AbstractDecomposition, tolerance
from ._batch import batched, one_at_a_time
from ._jacobi import one_sided_jacobi


# Entries of the largest matrices that the Jacobi kernel takes over under a batch; see `SVD`.
LARGEST = 256


class SVD(AbstractDecomposition):
    r"""The Moore-Penrose inverse by singular value decomposition: $B^+ = V \Sigma^+ U^\top$.

    Args:
        rtol: Rank test: singular values at or below `rtol` times the largest count as zero. None (default) is 1e-4 in
            float64 and 1e-3 in lower precision.

    A redundant row is redundant only on the constraint manifold. Drift, also inside of a Runge-Kutta step, makes it
    numerically independent, and the solution then is drift divided by drift. The cut-off must therefore lie above the
    drift, not at rounding: too small a cut-off makes runs stall or lose digits near a singular configuration. Too large
    a cut-off makes errors grow along the dropped direction.

    A single matrix goes to LAPACK. Under `jax.vmap` on a CPU no batch does, because LAPACK calls that distribute a
    batch among the threads can wait for each other forever. There, matrices of up to 256 entries are decomposed by the
    kernel of `Jacobi`, which gives the same inverse by the same rank test, and larger ones by LAPACK one at a time.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: forward and reverse mode, to any order, also at repeated and zero singular values, wherever the rank is
    locally constant.

    Source: Zhao et al. (2018), eq. 30; de Falco et al. (2008), eq. 19; derivative: Golub & Pereyra (1973).
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve_at(self, B, Y, rtols):
        m, n = B.shape[-2:]
        return (_small if m * n <= LARGEST else _large)(rtols)(B, Y)


@ft.cache
def _small(rtols: tuple[float, ...]) -> Callable:
    """Returns the kernel for some tolerances; cached, so that it compiles once."""
    return batched(ft.partial(one_sided_jacobi, rtols), alone=ft.partial(_by_lapack, rtols))


@ft.cache
def _large(rtols: tuple[float, ...]) -> Callable:
    return one_at_a_time(ft.partial(_by_lapack, rtols))


def _by_lapack(rtols: tuple[float, ...], B: Array, Y: Array) -> tuple[Array, Array]:
    if 0 in B.shape:
        return jnp.zeros((len(rtols), B.shape[1], Y.shape[1]), B.dtype), jnp.zeros(len(rtols), int)
    U, values, Vt = jnp.linalg.svd(B, full_matrices=False)
    counts = values[None] > jnp.array(rtols, B.dtype)[:, None] * values[0]
    inverse = jnp.where(counts, 1 / jnp.where(counts, values[None], 1), 0)
    return Vt.T[None] @ (inverse[:, :, None] * (U.T @ Y)[None]), jnp.sum(counts, axis=1)
