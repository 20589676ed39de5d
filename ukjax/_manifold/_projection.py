"""Back to the constraint manifold.

y = (q, v) side by side; x: q or v; e: constraint errors; J: their Jacobian; d: the way back, J d = -e; D: row scales;
G: metric, W^T W = G^-1; B = D J W^T.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import stop_gradient
from jaxtyping import Array

from .. import _check, _expand
from .._formulation import certainty
from .._linalg import SVD, AbstractDecomposition, pseudosolve, whiten
from .._mechanism import Mechanism
from .._types import BoolScalar, Matrix, Rows, RowValues, Vector
from ._nearest import linearised, with_rows


# Rows that depend on others do so at the state that all of them hold at: off it they are missed by the square of the
# drift. They contradict each other if they are missed by more than this part of what they move.
CURVED = 1e-3
# Next to a singular configuration factors return less exactly than the pseudoinverse does, which leaves rounding errors
# only; so they are trusted this many times as far from it as elsewhere.
FAR = 24.0


class Projection(eqx.Module):
    r"""Returns the state to the constraint manifold after every accepted step, along the shortest way.

    Positions by Newton's method, then velocities by one linear solve (exact if the constraints are linear in v), both
    in the metric of the mass matrix:

    $$q \leftarrow q - M^{-1/2} (J M^{-1/2})^{+}\,\Phi(q, t), \qquad
      v \leftarrow v - M^{-1/2} (A M^{-1/2})^{+}\,[\dot\Phi; \psi](q, v, t)$$

    The initial state and the saved ones are projected too. An `AccelerationConstraint` has nothing to return to.

    Args:
        iterations: Newton steps for the positions. The drift of one integration step is small, so that two leave
            rounding errors only.
        pseudoinverse: The lineax solver for the pseudoinverse. Its rank test decides which directions are corrected:
            close to a singular configuration a small drift along a small singular value would be a long way to go.

    M may be singular: rows are added to it, as J^T J, which changes nothing about which step is the shortest.

    Raises:
        ValueError: If `iterations` is not a positive integer.
        TypeError: If `pseudoinverse` is not a lineax solver.

    Gradients: forward and reverse mode, where the rank of A is locally constant.

    Source: the projection methods for differential-algebraic equations: Hairer & Wanner (1996), Solving Ordinary
    Differential Equations II, VII.2; the metric is Gauss's.
    """

    iterations: int = eqx.field(default=2, converter=lambda x: _check.count(x, "iterations"), static=True)
    pseudoinverse: lx.AbstractLinearSolver = SVD()

    def __check_init__(self):
        _check.instance(self.pseudoinverse, lx.AbstractLinearSolver, "pseudoinverse", "ukjax.SVD()")

    def __call__(self, mechanism: Mechanism, t: Array, y: Array, expand: bool = False) -> Array:
        """The state nearest to y (2n,) that satisfies the constraints; its position first.

        `expand`: whether small mechanisms are computed as scalar code, as in `UdwadiaKalaba`.
        """

        def towards(error: Callable[[Array], Array], q: Array, t: Array, x: Array) -> _Linear:
            M = _check.output(mechanism.system.mass(q, t), (q.shape[0],) * 2, q.dtype, "mass(q, t)")
            return _Linear(x, M, error(x), jax.jacfwd(error)(x))

        to_q = lambda q, t: towards(lambda q: mechanism.position_error(q, t), q, t, q)
        to_v = lambda v, q, t: towards(lambda v: mechanism.velocity_error(q, v, t), q, t, v)
        q, v = jnp.split(y, 2)
        # A loop, however few the steps: one to compile, in each of the three places where a simulation projects.
        q, _ = jax.lax.scan(lambda q, _: (self._step(to_q, (q, t), expand, CURVED), None), q, length=self.iterations)
        return jnp.concatenate([q, self._step(to_v, (v, q, t), expand, 0.0)])

    def _step(self, towards: Callable[..., "_Linear"], state: Sequence[Array], expand: bool, curved: float) -> Array:
        """One step of Newton's method from the first array of a state, the shortest to the linearised constraints.

        What depends on other rows may be missed by the part `curved` of the way, as a further step follows.
        """
        x = state[0]
        m = jax.eval_shape(towards, *state).e.shape[0]
        if not m:
            return x
        found, solver = None, self.pseudoinverse
        if expand and isinstance(solver, AbstractDecomposition):
            # The residual is that of a least-squares problem, and no more than rounding where that can be solved.
            certain = certainty(solver, 1e-6, m, x.dtype)
            certain = certain._replace(rank=FAR * certain.rank)
            as_scalars = lambda *state: _by_factors(certain, curved, towards(*state))
            by_matrices = lambda *state: _by_pseudoinverse(solver, towards(*state))
            found = _expand.scalar_or(by_matrices, as_scalars, _expand.MOST_OPERATIONS, state)
        return _by_pseudoinverse(solver, towards(*state)) if found is None else found


class _Linear(NamedTuple):
    """Constraints near x, and the metric M."""

    x: Vector
    M: Matrix
    e: RowValues
    J: Rows


def _by_pseudoinverse(solver: lx.AbstractLinearSolver, at: _Linear) -> Array:
    """x - W^T B^+ D e"""
    rows = linearised(at.e, at.J)
    _, W, _ = whiten(with_rows(at.M, rows.rows))
    return at.x - W.T @ pseudosolve(solver, rows.rows @ W.T, rows.error)[0]


def _by_factors(certain: _expand.Certain, curved: float, at: _Linear) -> tuple[Array, BoolScalar, BoolScalar]:
    """x + d with M d = J^T l, J d = -e, whether that is certain, and whether its derivatives are."""
    least, rest = certain.dependent**2, jnp.zeros_like(at.x)
    way, multipliers = _expand.constrained(least, at.M, rest, at.J, -at.e)
    (x, M, e, J), d, multipliers = stop_gradient((at, way, multipliers))
    S = _expand.RowsThroughMass.of(M, J, least).S
    rows = _expand.pivots(S, least)
    push = jnp.sqrt(jnp.abs(multipliers @ e))
    missed = e + J @ d
    # Of the way, and of what rounding makes of the state.
    part = curved * push + 4 * jnp.finfo(e.dtype).eps * jnp.sqrt(jnp.abs(x @ (M @ x)))
    near = jnp.abs(missed) <= part * jnp.sqrt(jnp.abs(jnp.diag(S)))
    missed = jnp.where(~rows.kept & near, 0.0, missed)
    clear = _expand.are_clear(certain, S, rows, jnp.zeros_like(e), e, missed, push) & _expand.is_definite(certain, M)
    clear &= jnp.isfinite(jnp.sum(d))
    return at.x + way, clear, clear & jnp.all(rows.kept)
