"""The nearest state on the constraint manifold: what assembly and projection share.

x: q or v; d = x - x0: the way to it; e: constraint errors; J: their Jacobian; D: row scales; G: metric,
W^T W = G^-1; B = D J W^T: the rows in the coordinates in which G is the identity.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optimistix as optx
from jax.lax import stop_gradient
from jaxtyping import Array

from .._formulation import row_scales, unit_size
from .._linalg import SVD, pseudoinverse, pseudosolve, whiten
from .._result import RESULTS, worst
from .._rounding import relative_rounding, rounding_errors
from .._types import Matrix, Rows, RowValues, Vector


class Linearised(NamedTuple):
    """Constraints near a state, rows brought to about the same length: D e (m,), D J (m, n) and D (m,)."""

    error: RowValues
    rows: Rows
    scales: RowValues


class Rounding(NamedTuple):
    """Sizes of the rounding errors of the constraint errors (m,), and of their Jacobian (m, n)."""

    error: RowValues
    rows: Rows

    @property
    def lengths(self) -> RowValues:
        """Lengths of the rows (m,), as they would be if none of their terms cancelled."""
        return jnp.linalg.norm(self.rows, axis=1) / relative_rounding(self.rows.dtype)


class Nearest(NamedTuple):
    """The nearest state (n,), the `RESULTS` of the metric, and the rounding errors at the state it was sought from."""

    x: Vector
    result: Any
    rounding: Rounding


def linearise(error: Callable[[Array], Array], x: Vector, rounding: Rounding | None = None) -> Linearised:
    """The constraints near x; rows that are nothing but rounding errors are zero, as they can't be met or missed."""
    return linearised(error(x), jax.jacfwd(error)(x), rounding)


def linearised(e: RowValues, J: Rows, rounding: Rounding | None = None) -> Linearised:
    """A row's own unit must not matter to the rank test of a pseudoinverse: hence D."""
    if rounding is not None:
        none = stop_gradient(jnp.all(jnp.abs(J) <= rounding.rows, axis=1))
        e, J = jnp.where(none, 0, e), jnp.where(none[:, None], 0, J)
    D = row_scales(J, all_are_real=rounding is not None)
    return Linearised(D * e, D[:, None] * J, D)


def with_rows(M: Matrix, rows: Rows) -> Matrix:
    r"""G = s M + (D J)^T D J, with s near 1 / max M: definite where M is not, if [M; J] has full rank.

    It leads to the same state as M if the constraints are linear: the way d is stationary in the metric M where
    M d = J^T lambda for some lambda, and then G d = J^T lambda' for another one, and conversely.
    """
    return unit_size(M) * M + rows.T @ rows


