"""What one step of a tuning is: an optax optimiser's, or Levenberg and Marquardt's."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from ._levenberg_marquardt import LevenbergMarquardt


Bounds = tuple[PyTree, PyTree] | None


class Descent(Protocol):
    """How the parameters go on from where they are; `rest` is what `evaluate` found besides loss and gradient."""

    def init(self, tuned: PyTree, /) -> Any: ...
    def evaluate(self, tuned: PyTree, batch: PyTree) -> tuple[Array, PyTree, Any]: ...
    def update(self, tuned: PyTree, found: tuple[Array, PyTree, Any], state: Any, batch: PyTree) -> Any: ...
    def at_hand(self, state: Any) -> tuple[Array, PyTree, Any] | None: ...
    def spent(self, state: Any) -> tuple[int, int]: ...


def descent(optimizer: Any, residuals: Callable, squares: bool, bounds: Bounds) -> Descent:
    """`residuals(tuned, batch)` (m,) where the loss is a sum of `squares`, else the loss itself."""
    inside = lambda tuned: tuned if bounds is None else optax.projections.projection_box(tuned, *bounds)
    if isinstance(optimizer, LevenbergMarquardt):
        return _LeastSquares(optimizer, residuals, inside)
    loss = (lambda tuned, batch: jnp.sum(residuals(tuned, batch) ** 2)) if squares else residuals
    return _Optax(optimizer, loss, inside, bounds is not None)


class _Optax:
    """Steps of an optax optimiser."""

    def __init__(self, optimizer: optax.GradientTransformation, loss: Callable, inside: Callable, bounded: bool):
        self.init = lambda tuned: optimizer.init(tuned)
        self.bounded = bounded
        evaluate = jax.jit(jax.value_and_grad(loss))
        self.evaluate = lambda tuned, batch: (*evaluate(tuned, batch), None)
        descend = optax.with_extra_args_support(optimizer).update

        @jax.jit
        def update(tuned, found, state, batch):
            # What an optimiser with a line search asks for; others ignore it, and nothing is compiled for them.
            number, gradient, _ = found
            extra = {"value": number, "grad": gradient, "value_fn": lambda tuned: loss(tuned, batch)}
            updates, state = descend(gradient, state, tuned, **extra)
            return inside(optax.apply_updates(tuned, updates)), state

        self.update = update

    def at_hand(self, state: Any) -> tuple[Array, PyTree, Any] | None:
        """Loss and gradient at the present parameters, if a line search left them in the state."""
        value: Any = optax.tree.get(state, "value", None)
        gradient = optax.tree.get(state, "grad", None)
        if self.bounded or value is None or gradient is None or not np.isfinite(np.asarray(value)):
            return None
        return value, gradient, None

    def spent(self, state: Any) -> tuple[int, int]:
        return int(optax.tree.get(state, "num_linesearch_steps", 0)), 0


class _LeastSquares:
    """Steps of Levenberg and Marquardt."""

    def __init__(self, optimizer: LevenbergMarquardt, residuals: Callable, inside: Callable):
        self.init = lambda tuned: optimizer.init(ravel_pytree(tuned)[0])

        @jax.jit
        def evaluate(tuned, batch):
            x, unravel = ravel_pytree(tuned)
            along = lambda direction: jax.jvp(lambda x: residuals(unravel(x), batch), (x,), (direction,))
            r, J = jax.vmap(along, out_axes=(None, 1))(jnp.eye(x.size, dtype=x.dtype))
            return r @ r, unravel(2 * (r @ J)), (r, J)

        @jax.jit
        def update(tuned, found, state, batch):
            x, unravel = ravel_pytree(tuned)
            loss = lambda x: jnp.sum(residuals(inside(unravel(x)), batch) ** 2)
            r, J = found[2]
            x, state = optimizer.step(x, r, J, state, loss)
            return inside(unravel(x)), state

        self.evaluate, self.update = evaluate, update

    def at_hand(self, state: Any) -> None:
        return None

    def spent(self, state: Any) -> tuple[int, int]:
        return 0, int(state["trials"])
