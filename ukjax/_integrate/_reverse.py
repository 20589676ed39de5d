"""The steps of a segment backwards, as one operation: cotangents of its end become those of its start.

On a CPU it is a loop of machine code, in which the field and its derivative are routines (`ScalarLoop`).

n: numbers of a state; j: saved time; k: step; p: numbers of the flow that have a derivative.
"""

from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from .. import _expand
from .._lowering import runs_machine_code
from ._flow import IntegrationProblem
from ._segments import Segment
from ._steps import pulled_back


class Pullback(eqx.Module):
    """The cotangents before a step backwards.

    Attributes:
        k: The steps that are left of the segment.
        j: The index of the next saved time, from the last on.
        y: The cotangent of the state at the end of the step.
        flow: That of the numbers of the flow, side by side.
        dense: That of the interpolant of the step, by what is saved of it.
        goes: Whether a step is left.
        waits: Whether a step waits for the sure way.
    """

    k: Int[Array, ""]
    j: Int[Array, ""]
    y: Float[Array, " n"]
    flow: Float[Array, " p"]
    dense: PyTree
    goes: Bool[Array, ""]
    waits: Bool[Array, ""]


# The span of a step, and the state at its start.
Row = tuple[Array, Array, Array]


class StepsBack(eqx.Module):
    """The functions of a step backwards, for a `ScalarLoop`.

    `static`, `wanted`: the parts of the problem that are no arrays, and which parts of its flow have a derivative.
    """

    static: IntegrationProblem
    wanted: PyTree
    interpolant: Callable[..., diffrax.AbstractLocalInterpolation] = eqx.field(static=True)

    def step(self, at: Pullback, arrays: PyTree, row: Row) -> tuple[PyTree, ...]:
        """Makes a step backwards."""
        new, found = self._made(at, arrays, row, True)
        stays = eqx.tree_at(lambda x: (x.goes, x.waits), at, (jnp.zeros_like(at.goes), jnp.ones_like(at.waits)))
        return new, stays, *found, jnp.asarray(False), jnp.asarray(True)

    def sure(self, at: Pullback, arrays: PyTree, row: Row) -> tuple[Pullback, tuple[tuple[()], tuple[()]]]:
        return self._made(at, arrays, row, False)

    def _made(
        self, at: Pullback, arrays: PyTree, row: Row, written: bool
    ) -> tuple[Pullback, tuple[tuple[()], tuple[()]]]:
        problem: IntegrationProblem = eqx.combine(arrays, self.static)
        diff, fixed = eqx.partition(problem.flow, self.wanted)
        _, pullback = pulled_back(problem, *row, diff, fixed, written)
        cy, cflow = pullback(at.y, at.dense)
        k = at.k - 1
        dense = jax.tree_util.tree_map(jnp.zeros_like, at.dense)
        return Pullback(k, at.j, cy, at.flow + cflow, dense, k > 0, jnp.zeros_like(at.waits)), ((), ())

    def gather(self, at: Pullback, row: Row, saved: tuple[Array, Array]) -> tuple[Array, Pullback]:
        """Whether a saved time (t, cotangent of the state there) lies within the step, and what comes of it then."""
        (t0, t1, _), (t, cy) = row, saved

        def state(dense: PyTree) -> Array:
            return self.interpolant(t0=t0, t1=t1, **dense).evaluate(t)

        # The state there is linear in the data of the interpolant.
        _, pullback = jax.vjp(state, at.dense)
        (to_dense,) = pullback(cy)
        dense = jax.tree_util.tree_map(jnp.add, at.dense, to_dense)
        is_due = at.goes & (at.j > 0) & (t > t0)
        return is_due, eqx.tree_at(lambda x: (x.j, x.dense), at, (at.j - 1, dense))


# The index of the saved time before the start of a segment, and the cotangents of the state there and of the flow.
AtStart = tuple[Array, Array, Array]


def reversed_steps(
    problem: IntegrationProblem, wanted: PyTree, steps: Segment, at_end: AtStart, cys: Array
) -> AtStart | None:
    """The cotangents at the start of a segment, from those at its end and of the saved states; None if not possible."""
    if not isinstance(problem.solver, diffrax.AbstractERK) or problem.flow.leap is not None or not runs_machine_code():
        return None
    j, cy, cflow = at_end
    arrays, static = eqx.partition(eqx.tree_at(lambda p: (p.ts, p.y0), problem, (None, None)), eqx.is_array)
    back = StepsBack(static, wanted, problem.solver.interpolation_cls)
    stages = problem.solver.tableau.b_sol.shape[0]  # pyright: ignore
    dense = {"y0": jnp.zeros_like(cy), "y1": jnp.zeros_like(cy), "k": jnp.zeros((stages, *cy.shape), cy.dtype)}
    at = Pullback(steps.count, j, cy, cflow, dense, steps.count > 0, jnp.asarray(False))
    # The row of a step is that of the number of steps before it.
    spans = steps.times[:-1], steps.times[1:], steps.states[:-1]
    rows = jax.tree_util.tree_map(lambda x: jnp.concatenate([x[:1], x]), spans)
    gathers = _expand.Gathers(back.gather, lambda x: x.j, lambda x: (x.j, x.dense))
    repeats = _expand.Repeats(
        back.step, back.sure, lambda x: x.goes, lambda x: x.waits, at=lambda x: x.k, gathers=gathers,
        cost=lambda x, _: x.k,
    )  # fmt: skip
    tables = _expand.LoopTables(rows, (problem.ts, cys))
    try:
        loop = _expand.ScalarLoop(repeats, at, arrays, tables)
    except (_expand.TooLong, _expand.NotScalar):
        return None
    end, *_ = loop(at, arrays, tables)
    return end.j, end.y, end.flow
