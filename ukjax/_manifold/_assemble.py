"""Consistent states: the nearest one to a given one.

q: coordinates; v: their rates; M: mass matrix at the given state, W M W^T = I; e: constraint errors; J: their Jacobian.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike

from .. import _check
from .._linalg import SVD, pseudosolve, whiten
from .._mechanism import Mechanism
from .._result import RESULTS, is_traced, message, throw_if_failed, worst


def assemble(
    mechanism: Mechanism,
    q: Any,
    v: Any,
    t: ArrayLike = 0.0,
    *,
    atol: float | None = None,
    max_steps: int = 256,
    throw: bool = True,
) -> tuple[Array, Array]:
    r"""The state nearest to (q, v) that satisfies the position and the velocity constraints.

    $$q^* = \arg\min_x (x - q)^\top M (x - q) \;\text{ s.t. }\; \Phi(x, t) = 0, \qquad
      v^* = \arg\min_w (w - v)^\top M (w - v) \;\text{ s.t. }\; \dot\Phi = 0,\ \psi = 0 \text{ at } (q^*, w, t)$$

    with M at the given (q, t). An `AccelerationConstraint` restricts neither and is passed over. The search is local:
    it finds the stationary point that it reaches from (q, v).

    Args:
        mechanism: System and constraints; rows may be redundant.
        q: Coordinates to start from, shape (n,) [m or rad].
        v: Rates to start from, shape (n,) [m/s or rad/s].
        t: Time, scalar [s].
        atol: Largest error of a constraint that counts as satisfied, in its own unit; 1e-9 in float64 and 1e-4 in
            lower precision if None.
        max_steps: Step budget of each search.
        throw: Raise if there is no consistent state. With False the state is NaN then.

    Returns:
        q and v, each (n,).

    Raises:
        TypeError: If `mechanism` is something else.
        ValueError: If q, v or t has a wrong shape or is not finite.
        RuntimeError: If `throw` and the constraints cannot be satisfied; the message says which could not, and by how
            much they are missed. Also if the mass matrix is not positive definite.

    Gradients: forward and reverse mode, by the implicit function theorem, where the rank of A is locally constant.

    Source: the projection of de Falco et al. (2008) in the metric of Gauss's principle; minimisation by optimistix.
    """
    _check.instance(mechanism, Mechanism, "mechanism", "ukjax.Mechanism(system, constraints)")
    q, v, t = _check.state(q, v, t)
    _check.finite(q, "q")
    _check.finite(v, "v")
    if atol is None:
        atol = 1e-9 if jnp.finfo(q.dtype).eps < 1e-12 else 1e-4
    (q, v), errors, result = _assemble(mechanism, q, v, t, atol, max_steps)
    if throw:
        if not is_traced(result, errors) and bool(result == RESULTS.not_assembled):
            raise RuntimeError(f"{message(result)} {_missed(mechanism, errors, atol)}")
        q, v = throw_if_failed((q, v), result)
    return q, v


@eqx.filter_jit
def _assemble(mechanism, q0, v0, t, atol, max_steps):
    M = _check.output(mechanism.system.mass(q0, t), (q0.shape[0],) * 2, q0.dtype, "mass(q, t)")
    _, W, definite = whiten(M)
    q = _nearest(lambda x: mechanism.position_error(x, t), q0, W, max_steps)
    v = _nearest(lambda x: mechanism.velocity_error(q, x, t), v0, W, max_steps)

    errors = tuple((c.position_error(q, t), c.velocity_error(q, v, t)) for c in stop_gradient(mechanism.constraints))
    met = jnp.array([jnp.all(jnp.abs(error) <= atol) for pair in errors for error in pair], bool)
    result = worst(
        RESULTS.where(definite, RESULTS.successful, RESULTS.mass_not_positive_definite),
        RESULTS.where(jnp.all(met), RESULTS.successful, RESULTS.not_assembled),
    )
    okay = result == RESULTS.successful
    return (jnp.where(okay, q, jnp.nan), jnp.where(okay, v, jnp.nan)), errors, result


def _nearest(error: Callable[[Array], Array], x0: Array, W: Array, max_steps: int) -> Array:
    r"""The x with error(x) = 0 nearest to x0 in the metric M, W^T W = M^-1.

    With x = x0 + W^T z it is the shortest z. Linearised at z, the shortest solution is B^+ (B z - e), B = J W^T;
    so at the wanted point z - B^+ (B z - e) vanishes. Unlike the multiplier's equations this stays regular when rows
    are redundant: its Jacobian there is the identity but for the curvature of the constraints.
    """
    if jax.eval_shape(error, x0).shape[0] == 0:
        return x0
    at = lambda z: x0 + W.T @ z

    def stationarity(z, _):
        x = at(z)
        B = jax.jacfwd(error)(x) @ W.T
        return z - pseudosolve(SVD(), B, B @ z - error(x))[0]

    eps = float(jnp.finfo(x0.dtype).eps)
    rtol = atol = 64 * eps
    # Levenberg-Marquardt comes from afar; Newton finishes, and carries the derivative.
    search = optx.LevenbergMarquardt(rtol, atol)
    start = optx.least_squares(stationarity, search, jnp.zeros_like(x0), max_steps=max_steps, throw=False).value
    start = stop_gradient(jnp.where(jnp.isfinite(start), start, jnp.zeros_like(start)))
    finish = optx.Newton(rtol, atol)
    return at(optx.root_find(stationarity, finish, start, max_steps=max_steps, throw=False).value)


def _missed(mechanism: Mechanism, errors: Any, atol: float) -> str:
    """Which constraints an assembly could not satisfy, and by how much."""
    found = []
    for i, (constraint, pair) in enumerate(zip(mechanism.constraints, errors, strict=True)):
        for what, error in zip(("position", "velocity"), pair, strict=True):
            error = np.abs(np.asarray(error))
            rows = np.flatnonzero(~(error <= atol))
            if rows.size:
                kind = type(constraint).__name__
                sizes = ", ".join(f"row {row} by {error[row]:.3g}" for row in rows)
                found.append(f"the {what} of constraints[{i}] ({kind}): {sizes}")
    return "Missed: " + "; ".join(found) + "."
