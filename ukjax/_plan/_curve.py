"""Controls over time: piecewise constant, piecewise linear, or cubic splines, by B-splines.

K: control points; p: actuators; s: part of the duration that has passed, from 0 to 1; B_i(s): basis.
"""

import functools
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


Kind = Literal["constant", "linear", "cubic"]
DEGREE = {"constant": 0, "linear": 1, "cubic": 3}


class Curve(eqx.Module):
    r"""The curve u(t) = \sum_i B_i((t - start) / duration) z_i, constant before its start and after its end.

    Attributes:
        points: Control points z (K, p); no control is larger than the largest of them.
        start: Time at which the curve begins [s].
        duration: Duration of the curve [s].
        kind: "constant", "linear" or "cubic".
    """

    points: Float[Array, "K p"]
    start: Float[Array, ""]
    duration: Float[Array, ""]
    kind: Kind = eqx.field(static=True)

    def __call__(self, t: Array) -> Array:
        """Returns u (p,) at a time."""
        pieces = _pieces(self.kind, self.points.shape[0])
        intervals, degree = pieces.shape[2], pieces.shape[1] - 1
        s = (t - self.start) / self.duration
        # Not `clip`: its slope at an end, where many motions end too, is half of the slope beside it.
        edge = 64 * jnp.finfo(s.dtype).eps
        s = jnp.where(s < -edge, 0.0, jnp.where(s > 1 + edge, 1.0, s)) * intervals
        i = jnp.clip(jnp.floor(s).astype(int), 0, intervals - 1)
        # Integer exponents: the derivative of x ** 0.0 at zero is NaN.
        powers = jnp.stack([(s - i.astype(s.dtype)) ** k for k in range(degree + 1)])
        weights = jnp.take(jnp.asarray(pieces, self.points.dtype), i, axis=2) @ powers
        return weights @ self.points

    def effort(self, weights: Any) -> Array:
        r"""Returns $\int u^\top W u\,dt$ for weights (p,), exactly."""
        H = jnp.asarray(_products(self.kind, self.points.shape[0]), self.points.dtype)
        return self.duration * jnp.sum(weights * jnp.sum(self.points * (H @ self.points), axis=0))


def kind_of(value: Any) -> Kind:
    """Returns the argument `curve`; raises ValueError if it is invalid."""
    if value not in get_args(Kind):
        raise ValueError(f"curve must be one of {', '.join(map(repr, get_args(Kind)))}, but is {value!r}.")
    return value


@functools.cache
def _pieces(kind: Kind, K: int) -> np.ndarray:
    """Returns the coefficients of every B_i in every interval, by powers within it: (K, degree + 1, n)."""
    from scipy.interpolate import BSpline

    degree = DEGREE[kind]
    intervals = K - degree
    knots = np.concatenate([np.zeros(degree), knots_of(kind, K), np.ones(degree)])
    nodes = (np.arange(degree + 1) + 0.5) / (degree + 1)
    powers = nodes[:, None] ** np.arange(degree + 1)
    pieces = np.zeros((K, degree + 1, intervals))
    for i in range(K):
        basis = BSpline(knots, np.eye(K)[i], degree)
        for j in range(intervals):
            pieces[i, :, j] = np.linalg.solve(powers, basis((j + nodes) / intervals))
    return pieces


@functools.cache
def _products(kind: Kind, K: int) -> np.ndarray:
    """Returns the integral of B_i B_j from 0 to 1, (K, K)."""
    pieces = _pieces(kind, K)
    degree, intervals = pieces.shape[1] - 1, pieces.shape[2]
    # The integrals of s^a s^b over an interval.
    hilbert = 1.0 / (np.arange(degree + 1)[:, None] + np.arange(degree + 1)[None] + 1.0)
    return np.einsum("iaj,ab,kbj->ik", pieces, hilbert, pieces) / intervals


def root_of_effort(kind: Kind, K: int) -> np.ndarray:
    """Returns R (K, K) with R R^T the integral of B_i B_j from 0 to 1: for z = R^-T y the effort is y^T y."""
    return np.linalg.cholesky(_products(kind, K))


def knots_of(kind: Kind, K: int) -> np.ndarray:
    """Returns the knots, ends included, as parts of the duration."""
    return np.linspace(0.0, 1.0, K - DEGREE[kind] + 1)


def least_points(kind: Kind) -> int:
    """Returns the least number of control points."""
    return DEGREE[kind] + 1
