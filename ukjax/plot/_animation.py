"""A mechanism in motion, for matplotlib's writers."""

from typing import Any

from matplotlib.animation import FuncAnimation
from matplotlib.backends.backend_agg import FigureCanvasAgg

from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _stage
from ._scene import scene


def animation(scenario: Scenario, trajectory: Trajectory, interval: float = 40.0, step: int = 1) -> FuncAnimation:
    """One frame per saved time, or every few: links, trails so far, constraint-force arrows, scenery, and the time.

    `.save("pendulum.gif", writer="pillow", fps=25)` writes it, `.to_jshtml()` shows it in a notebook.

    Args:
        scenario: With a `ukjax.Drawing`.
        trajectory: Its motion, one trajectory, at evenly spaced times.
        interval: How long to show a frame [ms].
        step: 1 for a frame at every saved time, 2 at every other, and so on; trails have all of them.

    Raises:
        ValueError: If there is no drawing, the trajectory is a batch, or a function of the drawing returns a wrong
            shape.
    """
    seen = scene(scenario, trajectory)
    figure, axis = _stage.stage(seen)
    FigureCanvasAgg(figure)
    trails = {name: _stage.trail(axis, seen, name, points[:1]) for name, points in seen.trails.items()}
    links = {name: _stage.link(axis, seen, name, points[0]) for name, points in seen.links.items()}
    vectors = seen.vectors
    arrows = {name: _stage.arrow(axis, seen, name, at[:1]) for name, (at, _) in vectors.items()}
    title = axis.set_title("t = 0 s", fontsize="medium")
    digits = _digits(step * float(seen.t[-1] - seen.t[0]) / len(seen.t))
    # The layout is found once: finding it in every frame is slow, and lets the picture tremble.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")

    def draw(i: int) -> list[Any]:
        for name, line in links.items():
            _stage.move(line, seen.links[name][i])
        for name, line in trails.items():
            _stage.move(line, seen.trails[name][: i + 1])
        for name, line in arrows.items():
            at, along = vectors[name]
            _stage.move(line, _stage.outline(seen, at[i], along[i]))
        title.set_text(f"t = {seen.t[i]:.{digits}f} s")
        return [*links.values(), *trails.values(), *arrows.values(), title]

    frames = range(0, len(seen.t), step)
    return FuncAnimation(figure, draw, frames=frames, interval=interval, cache_frame_data=False)  # pyright: ignore


def _digits(step: float) -> int:
    """After the point, so that two frames do not show the same time."""
    return next((k for k in range(2, 12) if step >= 10.0**-k), 12)
