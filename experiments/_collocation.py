"""Direct collocation by SciPy: the reference for planned motions.

Hermite and Simpson: states x_k (N + 1, 2 n) at even times, controls u at these and half-way; between two of them a
cubic whose slope is right at both ends and in the middle. All of these are unknown; SLSQP minimises the effort by
Simpson's rule. It knows nothing of the simulation that it is compared with.

Source: Hargraves & Paris (1987); Kelly (2017), An introduction to trajectory optimization, SIAM Review 59(4), 849-904.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize


class Collocated(NamedTuple):
    """Effort, states (N + 1, 2 n), controls (2 N + 1, p), what the equations are missed by, and iterations."""

    cost: float
    x: np.ndarray
    u: np.ndarray
    missed: float
    steps: int


def collocate(
    change: Callable[[Any, Any], Any], start: np.ndarray, goal: np.ndarray, p: int, duration: float, N: int = 30,
    limits: float = np.inf, guess: np.ndarray | None = None, steps: int = 400,
) -> Collocated:  # fmt: skip
    """The motion of x' = change(x, u) from `start` to `goal` (2 n,) of least effort, found from a line or a guess."""
    d, h = len(start), duration / N
    cut = (N + 1) * d

    def unpack(z):
        return z[:cut].reshape(N + 1, d), z[cut:].reshape(2 * N + 1, p)

    @jax.jit
    def defects(z):
        x, u = unpack(z)
        f = jax.vmap(change)(x, u[::2])
        middle = (x[:-1] + x[1:]) / 2 + h / 8 * (f[:-1] - f[1:])
        between = jax.vmap(change)(middle, u[1::2])
        gaps = x[1:] - x[:-1] - h / 6 * (f[:-1] + 4 * between + f[1:])
        return jnp.concatenate([gaps.ravel(), x[0] - start, x[-1] - goal])

    weights = np.full(2 * N + 1, 2.0)
    weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0

    @jax.jit
    def effort(z):
        return h / 6 * jnp.sum(weights[:, None] * unpack(z)[1] ** 2)

    if guess is None:
        line = np.linspace(start, goal, N + 1)
        guess = np.concatenate([line.ravel(), 1e-3 * np.ones((2 * N + 1) * p)])
    low = np.full(len(guess), -np.inf)
    low[cut:] = -limits
    slopes = jax.jit(jax.jacfwd(defects))
    unit = float(np.sum(weights)) * h / 6
    value = jax.jit(jax.value_and_grad(lambda z: effort(z) / unit))
    found = scipy.optimize.minimize(
        lambda z: tuple(np.asarray(y, float) for y in value(jnp.asarray(z))), guess, jac=True, method="SLSQP",
        bounds=list(zip(low, -low, strict=True)), options={"maxiter": steps, "ftol": 1e-10},
        constraints=[{"type": "eq", "fun": lambda z: np.asarray(defects(z)), "jac": lambda z: np.asarray(slopes(z))}],
    )  # fmt: skip
    x, u = unpack(found.x)
    missed = float(np.max(np.abs(np.asarray(defects(jnp.asarray(found.x))))))
    return Collocated(float(effort(jnp.asarray(found.x))), x, u, missed, int(found.nit))
