"""The pseudoinverse by singular value decomposition: by LAPACK, or by one-sided Jacobi rotations.

`Jacobi` is a kernel for small matrices in large batches, without LAPACK. W: working copy of B (m, n, batch) whose rows
are rotated until they are orthogonal, W = J^T B; then the lengths of its rows are the singular values, J holds the left
singular vectors, and x = sum_i W_i (J^T y)_i / |W_i|^2.
"""

import functools as ft
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._base import AbstractDecomposition, tolerance, unit_scale
from ._batch import at_tolerance, batched, one_at_a_time


# Convergence is quadratic at the end; some forty sweeps would be a defect.
MAX_SWEEPS = 40


class Jacobi(AbstractDecomposition):
    r"""The Moore-Penrose inverse by the one-sided Jacobi singular value decomposition.

    Pairs of rows (of columns, if there are fewer) are rotated until all are orthogonal to each other: $J^\top B = W$,
    $B^+ = W^\top\,\mathrm{diag}(\|W_i\|^{-2})\,J^\top$.

    Args:
        rtol: Rank test, that of `SVD`: singular values at or below `rtol` times the largest count as zero. None
            (default) is 1e-4 in float64 and 1e-3 in lower precision.

    This strategy is for small matrices in large batches; it finds small singular values more exactly than `SVD`. See
    the measured tables in the documentation.

    Raises:
        ValueError: If `rtol` is not a number between 0 and 1.

    Gradients: as for `SVD`.

    Source: Hestenes (1958); Demmel & Veselic (1992).
    """

    rtol: float | None = eqx.field(default=None, converter=tolerance, static=True)

    def solve_at(self, B, Y, rtols):
        return at_tolerance(one_sided_jacobi, rtols)(B, Y)


def one_sided_jacobi(rtols: tuple[float, ...], B: Array, Y: Array) -> tuple[Array, Array]:
    """Returns B^+ Y (r, n, k, batch) and the ranks (r, batch) at r tolerances, for B (m, n, batch), Y (m, k, batch)."""
    m, n, size = B.shape
    if min(m, n) == 0:
        return jnp.zeros((len(rtols), n, *Y.shape[1:]), B.dtype), jnp.zeros((len(rtols), size), int)
    scale = unit_scale(B)
    B, Y = B * scale, Y * scale
    if m <= n:
        W, Z = _orthogonalise(B, Y)
        inverse, rank = _inverse_squares(rtols, W)
        return jnp.sum(W[None, :, :, None] * (inverse[:, :, None] * Z[None])[:, :, None], axis=1), rank
    # Fewer columns than rows: rotate those, and keep J.
    identity = jnp.broadcast_to(jnp.eye(n, dtype=B.dtype)[..., None], (n, n, size))
    W, Jt = _orthogonalise(jnp.swapaxes(B, 0, 1), identity)
    inverse, rank = _inverse_squares(rtols, W)
    image = inverse[:, :, None] * jnp.sum(W[:, :, None] * Y[None], axis=1)[None]
    return jnp.sum(Jt[None, :, :, None] * image[:, :, None], axis=1), rank


def _inverse_squares(rtols: tuple[float, ...], W: Array) -> tuple[Array, Array]:
    squares = jnp.sum(W**2, axis=1)
    counts = squares > jnp.array(rtols, W.dtype)[:, None, None] ** 2 * jnp.max(squares, axis=0)
    return jnp.where(counts, 1 / jnp.where(counts, squares, 1), 0), jnp.sum(counts, axis=1)


def _orthogonalise(B: Array, Y: Array) -> tuple[Array, Array]:
    """Returns J^T B with orthogonal rows, and J^T Y."""
    m, n = B.shape[:2]
    if m == 1:
        return B, Y
    eps = float(jnp.finfo(B.dtype).eps)
    # Rows (W, Z) lie side by side, so that one rotation turns both; a row of zeros makes their number even.
    rows = jnp.concatenate([B, Y], axis=1)
    rows = jnp.pad(rows, ((0, m % 2), (0, 0), (0, 0)))
    half, order = rows.shape[0] // 2, _round_robin(rows.shape[0])
    # Rows this short are rounding errors of the longest; their directions are random and never converge.
    noise = (m * n * eps) ** 2 * jnp.sum(B**2, axis=(0, 1))

    def turn(rows, off):
        """Rotates row i against row i + half, for all i at a time."""
        upper, lower = rows[:half], rows[half:]
        a, b = jnp.sum(upper[:, :n] ** 2, axis=1), jnp.sum(lower[:, :n] ** 2, axis=1)
        c = jnp.sum(upper[:, :n] * lower[:, :n], axis=1)
        cosine2 = c**2 / jnp.where(a * b > 0, a * b, 1)
        counts = (jnp.minimum(a, b) > noise) & (cosine2 > (2 * eps) ** 2)
        zeta = (b - a) / jnp.where(counts, 2 * c, 1)
        t = jnp.where(zeta >= 0, 1.0, -1.0) / (jnp.abs(zeta) + jnp.sqrt(1 + zeta**2))
        t = jnp.where(counts, t, 0)
        cos = jax.lax.rsqrt(1 + t**2)
        sin = (cos * t)[:, None]
        cos = cos[:, None]
        rows = jnp.concatenate([cos * upper - sin * lower, sin * upper + cos * lower])
        found = jnp.stack([jnp.max(jnp.where(counts, cosine2, 0)), jnp.max(t**2)])
        return rows[order], jnp.maximum(off, found)

    def sweep(carry):
        count, rows, _ = carry
        # After every pair has met once all rows are back in their places.
        start = rows, jnp.zeros(2, B.dtype)
        rows, off = jax.lax.fori_loop(0, 2 * half - 1, lambda _, inner: turn(*inner), start)
        return count + 1, rows, off

    def is_unfinished(carry):
        # A rotation by t leaves t times the cosines that the others have: as a rule t is as small as they are, but rows
        # of equal length are rotated by half a right angle, however small their cosine was.
        count, _, off = carry
        return (count < MAX_SWEEPS) & (off[0] * off[1] > (64 * eps) ** 2)

    _, rows, _ = jax.lax.while_loop(is_unfinished, sweep, (0, rows, jnp.ones(2, B.dtype)))
    return rows[:m, :n], rows[:m, n:]


def _round_robin(count: int) -> np.ndarray:
    """Returns the rearrangement between two rounds of a tournament, in which row i meets row i + count / 2."""
    half = count // 2
    upper, lower = np.arange(half), np.arange(half, count)
    # The first row stays, the others move round.
    return np.concatenate([upper[:1], lower[:1], upper[1:-1], lower[1:], upper[-1:]]) if half > 1 else np.arange(count)


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
