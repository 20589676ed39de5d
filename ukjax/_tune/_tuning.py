"""The result of a tuning."""

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree


if TYPE_CHECKING:
    import xarray


class Tuning(eqx.Module):
    """The result of `tune`: the best parameters and the history.

    Attributes:
        params: The parameters with the smallest loss seen.
        loss: The smallest loss.
        step: The step at which that loss was seen; 0 is the start.
        losses: Loss before every step and after the last, (steps + 1,); shorter if the tuning stopped early. With
            minibatches each is the loss of its minibatch.
        gradient_norms: Norm of the gradient at the same points.
        full_losses: Loss over all samples at the same points; NaN where it was not evaluated. Equal to `losses`
            without minibatches.
        evaluations: Number of computations of the loss and its gradient up to each point, line searches and rejected
            trials included; with a least-squares method, residuals and Jacobian.
        trials: Number of computations of the loss alone up to each point, by `LevenbergMarquardt` for example.
        history: The parameters at the same points, every leaf with a leading axis.
        stopped: Reason why the tuning stopped before its steps were done, such as "Converged: ...", or an empty string.
    """

    params: PyTree
    loss: float
    step: int
    losses: Float[np.ndarray, " points"]
    gradient_norms: Float[np.ndarray, " points"]
    full_losses: Float[np.ndarray, " points"]
    evaluations: Float[np.ndarray, " points"]
    trials: Float[np.ndarray, " points"]
    history: PyTree
    stopped: str

    def to_dataset(self) -> "xarray.Dataset":
        """Returns the history as a labelled xarray data set over `step`, one variable for each parameter."""
        import xarray as xr

        data: dict[str, Any] = {
            "loss": ("step", self.losses, {"long_name": "loss"}),
            "full_loss": ("step", self.full_losses, {"long_name": "loss over all samples"}),
            "gradient_norm": ("step", self.gradient_norms, {"long_name": "norm of the gradient"}),
            "evaluations": ("step", self.evaluations, {"long_name": "evaluations of the loss and its gradient so far"}),
            "trials": ("step", self.trials, {"long_name": "evaluations of the loss alone so far"}),
        }
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.history):
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameter"
            dims = ["step", *(f"{name}_dim{i}" for i in range(leaf.ndim - 1))]
            data[name] = (dims, np.asarray(leaf), {"long_name": f"parameter {name}"})
        steps = ("step", np.arange(len(self.losses)), {"long_name": "steps taken"})
        return xr.Dataset(data, coords={"step": steps}, attrs={"stopped": self.stopped, "best_step": self.step})
