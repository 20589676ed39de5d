"""Tuning by gradient: a loss, its parameters, an optax optimiser."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree
from tqdm.auto import tqdm


class Tuning(eqx.Module):
    """What `tune` found.

    Attributes:
        params: The parameters with the smallest loss seen.
        loss: That loss.
        step: The step at which it was seen; 0 is the start.
        losses: Loss before every step and after the last, (steps + 1,); shorter if the tuning stopped early.
        gradient_norms: Norm of the gradient at the same points.
        history: The parameters at the same points, every leaf with a leading axis.
        stopped: Why it stopped before its steps were done, or an empty string.
    """

    params: PyTree
    loss: float
    step: int
    losses: Float[np.ndarray, " points"]
    gradient_norms: Float[np.ndarray, " points"]
    history: PyTree
    stopped: str


def tune(
    loss: Callable[[PyTree], Array],
    params: PyTree,
    optimizer: optax.GradientTransformation,
    steps: int,
    *,
    progress: bool = True,
    throw: bool = True,
) -> Tuning:
    """Minimises `loss(params)` by gradient descent, and keeps the best parameters seen.

    Args:
        loss: `loss(params)`, a scalar; a trajectory may lie in between. Compiled once, with its gradient.
        params: A pytree; its floating arrays are tuned (Python floats become arrays), everything else is kept.
        optimizer: Any optax optimiser, for example `optax.adam(1e-2)`.
        steps: How many steps to take, at least 1.
        progress: Show a progress bar with the loss and the gradient norm.
        throw: Raise if the loss or its gradient stops being finite. With False the tuning ends there; look at
            `stopped`.

    Returns:
        `Tuning`: best `params` with their `loss`, and the history.

    Raises:
        TypeError: If `loss` is not callable or `optimizer` is not an optax optimiser.
        ValueError: If `steps` is not a positive integer, `params` holds nothing to tune, or `loss` is not a scalar.
        RuntimeError: If `throw` and the loss or its gradient is not finite.
    """
    _check(loss, optimizer, steps)
    params = jax.tree_util.tree_map(lambda x: jnp.asarray(x) if isinstance(x, float) else x, params)
    tuned, fixed = eqx.partition(params, eqx.is_inexact_array)
    if not jax.tree_util.tree_leaves(tuned):
        raise ValueError("params must hold at least one floating array to tune, but holds none.")

    value = lambda tuned: loss(eqx.combine(tuned, fixed))
    shape = jax.eval_shape(value, tuned)
    if getattr(shape, "shape", None) != ():
        raise ValueError(f"loss(params) must return a scalar, but returned {shape}.")
    evaluate = jax.jit(jax.value_and_grad(value))

    @jax.jit
    def update(tuned, gradient, state):
        updates, state = optimizer.update(gradient, state, tuned)
        return optax.apply_updates(tuned, updates), state

    state = optimizer.init(tuned)
    seen: list[tuple[Any, float, float]] = []
    stopped = ""
    with tqdm(total=steps, desc="tune", disable=not progress, unit="step") as bar:
        for step in range(steps + 1):
            number, gradient = evaluate(tuned)
            seen.append((tuned, float(number), float(optax.tree.norm(gradient))))
            bar.set_postfix(loss=f"{seen[-1][1]:.6g}", gradient=f"{seen[-1][2]:.3g}")
            if not np.isfinite(seen[-1][1:]).all():
                what = "gradient" if np.isfinite(seen[-1][1]) else "loss"
                stopped = f"The {what} is not finite at step {step}. Take smaller steps, or bound the parameters."
                break
            if step < steps:
                tuned, state = update(tuned, gradient, state)
                bar.update()
    if stopped and throw:
        raise RuntimeError(stopped)
    return _summary(seen, fixed, stopped)


def _check(loss: Any, optimizer: Any, steps: Any) -> None:
    if not callable(loss):
        raise TypeError(f"loss must be a function loss(params) -> scalar, but is {type(loss).__name__}.")
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"optimizer must be an optax optimiser, for example optax.adam(1e-2), but is {type(optimizer).__name__}."
        )
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be an integer of at least 1, but is {steps!r}.")


def _summary(seen: list[tuple[Any, float, float]], fixed: Any, stopped: str) -> Tuning:
    losses = np.array([loss for _, loss, _ in seen])
    best = int(np.nanargmin(np.where(np.isfinite(losses), losses, np.inf)))
    return Tuning(
        params=eqx.combine(seen[best][0], fixed),
        loss=seen[best][1],
        step=best,
        losses=losses,
        gradient_norms=np.array([norm for _, _, norm in seen]),
        history=jax.tree_util.tree_map(lambda *x: jnp.stack(x), *(tuned for tuned, _, _ in seen)),
        stopped=stopped,
    )
