"""Single steps of optimistix's minimisers and least-squares solvers.

Most solvers evaluate a trial y_eval, accept it as y or not, and choose the next trial. Every such evaluation is a step
here.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ._box import Box, only
from ._descent import Finish, LevenbergMarquardt, Point, Spent, Step, halfway
from ._objective import Objective, compiled


Solver = optx.AbstractMinimiser | optx.AbstractLeastSquaresSolver
Optimizer = optax.GradientTransformation | LevenbergMarquardt | Solver


class State(NamedTuple):
    """Data kept between steps.

    Attributes:
        arrays: The arrays of the solver's state.
        point: Loss and gradient at the present parameters, where they are known.
        terminate: Whether the solver's own test is satisfied.
        result: The outcome of that test.
        free: Mask of the parameters that the solver sees; None without bounds.
        fresh: Whether the solver has not moved yet since its last start.
    """

    arrays: PyTree
    point: Point | None
    terminate: Array
    result: optx.RESULTS
    free: PyTree
    fresh: Array


class Optimistix:
    """Steps of an optimistix solver, which ends by its own tolerances.

    Within bounds the solver sees only the parameters that are free, and its next trial is clipped to the bounds before
    it is evaluated. The solver restarts in two cases: without a parameter that has become held; and with all free
    parameters, where its own test is satisfied but the loss falls along the projected gradient.
    """

    def __init__(self, solver: Solver, objective: Objective, box: Box | None):
        self.solver, self.box = solver, box
        self.own = float(solver.rtol), float(solver.atol)
        self.squares = isinstance(solver, optx.AbstractLeastSquaresSolver)
        self.function = objective.residuals if self.squares else objective.scalar
        self.evaluate = compiled(lambda tuned, batch: Point(*objective.value_and_grad(tuned, batch)))

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        """Returns the first step, which evaluates the start itself."""
        free = None if self.box is None else jax.tree_util.tree_map(lambda x: jnp.ones(x.shape, bool), tuned)
        # Converted once: states hold the traced function, which must be the same in all of them.
        self.converted = eqx.filter_closure_convert(self._with_aux, tuned, (batch, free, tuned))
        arrays = self._begin(tuned, batch, free)
        if self.box is not None and not self._has_trial():
            raise ValueError(
                f"bounds need a solver that tries one point after the other, but {type(self.solver).__name__} does not."
            )
        self.look = compiled(self._look)
        if not self._has_trial():
            return Step(
                tuned, State(arrays, None, jnp.asarray(False), optx.RESULTS.successful, free, jnp.asarray(True))
            )
        if self.box is None:
            return self.look(tuned, arrays, batch, free)
        point = self.evaluate(tuned, batch)
        step = self._first(tuned, point, batch)
        return step._replace(spent=Spent(step.spent.with_gradient + 1, step.spent.alone))

    def update(self, step: Step, point: Point, batch: PyTree) -> Step:
        state = step.state
        if self.box is None:
            return self.look(step.tuned, state.arrays, batch, None)
        free = self.box.free(step.tuned, point.gradient)
        both = jax.tree_util.tree_map(jnp.logical_and, free, state.free)
        if not eqx.tree_equal(both, state.free):
            return self._first(step.tuned, point, batch)
        after = self.look(step.tuned, state.arrays, batch, state.free)
        moved = not eqx.tree_equal(after.tuned, step.tuned)
        fresh = jnp.asarray(bool(state.fresh) and not moved)
        return after._replace(state=after.state._replace(point=None if moved else point, fresh=fresh))

    def again(self, step: Step, point: Point, batch: PyTree) -> Step | None:
        return None if bool(step.state.fresh) else self._first(step.tuned, point, batch)

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step | None:
        if not self._has_trial():
            return None
        trial = halfway(before.tuned, after.tuned)
        arrays = eqx.tree_at(lambda state: state.y_eval, before.state.arrays, trial)
        step = self.look(before.tuned, arrays, batch, before.state.free)
        return step._replace(state=step.state._replace(fresh=before.state.fresh))

    def known(self, state: State) -> Point | None:
        return state.point

    def finished(self, state: State) -> Finish:
        name = type(self.solver).__name__
        if bool(state.result != optx.RESULTS.successful):
            return Finish(f"{name} gave up: {optx.RESULTS[state.result]}")
        return Finish(f"Converged: {name}'s own test is satisfied.", True) if bool(state.terminate) else Finish()

    def _begin(self, tuned: PyTree, batch: PyTree, free: PyTree) -> PyTree:
        shape, aux = self.converted.out_struct  # pyright: ignore[reportFunctionMemberAccess]  (of a closure)
        args = batch, free, tuned
        state = self.solver.init(self.converted, tuned, args, {}, shape, aux, frozenset())
        arrays, self.static = eqx.partition(state, eqx.is_array)
        return arrays

    def _first(self, tuned: PyTree, point: Point, batch: PyTree) -> Step:
        """Returns the first step within bounds, at parameters where loss and gradient are known."""
        assert self.box is not None
        free = self.box.free(tuned, point.gradient)
        step = self.look(tuned, self._begin(tuned, batch, free), batch, free)
        return step._replace(state=step.state._replace(point=point))

    def _with_aux(self, tuned: PyTree, args: tuple[PyTree, PyTree, PyTree]) -> tuple[Array, None]:
        batch, free, held = args
        if free is None:
            return self.function(tuned, batch), None
        value = self.function(only(free, tuned, held), batch)
        if self.squares:
            # Held parameters have their own residuals, which vanish, so that the Jacobian keeps its rank.
            off = ravel_pytree(jax.tree_util.tree_map(lambda f, x, y: jnp.where(f, 0.0, x - y), free, tuned, held))[0]
            value = jnp.concatenate([value, off])
        return value, None

    def _has_trial(self) -> bool:
        return hasattr(self.static, "y_eval")

    def _look(self, tuned: PyTree, arrays: PyTree, batch: PyTree, free: PyTree) -> Step:
        state = eqx.combine(arrays, self.static)
        fixed = self.converted, tuned, (batch, free, tuned), {}
        tuned, state, _ = self.solver.step(*fixed, state, frozenset())
        terminate, result = self.solver.terminate(*fixed, state, frozenset())
        if self.box is not None:
            state = eqx.tree_at(lambda state: state.y_eval, state, self.box.inside(state.y_eval))
        point = self._point(getattr(state, "f_info", None))
        spent = Spent(0, 1) if point is None else Spent(1, 0)
        point = point if self.box is None else None  # its gradient would be that of the free parameters
        kept = State(eqx.filter(state, eqx.is_array), point, terminate, result, free, jnp.asarray(True))
        return Step(tuned, kept, spent)

    def _point(self, info: optx.FunctionInfo | None) -> Point | None:
        """Returns loss and gradient at the last accepted parameters if kept; optimistix halves the sum of squares."""
        if isinstance(info, optx.FunctionInfo.ResidualJac):
            return Point(2 * info.as_min(), jax.tree_util.tree_map(lambda g: 2 * g, info.compute_grad()))
        gradient = getattr(info, "grad", None)
        return None if info is None or gradient is None else Point(info.as_min(), gradient)
