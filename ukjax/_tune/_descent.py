"""What one step of a tuning is: of an optax optimiser, or of Levenberg and Marquardt."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ._levenberg_marquardt import LevenbergMarquardt
from ._objective import Objective, compiled


NOTHING_LOWERS = "Converged: no length of step lowers the loss."


class Point(NamedTuple):
    """Loss and gradient at some parameters; `extra` is what a method needs besides, residuals and Jacobian say."""

    loss: Array
    gradient: PyTree
    extra: Any = None

    def finite(self) -> bool:
        return all(np.isfinite(np.asarray(x)).all() for x in jax.tree_util.tree_leaves((self.loss, self.gradient)))


class Spent(NamedTuple):
    """Evaluations of the loss with its gradient, and of the loss alone."""

    with_gradient: Any = 0
    alone: Any = 0


class Step(NamedTuple):
    """Parameters, the state of the method there, and what it cost to get there."""

    tuned: PyTree
    state: Any
    spent: Spent = Spent()


class Descent(Protocol):
    """How the parameters go on from where they are.

    `ends_itself`: whether `finished` says all there is to say about convergence.
    """

    ends_itself: bool

    def init(self, tuned: PyTree, batch: PyTree, /) -> Step:
        """The start."""
        ...

    def evaluate(self, tuned: PyTree, batch: PyTree, /) -> Point:
        """Loss and gradient."""
        ...

    def update(self, step: Step, point: Point, batch: PyTree, /) -> Step:
        """The next parameters, from `point` at the present ones."""
        ...

    def shorter(self, before: Step, after: Step, batch: PyTree, /) -> Step | None:
        """Half the step from `before` to `after`, where the loss is not finite; None if the method cannot."""
        ...

    def known(self, state: Any, /) -> Point | None:
        """Loss and gradient at the present parameters if they are in the state, which saves an evaluation."""
        ...

    def finished(self, state: Any, /) -> str:
        """Why the method itself ends here, or an empty string."""
        ...


def halfway(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree_util.tree_map(lambda x, y: x + (y - x) / 2, a, b)


class Optax:
    """Steps of an optax optimiser."""

    ends_itself = False

    def __init__(self, optimizer: optax.GradientTransformation, objective: Objective, inside: Callable, bounded: bool):
        self._init = optimizer.init
        self.inside, self.bounded = inside, bounded
        self.evaluate = compiled(lambda tuned, batch: Point(*objective.value_and_grad(tuned, batch)))
        descend = optax.with_extra_args_support(optimizer).update

        def update(step: Step, point: Point, batch: PyTree) -> Step:
            # What an optimiser with a line search asks for; others ignore it, and nothing is compiled for them.
            extra = {"value": point.loss, "grad": point.gradient, "value_fn": _avoiding_failures(objective, batch)}
            updates, state = descend(point.gradient, step.state, step.tuned, **extra)
            searched = Spent(_of(state, "num_linesearch_steps", 0))
            return Step(inside(optax.apply_updates(step.tuned, updates)), state, searched)

        self.update = compiled(update)

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        return Step(tuned, self._init(tuned))

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step:
        # What the optimiser learned from the last gradient it keeps; only the step is half as long.
        return Step(self.inside(halfway(before.tuned, after.tuned)), after.state)

    def known(self, state: Any) -> Point | None:
        value, gradient = _of(state, "value", None), _of(state, "grad", None)
        if self.bounded or value is None or gradient is None or not np.isfinite(np.asarray(value)):
            return None
        return Point(value, gradient)

    def finished(self, state: Any) -> str:
        # A line search that stays where it is would do so for ever.
        error = _of(state, "decrease_error", None)
        if error is None or _of(state, "learning_rate", 1.0) != 0:
            return ""
        if np.isinf(error):
            return "The loss is not finite at any length of step that the line search tried."
        return NOTHING_LOWERS


def _of(state: Any, name: str, default: Any) -> Any:
    """An entry of an optax state, wherever it is in it."""
    return optax.tree.get(state, name, default)


def _avoiding_failures(objective: Objective, batch: PyTree) -> Callable:
    """The loss for a line search: infinite, with no slope, where it or its gradient is not finite.

    The gradient of `where` would be NaN there, so it has a rule of its own.
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

    ends_itself = False

    def __init__(self, optimizer: LevenbergMarquardt, objective: Objective, inside: Callable):
        self.optimizer = optimizer

        def evaluate(tuned: PyTree, batch: PyTree) -> Point:
            _, unravel = ravel_pytree(tuned)
            r, J = objective.least_squares(tuned, batch)
            return Point(r @ r, unravel(2 * (r @ J)), (r, J))

        def update(step: Step, point: Point, batch: PyTree) -> Step:
            x, unravel = ravel_pytree(step.tuned)
            r, J = point.extra
            loss = lambda x: objective.scalar(inside(unravel(x)), batch)
            x, state = optimizer.step(x, r, J, step.state, loss)
            return Step(inside(unravel(x)), state, Spent(0, state["trials"]))

        self.evaluate, self.update, self.inside = compiled(evaluate), compiled(update), inside

    def init(self, tuned: PyTree, batch: PyTree) -> Step:
        return Step(tuned, self.optimizer.init(ravel_pytree(tuned)[0]))

    def shorter(self, before: Step, after: Step, batch: PyTree) -> Step:
        return Step(self.inside(halfway(before.tuned, after.tuned)), after.state)

    def known(self, state: Any) -> None:
        return None

    def finished(self, state: Any) -> str:
        return NOTHING_LOWERS if bool(state["exhausted"]) else ""
