"""TuningProblem: all that a command needs to tune something."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from .. import _check
from ._tune import Optimizer, tune
from ._tuning import Tuning


@dataclasses.dataclass(frozen=True, eq=False)
class TuningProblem:
    """A loss, its parameters, and the way to minimise it, which `ukjax tune` runs.

    Args:
        loss: `loss(params)`, or `loss(params, sample)` with `samples`; see `tune`.
        params: Parameters at the start.
        optimizer: Any optax optimiser, `LevenbergMarquardt`, or an optimistix solver.
        steps: Largest number of steps.
        name: A short title.
        quantities: Quantities to show of the parameters: "P [s]" -> `f(params)`, a scalar; useful where logarithms are
            tuned. Every entry of every floating array under its own name if omitted.
        bounds: See `tune`, as for the following.
        samples: Perturbed systems.
        batch_size: Size of minibatches.
        seed: Seed of the order of samples.
        rtol: Relative tolerance for convergence; None: never.
        atol: Absolute tolerance, likewise.
        patience: Steps without improvement after which to stop.

    Raises:
        TypeError: If `loss` or a quantity is not callable.
    """

    loss: Callable
    params: Any
    optimizer: Optimizer
    steps: int
    _: dataclasses.KW_ONLY
    name: str = "tuning"
    quantities: Mapping[str, Callable] | None = None
    bounds: tuple[Any, Any] | None = None
    samples: Any = None
    batch_size: int | None = None
    seed: int | None = None
    rtol: float | None = 1e-10
    atol: float = 1e-12
    patience: int | None = None

    def __post_init__(self):
        _check.function(self.loss, "loss", "loss(params[, sample]) -> scalar")
        for name, quantity in (self.quantities or {}).items():
            _check.function(quantity, f"quantities[{name!r}]", "f(params) -> scalar")

    def tune(
        self, *, checkpoint: str | os.PathLike[str] | None = None, progress: bool = True, throw: bool = True
    ) -> Tuning:
        """Runs `ukjax.tune` on this problem."""
        return tune(
            self.loss, self.params, self.optimizer, self.steps, bounds=self.bounds, samples=self.samples,
            batch_size=self.batch_size, seed=self.seed, rtol=self.rtol, atol=self.atol, patience=self.patience,
            checkpoint=checkpoint, progress=progress, throw=throw,
        )  # fmt: skip

    def shown(self, history: Any) -> dict[str, np.ndarray]:
        """Returns the quantities to show, by name, for parameters with a leading axis such as `Tuning.history`."""
        if self.quantities is not None:
            return {name: np.asarray(jax.vmap(f)(history)) for name, f in self.quantities.items()}
        values: dict[str, np.ndarray] = {}
        for path, leaf in jax.tree_util.tree_leaves_with_path(history):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameter"
            for index in np.ndindex(leaf.shape[1:]):
                values[name + "".join(f"[{i}]" for i in index)] = np.asarray(leaf[(slice(None), *index)])
        return values
