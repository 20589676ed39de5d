"""The nearest state on the constraint manifold, for assembly and projection.

x: q or v; d = x - x0: the way to it; e: constraint errors; J: their Jacobian; D and E: scales of rows and coordinates
for which the entries of B = D J E are about one, whatever the units and the masses; K = E M E.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.lax import stop_gradient
from jax.typing import DTypeLike
from jaxtyping import Array

from .. import _expand
from .._formulation import balancing_scales, coordinate_scales, shifted
from .._linalg import SVD, pseudoinverse, whiten
from .._program import hoist
from .._result import RESULTS, worst
from .._rounding import relative_rounding, rounding_errors
from .._types import Matrix, Rows, RowValues, Vector


# Newton's method has converged where the residual, of an unknown of about one, is less than this.
MET = 1e-9


class Rounding(NamedTuple):
    """Sizes of the rounding errors of the constraint errors (m,), and of their Jacobian (m, n)."""

    error: RowValues
    rows: Rows

    @property
    def terms(self) -> RowValues:
        """Sizes of the terms of the errors (m,)."""
        return self.error / relative_rounding(self.error.dtype)

    @property
    def levers(self) -> Rows:
        """Sizes that the rows (m, n) would have if none of their terms cancelled."""
        return self.rows / relative_rounding(self.rows.dtype)

    def without(self, e: RowValues, J: Rows) -> tuple[RowValues, Rows]:
        """Returns e and J with zero for rows that are nothing but rounding errors, as these can't be met or missed."""
        none = stop_gradient(jnp.all(jnp.abs(J) <= self.rows, axis=1))
        return jnp.where(none, 0, e), jnp.where(none[:, None], 0, J)


class Nearest(NamedTuple):
    """The nearest state, and what is known about its accuracy.

    x: the state (n,); `error`, `rows`: the errors there (m,), and their Jacobian (m, n); `result`: the `RESULTS` of the
    metric; `rounding`: errors of the rows at the start of the search; `of_state`: rounding errors of x (n,).
    """

    x: Vector
    error: RowValues
    rows: Rows
    result: RESULTS
    rounding: Rounding
    of_state: Vector


class Errors:
    """The errors of the states x0 + d, in which entries that are `kept` stay, as functions of the others' d (n,).

    Attributes:
        whole: x -> the errors (m,), and their Jacobian by all entries.
        free: Indices of the entries that change.
        rounding: Rounding errors at x0, of rows for all entries.
    """

    def __init__(self, error: Callable[[Array], Array], x0: Vector, kept: Sequence[int]):
        linearised = hoist(lambda x: (error(x), jax.jacfwd(error)(x)), x0)
        self._alone = _expand.scalars(lambda x: linearised(x)[0], x0)
        self.x0, self.free = x0, np.setdiff1d(np.arange(x0.shape[0]), kept)
        self.whole = _expand.scalars(linearised, x0)
        self.rounding = Rounding(*rounding_errors(linearised, x0, lowered=_expand.scalars))

    def place(self, d: Vector) -> Vector:
        """Returns x0 + d."""
        return self.x0.at[self.free].add(d)

    def alone(self, d: Vector) -> RowValues:
        """Returns the errors."""
        return self._alone(self.place(d))

    def linearised(self, d: Vector) -> tuple[RowValues, Rows]:
        """Returns the errors, and their Jacobian by d, zero for rows that are nothing but rounding errors at x0."""
        e, J = self.whole(self.place(d))
        return self.of_d.without(e, J[:, self.free])

    @property
    def of_d(self) -> Rounding:
        """The rounding errors at x0, of rows for d."""
        return Rounding(self.rounding.error, self.rounding.rows[:, self.free])


