"""A step of a Runge-Kutta method as a function that can be differentiated, and where steps have to end.

Methods whose steps differ end every step on the constraint manifold, or evaluate their stages differently.

Steps end where a sampled controller takes its samples, and become short where a control meets a limit. The motion has a
kink at a limit. The derivative of a step across it has an error that grows with the length of the step, however small
the error of the state is. So steps approach the kink, and a very short one goes across.

g: functions of the state that change their signs at kinks (k,), as `Dynamics.kinks(t, y)`.
"""

import functools as ft
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.lax import stop_gradient
from jaxtyping import Array, ArrayLike, PyTree

from ._march import Dynamics, IntegrationProblem, advance, vector_field, where


T = TypeVar("T")


def replayable(problem: IntegrationProblem) -> bool:
    """Whether a step depends on nothing but the state at its start."""
    return problem.flow.leap is not None or isinstance(problem.solver, diffrax.AbstractRungeKutta)


def step(problem: IntegrationProblem, t0: Array, t1: Array, y: Array, flow: Dynamics) -> tuple[Array, PyTree]:
    """The state at t1, and the data of the interpolant between t0 and t1."""
    if flow.leap is not None:
        y1, _ = flow.leap(t0, t1, y)
        dense = {"y0": y, "y1": y1}
    elif isinstance(problem.solver, diffrax.AbstractERK):
        y1, dense = Explicit.of(problem.solver, t0, t1).step(y, flow)
    else:
        # The only kind of loop over the stages that diffrax can differentiate in both modes.
        solver = eqx.tree_at(lambda s: s.scan_kind, problem.solver, "bounded", is_leaf=lambda x: x is None)
        term = diffrax.ODETerm(vector_field)
        state = solver.init(term, t0, t1, y, flow)
        y1, _, dense, _, _ = solver.step(term, t0, t1, y, flow, state, made_jump=False)
    return (y1 if flow.project is None else flow.project(t1, y1)), dense


class Explicit(NamedTuple):
    """An explicit method over one step: k_i = h field(t_i, y + a_i k), y1 = y + b k; s stages."""

    a: Array  # (s, s), strictly lower triangular
    b: Array  # (s,)
    times: Array  # (s,)
    h: Array
    b_error: np.ndarray  # (s,), b less that of the embedded method

    @classmethod
    def of(cls, solver: diffrax.AbstractERK, t0: Array, t1: Array) -> "Explicit":
        tableau = solver.tableau
        assert isinstance(tableau, diffrax.ButcherTableau)
        h, stages = t1 - t0, tableau.b_sol.shape[0]
        a = [np.pad(row, (0, stages - len(row))) for row in ((), *tableau.a_lower)]
        times = t0 + h * jnp.array([0.0, *tableau.c], h.dtype)
        return cls(jnp.array(a, h.dtype), jnp.asarray(tableau.b_sol, h.dtype), times, h, tableau.b_error)

    def step(self, y: Array, flow: Dynamics, written: bool = False) -> tuple[Array, PyTree]:
        """Makes the step as a scan over the stages, which is much cheaper to differentiate than diffrax's loop.

        `written`: stage after stage, as scalar code needs them.
        """

        def put(i: Array | int, k: Array) -> Array:
            return k.at[i].set(self.h * vector_field(self.times[i], self.before(i, y, k), flow))

        stages = self.b.shape[0]
        k = _over(range(stages), put, jnp.zeros((stages, *y.shape), y.dtype), written)
        y1 = self.after(y, k)
        return y1, {"y0": y, "y1": y1, "k": k}

    def before(self, i: Array | int, y: Array, k: Array) -> Array:
        """The state at which a stage is evaluated."""
        return y + _weighted(self.a[i], k)

    def after(self, y: Array, k: Array) -> Array:
        """The state at the end of the step."""
        return y + _weighted(self.b, k)

    def error(self, k: Array) -> Array:
        """The difference between the states at the end of the step by this method and by the embedded one."""
        return _weighted(jnp.asarray(self.b_error, k.dtype), k)


def _over(stages: range, body: Callable[[Any, T], T], start: T, written: bool) -> T:
    """The carry of `body`, (stage, carry) -> carry, after all stages: a loop of JAX, or one body after the other."""
    if written:
        return ft.reduce(lambda carry, i: body(i, carry), stages, start)
    return jax.lax.scan(lambda carry, i: (body(i, carry), None), start, jnp.array(stages))[0]


def _weighted(weights: Array, k: Array) -> Array:
    """Computes weights @ k, of few weights, as additions, which XLA fuses; a product or a reduction is a call."""
    return ft.reduce(jnp.add, [weights[i] * k[i] for i in range(k.shape[0])])


