"""A method whose steps are made by the mechanism itself, because they take more than its accelerations."""

from typing import Any

import diffrax
import equinox as eqx


class Rattle(diffrax.AbstractSolver):
    r"""RATTLE: the structure-preserving step for holonomic constraints, for runs of millions of steps.

    $$\begin{aligned}
    v_{1/2} &= v_0 + \tfrac h2 M^{-1}(Q(q_0) + A_0^\top\lambda), & q_1 &= q_0 + h\,v_{1/2}, & \Phi(q_1) &= 0 \\
    v_1 &= v_{1/2} + \tfrac h2 M^{-1}(Q(q_1) + A_1^\top\mu), & & & A_1 v_1 &= 0
    \end{aligned}$$

    It is symplectic and reversible: the energy of a conservative mechanism swings about its value by a part that grows
    with the square of the step, and does not drift. Its order is two. Constraints hold to rounding, whether rows are
    redundant or not, without a projection. For `simulate(..., solver=Rattle(), stepsize_controller=
    diffrax.ConstantStepSize(), dt0=...)`.

    It takes a constant mass matrix, as mechanisms in absolute coordinates have it, and holonomic constraints; a force
    that depends on velocities (friction) is taken in the middle of the step, which keeps the order and loses what is
    symplectic.

    Args:
        iterations: Of the multipliers lambda, by Newton's method with the rows at q_0: each gains as many digits as the
            step has.

    Raises:
        ValueError: If `iterations` is not a positive integer; by `simulate`, if the mechanism or an option does not
            fit.

    Gradients: as those of `simulate`.

    Source: Andersen (1983); Leimkuhler & Skeel (1994); Hairer, Lubich & Wanner (2006), Geometric Numerical Integration,
    VII.1.
    """

    iterations: int = eqx.field(default=6, static=True)

    term_structure = diffrax.AbstractTerm
    interpolation_cls = diffrax.LocalLinearInterpolation

    def __check_init__(self):
        if isinstance(self.iterations, bool) or not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(f"iterations must be a positive integer, but is {self.iterations!r}.")

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
