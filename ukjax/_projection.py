"""Back to the constraint manifold.

y = (q, v) side by side; e: constraint errors; J: their Jacobian; G: metric; W^T W = G^-1; D: row scales.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array

from . import _check
from ._formulation import row_scales, unit_size
from ._linalg import SVD, pseudosolve, whiten
from ._mechanism import Mechanism


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


class Projecting(diffrax.AbstractAdaptiveSolver):
    """A Runge-Kutta method whose every step ends with `args.project`.

    The stage that a method would hand on to its next step belongs to the state before the projection; it is evaluated
    anew, as after a jump. Otherwise the method would lose its order.

    Not an `AbstractWrappedSolver`: the adjoints would take it for the Runge-Kutta method that it wraps, and set fields
    which it has not.
    """

    solver: diffrax.AbstractSolver

    @property
    def term_structure(self):
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore
        return self.solver.interpolation_cls

    @property
    def term_compatible_contr_kwargs(self):
        return self.solver.term_compatible_contr_kwargs

    def order(self, terms):
        return self.solver.order(terms)

    def strong_order(self, terms):
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(terms, t0, t1, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, error, dense, state, result = self.solver.step(terms, t0, t1, y0, args, solver_state, made_jump=True)
        return args.project(t1, y1), error, dense, state, result

    def func(self, terms, t0, y0, args):
        return self.solver.func(terms, t0, y0, args)


def projecting(solver: diffrax.AbstractSolver, adjoint: diffrax.AbstractAdjoint) -> Projecting:
    """`solver` with projection, and the loop over the stages that diffrax takes under this adjoint."""
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None:
        kind = "lax" if isinstance(adjoint, diffrax.ForwardMode) else "bounded"
        solver = eqx.tree_at(lambda s: s.scan_kind, solver, kind, is_leaf=lambda x: x is None)
    return Projecting(solver)