def side_by_side(flow: PyTree) -> Array:
    """The numbers of a flow, or of its cotangent, in one vector."""
    return ravel_pytree(flow)[0]


@eqx.filter_jit
def _pulled_field(t: Array, y: Array, cotangent: Array, diff: Dynamics, fixed: Dynamics) -> tuple[Array, Array]:
    """The cotangents of y and of `diff` from that of the field, as one call in the traced program."""
    _, back = jax.vjp(lambda y, diff: eqx.combine(diff, fixed).field(t, y), y, diff)
    to_y, to_flow = back(cotangent)
    return to_y, side_by_side(to_flow)


def pulled_back(
    problem: IntegrationProblem,
    t0: Array,
    t1: Array,
    y: Array,
    diff: Dynamics,
    fixed: Dynamics,
    written: bool = False,
) -> tuple[PyTree, Callable[[Array, PyTree], tuple[Array, Array]]]:
    """The data of the interpolant of a step, and the pullback: cotangents of y1 and the data -> those of y and `diff`.

    The cotangent of `diff` is one vector: see `side_by_side`. `diff` and `fixed` are the parts of the flow with and
    without a derivative. The pullback of an explicit method goes through its stages backwards, one after the other, and
    keeps nothing of them but k. `written`: stage after stage, as scalar code needs them.
    """

    def whole(diff: Dynamics) -> Dynamics:
        return eqx.combine(diff, fixed)

    if not isinstance(problem.solver, diffrax.AbstractERK):
        (_, dense), back = jax.vjp(lambda y, diff: step(problem, t0, t1, y, whole(diff)), y, diff)

        def whole_step(cy: Array, cdense: PyTree) -> tuple[Array, Array]:
            cy, cflow = back((cy, cdense))
            return cy, side_by_side(cflow)

        return dense, whole_step
    method = Explicit.of(problem.solver, t0, t1)
    y1, dense = method.step(y, whole(diff), written)
    k = dense["k"]

    def pullback(cy: Array, cdense: PyTree) -> tuple[Array, Array]:
        cflow = jax.tree_util.tree_map(jnp.zeros_like, diff)
        if problem.flow.project is not None:
            _, back = jax.vjp(lambda y1, diff: whole(diff).project(t1, y1), y1, diff)  # pyright: ignore
            cy, cflow = back(cy)
        cflow = side_by_side(cflow)
        cy = cy + cdense["y1"]
        ck = jnp.outer(method.b, cy) + cdense["k"]

        def stage(i: Array | int, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            cy, ck, cflow = carry
            at = method.before(i, y, k)
            to_y, to_flow = _pulled_field(method.times[i], at, method.h * ck[i], diff, fixed)
            return cy + to_y, ck + jnp.outer(method.a[i], to_y), cflow + to_flow

        stages = range(method.b.shape[0])[::-1]
        cy, _, cflow = _over(stages, stage, (cy + cdense["y0"], ck, cflow), written)
        return cy, cflow

    return dense, pullback


def first(y0: Array, t0: Array, flow: Dynamics, moving: bool) -> Array:
    """The state from which the steps start, at a constant time; y0 is that at t0, which may be `moving`."""
    return advance(flow, y0, t0, stop_gradient(t0)) if moving else y0


def saved(
    problem: IntegrationProblem, span: tuple[Array, Array], dense: PyTree, t: Array, flow: Dynamics, moving: bool
) -> Array:
    """The state at t, which may be `moving` (have a derivative), within a step over `span`."""
    y = problem.solver.interpolation_cls(t0=span[0], t1=span[1], **dense).evaluate(stop_gradient(t))
    return advance(flow, y, stop_gradient(t), t) if moving else y


# The result of a run whose projection misses the constraints, for which diffrax has no name.
LOST: Any = diffrax.RESULTS.internal_error
# A projection corrects a step. It is lost if it moves positions by more than PART of what the step moves them, plus
# LEAP of the largest position.
PART, LEAP = 0.1, 1e-3


class AbstractVariant(diffrax.AbstractAdaptiveSolver):
    """A Runge-Kutta method that wraps another and differs in how a step is made, or ends.

    It is no `AbstractWrappedSolver`: the adjoints would take that for the Runge-Kutta method that it wraps, and set
    fields which it has not.
    """

    solver: eqx.AbstractVar[diffrax.AbstractSolver]

    @property
    def term_structure(self):  # pyright: ignore
        return self.solver.term_structure

    @property
    def interpolation_cls(self):  # pyright: ignore
        return self.solver.interpolation_cls

    @property
    def term_compatible_contr_kwargs(self):  # pyright: ignore
        return self.solver.term_compatible_contr_kwargs

    def order(self, terms):
        return self.solver.order(terms)

    def strong_order(self, terms):
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(terms, t0, t1, y0, args)

    def func(self, terms, t0, y0, args):
        return self.solver.func(terms, t0, y0, args)


class Projecting(AbstractVariant):
    """A Runge-Kutta method whose every step ends with `args.project`.

    The stage that a method would hand on to its next step belongs to the state before the projection; it is evaluated
    anew, as after a jump. Otherwise the method would lose its order. A projection that does not arrive returns NaN; a
    projection that leaps is lost too.
    """

    solver: diffrax.AbstractSolver

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        y1, error, dense, state, result = self.solver.step(terms, t0, t1, y0, args, solver_state, made_jump=True)
        end = args.project(t1, y1)
        lost = jnp.all(jnp.isfinite(y1)) & ~jnp.all(jnp.isfinite(end))
        if args.scales is not None:
            scales, least = args.scales

            def largest(x: Array) -> Array:
                return jnp.max(jnp.abs(x[: scales.shape[0]]) / scales)

            leapt = largest(end - y1) > PART * largest(y1 - y0) + LEAP * largest(y0) + least
            lost, end = lost | leapt, jnp.where(leapt, jnp.nan, end)
        return end, error, dense, state, diffrax.RESULTS.where(lost, LOST, result)


class AbstractStaged(AbstractVariant):
    """An explicit method, for many steps at a time under `jax.vmap`, and without derivatives.

    diffrax weighs the stages by products of matrices, for which the stages are transposed each time, and which XLA
    hands out to threads that other devices need. Here the stages are added up in place.
    """

    solver: eqx.AbstractVar[diffrax.AbstractERK]  # pyright: ignore[reportIncompatibleVariableOverride]

    def made(
        self, method: Explicit, y0: Array, k: Array, f: Array, solver_state: PyTree
    ) -> tuple[Array, Array, dict[str, Array], PyTree, diffrax.RESULTS]:
        """The results of a step, from its stages and the field at the last of them."""
        y1 = method.after(y0, k)
        state = None if solver_state is None else (jnp.zeros_like(solver_state[0]), f)
        error = method.error(k)
        return y1, error, {"y0": y0, "y1": y1, "k": k}, state, diffrax.RESULTS.successful


class Staged(AbstractStaged):
    """An explicit method whose stages are a loop."""

    solver: diffrax.AbstractERK

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        method = Explicit.of(self.solver, jnp.asarray(t0), jnp.asarray(t1))
        # If the last stage of a step is the first of the next, that is known, except in the first step.
        first, f = (True, jnp.zeros_like(y0)) if solver_state is None else solver_state
        again = eqxi.unvmap_any(first | jnp.asarray(made_jump))

        def stage(i, carry):
            k, _ = carry
            f = vector_field(method.times[i], method.before(i, y0, k), args)
            return k.at[i].set(method.h * f), f

        count = method.b.shape[0]
        k = jnp.zeros((count, *y0.shape), y0.dtype).at[0].set(method.h * f)
        k, f = jax.lax.fori_loop(jnp.where(again, 0, 1), count, stage, (k, f))
        return self.made(method, y0, k, f, solver_state)


class Written(AbstractStaged):
    """An explicit method whose stages are unrolled, for scalar code.

    If the last stage of a step is the first of the next, that is taken to be known, unless every step begins `anew`.
    """

    solver: diffrax.AbstractERK
    anew: bool = eqx.field(static=True, default=False)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        method = Explicit.of(self.solver, jnp.asarray(t0), jnp.asarray(t1))
        k = jnp.zeros((method.b.shape[0], *y0.shape), y0.dtype)
        known = None if solver_state is None or self.anew else solver_state[1]
        f = vector_field(method.times[0], y0, args) if known is None else known
        for i in range(len(k)):
            f = f if i == 0 else vector_field(method.times[i], method.before(i, y0, k), args)
            k = k.at[i].set(method.h * f)
        return self.made(method, y0, k, f, solver_state)


def solver_of(problem: IntegrationProblem, adjoint: diffrax.AbstractAdjoint) -> diffrax.AbstractSolver:
    """The solver of `problem`, with its projection and the loop over the stages that diffrax takes under `adjoint`."""
    solver, simple = problem.solver, isinstance(adjoint, diffrax.ForwardMode)
    projects = problem.flow.project is not None
    if isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None and (simple or projects):
        kind = "lax" if simple else "bounded"
        solver = eqx.tree_at(lambda s: s.scan_kind, solver, kind, is_leaf=lambda x: x is None)
    return Projecting(solver) if projects else solver


def begins_anew(problem: IntegrationProblem) -> bool:
    """Whether the last stage of a step may not be the first of the next, as after a projection, or a jump."""
    steady = diffrax.PIDController | diffrax.ConstantStepSize | diffrax.StepTo
    return problem.flow.project is not None or not isinstance(problem.method[0], steady)


def written_out(problem: IntegrationProblem) -> IntegrationProblem:
    """The problem with a solver whose steps are scalar code; the method is an explicit one."""
    solver = Written(problem.solver, begins_anew(problem))  # pyright: ignore
    return eqx.tree_at(lambda p: p.solver, problem, solver)


def staged(problem: IntegrationProblem) -> IntegrationProblem:
    """The problem with a solver that is fast for many steps at a time, if there is one; not to be differentiated."""
    if not isinstance(problem.solver, diffrax.AbstractERK):
        return problem
    solver = Staged(problem.solver)
    return eqx.tree_at(lambda p: p.solver, problem, solver)


def next_sample(t: Array, start: Array, period: float) -> Array:
    """The number of the first sample after t; one that is due at t, up to rounding, does not count."""
    return jnp.floor((t - start) / period + _early(t, start, period)) + 1


def is_due(t: Array, number: Array, start: Array, period: float) -> Array:
    """Whether a sample is due at t, or was before."""
    return (t - start) / period + _early(t, start, period) >= number


def _early(t: Array, start: Array, period: float) -> Array:
    """The part of a period by which rounding may make a sample come too early."""
    return 1e-9 + 8 * float(jnp.finfo(t.dtype).eps) * (jnp.abs(t) + jnp.abs(start)) / period


class Sampled(diffrax.AbstractStepSizeController):
    """A step size controller none of whose steps goes beyond a sample, at start + k period."""

    controller: diffrax.AbstractStepSizeController
    start: Array
    period: float = eqx.field(static=True)

    def from_zero(self) -> "Sampled":
        """The controller with time counted from the first sample.

        Later samples follow the first one. A run whose first sample is later is then the same run with everything else
        earlier, so that it has a derivative with respect to that time.
        """
        return eqx.tree_at(lambda c: c.start, self, jnp.zeros_like(self.start))

    def wrap(self, direction):
        return Sampled(self.controller.wrap(direction), self.start, self.period)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t1, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return self._clipped(t0, t1), state

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        keep, begin, end, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
        )
        return keep, begin, self._clipped(begin, end), jumped, state, result

    def _clipped(self, t: ArrayLike, t_next: ArrayLike) -> Array:
        t, t_next, start = jnp.asarray(t), jnp.asarray(t_next), stop_gradient(self.start)
        number = next_sample(t, start, self.period)
        due = start + number * self.period
        return jnp.where(is_due(t_next, number, start, self.period), due, t_next)


