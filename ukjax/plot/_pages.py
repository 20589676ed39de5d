"""A mechanism in motion: as a film, by matplotlib's writers, or as a web page that needs no other file.

One page plays a motion, another simulates it and answers to the hand.
"""

import base64
import copy
import dataclasses
import html
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .. import _check
from .._export import Live, live_module
from .._scenario import Scenario
from .._trajectory import Trajectory
from . import _stage
from ._frame import Film, Page
from ._stage import Scene, check, scene


def page(scenario: Scenario, trajectory: Trajectory, speed: float = 1.0) -> Page:
    """The text of an HTML page that needs no network: it plays, pauses and scrubs, and in space it can be rotated.

    A notebook shows the page.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`.
        trajectory: Its motion, one trajectory, at evenly spaced times, all of which are shown.
        speed: Seconds of motion that pass in one second.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `speed` is not positive, or a function of the
            drawing returns a wrong shape.
    """
    speed = _check.positive(speed, "speed")
    found = scene(scenario, trajectory)
    return filled("_page.html", scenario.name, _playing(found, scenario.source, speed))


def filled(template: str, title: str, data: dict[str, object], parts: Mapping[str, str] = MappingProxyType({})) -> Page:
    """The text of a page made of a template and its parts, the script that all of them share, a title and data."""
    folder = importlib.resources.files("ukjax.plot")
    page, view = (folder.joinpath(name).read_text("utf-8") for name in (template, "_view.js"))
    # "</script>" in a name must not end the script that holds it.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    for name, part in {"%VIEW%": view, **parts}.items():
        page = page.replace(name, part)
    return Page(page.replace("%TITLE%", html.escape(title)).replace("%DATA%", text))


def _playing(seen: Scene, source: str, speed: float) -> dict[str, object]:
    lower, upper = seen.bounds
    length, force = seen.scale
    # Six digits of the extent are finer than a screen, and take half the space of all sixteen.
    decimals = 5 - int(np.floor(np.log10(np.max(upper - lower))))

    def numbers(x: np.ndarray) -> list[float]:
        return np.round(x, decimals).ravel().tolist()

    links = [
        {
            "name": name,
            "color": seen.color(name),
            "trail": name in seen.trails,
            "closed": seen.closed(name),
            "count": x.shape[1],
            "at": numbers(x),
        }
        for name, x in seen.links.items()
    ]
    arrows = [
        {"name": name, "color": seen.color(name), "at": numbers(at), "along": numbers(along)}
        for name, (at, along) in seen.vectors.items()
    ]
    return {
        "title": seen.title,
        "source": source,
        "speed": speed,
        "dimension": seen.dimension,
        "t": [float(f"{t:.9g}") for t in seen.t],
        "lower": numbers(lower),
        "upper": numbers(upper),
        "scale": {"length": length, "force": force},
        "links": links,
        "arrows": arrows if force else [],
        "scenery": [{"name": name, "at": numbers(x)} for name, x in seen.scenery.items()],
    }


# States of the trajectory at which the step has to be short enough.
STATES = 24


