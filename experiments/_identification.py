"""What experiments that fit motions to measurements share: the information of the data, and a picture of the fit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from ._figures import captioned, legend, panels


def information(motion: Callable, at: Any, samples: Any, sigma: float) -> np.ndarray:
    """Fisher information (p, p) of the data about the vector x (p,) of `motion(x, sample)`.

    `sigma`: standard deviation of every measurement, in its unit.
    """
    sensitivity = jax.jit(jax.vmap(jax.jacfwd(motion), (None, 0)))(at, samples)
    J = np.asarray(sensitivity).reshape(-1, at.shape[0]) / sigma
    return J.T @ J


def fit_figure(t: np.ndarray, measured: np.ndarray, runs: Mapping[str, np.ndarray], labels: Sequence[str]) -> Figure:
    """Four measured coordinates (T, 4) of a motion, and what it is in each run."""
    figure, axes = panels(2, 2, (7.4, 5.6), sharex=True)
    for i, axis in enumerate(axes):
        axis.plot(t, measured[:, i], "o", ms=5, color="0.75", zorder=1, label="measured")
        for (name, q), style in zip(runs.items(), ("--", "-"), strict=True):
            axis.plot(t, q[:, i], style, lw=1.2, label=name)
        axis.set_ylabel(labels[i])
        axis.margins(x=0.0)
    for axis in axes[2:]:
        axis.set_xlabel("time t [s]")
    legend(figure)
    return captioned(figure, "First of the motions that were measured, and what it is at the start and in the fit.")
