"""The loop of a solve: steps of y' = field(t, y) are tried, one after the other, until the end.

The dynamics have a projection at the end of every step, or none.

y: state; ys: states at the saved times ts.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int, PyTree


# The controller of step sizes, and the first step (None: the controller chooses it).
StepSizes = tuple[diffrax.AbstractStepSizeController, Array | None]

# The checkpoints of a solve that is one of many; the most of a solve that stands alone, and the most numbers in all of
# their states. Even, so that every other checkpoint can be given up.
FEW, MANY, NUMBERS = 18, 1024, 2**16


def room_for(size: int, alone: bool) -> int:
    """The number of checkpoints, of states of this size, for which a solve has room."""
    return max(FEW, min(MANY, NUMBERS // size // 2 * 2)) if alone and size else FEW


class Dynamics(eqx.Module):
    """The dynamics y' = field(t, y); every step ends with y <- project(t, y), if there is one.

    `leap`: (t0, t1, y) -> y at t1, and whether it is valid, of a method with steps of its own. `scales`: the scales of
    positions, the first numbers of y, (N,), and the least move that counts, in these scales; given if a projection may
    move positions by no more than a part of the step. `kinks`: (t, y) -> numbers that change their signs where the
    field has a kink, if it has kinks.
    """

    field: Callable
    project: Callable | None = None
    leap: Callable | None = None
    scales: tuple[Array, Array] | None = None
    kinks: Callable | None = None

    def from_time(self, begin: Array) -> "Dynamics":
        """The flow with its time counted from `begin`."""
        project, kinks = (f if f is None else Partial(_later, f, begin) for f in (self.project, self.kinks))
        return Dynamics(Partial(_later, self.field, begin), project, self.leap, self.scales, kinks)


def _later(function: Callable, begin: Array, t: Array, y: Array) -> Array:
    return function(begin + t, y)


class IntegrationProblem(eqx.Module):
    """The inputs of the steps; `flow`, `y0` and `ts` carry derivatives, the rest does not.

    `method` is what chooses the steps, as `StepSizes`. `room` is the number of checkpoints for which there is room
    where the steps are recorded.
    """

    flow: Dynamics
    y0: Float[Array, " n"]
    ts: Float[Array, " T"]
    solver: diffrax.AbstractSolver
    method: PyTree
    max_steps: int = eqx.field(static=True)
    room: int = eqx.field(static=True, default=FEW)


class ProblemTangent(eqx.Module):
    """A tangent or a cotangent of a problem, its shapes, or flags of its wanted parts; None where there is none."""

    flow: PyTree
    y0: PyTree
    ts: PyTree


@eqx.filter_jit
def vector_field(t, y, flow):
    """Evaluates field(t, y) as one call in the traced program instead of a copy at every place that uses it."""
    return flow.field(t, y)


def advance(flow: Dynamics, y: Array, start: Array, end: Array) -> Array:
    """The state after a step of Heun's rule of third order from `start` to `end`, which are equal: its length is zero.

    The value is y. The derivatives of first to third order with respect to both times, to y and to the flow are those
    of the solution through (start, y), from which the step differs by the fourth power of its length.
    """
    h = end - start
    first = vector_field(start, y, flow)
    second = vector_field(start + h / 3, y + h / 3 * first, flow)
    third = vector_field(start + 2 * h / 3, y + 2 * h / 3 * second, flow)
    return y + h / 4 * (first + 3 * third)


T = TypeVar("T")


class Place(eqx.Module):
    """The state of a solve before a step from t to t_next."""

    t: Float[Array, ""]
    t_next: Float[Array, ""]
    y: Float[Array, " n"]
    solver: PyTree
    controller: PyTree
    jumped: Bool[Array, ""]


class Attempt(eqx.Module):
    """The outcome of a step that was tried over `span`; `dense` is the data of its interpolant."""

    keep: Bool[Array, ""]
    span: tuple[Array, Array]
    dense: PyTree
    result: diffrax.RESULTS


def before_end(at: Place, tried: Attempt, end: Array) -> Array:
    """The time at which the next step ends: that of the controller, or the end of the solve.

    As in diffrax, no step ends so near before the end that the next one would have hardly any length.
    """
    near = end - 100 * jnp.finfo(end.dtype).eps * jnp.abs(end)
    return jnp.where(at.t_next > near, jnp.where(tried.keep, end, at.t + (end - at.t) / 2), at.t_next)


def where(condition: Array, a: T, b: T) -> T:
    """The tree a where the condition holds, elsewhere b."""
    return jax.tree_util.tree_map(lambda a, b: jnp.where(condition, a, b), a, b)


class Stepper(eqx.Module):
    """A Runge-Kutta method with its control of the step size."""

    terms: diffrax.AbstractTerm
    solver: diffrax.AbstractSolver
    controller: diffrax.AbstractStepSizeController
    args: Dynamics

    def attempt(self, at: Place, finds: Array | bool = False) -> tuple[Place, Attempt]:
        """Tries a step; `finds`: whether it has no length, and only finds the stage that a method hands on."""
        solver, span = self.solver, (at.t, at.t_next)
        y, error, dense, memory, result = solver.step(self.terms, *span, at.y, self.args, at.solver, at.jumped)
        # A step to a state that has no motion counts as a step with too large an error.
        lost = ~jnp.all(jnp.isfinite(y))
        error = jax.tree_util.tree_map(lambda x: jnp.where(jnp.isnan(x) | lost, jnp.inf, x), error)
        order: Any = solver.error_order(self.terms)  # None for methods without one, which diffrax does not say
        keep, t, t_next, jumped, controller, failure = self.controller.adapt_step_size(
            *span, at.y, y, self.args, error, order, at.controller
        )
        keep, t, t_next = jnp.asarray(keep), jnp.asarray(t), jnp.asarray(t_next)
        new, old = (y, memory, jnp.asarray(jumped)), (at.y, at.solver, at.jumped)
        y, memory, jumped = where(keep | finds, new, old)
        okay = diffrax.RESULTS.successful
        # From a state that is not finite no step is kept, and none is shorter than the last: the loop would go on until
        # all steps are spent.
        stuck = ~(t_next > t) & (failure == okay) & ~keep
        failure = diffrax.RESULTS.where(stuck, diffrax.RESULTS.dt_min_reached, failure)
        # Where the controller gives up, the step itself may say why.
        ends = keep | (failure != okay)
        own = diffrax.RESULTS.where(ends, result, okay)
        result = diffrax.RESULTS.where(own == okay, failure, own)
        return Place(t, t_next, y, memory, controller, jumped), Attempt(keep, span, dense, result)


def step_until(
    stepper: Stepper,
    at: Place,
    end: Array,
    max_steps: int,
    clip: Callable[[Place, Attempt, Array], Array],
    note: Callable[[PyTree, Place, Attempt], PyTree],
    notes: PyTree,
    written: Callable[[PyTree], PyTree],
    enough: Callable[[PyTree], Array] | None = None,
) -> tuple[Place, PyTree, diffrax.RESULTS, Int[Array, ""]]:
    """Steps from a place to the end; returns the place reached, the notes, the result, and the number of attempts.

    Args:
        stepper: Makes the steps.
        at: The place to start from.
        end: The time to reach.
        max_steps: The number of attempts after which to give up.
        clip: (place, attempt that led there, the end) -> the time at which the next step ends.
        note: (notes, place, attempt that led there) -> notes after the attempt.
        notes: The notes before the first attempt.
        written: The arrays in `notes` that are written to in one place at a time, which spares a batch copies of them.
        enough: Whether the notes are complete before the end is reached.
    """
    okay = diffrax.RESULTS.successful

    def going(carry):
        tries, at, result, notes = carry
        going = (at.t < end) & (result == okay) & (tries < max_steps)
        return going if enough is None else going & ~enough(notes)

    def body(carry):
        tries, at, _, notes = carry
        at, tried = stepper.attempt(at)
        at = eqx.tree_at(lambda at: (at.t, at.t_next), at, (jnp.minimum(at.t, end), clip(at, tried, end)))
        return tries + 1, at, tried.result, note(notes, at, tried)

    start = jnp.zeros((), int), jax.tree_util.tree_map(jnp.asarray, at), okay, notes
    tries, at, result, notes = eqxi.while_loop(going, body, start, kind="lax", buffers=lambda carry: written(carry[-1]))
    short = (result == okay) & (at.t < end)
    return at, notes, diffrax.RESULTS.where(short, diffrax.RESULTS.max_steps_reached, result), tries
