"""Figures of a tuning."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._coordinate import Coordinate, by_unit
from .._tune import Tuning
from ._figures import legend


def convergence(tuning: Tuning, quantities: Mapping[str, np.ndarray], title: str = "") -> Figure:
    """A figure of loss, norm of the gradient, and tuned quantities over the steps; the best step is marked.

    Args:
        tuning: The result of `ukjax.tune`.
        quantities: "name [unit]" or `Coordinate` -> value at every step; quantities of one unit share an axis.
        title: Title above the figure.
    """
    names = [Coordinate(name) for name in quantities]
    groups = by_unit(names)
    figure = Figure(figsize=(7.0, 2.1 * (len(groups) + 2) + 0.6), layout="constrained")
    axes = figure.subplots(len(groups) + 2, 1, sharex=True)
    over_all = np.isfinite(tuning.full_losses)
    minibatches = not np.array_equal(tuning.full_losses, tuning.losses, equal_nan=True)
    if minibatches:
        axes[0].plot(tuning.losses, lw=0.8, alpha=0.7, label="of the minibatch")
    axes[0].plot(np.flatnonzero(over_all), tuning.full_losses[over_all], label="over all samples")
    axes[0].set_ylabel("loss")
    _scale(axes[0], tuning.losses)
    if minibatches:
        legend(axes[0], 2)
    axes[1].plot(tuning.gradient_norms)
    axes[1].set_ylabel("norm of gradient")
    _scale(axes[1], tuning.gradient_norms)
    for axis, (unit, members) in zip(axes[2:], groups.items(), strict=True):
        for i in members:
            axis.plot(quantities[names[i]], label=names[i].name)
        axis.set_ylabel(f"tuned [{unit}]" if unit else "tuned")
        legend(axis, len(members))
    for axis in axes:
        axis.grid(visible=True, alpha=0.3)
        axis.axvline(tuning.step, color="k", ls=":", lw=0.8)
    axes[-1].set_xlabel(f"step of the optimiser (best: {tuning.step})")
    figure.suptitle(title)
    return figure


def _scale(axis: Axes, values: np.ndarray) -> None:
    """Makes an axis logarithmic if all values are positive and span more than a power of ten."""
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > 10 * finite.min():
        axis.set_yscale("log")
