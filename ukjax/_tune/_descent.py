"""A step of a tuning, by an optax optimiser, by Levenberg-Marquardt, or by a solver of optimistix.

Levenberg-Marquardt is for losses that are a sum of squares. r: residuals (m,); J: their Jacobian (m, p); D: diagonal of
J^T J; k: damping. A step s minimises

    |J s + r|^2 + k |D^1/2 s|^2,    that is    [J; (k D)^1/2] s = -[r; 0] in the sense of least squares.

It is solved by a QR factorisation of the stacked matrix. The normal equations (J^T J + k D) s = -J^T r have the square
of its condition number, and lose the step where that of J is 1e8. J itself is factorised once for all k.
k falls after an accepted step, and rises after a rejected one, with which the loss would have risen.

Most solvers of optimistix evaluate a trial y_eval, accept it as y or not, and choose the next trial. Every such
evaluation is a step here.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from .. import _check
from ._objective import Box, Objective, compiled, only


TRIALS = 12  # damping grows by more than 1e7 within them: the step is then no longer worth taking


@dataclasses.dataclass(frozen=True)
class LevenbergMarquardt:
    """An optimiser for `tune` with a loss that returns residuals; it converges in few steps.

    It takes a handful of steps where gradient methods take dozens. A step costs one Jacobian by forward mode, at most
    as much as one loss and one more for each parameter, and one loss for each length of step tried. It is for tens of
    parameters, not for thousands.

    Args:
        damping: k of the first step, positive: near 0 for the full Gauss-Newton step, large for a short step along the
            gradient.
        grow: Factor of k after a rejected step.
        shrink: Factor of k after an accepted step.

    Raises:
        ValueError: If a number is out of its range.

    Source: Marquardt (1963), An algorithm for least-squares estimation of nonlinear parameters, J. SIAM 11; by QR: Moré
    (1978), The Levenberg-Marquardt algorithm: implementation and theory, Lecture Notes in Mathematics 630.
    """

    damping: float = 0.1
    grow: float = 4.0
    shrink: float = 0.2

    def __post_init__(self):
        if not _check.scalar(self.damping, "damping") > 0:
            raise ValueError(f"damping must be positive, but is {self.damping}.")
        if not _check.scalar(self.grow, "grow") > 1:
            raise ValueError(f"grow must be greater than 1, but is {self.grow}.")
        if not 0 < _check.scalar(self.shrink, "shrink") < 1:
            raise ValueError(f"shrink must lie between 0 and 1, but is {self.shrink}.")

    def init(self, x: Float[Array, " p"]) -> dict[str, Array]:
        """Returns the state before the first step.

        It holds the damping, the number of lengths tried by the last step, and whether none of them lowers the loss,
        down to where rounding would hide it.
        """
        damping = jnp.asarray(self.damping, x.dtype)
        return {"damping": damping, "trials": jnp.zeros((), int), "exhausted": jnp.asarray(False)}

    def step(
        self, x: Float[Array, " p"], r: Float[Array, " m"], J: Float[Array, "m p"],
        state: dict[str, Array], loss: Callable[[Array], Array],
    ) -> tuple[Float[Array, " p"], dict[str, Array]]:  # fmt: skip
        """Returns the next x (p,) and state; x itself where no length of step lowers `loss(x)` to a finite value."""
        value, p = r @ r, x.shape[0]
        Q, R = jnp.linalg.qr(J)
        scale = jnp.linalg.norm(J, axis=0)  # the root of D
        # Parameters that change nothing do not move.
        scale = jnp.where(scale > 0, scale, jnp.max(scale, initial=0.0) + jnp.finfo(scale.dtype).tiny)
        rows = jnp.concatenate([-(Q.T @ r), jnp.zeros(p, r.dtype)])

        def attempt(carry):
            damping, _, trials, _, _ = carry
            stacked = lx.MatrixLinearOperator(jnp.concatenate([R, jnp.sqrt(damping) * jnp.diag(scale)]))
            s = lx.linear_solve(stacked, rows, lx.QR(), throw=False).value
            taken = loss(x + s) < value  # also False where it is NaN
            damping = damping * jnp.where(taken, self.shrink, self.grow)
            return damping, jnp.where(taken, x + s, x), trials + 1, taken, s

        start = state["damping"], x, jnp.zeros((), int), jnp.asarray(False), jnp.full_like(x, jnp.inf)
        damping, next_x, trials, taken, s = jax.lax.while_loop(lambda c: ~c[3] & (c[2] < TRIALS), attempt, start)
        # Near a minimum the loss changes with the square of a step.
        hidden = jnp.all(jnp.abs(s) <= jnp.sqrt(jnp.finfo(x.dtype).eps) * jnp.abs(x))
        return next_x, {"damping": damping, "trials": trials, "exhausted": ~taken & hidden}


class Finish(NamedTuple):
    """The reason why a method ends, or an empty string, and whether it claims to have converged."""

    reason: str = ""
    converged: bool = False


NOTHING_LOWERS = Finish("Converged: no length of step lowers the loss.", True)


class Point(NamedTuple):
    """Loss and gradient at some parameters; `extra` holds further data of a method, such as residuals and Jacobian."""

    loss: Array
    gradient: PyTree
    extra: PyTree = None

    def finite(self) -> bool:
        return all(np.isfinite(np.asarray(x)).all() for x in jax.tree_util.tree_leaves((self.loss, self.gradient)))


class Spent(NamedTuple):
    """Numbers of evaluations of the loss with its gradient, and of the loss alone."""

    with_gradient: int | Array = 0
    alone: int | Array = 0


class Step(NamedTuple):
    """Parameters, the state of the method there, and the evaluations spent on the step."""

    tuned: PyTree
    state: PyTree
    spent: Spent = Spent()


class Descent(Protocol):
    """The interface of a method: how it changes the parameters from step to step."""

    @property
    def own(self) -> tuple[float, float] | None:
        """The tolerances rtol and atol of a method whose own test alone decides about convergence, or None."""
        ...

    def init(self, tuned: PyTree, batch: PyTree, /) -> Step:
        """Returns the start."""
        ...

    def evaluate(self, tuned: PyTree, batch: PyTree, /) -> Point:
        """Returns loss and gradient."""
        ...

    def update(self, step: Step, point: Point, batch: PyTree, /) -> Step:
        """Returns the next parameters, from `point` at the present ones."""
        ...

    def shorter(self, before: Step, after: Step, batch: PyTree, /) -> Step | None:
        """Returns half the step from `before` to `after`, where the loss is not finite; None if the method cannot."""
        ...

    def known(self, state: PyTree, /) -> Point | None:
        """Returns loss and gradient at the present parameters if the state holds them, which saves an evaluation."""
        ...

    def finished(self, state: PyTree, /) -> Finish:
        """Returns the reason why the method itself ends here, if it does."""
        ...

    def again(self, step: Step, point: Point, batch: PyTree, /) -> Step | None:
        """Returns the present parameters with an empty memory; None if there is nothing to forget."""
        ...


def halfway(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree_util.tree_map(lambda x, y: x + (y - x) / 2, a, b)


# Optimisers that remember how parameters are coupled, or compare the loss with its slope along a step.
SEARCHES = (optax.ScaleByZoomLinesearchState, optax.ScaleByBacktrackingLinesearchState)
LBFGS = optax.ScaleByLBFGSState


class Optax:
    """Steps of an optax optimiser."""

    own = None

    def __init__(self, optimizer: optax.GradientTransformation, objective: Objective, box: Box | None):
        self._init = optimizer.init
        self.box = box
        self.evaluate = compiled(lambda tuned, batch: Point(*objective.value_and_grad(tuned, batch)))
        descend = optax.with_extra_args_support(optimizer).update

        def taken(
            step: Step, point: Point, inside: Callable[[PyTree], PyTree], batch: PyTree
        ) -> tuple[PyTree, PyTree, Spent]:
            # Arguments for optimisers with a line search; others ignore them, and nothing is compiled for them.
            value = _avoiding_failures(objective, batch)
            extra = {"value": point.loss, "grad": point.gradient, "value_fn": lambda tuned: value(inside(tuned))}
            updates, state = descend(point.gradient, step.state, step.tuned, **extra)
            return inside(optax.apply_updates(step.tuned, updates)), state, Spent(_of(state, "num_linesearch_steps", 0))

        def update(step: Step, point: Point, batch: PyTree) -> Step:
            if box is None:
                return Step(*taken(step, point, lambda tuned: tuned, batch))
            if not _of_kind(step.state, (*SEARCHES, LBFGS)):
                return Step(*taken(step, point, box.inside, batch))
            free = box.free(step.tuned, point.gradient)
            seen = Point(point.loss, only(free, point.gradient))
            state = _over(LBFGS, lambda memory: _of_free(memory, free, step.tuned, seen.gradient), step.state)
            tuned, state, spent = taken(Step(step.tuned, state), seen, box.inside, batch)
            # The whole gradient is kept, for the time when parameters that are held now are free.
            state = _over(LBFGS, lambda memory: memory._replace(updates=point.gradient), state)
            return Step(only(free, tuned, step.tuned), state, spent)

        self.update = compiled(update)

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        return Step(tuned, self._init(tuned))

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step:
        # The optimiser keeps its memory of the last gradient; only the step is half as long.
        return Step(halfway(before.tuned, after.tuned), after.state)

    def known(self, state: PyTree) -> Point | None:
        value, gradient = _of(state, "value", None), _of(state, "grad", None)
        if self.box is not None or value is None or gradient is None or not np.isfinite(np.asarray(value)):
            return None
        return Point(value, gradient)

    def finished(self, state: PyTree) -> Finish:
        # A line search that does not move would never end.
        error = _of(state, "decrease_error", None)
        if error is None or _of(state, "learning_rate", 1.0) != 0:
            return Finish()
        if np.isinf(error):
            return Finish("The loss is not finite at any length of step that the line search tried.")
        return NOTHING_LOWERS

    def again(self, step: Step, point: Point, batch: PyTree) -> Step | None:
        counts: list[int] = []
        _over(LBFGS, lambda memory: counts.append(int(memory.count)), step.state)
        if max(counts, default=0) <= 1:
            return None  # the last step was one without memory
        return Step(step.tuned, _over(LBFGS, lambda memory: jax.tree_util.tree_map(jnp.zeros_like, memory), step.state))


def _of_kind(state: PyTree, kinds: tuple[type, ...]) -> bool:
    """Whether an optax state holds something of these kinds."""
    leaves = jax.tree_util.tree_leaves(state, is_leaf=lambda x: isinstance(x, kinds))
    return any(isinstance(x, kinds) for x in leaves)


def _over(kind: type, change: Callable[[PyTree], PyTree], state: PyTree) -> PyTree:
    """Returns an optax state with `change` applied to everything of a kind in it."""
    return jax.tree_util.tree_map(
        lambda x: change(x) if isinstance(x, kind) else x, state, is_leaf=lambda x: isinstance(x, kind)
    )


def _of_free(memory: optax.ScaleByLBFGSState, free: PyTree, tuned: PyTree, gradient: PyTree) -> optax.ScaleByLBFGSState:
    """Restricts L-BFGS's memory to the free parameters: a positive definite matrix for them, zero for the others.

    s: differences of parameters; y: differences of gradients. Pairs without s.y > 0 are left out.
    """
    rows = jax.tree_util.tree_map(lambda mask, x: jnp.broadcast_to(mask, x.shape), free, memory.diff_params_memory)
    s, y = only(rows, memory.diff_params_memory), only(rows, memory.diff_updates_memory)
    curved = sum(jnp.sum(a * b, axis=tuple(range(1, a.ndim))) for a, b in zip(*map(jax.tree_util.tree_leaves, (s, y))))
    weights = jnp.where(curved > 0, 1 / jnp.where(curved > 0, curved, 1.0), 0.0)
    # The next update makes its pair from these.
    params, updates = only(free, memory.params, tuned), only(free, memory.updates, gradient)
    ahead = jnp.asarray(optax.tree.vdot(optax.tree.sub(tuned, params), optax.tree.sub(gradient, updates))) > 0
    params, updates = (
        jax.tree_util.tree_map(lambda a, b: jnp.where(ahead, a, b), old, new)
        for old, new in ((params, tuned), (updates, gradient))
    )
    return memory._replace(
        params=params,
        updates=updates,
        diff_params_memory=s,
        diff_updates_memory=y,
        weights_memory=weights.astype(jnp.result_type(memory.weights_memory)),
    )


def _of(state: PyTree, name: str, default: PyTree) -> PyTree:
    """Returns an entry of an optax state, wherever it is in the state."""
    return optax.tree.get(state, name, default)


def _avoiding_failures(objective: Objective, batch: PyTree) -> Callable[[PyTree], Array]:
    """Returns the loss for a line search: infinite, with no slope, where it or its gradient is not finite.

    The gradient of `where` would be NaN there, so the function has its own rule.
    """

    @jax.custom_vjp
    def value(tuned: PyTree) -> Array:
        number = objective.scalar(tuned, batch)
        return jnp.where(jnp.isfinite(number), number, jnp.inf)

    def forward(tuned: PyTree) -> tuple[Array, PyTree]:
        number, gradient = objective.value_and_grad(tuned, batch)
        okay = jnp.isfinite(number)
        for leaf in jax.tree_util.tree_leaves(gradient):
            okay &= jnp.all(jnp.isfinite(leaf))
        zeros = jax.tree_util.tree_map(lambda g: jnp.where(okay, g, jnp.zeros_like(g)), gradient)
        return jnp.where(okay, number, jnp.inf), zeros

    value.defvjp(forward, lambda gradient, ct: (jax.tree_util.tree_map(lambda g: ct * g, gradient),))
    return value


class LeastSquares:
    """Steps of `LevenbergMarquardt`."""

    own = None

    def __init__(self, optimizer: LevenbergMarquardt, objective: Objective, box: Box | None):
        self.optimizer = optimizer
        inside = (lambda tuned: tuned) if box is None else box.inside

        def evaluate(tuned: PyTree, batch: PyTree) -> Point:
            _, unravel = ravel_pytree(tuned)
            r, J = objective.least_squares(tuned, batch)
            return Point(r @ r, unravel(2 * (r @ J)), (r, J))

        def update(step: Step, point: Point, batch: PyTree) -> Step:
            x, unravel = ravel_pytree(step.tuned)
            r, J = point.extra
            if box is not None:
                J = jnp.where(ravel_pytree(box.free(step.tuned, point.gradient))[0], J, 0)  # held ones do not move
            x, state = optimizer.step(x, r, J, step.state, lambda x: objective.scalar(inside(unravel(x)), batch))
            return Step(inside(unravel(x)), state, Spent(0, state["trials"]))

        self.evaluate, self.update = compiled(evaluate), compiled(update)

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        return Step(tuned, self.optimizer.init(ravel_pytree(tuned)[0]))

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step:
        return Step(halfway(before.tuned, after.tuned), after.state)

    def known(self, state: PyTree) -> None:
        return None

    def finished(self, state: PyTree) -> Finish:
        return NOTHING_LOWERS if bool(state["exhausted"]) else Finish()

    def again(self, step: Step, point: Point, batch: PyTree) -> None:
        return None


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
