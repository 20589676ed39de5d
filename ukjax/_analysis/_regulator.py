r"""Linear-quadratic regulators: the feedback of least cost, by SciPy's Riccati solvers, with derivatives.

x, u: changes of the states (k,) and inputs (p,) from those of the linearisation; Q, R, N: costs of these; K: gain
(p, k);
S: cost to go, x^T S x. The Riccati equation F(S, theta) = 0 is differentiated implicitly: F is linear in dS, and its
linear part is Lyapunov's equation of the closed loop.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, Complex, Float

from .. import _check
from .._result import is_traced
from .._types import Coordinates, Scalar, Vector
from ._linearize import Linearization
from ._states import quantities


class Regulator(eqx.Module):
    """The law u = u0 - K (s(q, v, t) - x0), with the states s of a linearisation, for `ukjax.Feedback`.

    Attributes:
        K: Gain (p, k).
        S: Cost to go (k, k): x^T S x is the cost of the return from x to zero in the linear system.
        x0: Values at which the states are to stay (k,).
        u0: The inputs there (p,).
        A: The closed loop (k, k): x' = A x, or with a period x <- A x from one sample to the next.
        states: s(q, v, t) -> (k,).
        period: Time between samples [s]; None for a law that acts all the time.
    """

    K: Float[Array, "p k"]
    S: Float[Array, "k k"]
    x0: Float[Array, " k"]
    u0: Float[Array, " p"]
    A: Float[Array, "k k"]
    states: Callable
    period: float | None = eqx.field(static=True)

    def __call__(self, q: Coordinates, v: Vector, t: Scalar) -> Array:
        """Returns u (p,)."""
        return self.u0 - self.K @ (quantities(self.states, "states", q, v, t) - self.x0)

    @property
    def eigenvalues(self) -> Complex[Array, " k"]:
        """Eigenvalues of the closed loop: of s' = A s [1/s], also if it is sampled; on the CPU."""
        values = jnp.linalg.eigvals(self.A)
        return values if self.period is None else jnp.log(values) / self.period


def lqr(
    linearization: Linearization,
    Q: ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]],
    R: ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]],
    *,
    period: float | None = None,
) -> Regulator:
    r"""Returns the linear feedback that makes $\int x^\top Q x + u^\top R u \, dt$ smallest.

    With a `period` the control is held between samples, and the integral is smallest among such controls: the linear
    system and the integral are taken over a period exactly.

    Args:
        linearization: Result of `ukjax.analysis.linearize(..., actuation=G)`, about a state that stays.
        Q: Cost of the states, (k, k) symmetric positive semidefinite, or (k,) its diagonal.
        R: Cost of the inputs, (p, p) symmetric positive definite, or (p,) its diagonal, or a scalar.
        period: Time between two samples [s].

    Returns:
        `Regulator`, which is a law: `ukjax.Feedback(regulator, G, period=regulator.period)`.

    Raises:
        TypeError: If `linearization` is something else.
        ValueError: If the linearisation is a batch or has no inputs, a shape does not fit, a cost is not symmetric, `R`
            not positive definite or `Q` not positive semidefinite, the state does not stay, or no feedback stabilises
            it.

    Gradients: forward and reverse mode, with respect to the linearisation, `Q` and `R`, by the implicit function
    theorem. Under `jit` and `vmap` SciPy is called back on the host, and the result is NaN if no feedback stabilises.

    Source: Anderson & Moore (1990), Optimal Control; the integral over a period: Van Loan (1978).
    """
    _check.instance(linearization, Linearization, "linearization", "ukjax.analysis.linearize(...)")
    A, B = linearization.A, linearization.B
    if A.ndim != 2:
        raise ValueError(f"linearization must be one, not a batch, but A has shape {A.shape}. Use jax.vmap.")
    k, p = B.shape
    if p == 0:
        raise ValueError("linearization has no inputs. Pass actuation=G to ukjax.analysis.linearize.")
    Q = _cost(Q, k, "Q", "state", A.dtype)
    R = _cost(R, p, "R", "input", A.dtype)
    period = None if period is None else _check.positive(period, "period")
    if not is_traced(linearization, Q, R):
        _check_values(linearization, np.asarray(Q), np.asarray(R))
    N = jnp.zeros((k, p), A.dtype)
    if period is not None:
        A, B, Q, R, N = _held(A, B, Q, R, period)
    S = _riccati(A, B, Q, R, N, period is not None)
    K = _gain(S, A, B, R, N, period is not None)
    if not is_traced(S) and not np.all(np.isfinite(np.asarray(S))):
        raise ValueError(
            "linearization cannot be stabilised by its inputs: some mode that grows, or stays, is out of their reach, "
            "or costs nothing. Give it another actuation, or Q a weight there; or leave that state out: "
            "ukjax.analysis.linearize(..., states=...)."
        )
    states, x0, u0 = linearization.states, linearization.x, linearization.u
    return Regulator(K, S, x0, u0, A - B @ K, states, period)


def _cost(
    value: ArrayLike | Sequence[ArrayLike] | Sequence[Sequence[ArrayLike]], size: int, name: str, what: str,
    dtype: DTypeLike,
) -> Array:  # fmt: skip
    """Returns the argument `Q` or `R` as a matrix: from a matrix, a diagonal, or one number for all."""
    cost = _check.floating(value, name)
    if cost.ndim == 0:
        cost = jnp.full(size, cost)
    if cost.ndim == 1 and cost.shape[0] == size:
        cost = jnp.diag(cost)
    hint = f"One row per {what}, of which there are {size}; or its diagonal."
    return _check.output(cost, (size, size), dtype, name, hint)


