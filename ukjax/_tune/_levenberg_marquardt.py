"""The Levenberg-Marquardt step, for losses that are a sum of squares.

r: residuals (m,); J: their Jacobian (m, p); D: diagonal of J^T J; k: damping. A step s minimises

    |J s + r|^2 + k |D^1/2 s|^2,    that is    [J; (k D)^1/2] s = -[r; 0] in the sense of least squares.

It is solved by a QR factorisation of the stacked matrix. The normal equations (J^T J + k D) s = -J^T r have the square
of its condition number, and lose the step where that of J is 1e8. J itself is factorised once for all k.
k falls after an accepted step, and rises after a rejected one, with which the loss would have risen.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from .. import _check


TRIALS = 12  # damping grows by more than 1e7 within them: the step is then no longer worth taking


@dataclasses.dataclass(frozen=True)
class LevenbergMarquardt:
    """An optimiser for `tune` with a loss that returns residuals; it converges in few steps.

    It takes a handful of steps where gradient methods take dozens. A step costs one Jacobian by forward mode, at most
    as much as one loss and one more for each parameter, and one loss for each length of step tried. It is for tens of
    parameters, not for thousands.

    Args:
        damping: k of the first step, positive: near 0 for the full Gauss-Newton step, large for a short step along the
            gradient.
        grow: Factor of k after a rejected step.
        shrink: Factor of k after an accepted step.

    Raises:
        ValueError: If a number is out of its range.

    Source: Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters, J. SIAM 11; by QR: Moré
    (1978), The Levenberg-Marquardt algorithm: implementation and theory, Lecture Notes in Mathematics 630.
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
        """Returns the state before the first step.

        It holds the damping, the number of lengths tried by the last step, and whether none of them lowers the loss,
        down to where rounding would hide it.
        """
        damping = jnp.asarray(self.damping, x.dtype)
        return {"damping": damping, "trials": jnp.zeros((), int), "exhausted": jnp.asarray(False)}

    def step(
        self, x: Float[Array, " p"], r: Float[Array, " m"], J: Float[Array, "m p"], state: Any, loss: Callable
    ) -> tuple[Float[Array, " p"], dict[str, Array]]:
        """Returns the next x (p,) and state; x itself where no length of step lowers `loss(x)` to a finite value."""
        value, p = r @ r, x.shape[0]
        Q, R = jnp.linalg.qr(J)
        scale = jnp.linalg.norm(J, axis=0)  # the root of D
        # Parameters that change nothing do not move.
        scale = jnp.where(scale > 0, scale, jnp.max(scale, initial=0.0) + jnp.finfo(scale.dtype).tiny)
        rows = jnp.concatenate([-(Q.T @ r), jnp.zeros(p, r.dtype)])

        def attempt(carry):
            damping, _, trials, _, _ = carry
            stacked = lx.MatrixLinearOperator(jnp.concatenate([R, jnp.sqrt(damping) * jnp.diag(scale)]))
            s = lx.linear_solve(stacked, rows, lx.QR(), throw=False).value
            taken = loss(x + s) < value  # also False where it is NaN
            damping = damping * jnp.where(taken, self.shrink, self.grow)
            return damping, jnp.where(taken, x + s, x), trials + 1, taken, s

        start = state["damping"], x, jnp.zeros((), int), jnp.asarray(False), jnp.full_like(x, jnp.inf)
        damping, next_x, trials, taken, s = jax.lax.while_loop(lambda c: ~c[3] & (c[2] < TRIALS), attempt, start)
        # Near a minimum the loss changes with the square of a step.
        hidden = jnp.all(jnp.abs(s) <= jnp.sqrt(jnp.finfo(x.dtype).eps) * jnp.abs(x))
        return next_x, {"damping": damping, "trials": trials, "exhausted": ~taken & hidden}
