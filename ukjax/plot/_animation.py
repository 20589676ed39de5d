"""A mechanism in motion, for matplotlib's writers."""

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import _check
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _stage
from ._frame import Film
from ._scene import scene


def animation(scenario: Scenario, trajectory: Trajectory, interval: float = 40.0, step: int = 1) -> Film:
    """An animation of a motion with links, trails so far, constraint-force arrows, scenery, and the time.

    A notebook plays it; `.save("pendulum.gif", writer="pillow", fps=25)` writes it. Both use the 100 dots per inch at
    which it is drawn.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`.
        trajectory: Its motion, one trajectory, at evenly spaced times.
        interval: Time for which a frame is shown [ms].
        step: 1 for a frame at every saved time, 2 for one at every other time, and so on; trails have all times.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `interval` or `step` is not positive, or a
            function of the drawing returns a wrong shape.
    """
    interval = _check.positive(interval, "interval")
    _check.count(step, "step")
    seen = scene(scenario, trajectory)
    figure, axis = _stage.stage(seen, seen.title, None, None)
    figure.set_dpi(100)
    trails = {name: _stage.trail(axis, seen, name, points[:1]) for name, points in seen.trails.items()}
    links = {name: _stage.link(axis, seen, name, points[0]) for name, points in seen.links.items()}
    vectors = seen.vectors
    arrows = {name: _stage.arrow(axis, seen, name, at[:1]) for name, (at, _) in vectors.items()}
    clock = _stage.caption(axis, "t = 0 s", "medium")
    digits = _digits(step * float(seen.t[-1] - seen.t[0]) / len(seen.t))
    shot = _Shot(figure, axis, [*trails.values(), *links.values(), *arrows.values(), clock])

    def draw(i: int) -> list[Artist]:
        for name, line in links.items():
            _stage.move(line, seen.links[name][i])
        for name, line in trails.items():
            _stage.move(line, seen.trails[name][: i + 1])
        for name, line in arrows.items():
            at, along = vectors[name]
            _stage.move(line, _stage.outline(seen, at[i], along[i]))
        clock.set_text(f"t = {seen.t[i]:.{digits}f} s")
        return [shot.expose()]

    frames = range(0, len(seen.t), step)
    return Film(shot.screen, draw, frames=frames, interval=interval, cache_frame_data=False)  # pyright: ignore


SMALL = (2.4, 1.8)  # size of a thumbnail [in]
SMALL_FRAMES, SMALL_DPI = 32, 110


def thumbnail(scenario: Scenario, trajectory: Trajectory, seconds: float = 4.0) -> bytes:
    """An animated WebP picture of a motion, small and without axes or background, which repeats after some seconds."""
    from PIL import Image

    seen = _stage.seen_from_afar(scene(scenario, trajectory))
    figure = Figure(figsize=SMALL, dpi=SMALL_DPI)
    figure.patch.set_alpha(0.0)
    axis = _stage.bare(figure, seen)
    for name, points in seen.trails.items():
        _stage.trail(axis, seen, name, points)
    links = {name: _stage.link(axis, seen, name, points[0]) for name, points in seen.links.items()}
    shot = _Shot(figure, axis, list(links.values()))
    pictures = []
    for i in np.unique(np.linspace(0, len(seen.t) - 1, SMALL_FRAMES).round().astype(int)):
        for name, line in links.items():
            _stage.move(line, seen.links[name][i])
        pictures.append(Image.fromarray(shot.expose().pixels))
    stream = BytesIO()
    lasts = round(1000 * seconds / len(pictures))
    pictures[0].save(stream, "webp", save_all=True, append_images=pictures[1:], duration=lasts, loop=0, quality=60)
    return stream.getvalue()


class _Shot:
    """A figure that shows a picture of another figure, whose resting artists are drawn once, the moving ones per frame.

    Drawing all artists in every frame, three times as matplotlib does, is slow.
    """

    def __init__(self, figure: Figure, axis: Axes, moving: Sequence[Artist]):
        self.axis, self.moving = axis, moving
        self.canvas = FigureCanvasAgg(figure)
        # Before `set_animated`, because the layout makes no room for animated artists.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for artist in moving:
            artist.set_animated(True)
        self.canvas.draw()
        self.rest = self.canvas.copy_from_bbox(figure.bbox)
        self.screen = Figure(figsize=(figure.get_figwidth(), figure.get_figheight()), dpi=figure.dpi)
        FigureCanvasAgg(self.screen)
        self.picture = _Picture(self._pixels())
        self.screen.add_artist(self.picture)

    def expose(self) -> "_Picture":
        """Draws the moving artists in their present state into the picture."""
        self.canvas.restore_region(self.rest)
        for artist in self.moving:
            self.axis.draw_artist(artist)
        self.picture.pixels = self._pixels()
        return self.picture

    def _pixels(self) -> np.ndarray:
        return np.array(self.canvas.buffer_rgba())


class _Picture(Artist):
    """Pixels drawn as they are; matplotlib's own images are resampled, which is slower than drawing them."""

    def __init__(self, pixels: np.ndarray):
        super().__init__()
        self.pixels = pixels

    def draw(self, renderer):
        renderer.draw_image(renderer.new_gc(), 0, 0, self.pixels[::-1])


def _digits(step: float) -> int:
    """The number of digits after the point for which no two frames show the same time."""
    return next((k for k in range(2, 12) if step >= 10.0**-k), 12)