def nearest(error: Callable[[Array], Array], x0: Vector, M: Matrix, max_steps: int, affine: bool = False) -> Nearest:
    r"""The x with error(x) = 0 for which d^T M d is stationary: as a rule the nearest one, from anywhere.

    With d = W^T z and K = W M W^T the gradient of d^T M d is 2 K z in these coordinates. It must lie in the row space
    of B, and e must vanish: K z - B^+ (B K z - D e) = 0. Unlike the multiplier's equations these stay regular when rows
    are redundant: where M is positive definite it is the metric, K is the identity, and so is the Jacobian, but for the
    curvature of the constraints. Where M is singular the rows at x0 are added to the metric, but M remains in K, so
    that also on curved constraints the state is the one that M asks for.

    `affine`: whether `error` is, so that one step leads there.
    """
    m, n = jax.eval_shape(error, x0).shape[0], x0.shape[0]
    if m == 0 or n == 0:
        return Nearest(x0, RESULTS.successful, Rounding(jnp.zeros(m, x0.dtype), jnp.zeros((m, n), x0.dtype)))
    identity = jnp.eye(x0.shape[0], dtype=x0.dtype)
    shift = jnp.sqrt(jnp.finfo(x0.dtype).eps) * jnp.max(jnp.abs(M))
    # All at a time: one kernel to compile.
    rounding = Rounding(*rounding_errors(lambda x: (error(x), jax.jacfwd(error)(x)), x0))
    here = linearise(error, x0, rounding)
    candidates = [M, with_rows(M, here.rows), M + shift * identity]
    _, Ws, (definite, regular, semidefinite) = jax.vmap(whiten)(jnp.stack(candidates))
    W = jnp.where(definite, Ws[0], Ws[1])
    K = jnp.where(definite, identity, unit_size(M) * W @ M @ W.T)

    def stationarity(z, _):
        at = linearise(error, x0 + W.T @ z, rounding)
        B, w = at.rows @ W.T, K @ z
        return w - pseudosolve(SVD(), B, B @ w - at.error)[0]

    if affine:
        x = _in_one_step(x0, here, W, K)
    else:
        lengths = jnp.linalg.norm(here.rows @ W.T, axis=1)
        terms = jnp.where(rounding.lengths > 0, rounding.lengths, 1)  # of rows that vanish here
        unit = jnp.where(lengths > 0, here.scales / jnp.where(lengths > 0, lengths, 1), 1 / terms)
        start = _from_afar(lambda z: unit * error(x0 + W.T @ z), jnp.zeros_like(x0), max_steps)
        x = x0 + W.T @ root(stationarity, start, max_steps)
    result = worst(
        RESULTS.where(semidefinite | (shift == 0), RESULTS.successful, RESULTS.mass_indefinite),
        RESULTS.where(definite | regular, RESULTS.successful, RESULTS.nearest_not_unique),
    )
    return Nearest(x, result, rounding)


def _in_one_step(x0: Vector, here: Linearised, W: Matrix, K: Matrix) -> Vector:
    """Where K z - B^+ (B K z - D e) = 0 for D e = D e(x0) + B z; refined once, for what rounding leaves."""
    B = here.rows @ W.T
    back, _ = pseudoinverse(SVD(), B)
    onto = back @ B
    N = K - onto @ K + onto
    step = lambda e: W.T @ pseudosolve(exact(x0.dtype), N, back @ e)[0]
    way = step(here.error)
    return x0 - way - stop_gradient(step(here.error - here.rows @ way))


def _from_afar(error: Callable[[Array], Array], z: Array, max_steps: int) -> Array:
    """Where 0.05^2 |z|^2 + |error|^2 is least: a little before the shortest z with no error, if rows have unit length.

    The size of the stationarity itself has minima that are no zeros: of a closed chain of 20 rods with light ends
    Levenberg-Marquardt stopped in one from every third start. With a smaller weight it gets to places where Newton's
    method turns away, with a larger one it stays away from the constraints.
    """
    far = lambda z, _: jnp.concatenate([0.05 * z, error(z)])
    search = optx.LevenbergMarquardt(1e-6, 1e-9, linear_solver=exact(z.dtype))
    found = optx.least_squares(far, search, z, max_steps=max_steps, throw=False).value
    return stop_gradient(jnp.where(jnp.isfinite(found), found, z))


def root(residual: Callable, z: Array, max_steps: int) -> Array:
    """Where `residual(z, None)` vanishes, by Newton's method from near there, with its derivatives."""
    eps = float(jnp.finfo(z.dtype).eps)
    rtol = atol = 64 * eps
    solver = exact(z.dtype)
    # Newton's method carries the derivative.
    finish, adjoint = optx.Newton(rtol, atol, linear_solver=solver), optx.ImplicitAdjoint(linear_solver=solver)
    return optx.root_find(residual, finish, z, max_steps=max_steps, throw=False, adjoint=adjoint).value


def exact(dtype: Any) -> SVD:
    """It drops nothing but rounding errors; in a batch lineax's own solvers would hand it to LAPACK."""
    return SVD(rtol=16 * float(jnp.finfo(dtype).eps))
