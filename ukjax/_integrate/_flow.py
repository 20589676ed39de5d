"""The dynamics of a solve: y' = field(t, y), with or without a projection at the end of every step.

y: state; ys: states at the saved times ts.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
from jax.tree_util import Partial
from jaxtyping import Array, Float, PyTree


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