def live(
    scenario: Scenario, trajectory: Trajectory, speed: float = 1.0, parameters: Sequence[str] | None = None
) -> Page:
    """The text of an HTML page that simulates a scenario, without a network: it plays, and answers to the hand.

    A part that is pulled with the mouse follows by a damped spring, which acts on it as a force does; in a pause it
    stays where it is put. There are sliders for parameters, and plots of invariants and of the constraints' error.
    Steps are those of `diffrax.Dopri8`, of one length, each ended by the scenario's projection, or by
    `ukjax.Projection()`. Where the equation of motion is not certain the page says so, and stops.

    Args:
        scenario: A scenario with a `ukjax.study.Drawing`, whose functions are scalar code, as for `ukjax.export`.
        trajectory: Its motion, one trajectory, by which the size of the picture and the length of a step are chosen.
        speed: Seconds of motion that pass in one second.
        parameters: Names of the parameters that have sliders, as `ukjax.export` knows them: "system_g"; if omitted
            up to 8 on which the motion depends, those of a servo first.

    Raises:
        TypeError: If `scenario` or `trajectory` has another type.
        ValueError: If there is no drawing, the trajectory is a batch, `speed` is not positive, a parameter is not
            known, a function of the mechanism, of its servo or of the drawing is no scalar program or not certain along
            the trajectory, or the servo has memory or samples.
    """
    speed = _check.positive(speed, "speed")
    _check.instance(scenario, Scenario, "scenario", "ukjax.Scenario(mechanism, q0, v0, t1)")
    bare = copy.copy(scenario)
    bare.drawing = dataclasses.replace(check(scenario), forces={})  # there are no arrows
    seen = scene(bare, trajectory)
    q, v, t = map(np.asarray, (trajectory.q, trajectory.v, trajectory.t))
    chosen = np.unique(np.linspace(0, len(t) - 1, STATES).astype(int))
    made = live_module(bare, [(q[i], v[i], float(t[i])) for i in chosen], parameters)
    script = importlib.resources.files("ukjax.plot").joinpath("_live.js").read_text("utf-8")
    return filled("_live.html", scenario.name, _simulating(scenario, seen, made, speed), {"%SCRIPT%": script})


def _simulating(scenario: Scenario, seen: Scene, made: Live, speed: float) -> dict[str, object]:
    lower, upper, follows = _box(seen)
    links = [
        {"color": seen.color(k), "trail": k in seen.trails, "closed": seen.closed(k), "count": count}
        for k, count in made.points.items()
    ]
    values = [float(value) for x in made.parameters for value in x.values.ravel()]
    labels = _labels([name for x in made.parameters for name in x.entries])
    # Where speeds are not the rates of the coordinates, no speed belongs to one.
    names = list(scenario.coordinates) if scenario.mechanism.kinematics is None else []
    return {
        "title": seen.title,
        "source": scenario.source,
        "speed": speed,
        "dimension": seen.dimension,
        "lower": lower.tolist(),
        "upper": upper.tolist(),
        "follow": follows,
        "links": links,
        "scenery": [{"at": x.ravel().tolist()} for x in seen.scenery.values()],
        "code": base64.b64encode(made.code).decode(),
        "coordinates": len(scenario.q0),
        "speeds": len(scenario.v0),
        "q0": np.asarray(scenario.q0, float).tolist(),
        "v0": np.asarray(scenario.v0, float).tolist(),
        "t0": float(scenario.t0),
        "step": made.step,
        "measured": [{"name": name, "kept": name in scenario.invariants} for name in made.measured],
        "parameters": [{"name": name, "value": value} for name, value in zip(labels, values, strict=True)],
        "constrained": bool(scenario.mechanism.constraints),
        "names": names,
    }


# Words of the names of parameters that say where they are found, not what they are.
PLACES = {"system", "self", "constraint", "stabilization", "kinetic", "potential", "phi", "bodies", "joints", "inertia"}


def _labels(names: Sequence[str]) -> list[str]:
    """The names of parameters without the words for their places, unless two would be alike."""
    short = [" ".join(x for x in name.split("_") if x and x not in PLACES) for name in names]
    return [x if x and short.count(x) == 1 else name.replace("_", " ") for x, name in zip(short, names, strict=True)]


def _box(seen: Scene) -> tuple[np.ndarray, np.ndarray, bool]:
    """The lower and upper corner of the picture, and whether it goes along with a mechanism that travels."""
    if not seen.travels:
        return *seen.bounds, False
    first = np.concatenate(list(seen.links.values()), axis=1)[0]
    middle = (first.min(axis=0) + first.max(axis=0)) / 2
    half = np.maximum(0.7 * seen.size, 0.5 * np.max(seen.size))
    return middle - half, middle + half, True


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