def nearest(
    error: Callable[[Array], Array],
    x0: Vector,
    M: Matrix,
    max_steps: int,
    affine: bool = False,
    kept: Sequence[int] = (),
) -> Nearest:
    r"""Returns the x with error(x) = 0 for which d^T M d is stationary: as a rule the nearest, from any start.

    d = E y. Let B = D J E and r = B^+ D e; let N = 1 - B^+ B be the projection onto the null space of B, and K = E M E.
    The state is where r + H N K (y - r) = 0, for any positive definite H that commutes with N: there e = 0, and M d is
    in the row space of J. Unlike the multiplier's equations this equation stays regular where rows are redundant. With
    H = (N K N + h B^+ B)^-1 its Jacobian is the identity but for the curvature of the constraints, however much the
    masses differ, and where M is singular.

    `affine`: whether `error` is affine, so that one step leads to the solution. `kept`: indices of entries of x that
    stay; d, y and the columns of J are those of the others.
    """
    errors = Errors(error, x0, kept)
    rounding, n = errors.of_d, len(errors.free)
    if 0 in rounding.rows.shape:
        none = jax.tree_util.tree_map(jnp.zeros_like, errors.rounding)
        e, J = errors.whole(x0)
        return Nearest(x0, e, J, RESULTS.successful, none, jnp.zeros_like(x0))
    M, rest = M[errors.free][:, errors.free], jnp.zeros(n, x0.dtype)
    e, J = errors.linearised(rest)
    C = coordinate_scales(M, J)
    D, E = balancing_scales(jnp.maximum(rounding.levers, jnp.abs(stop_gradient(J))), C)
    K, B = E[:, None] * M * E[None], D[:, None] * J * E[None]
    h = _positive(jnp.max(jnp.abs(jnp.diagonal(K))))  # the heaviest coordinate
    candidates = [K, K + h * B.T @ B, E[:, None] * shifted(M, C) * E[None]]
    _, Ws, (definite, regular, semidefinite) = jax.vmap(whiten)(jnp.stack(candidates))
    _, size = _sizes(e, J, jnp.diag(E), rounding)
    unit = size * E  # in which y is about one

    def stationarity(y: Vector, constant: Callable[[Matrix], Matrix] = lambda H: H) -> Vector:
        e, J = errors.linearised(unit * y)
        B = D[:, None] * J * E[None]
        back, _ = pseudoinverse(SVD(), B)
        across = back @ B
        N = jnp.eye(n, dtype=y.dtype) - across
        _, W, _ = whiten(constant(N @ K @ N + h * across))
        r = back @ (D * e) / size
        return r + W.T @ (W @ (N @ (K @ (y - r))))

    if affine:
        # One step leads to the solution, and another removes rounding errors.
        y, _ = jax.lax.scan(lambda y, _: (y - stationarity(y), None), rest, length=2)
    else:

        def search(W: Matrix) -> Vector:
            W = W * E[None]
            lengths, far = _sizes(e, J, W, rounding)
            z = _coarse_search(lambda z: lengths / far * errors.alone(far * W.T @ z), rest, max_steps)
            return far * W.T @ z / unit

        metrics = jnp.stack([jnp.where(definite, Ws[0], Ws[1]), jnp.where(regular, Ws[1], Ws[0])])

        def residual(y: Vector, _) -> Vector:
            # Where N K (y - r) vanishes, the derivative of H does not count.
            return stationarity(y, stop_gradient)

        y = root(residual, _start(search, metrics, residual, max_steps), max_steps)
    result = worst(
        RESULTS.where(semidefinite, RESULTS.successful, RESULTS.mass_indefinite),
        RESULTS.where(definite | regular, RESULTS.successful, RESULTS.nearest_not_unique),
    )
    x, of_d = errors.place(unit * y), relative_rounding(x0.dtype) * unit * jnp.linalg.norm(stop_gradient(y))
    e, J = errors.whole(x)
    return Nearest(x, e, J, result, errors.rounding, jnp.zeros_like(x0).at[errors.free].set(of_d))


def _start(search: Callable[[Matrix], Vector], metrics: Array, residual: Callable, max_steps: int) -> Vector:
    """The root of `residual` that Newton's method finds from where `search` leads in the first of the metrics that can.

    In the metric of M the search ends near the closest state. But where a light body is between others it may end
    elsewhere, and then the rows are to be added to the metric.
    """

    def found(W: Matrix) -> tuple[Vector, Array]:
        y = root(residual, search(W), max_steps)
        size = jnp.linalg.norm(residual(y, None))
        return y, jnp.where(jnp.isfinite(size), size, jnp.inf)

    roots, sizes = jax.lax.map(found, metrics)
    return stop_gradient(roots[jnp.argmin(jnp.maximum(sizes, MET))])


def _positive(x: Array) -> Array:
    """Returns x where it is positive, else one."""
    return jnp.where(x > 0, x, 1.0)


def _sizes(e: RowValues, J: Rows, W: Matrix, rounding: Rounding) -> tuple[RowValues, Array]:
    """Returns factors that bring the errors to the unit of z (m,), and the size of z and of the terms of the errors.

    A row that vanishes here gives neither. It gets the length of its terms at the size of z, or of its levers if
    longer.
    """
    e, J, W = stop_gradient((e, J, W))
    lengths, levers = jnp.linalg.norm(J @ W.T, axis=1), jnp.linalg.norm(rounding.levers @ jnp.abs(W).T, axis=1)
    real = lengths > 0
    longer = _positive(jnp.where(real, lengths, levers))
    # If no row has a length here, all rows count.
    sizes = jnp.where(real | ~jnp.any(real), rounding.terms / longer, 0)
    size = _positive(jnp.linalg.norm(e / longer) + jnp.max(sizes))
    return 1 / _positive(jnp.where(real, lengths, jnp.maximum(levers, rounding.terms / size))), size


def _coarse_search(error: Callable[[Array], Array], z: Array, max_steps: int) -> Array:
    """Minimises 0.05^2 |z|^2 + |error|^2, which leads close to the shortest z without error, for rows of unit length.

    The size of the stationarity itself has minima that are not zeros, in which Levenberg-Marquardt may stop. With a
    smaller weight the search reaches places where Newton's method diverges; with a larger one it stays away from the
    constraints.
    """

    def far(z: Array, _) -> Array:
        return jnp.concatenate([0.05 * z, error(z)])

    search = optx.LevenbergMarquardt(1e-6, 1e-9, linear_solver=exact(z.dtype))
    found = optx.least_squares(far, search, z, max_steps=max_steps, throw=False).value
    return stop_gradient(jnp.where(jnp.isfinite(found), found, z))


def root(residual: Callable, z: Array, max_steps: int) -> Array:
    """Solves `residual(z, None)` = 0 by Newton's method from nearby, with derivatives."""
    eps = float(jnp.finfo(z.dtype).eps)
    rtol = atol = 64 * eps
    solver = exact(z.dtype)
    # Newton's method carries the derivative.
    finish, adjoint = optx.Newton(rtol, atol, linear_solver=solver), optx.ImplicitAdjoint(linear_solver=solver)
    return optx.root_find(residual, finish, z, max_steps=max_steps, throw=False, adjoint=adjoint).value


def exact(dtype: DTypeLike) -> SVD:
    """Returns an `SVD` that drops rounding errors only; in a batch lineax's own solvers would call LAPACK."""
    return SVD(rtol=16 * float(jnp.finfo(dtype).eps))
