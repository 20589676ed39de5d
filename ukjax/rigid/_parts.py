"""The parts of a robot, collected while its file is read, their names, and the list of what was read."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._body import Body
from ._effort import Gear, Motor
from ._frame import Frame, Inertia
from ._joint import AbstractJoint, Fixed, Free, Prismatic, Revolute, Spherical
from ._layout import GROUND
from ._robot import Robot


# A feature, and the names of the parts that have it.
Part = tuple[str, list[str]]


class Reading(NamedTuple):
    """A robot that was read from a file, with a report.

    Attributes:
        robot: The robot.
        unsupported_features: Features that the file has, and the robot does not.
        switched_off: Features that the file itself switches off.
        keyframes: Names of the states in the file, beside the drawn state.
        odd: Sentences on features that are followed, but look like mistakes of the file.
    """

    robot: Robot
    unsupported_features: list[Part]
    switched_off: list[Part]
    keyframes: list[str]
    odd: list[str]


class Parts(NamedTuple):
    """Parts of a robot, by name; frames by body or "ground"; home, its rates and ranges by joint."""

    bodies: dict[str, Inertia | None]
    joints: dict[str, AbstractJoint]
    frames: dict[str, dict[str, Frame]]
    gears: dict[str, Gear]
    motors: dict[str, Motor]
    home: dict[str, np.ndarray]
    home_rates: dict[str, np.ndarray]
    ranges: dict[str, tuple[float, float]]

    @classmethod
    def none(cls) -> "Parts":
        """A collection without parts."""
        return cls({}, {}, {}, {}, {}, {}, {}, {})

    def at(self, body: str, name: str, R: np.ndarray, p: np.ndarray) -> str:
        """Adds a frame with rotation R and origin p to a body; returns "body.frame", or "body" for the identity."""
        straight = np.allclose(R, np.eye(3), atol=1e-14)
        if straight and np.allclose(p, 0, atol=1e-14):
            return body
        name = unused(self.frames.get(body, {}), name)
        self.frames.setdefault(body, {})[name] = Frame(p) if straight else Frame(p, R)
        return f"{body}.{name}"

    def robot(self, options: Mapping[str, Any], **more: Any) -> Robot:
        """The `Robot` of the parts and of `more` from the file; `options` of the user replace both."""
        frames = dict(self.frames)
        own = {
            "frames": frames.pop(GROUND, {}),
            "gears": self.gears,
            "motors": self.motors,
            "home": self.home,
            "home_rates": self.home_rates,
            "ranges": self.ranges,
            **more,
        }
        bodies = {name: Body(inertia, frames.pop(name, {})) for name, inertia in self.bodies.items()}
        if frames:
            unknown = next(iter(frames))
            raise ValueError(f"frames names the body {unknown!r}, which does not exist; there are {[*bodies]}.")
        return Robot(bodies, self.joints, **{**own, **options})


def distinct(names: Sequence[str], what: str, first: int) -> list[str]:
    """Distinct names of parts; names that the file gives take precedence over names made up for unnamed parts."""
    found, taken = [*names], set()
    for k in sorted(range(len(names)), key=lambda k: not names[k]):
        found[k] = unused(taken, usable(names[k], f"{what}{first + k}"))
        taken.add(found[k])
    return found


def usable(name: str, otherwise: str) -> str:
    """A name from a file as a valid name of a part; `otherwise` if it is empty."""
    name = name.replace(".", "_")
    return f"{name}_" if name == GROUND else name or otherwise


def unused(taken: Container[str], name: str) -> str:
    """The name, with underscores appended until it is not in `taken`."""
    while name in taken:
        name += "_"
    return name


def named_axis(axis: np.ndarray) -> str | np.ndarray:
    """The name "x", "y" or "z" of an axis that is one of them, for fewer operations; else the axis itself."""
    return next((k for k, unit in zip("xyz", np.eye(3), strict=True) if np.array_equal(axis, unit)), axis)


KINDS = {Revolute: "hinges", Prismatic: "slides", Spherical: "balls", Free: "free joints", Fixed: "fixed joints"}


def followed(robot: Robot) -> list[Part]:
    """The features of a robot, each with the names of the parts that have it; features without parts are left out."""
    names, tree = robot.layout.bodies, robot.tree
    kinds = {name: type(robot.joints[name]) for name in robot.joint_names}
    joints = [
        (KINDS.get(kind, f"joints of kind {kind.__name__}"), [name for name in tree.tree if kinds[name] is kind])
        for kind in dict.fromkeys(kinds.values())
    ]
    found = [
        ("bodies", [name for name in names if robot.bodies[name].inertia is not None]),
        ("bodies without mass", [name for name in names if robot.bodies[name].inertia is None]),
        *joints,
        ("loops, closed exactly", [f"{name} ({kinds[name].__name__})" for name in tree.loops]),
        ("gears, met exactly", [*robot.gears]),
        ("springs of joints", _with(robot, "stiffness")),
        ("dampers of joints", _with(robot, "damping")),
        ("armature of joints", _with(robot, "armature")),
        ("motors", [*robot.motor_names]),
        ("gravity [m/s^2]", [f"{x:g}" for x in np.asarray(robot.gravity)]),
    ]
    return [(what, found) for what, found in found if found]


def _with(robot: Robot, quantity: str) -> list[str]:
    """Names of the joints whose effort or drag has a nonzero quantity."""
    parts = {
        name: getattr(robot.joints[name], "effort", None) or getattr(robot.joints[name], "drag", None)
        for name in robot.joint_names
    }
    return [name for name, part in parts.items() if np.any(np.asarray(getattr(part, quantity, 0.0)))]
