"""RATTLE, a method whose steps are made by the mechanism itself, because they need more than its accelerations."""

from typing import Any

import diffrax
import equinox as eqx
import jax.numpy as jnp

from .. import _check


class Between(diffrax.AbstractLocalInterpolation):
    """Positions and speeds between the ends of a step, to third order of its length, without regard to constraints.

    q is the cubic with the positions and speeds at both ends. Its rate is no speed of the method, which leaps, so that
    (q1 - q0) / h is (v0 + v1) / 2 - h (a1 - a0) / 4, where a motion would have a third of the last term. v is the
    parabola through v0 and v1 whose second derivative is (a1 - a0) / h. It is the same seen from either end.
    """

    t0: Any
    t1: Any
    y0: Any
    y1: Any

    def evaluate(self, t0, t1=None, left=True):
        if t1 is not None:
            return self.evaluate(t1) - self.evaluate(t0)
        h = self.t1 - self.t0
        part = (t0 - self.t0) / h
        (q0, v0), (q1, v1) = jnp.split(self.y0, 2), jnp.split(self.y1, 2)
        curve = diffrax.ThirdOrderHermitePolynomialInterpolation(
            t0=self.t0, t1=self.t1, y0=q0, y1=q1, k0=h * v0, k1=h * v1
        )
        leapt = (q1 - q0) / h - (v0 + v1) / 2
        v = v0 + part * (v1 - v0) + 2 * part * (1 - part) * leapt
        y = jnp.concatenate([curve.evaluate(t0), v])
        return jnp.where(t0 == self.t0, self.y0, jnp.where(t0 == self.t1, self.y1, y))


class Rattle(diffrax.AbstractSolver):
    r"""The structure-preserving step RATTLE for holonomic constraints, for runs of millions of steps.

    $$\begin{aligned}
    v_{1/2} &= v_0 + \tfrac h2 M^{-1}(Q(q_0, v_0) + A_0^\top\lambda), & q_1 &= q_0 + h\,v_{1/2}, & \Phi(q_1) &= 0 \\
    v_1 &= v_{1/2} + \tfrac h2 M^{-1}(Q(q_1, v_1) + A_1^\top\mu), & & & A_1 v_1 &= 0
    \end{aligned}$$

    RATTLE is symplectic and reversible: the energy of a conservative mechanism swings about its value by a part that
    grows with the square of the step, and does not drift. Its order is two. Constraints hold to rounding, whether rows
    are redundant or not, without a projection. Pass it as `simulate(..., solver=Rattle(), stepsize_controller=
    diffrax.ConstantStepSize(), dt0=...)`.

    It needs a constant mass matrix, as mechanisms in absolute coordinates have it, and holonomic constraints. A force
    that depends on velocities (drag, a magnetic or a gyroscopic one) is taken at the speeds at both ends of the step,
    for which the second half solves an equation in v_1. The order stays two, and a step back still undoes a step.

    Steps have equal length: dt0, or the longest below it of which the span is a multiple. A saved time between two
    steps changes none of them: the state there is interpolated to third order and led to the constraints, to rounding.

    Args:
        iterations: Iterations for the multipliers lambda, by Newton's method with the rows at q_0: each gains as many
            digits as the step has.

    Raises:
        ValueError: If `iterations` is not a positive integer; by `simulate`, if the mechanism or an option does not
            fit.

    Gradients: as those of `simulate`.

    Source: Andersen (1983); Leimkuhler & Skeel (1994); Hairer, Lubich & Wanner (2006), Geometric Numerical Integration,
    VII.1.
    """

    iterations: int = eqx.field(static=True)

    def __init__(self, iterations: Any = 6):
        self.iterations = _check.count(iterations, "iterations")

    term_structure = diffrax.AbstractTerm
    interpolation_cls = Between

    def order(self, terms):
        return 2

    def init(self, terms, t0, t1, y0, args):
        return None

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, met = args.leap(t0, t1, y0)
        okay: Any = diffrax.RESULTS.successful
        lost: Any = diffrax.RESULTS.nonlinear_divergence
        return y1, None, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.where(met, okay, lost)

    def func(self, terms, t0, y0, args):
        return terms.vf(t0, y0, args)
