"""Recursive enforcement of constraints, level by level; each level costs its own rows only (Orsino 2017).

M = L L^T, W = L^-1; x = L^T q'': acceleration in the coordinates in which M is the identity; H = A W^T: rows there;
P (n, n): projector on the accelerations that the levels so far leave free (with noise, a covariance); K: gain;
R: covariance of the noise of a level's rows.

    K = P H^T (H P H^T + R)^+,  x <- x + K (b - H x),  P <- (I - K H) P (I - K H)^T + K R K^T

Line by line this is the measurement update of a Kalman filter.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float

from .. import _check
from .._collector import seldom_collecting
from .._linalg import SVD, SkipIfZero, finer, new_rows, pseudoinverse, rank_tolerance_of, whiten
from .._result import is_traced
from .._types import BoolScalar, IntScalar, Matrix, Numbers, Rows, Vector
from ._base import AbstractLinearMap, DefiniteMass, one_response
from ._problem import row_scales, with_completed_mass, with_definite_mass
from ._udwadia_kalaba import AbstractExpandedFormulation, TracedTerms, expanded


class Level(eqx.Module):
    """The motion under the constraints enforced so far; `enforce` adds further ones.

    Attributes:
        acceleration: q'' (n,) [m/s^2 or rad/s^2].
        force: Force that this level's constraints added (n,) [N or N m].
        projector: W^T P L^T (n, n), which maps an acceleration to its part that is still free. Without noise it is
            idempotent, and its trace is the number of degrees of freedom left.
        rank: Number of this level's rows that are independent of those before.
    """

    acceleration: Vector
    force: Vector
    rank: IntScalar
    P: Matrix  # in the metric of M, symmetric
    L: Matrix
    W: Matrix
    noisy: bool = eqx.field(static=True, default=False)  # whether any level so far had noise

    @classmethod
    def start(cls, M: Numbers, Q: Numbers) -> "Level":
        """Returns the unconstrained motion of M q'' = Q, with M (n, n) positive definite [kg or kg m^2]."""
        M, Q = _check.floating(M, "M"), _check.floating(Q, "Q")
        if Q.ndim != 1 or M.shape != (*Q.shape, *Q.shape):
            raise ValueError(f"M must have shape (n, n) and Q (n,), but they have {M.shape} and {Q.shape}.")
        L, W, definite = whiten(M)
        n = Q.shape[0]
        acceleration = jnp.where(definite, W.T @ (W @ Q), jnp.nan)
        return cls(acceleration, jnp.zeros_like(Q), jnp.zeros((), int), jnp.eye(n, dtype=Q.dtype), L, W)

    @property
    def projector(self) -> Matrix:
        return self.W.T @ self.P @ self.L.T

    def enforce(
        self,
        A: Numbers,
        b: Numbers,
        noise: Numbers | None = None,
        *,
        pseudoinverse: lx.AbstractLinearSolver = SVD(),
    ) -> "Level":
        """Returns the next level, in which A q'' = b holds as well, at the cost of these rows only.

        Args:
            A: (m, n).
            b: (m,).
            noise: Covariance R of the rows, a scalar, (m,) or (m, m), in the units of b squared over those of the
                inverse mass; None to enforce them exactly.
            pseudoinverse: The lineax solver for the gain.

        Raises:
            ValueError: If a shape does not fit or `noise` is negative.
        """
        A, b = _check.floating(A, "A"), _check.floating(b, "b")
        n = self.acceleration.shape[0]
        if A.ndim != 2 or A.shape[1] != n:
            raise ValueError(f"A must have shape (m, {n}), one column per coordinate, but has shape {A.shape}.")
        if b.shape != A.shape[:1]:
            raise ValueError(f"b must have shape {A.shape[:1]}, one entry per row of A, but has shape {b.shape}.")
        R = None if noise is None else covariance(noise, A.shape[0], "noise")
        H = A @ self.W.T
        K, P, rank = _gain(pseudoinverse, self.P, H, R, not self.noisy)
        added = K @ (b - A @ self.acceleration)
        noisy = self.noisy or R is not None
        return Level(self.acceleration + self.W.T @ added, self.L @ added, rank, P, self.L, self.W, noisy)


class Recursive(AbstractExpandedFormulation):
    r"""Enforces groups of rows in order: $\ddot q_r = \ddot q_{r-1} + L^{-\top} K_r (b_r - A_r \ddot q_{r-1})$.

    $K_r = (H_r P_{r-1})^{+}$ with $H_r = A_r L^{-\top}$, and $P_r = (I - K_r H_r) P_{r-1} (I - K_r H_r)^\top$. The
    result does not depend on order or grouping, dependent rows included; see `Level` for what lies between.

    Args:
        levels: Number of rows of each level, in the order of the mechanism's constraints; the numbers must add up to
            all rows.
        noise: For each level None, or the covariance of its rows (scalar, (m,) or (m, m)): rows that are held loosely,
            as by a joint with clearance. Rows with noise 0 hold exactly; the larger the noise, the less they act.
        pseudoinverse: The lineax solver for the gains.
        consistency_rtol: As for `UdwadiaKalaba`; noisy rows cannot contradict anything.
        expand: Whether small mechanisms without noise are computed as scalar code, as in `UdwadiaKalaba`. Scalar code
            enforces one row after the other, which gives the same motion as any other levels; False for the levels
            as they are.

    M as for `UdwadiaKalaba`, with noise M > 0; rows may be redundant, within a level or between levels.

    Raises:
        ValueError: If `levels` are not positive integers, `noise` is negative or has another length than `levels`; and
            while tracing, if the levels do not add up to the rows.

    Gradients: with respect to everything, `noise` included, where the rank of every level is locally constant.

    Source: Orsino (2017), eq. 4.14 to 4.18 and corollary 3.4.
    """

    levels: tuple[int, ...] = eqx.field(static=True, kw_only=True)
    noise: tuple[Float[Array, "m m"] | None, ...] | None = eqx.field(kw_only=True)

    def __init__(
        self,
        levels: object,
        noise: Sequence[Numbers | None] | None = None,
        *,
        pseudoinverse: lx.AbstractLinearSolver = SVD(),
        consistency_rtol: float = 1e-6,
        expand: object = None,
    ):
        self.levels = sizes = sizes_of(levels)
        if noise is not None:
            if not isinstance(noise, (tuple, list)) or len(noise) != len(sizes):
                raise ValueError(f"noise must hold one entry for each of the {len(sizes)} levels, None for none.")
            noise = tuple(
                None if R is None else covariance(R, m, f"noise[{i}]")
                for i, (R, m) in enumerate(zip(noise, sizes, strict=True))
            )
        self.noise, self.pseudoinverse = noise, pseudoinverse
        self.consistency_rtol, self.expand = consistency_rtol, expand

    @property
    def is_exact(self):
        return all(R is None for R in self.noise or ())

    @seldom_collecting()
    def motion(self, terms_of, *state):
        found = None
        if self.expand and self.is_exact:
            dense = TracedTerms.of(terms_of, state)
            parts_of(self.levels, dense.rows)
            found = expanded(self, terms_of, dense)
        return self.solve(terms_of.whole(*state)) if found is None else found

    def _problem(self, terms):
        if self.noise is None:
            return with_completed_mass(terms)
        problem = with_definite_mass(terms)
        parts_of(self.levels, terms.A.shape[0])
        strict = np.concatenate([np.full(m, R is None) for m, R in zip(self.levels, self.noise, strict=True)])
        return eqx.tree_at(lambda p: p.strict, problem, jnp.asarray(strict), is_leaf=lambda x: x is None)

    def _map(self, problem, solver, repeatedly):
        if isinstance(solver, SkipIfZero) and self.noise is None:
            return DefiniteMass(problem, solver, repeatedly)  # all at once, with the same result, and compiled sooner
        B, needed = problem.B, jnp.any(problem.B != 0)
        P, gains, rank = jnp.eye(B.shape[1], dtype=B.dtype), [], jnp.zeros((), int)
        noise, noisy = self.noise or (None,) * len(self.levels), False
        for part, R in zip(parts_of(self.levels, B.shape[0]), noise, strict=True):
            # Without rows the noise does not matter, and a pseudoinverse of zeros costs nothing.
            R = None if R is None else jnp.where(needed, R, jnp.zeros_like(R))
            K, P, more = _gain(solver, P, B[part], R, not noisy)
            noisy = noisy or R is not None
            gains.append(K)
            rank = rank + more
        return _Levels(problem.M, problem.L, problem.W, B, tuple(gains), rank, problem.is_mass)


class _Levels(AbstractLinearMap):
    """The levels one after the other, with their gains K (n, m)."""

    M: Matrix
    L: Matrix
    W: Matrix
    B: Rows
    gains: tuple[Array, ...]
    rank: IntScalar
    is_mass: BoolScalar | None

    def __call__(self, force, b):
        w = self.W @ force
        x, start = w, 0
        for K in self.gains:
            part = slice(start, start + K.shape[1])
            x, start = x + K @ (b[part] - self.B[part] @ x), part.stop
        acceleration, added = self.W.T @ x, self.L @ (x - w)
        if self.is_mass is not None:
            added = jnp.where(self.is_mass, added, self.M @ acceleration - force)
        return one_response(acceleration, added, self.rank, jnp.asarray(True))

    def free(self, force):
        return jnp.abs(self.W @ force)


def sizes_of(levels: object) -> tuple[int, ...]:
    """Returns the number of rows of each level; raises ValueError for anything but positive integers."""
    sizes: tuple = tuple(levels) if isinstance(levels, (tuple, list)) else (levels,)
    if not sizes or any(isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1 for m in sizes):
        raise ValueError(f"levels must be numbers of rows, integers of at least 1, but are {levels!r}.")
    return tuple(int(m) for m in sizes)


def parts_of(levels: tuple[int, ...], m: int) -> list[np.ndarray]:
    """Returns the rows of each level, of m in total; raises ValueError if the levels do not add up to m."""
    if sum(levels) != m:
        raise ValueError(
            f"levels must add up to the {m} rows of the constraints, but {levels} add up to {sum(levels)}."
        )
    return np.split(np.arange(m), np.cumsum(levels)[:-1])


def covariance(value: Numbers, m: int, name: str) -> Float[Array, "m m"]:
    """Returns R (m, m) from a scalar, (m,) or (m, m); raises ValueError if R is no covariance."""
    R = _check.floating(value, name)
    if R.ndim == 0:
        R = R * jnp.eye(m, dtype=R.dtype)
    elif R.shape == (m,):
        R = jnp.diag(R)
    elif R.shape != (m, m):
        raise ValueError(f"{name} must be a scalar or have shape ({m},) or ({m}, {m}), but has shape {R.shape}.")
    if not is_traced(R):
        numbers = np.asarray(R, float)
        if not np.all(np.isfinite(numbers)):
            raise ValueError(f"{name} must be finite, but is {numbers.tolist()}. Leave rows out that are not to act.")
        if not np.allclose(numbers, numbers.T) or np.min(np.linalg.eigvalsh(numbers)) < 0:
            raise ValueError(f"{name} must be symmetric and not negative, but is {numbers.tolist()}.")
    return R


def _gain(
    solver: lx.AbstractLinearSolver, P: Matrix, H: Rows, R: Array | None, is_projector: bool
) -> tuple[Float[Array, "n m"], Matrix, IntScalar]:
    """Returns K (n, m), the next P, and the rank of H P, the number of new rows; P is a projector without noise."""
    K, rank = gain(solver, H @ P, H, None if R is None and is_projector else H @ P @ H.T, R)
    rest = jnp.eye(P.shape[0], dtype=P.dtype) - K @ H
    following = rest @ P @ rest.T
    if R is not None:
        following = following + K @ R.astype(P.dtype) @ K.T
    return K, (following + following.T) / 2, rank


def gain(
    solver: lx.AbstractLinearSolver, B: Rows, H: Rows, S: Array | None, R: Array | None
) -> tuple[Float[Array, "n m"], IntScalar]:
    """Returns K (n, m) and the rank of B = H P (m, n), the number of new rows.

    S = H P H^T where there is noise R, or was before: P then is no projector, and B^+ not the gain of exact rows.
    """
    D = row_scales(H)
    H, B = D[:, None] * H, D[:, None] * B
    if S is None:
        new = new_rows(B, H, rank_tolerance_of(solver, B.dtype))
        K, rank = pseudoinverse(solver, jnp.where(new[:, None], B, 0))
    else:
        S = D[:, None] * (S if R is None else S + R.astype(B.dtype)) * D[None]
        # Without noise S has the squares of the singular values that the rank test is made for, hence the finer one.
        inverse, rank = pseudoinverse(finer(solver, S.dtype) if R is None else solver, (S + S.T) / 2)
        K = B.T @ inverse
    return K * D[None], rank
