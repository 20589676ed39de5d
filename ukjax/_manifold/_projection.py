"""Back to the constraint manifold.

y = (q, v) side by side.
"""

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from .. import _check
from .._linalg import SVD
from .._mechanism import Mechanism
from ._nearest import newton


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

    M may be singular: rows are added to it, as J^T J, which changes nothing about which state is the nearest on linear
    constraints, nor about a single step of Newton's method. Where constraints are curved, the second step is the
    shortest one in the metric with the rows of the first: a difference of third order in the drift.

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
        q = newton(lambda x: mechanism.position_error(x, t), q, M, self.pseudoinverse, self.iterations)
        v = newton(lambda x: mechanism.velocity_error(q, x, t), v, M, self.pseudoinverse, 1)
        return jnp.concatenate([q, v])
