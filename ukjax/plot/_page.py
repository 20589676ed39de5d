"""A self-contained web page that plays a motion."""

import html
import importlib.resources
import json
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from .. import _check
from .._scenario import Scenario
from .._trajectory import Trajectory
from ._frame import Page
from ._scene import Scene, scene


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
    return filled("_page.html", scenario.name, _data(found, scenario.source, speed))


def filled(template: str, title: str, data: dict[str, object], parts: Mapping[str, str] = MappingProxyType({})) -> Page:
    """The text of a page made of a template and its parts, the script that all of them share, a title and data."""
    folder = importlib.resources.files("ukjax.plot")
    page, view = (folder.joinpath(name).read_text("utf-8") for name in (template, "_view.js"))
    # "</script>" in a name must not end the script that holds it.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    for name, part in {"%VIEW%": view, **parts}.items():
        page = page.replace(name, part)
    return Page(page.replace("%TITLE%", html.escape(title)).replace("%DATA%", text))


def _data(seen: Scene, source: str, speed: float) -> dict[str, object]:
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
