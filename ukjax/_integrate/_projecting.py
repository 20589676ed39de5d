"""A Runge-Kutta method that ends every step on the constraint manifold."""

import diffrax
import equinox as eqx

from ._flow import Problem


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


def solver_of(problem: Problem, adjoint: diffrax.AbstractAdjoint) -> diffrax.AbstractSolver:
    """The solver of `problem`, with its projection and the loop over the stages that diffrax takes under `adjoint`."""
    solver, simple = problem.solver, isinstance(adjoint, diffrax.ForwardMode)
    projects = problem.flow.project is not None
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None and (simple or projects):
        kind = "lax" if simple else "bounded"
        solver = eqx.tree_at(lambda s: s.scan_kind, solver, kind, is_leaf=lambda x: x is None)
    return Projecting(solver) if projects else solver
