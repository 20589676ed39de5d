"""Levenberg and Marquardt's step, for losses that are a sum of squares.

r: residuals (m,); J: their Jacobian (m, p); D: diagonal of J^T J; k: damping. A step s solves (J^T J + k D) s = -J^T r;
k falls after a step that was taken and rises after one that was not, since the loss would have risen.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .. import _check


TRIALS = 12  # damping grows by more than 1e7 within them: the step is then no longer worth taking


@dataclasses.dataclass(frozen=True)
class LevenbergMarquardt:
    """For `tune`, with a loss that returns its residuals: converges in a handful of steps where gradients take dozens.

    A step costs one Jacobian by forward mode, as much as one loss and one more for each parameter at the most, and one
    loss for each length of step tried. So it is for tens of parameters, not for thousands.

    Args:
        damping: k of the first step: 0 for Gauss and Newton's full step, large for a short one along the gradient.
        grow: Factor of k after a step that was not taken.
        shrink: Factor of k after a step that was.

    Raises:
        ValueError: If a number is out of its range.

    Source: Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters, J. SIAM 11.
    """

    damping: float = 0.1
    grow: float = 4.0
    shrink: float = 0.2

    def __post_init__(self):
        if not _check.scalar(self.damping, "damping") > 0:
            raise ValueError(f"damping must be positive, but is {self.damping}.")
        if not _check.scalar(self.grow, "grow") > 1:
            raise ValueError(f"grow must be greater than 1, but is {self.grow}.")
        if not 0 < _check.scalar(self.shrink, "shrink") < 1:
            raise ValueError(f"shrink must lie between 0 and 1, but is {self.shrink}.")

    def init(self, x: Float[Array, " p"]) -> dict[str, Array]:
        """The state before the first step: the damping, and how many lengths the last step tried."""
        return {"damping": jnp.asarray(self.damping, x.dtype), "trials": jnp.zeros((), int)}

    def step(
        self, x: Float[Array, " p"], r: Float[Array, " m"], J: Float[Array, "m p"], state: Any, loss: Callable
    ) -> tuple[Float[Array, " p"], dict[str, Array]]:
        """The next x (p,) and state; x itself where no length of step lowers `loss(x)`, or it is not finite."""
        H, g, at = J.T @ J, J.T @ r, r @ r
        D = jnp.diag(H)
        D = jnp.where(D > 0, D, jnp.max(D, initial=0.0) + jnp.finfo(D.dtype).tiny)  # what changes nothing stays put

        def attempt(carry):
            damping, _, trials, _ = carry
            trial = x - jnp.linalg.solve(H + damping * jnp.diag(D), g)
            taken = loss(trial) < at  # also False where it is NaN
            damping = damping * jnp.where(taken, self.shrink, self.grow)
            return damping, jnp.where(taken, trial, x), trials + 1, taken

        start = state["damping"], x, jnp.zeros((), int), jnp.asarray(False)
        damping, x, trials, _ = jax.lax.while_loop(lambda c: ~c[3] & (c[2] < TRIALS), attempt, start)
        return x, {"damping": damping, "trials": trials}