def _check_values(linearization: Linearization, Q: np.ndarray, R: np.ndarray) -> None:
    for name, cost, least in (("Q", Q, -1e-9), ("R", R, 0.0)):
        _check.finite(cost, name)
        size = np.max(np.abs(cost), initial=0.0)
        if np.max(np.abs(cost - cost.T), initial=0.0) > 1e-9 * size:
            raise ValueError(f"{name} must be symmetric.")
        lowest = np.min(np.linalg.eigvalsh(cost), initial=np.inf)
        if lowest < least * size or (name == "R" and lowest <= 0):
            kind = "definite" if name == "R" else "semidefinite"
            raise ValueError(f"{name} must be positive {kind}, but has an eigenvalue {lowest:.3g}.")
    moving = float(np.max(np.abs(np.asarray(linearization.rates)), initial=0.0))
    if moving > 1e-6 * max(1.0, float(np.max(np.abs(np.asarray(linearization.x)), initial=0.0))):
        raise ValueError(
            f"linearization is about a state that does not stay: its states change at up to {moving:.3g} a second. "
            "Take q, v, u of ukjax.analysis.equilibrium, or states that stay in a steady motion."
        )


def _held(A: Array, B: Array, Q: Array, R: Array, period: float) -> tuple[Array, Array, Array, Array, Array]:
    """Returns the linear system from sample to sample under a control that is held, and the cost of a period."""
    k, p = B.shape
    whole = jnp.concatenate([jnp.concatenate([A, B], axis=1), jnp.zeros((p, k + p), A.dtype)])
    cost = jax.scipy.linalg.block_diag(Q, R)
    zero = jnp.zeros_like(whole)
    big = jnp.concatenate([jnp.concatenate([-whole.T, cost], axis=1), jnp.concatenate([zero, whole], axis=1)])
    found = jax.scipy.linalg.expm(period * big)
    moved = found[k + p :, k + p :]
    spent = moved.T @ found[: k + p, k + p :]
    spent = (spent + spent.T) / 2
    return moved[:k, :k], moved[:k, k:], spent[:k, :k], spent[k:, k:], spent[:k, k:]


def _gain(S: Array, A: Array, B: Array, R: Array, N: Array, sampled: bool) -> Array:
    if sampled:
        return jnp.linalg.solve(R + B.T @ S @ B, B.T @ S @ A + N.T)
    return jnp.linalg.solve(R, B.T @ S + N.T)


def _unmet(S: Array, A: Array, B: Array, Q: Array, R: Array, N: Array, sampled: bool) -> Array:
    """Returns the residual of the Riccati equation."""
    K = _gain(S, A, B, R, N, sampled)
    if sampled:
        return A.T @ S @ A - S - (A.T @ S @ B + N) @ K + Q
    return A.T @ S + S @ A - (S @ B + N) @ K + Q


@eqx.filter_custom_jvp
def _riccati(A: Array, B: Array, Q: Array, R: Array, N: Array, sampled: bool) -> Array:
    def solution(*matrices: ArrayLike) -> np.ndarray:
        return _by_scipy(*map(np.asarray, matrices), sampled=sampled).astype(A.dtype)

    return jax.pure_callback(solution, jax.ShapeDtypeStruct(A.shape, A.dtype), A, B, Q, R, N, vmap_method="sequential")


@_riccati.def_jvp
def _riccati_jvp(primals, tangents):
    *matrices, sampled = primals
    A, B, Q, R, N = matrices
    S = _riccati(A, B, Q, R, N, sampled)
    slopes = [jnp.zeros_like(x) if d is None else d for x, d in zip(matrices, tangents[:-1], strict=True)]
    change = jax.jvp(lambda *x: _unmet(S, *x, sampled=sampled), (A, B, Q, R, N), tuple(slopes))[1]
    closed = (A - B @ _gain(S, A, B, R, N, sampled)).T
    one = jnp.eye(closed.shape[0], dtype=closed.dtype)
    whole = jnp.kron(closed, closed) - jnp.kron(one, one) if sampled else jnp.kron(closed, one) + jnp.kron(one, closed)
    return S, jnp.linalg.solve(whole, -change.ravel()).reshape(S.shape)


def _by_scipy(A: np.ndarray, B: np.ndarray, Q: np.ndarray, R: np.ndarray, N: np.ndarray, sampled: bool) -> np.ndarray:
    """Returns S, or NaN if no solution stabilises."""
    import scipy.linalg

    solve = scipy.linalg.solve_discrete_are if sampled else scipy.linalg.solve_continuous_are
    try:
        S = solve(A, B, Q, R, s=N)
    except (np.linalg.LinAlgError, ValueError):
        return np.full_like(A, np.nan)
    K = np.linalg.solve(R + B.T @ S @ B, B.T @ S @ A + N.T) if sampled else np.linalg.solve(R, B.T @ S + N.T)
    values = np.linalg.eigvals(A - B @ K)
    stable = np.all(np.abs(values) < 1) if sampled else np.all(np.real(values) < 0)
    return S if stable else np.full_like(A, np.nan)
