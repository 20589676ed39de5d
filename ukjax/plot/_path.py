"""The path of a mechanism in one picture."""

import numpy as np
from matplotlib.figure import Figure

from .. import _check
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _stage
from ._scene import scene


def path(scenario: Scenario, trajectory: Trajectory, positions: int = 6) -> Figure:
    """The mechanism in a few positions, later ones darker, with trails, constraint forces and scenery; axes are equal.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`.
        trajectory: Its motion, one trajectory, not a batch.
        positions: Number of positions, evenly spaced in time, from start to end.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `positions` is no positive integer, or a function
            of the drawing returns a wrong shape.
    """
    _check.count(positions, "positions")
    seen = scene(scenario, trajectory)
    figure, axis = _stage.stage(seen)
    shown = np.unique(np.linspace(0, len(seen.t) - 1, positions).round().astype(int))[::-1]
    for name, points in seen.trails.items():
        _stage.trail(axis, seen, name, points)
    vectors = seen.vectors
    # Opacity is 0.2 for the first position and 1 for the last, which is drawn first so that it hides no other.
    for i, alpha in zip(shown, np.linspace(1.0, 0.2, len(shown))):
        for name, points in seen.links.items():
            _stage.link(axis, seen, name, points[i], alpha)
        for name, (at, along) in vectors.items():
            _stage.arrow(axis, seen, name, _stage.outline(seen, at[i], along[i]), alpha)
    times = ", ".join(f"{seen.t[i]:.3g}" for i in shown[::-1])
    _stage.caption(axis, f"t = {times} s, later ones darker", "small")
    return figure
