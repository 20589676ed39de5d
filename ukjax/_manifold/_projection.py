"""Back to the constraint manifold.

y = (q, v) side by side; e: constraint errors; J: their Jacobian; G: metric; W^T W = G^-1; D: row scales.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .. import _check
from .._formulation import row_scales, unit_size
from .._linalg import SVD, pseudosolve, whiten
from .._mechanism import Mechanism


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

    M may be singular: rows are added to it, as J^T J, which changes nothing about which state is the nearest.

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

    def __call__(self, mechanism: Mechanism, t: Array, y: Array) -> Array:
        """The state nearest to y (2n,) that satisfies the constraints; its position first."""
        q, v = jnp.split(y, 2)
        M = _check.output(mechanism.system.mass(q, t), (q.shape[0],) * 2, q.dtype, "mass(q, t)")
        q = self._nearest(lambda x: mechanism.position_error(x, t), q, M, self.iterations)
        v = self._nearest(lambda x: mechanism.velocity_error(q, x, t), v, M, 1)
        return jnp.concatenate([q, v])

    def _nearest(self, error: Callable[[Array], Array], x: Array, M: Array, iterations: int) -> Array:
        if jax.eval_shape(error, x).shape[0] == 0:
            return x
        W = None
        for _ in range(iterations):
            J = jax.jacfwd(error)(x)
            D = row_scales(J)
            J = D[:, None] * J
            if W is None:
                _, W, _ = whiten(unit_size(M) * M + J.T @ J)
            x = x - W.T @ pseudosolve(self.pseudoinverse, J @ W.T, D * error(x))[0]
        return x
