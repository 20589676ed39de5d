"""Steps of optimistix's minimisers and least-squares solvers, one at a time.

Most of them look at a trial y_eval, accept it as y or not, and choose the next trial; every such look is a step here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jaxtyping import Array, PyTree

from ._descent import Point, Spent, Step, halfway
from ._objective import Objective, compiled


Solver = optx.AbstractMinimiser | optx.AbstractLeastSquaresSolver


class State(NamedTuple):
    """The arrays of a solver's state, loss and gradient at y where it knows them, and the outcome of its own test."""

    arrays: PyTree
    point: Point | None
    terminate: Array
    result: Any


class Optimistix:
    """Steps of an optimistix solver; bounds by putting its next trial back on them before it is looked at."""

    ends_itself = True

    def __init__(self, solver: Solver, objective: Objective, inside: Callable, bounded: bool):
        self.solver, self.inside, self.bounded = solver, inside, bounded
        squares = isinstance(solver, optx.AbstractLeastSquaresSolver)
        self.function = objective.residuals if squares else objective.scalar
        self.evaluate = compiled(lambda tuned, batch: Point(*objective.value_and_grad(tuned, batch)))

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        """The first look is at the start itself."""
        # Converted once: states hold what was traced of it, which must be the same in all of them.
        self.converted = eqx.filter_closure_convert(self._with_aux, tuned, batch)
        shape, aux = self.converted.out_struct
        state = self.solver.init(self.converted, tuned, batch, {}, shape, aux, frozenset())
        arrays, self.static = eqx.partition(state, eqx.is_array)
        if self.bounded and not self._has_trial():
            raise ValueError(
                f"bounds need a solver that tries one point after the other, but {type(self.solver).__name__} does not."
            )
        self.look = compiled(self._look)
        if not self._has_trial():
            return Step(tuned, State(arrays, None, jnp.asarray(False), optx.RESULTS.successful))
        return self.look(tuned, arrays, batch)

    def update(self, step: Step, point: Point, batch: PyTree) -> Step:
        return self.look(step.tuned, step.state.arrays, batch)

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step | None:
        if not self._has_trial():
            return None
        trial = self.inside(halfway(before.tuned, after.tuned))
        arrays = eqx.tree_at(lambda state: state.y_eval, before.state.arrays, trial)
        return self.look(before.tuned, arrays, batch)

    def known(self, state: State) -> Point | None:
        return state.point

    def finished(self, state: State) -> str:
        name = type(self.solver).__name__
        if bool(state.result != optx.RESULTS.successful):
            return f"{name} gave up: {optx.RESULTS[state.result]}"
        return f"Converged: {name}'s own test is satisfied." if bool(np.asarray(state.terminate)) else ""

    def _with_aux(self, tuned: PyTree, batch: PyTree) -> tuple[Array, None]:
        return self.function(tuned, batch), None

    def _has_trial(self) -> bool:
        return hasattr(self.static, "y_eval")

    def _look(self, tuned: PyTree, arrays: PyTree, batch: PyTree) -> Step:
        state = eqx.combine(arrays, self.static)
        fixed = self.converted, tuned, batch, {}
        tuned, state, _ = self.solver.step(*fixed, state, frozenset())
        terminate, result = self.solver.terminate(*fixed, state, frozenset())
        if self.bounded:
            state = eqx.tree_at(lambda state: state.y_eval, state, self.inside(state.y_eval))
        point = self._point(getattr(state, "f_info", None))
        spent = Spent(0, 1) if point is None else Spent(1, 0)
        return Step(tuned, State(eqx.filter(state, eqx.is_array), point, terminate, result), spent)

    def _point(self, info: Any) -> Point | None:
        """What a solver remembers of the parameters it accepted last; optimistix halves the sum of squares."""
        if isinstance(info, optx.FunctionInfo.ResidualJac):
            return Point(2 * info.as_min(), jax.tree_util.tree_map(lambda g: 2 * g, info.compute_grad()))
        gradient = getattr(info, "grad", None)
        return None if gradient is None else Point(info.as_min(), gradient)
