"""Self-contained web pages: one plays a motion, one simulates it and answers to the hand."""

import base64
import copy
import dataclasses
import html
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from .. import _check
from .._export import Live, live_module
from .._scenario import Scenario
from .._trajectory import Trajectory
from ._frame import Page
from ._scene import Scene, check, scene


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