NEARER = 0.9  # the part of the estimated way to a kink that a step goes


class Kinked(diffrax.AbstractStepSizeController):
    """A step size controller whose steps across a kink are no longer than `shortest`."""

    controller: diffrax.AbstractStepSizeController
    shortest: Array

    @classmethod
    def around(cls, controller: diffrax.AbstractStepSizeController, ts: Array) -> "Kinked":
        """Makes steps across a kink so short that the error of their derivatives is the root of rounding."""
        eps = float(jnp.finfo(ts.dtype).eps)
        return cls(controller, jnp.maximum(eps**0.5 * (ts[-1] - ts[0]), 1e3 * eps * jnp.max(jnp.abs(ts))))

    def wrap(self, direction):
        return Kinked(self.controller.wrap(direction), self.shortest)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        t1, state = self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
        return t1, (state, stop_gradient(args.kinks(t0, y0)))

    def adapt_step_size(self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state):
        before, g0 = controller_state
        keep, begin, end, jumped, after, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, before
        )
        g1 = stop_gradient(args.kinks(t1, y1_candidate))
        h, change = t1 - t0, jnp.where(g1 == g0, 1.0, g1 - g0)
        over = jnp.where(g0 * g1 < 0, -g0 / change, jnp.inf)
        ahead = jnp.where((g1 != g0) & (g1 / change < 0), -g1 / change, jnp.inf)
        again = jnp.asarray(keep) & jnp.any(g0 * g1 < 0) & (h > 1.5 * self.shortest)
        # Extrapolated from the step that is kept.
        end = jnp.where(keep, jnp.minimum(end, begin + self._towards(h, ahead)), end)
        state = (where(again, before, after), jnp.where(keep & ~again, g1, g0))
        keep = keep & ~again
        begin, end = jnp.where(again, t0, begin), jnp.where(again, t0 + self._towards(h, over), end)
        return keep, begin, end, jumped, state, result

    def _towards(self, h: ArrayLike, parts: Array) -> Array:
        """The way to the nearest of the kinks after these parts of a step of length h."""
        way = h * jnp.min(jnp.where(jnp.isfinite(parts), parts, jnp.inf), initial=jnp.inf)
        return jnp.maximum(NEARER * way, self.shortest)
