"""The record of a tuning: its present state, and its history."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ._descent import Step
from ._tuning import Tuning


class Record:
    """The present parameters and state of the optimiser, and arrays over the steps, of which `seen` rows are filled.

    `spent` counts evaluations of the loss with gradient, and without.
    """

    def __init__(self, start: Step, steps: int):
        self.done, self.seen, self.spent = 0, 0, np.zeros(2)
        self.move(start)
        tuned = start.tuned
        self.losses, self.norms, self.over_all = (np.full(steps + 1, np.nan) for _ in range(3))
        self.evaluations = np.full((steps + 1, 2), np.nan)
        self.history = jax.tree_util.tree_map(lambda x: np.full((steps + 1, *x.shape), np.nan, x.dtype), tuned)

    def move(self, step: Step) -> None:
        """Moves to the parameters and state after a step."""
        self.tuned, self.state = step.tuned, step.state
        self.spent += step.spent

    def add(self, loss: float, norm: float, over_all: float) -> None:
        """Fills the row of the present step."""
        i = self.done
        self.losses[i], self.norms[i], self.over_all[i] = loss, norm, over_all
        self.evaluations[i] = self.spent
        for store, leaf in zip(*(jax.tree_util.tree_leaves(x) for x in (self.history, self.tuned)), strict=True):
            store[i] = leaf
        self.seen = i + 1

    def best(self) -> int:
        """Returns the step with the smallest loss over all samples."""
        losses = self.over_all[: self.seen]
        return int(np.argmin(np.where(np.isfinite(losses), losses, np.inf)))

    def parameters(self, step: int) -> np.ndarray:
        """Returns all tuned numbers at a step, one after the other."""
        return np.concatenate([np.ravel(x[step]) for x in jax.tree_util.tree_leaves(self.history)])

    def over_steps(self) -> list[np.ndarray]:
        """Returns all arrays over the steps."""
        histories = jax.tree_util.tree_leaves(self.history)
        return [self.losses, self.norms, self.over_all, self.evaluations, *histories]

    def tuning(self, fixed: Any, stopped: str) -> Tuning:
        """Returns the result of the tuning; `fixed`: the parameters that were not tuned."""
        best, seen = self.best(), self.seen
        history = jax.tree_util.tree_map(lambda x: jnp.asarray(x[:seen]), self.history)
        return Tuning(
            params=eqx.combine(jax.tree_util.tree_map(lambda x: x[best], history), fixed),
            loss=float(self.over_all[best]),
            step=best,
            losses=self.losses[:seen],
            gradient_norms=self.norms[:seen],
            full_losses=self.over_all[:seen],
            evaluations=self.evaluations[:seen, 0],
            trials=self.evaluations[:seen, 1],
            history=history,
            stopped=stopped,
        )
