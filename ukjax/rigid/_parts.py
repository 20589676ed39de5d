"""What a robot is put together from, as its file is read; and how its parts are called."""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._body import Body
from ._frame import Frame
from ._inertia import Inertia
from ._joint import AbstractJoint
from ._layout import GROUND
from ._motor import Gear, Motor
from ._robot import Robot


# What something is, and the names of what has it.
Part = tuple[str, list[str]]


class Reading(NamedTuple):
    """A robot as it was read.

    Attributes:
        robot: What was made of the file.
        left_out: What the file has, and the robot does not.
        switched_off: What the file itself switches off.
        keyframes: Names of the states that the file has beside the one that it draws.
        odd: What is followed, but looks like a mistake of the file, in whole sentences.
    """

    robot: Robot
    left_out: list[Part]
    switched_off: list[Part]
    keyframes: list[str]
    odd: list[str]


class Parts(NamedTuple):
    """Parts of a robot, by name; frames by body, and the ground's; home and its rates by joint."""

    bodies: dict[str, Inertia | None]
    joints: dict[str, AbstractJoint]
    frames: dict[str, dict[str, Frame]]
    gears: dict[str, Gear]
    motors: dict[str, Motor]
    home: dict[str, np.ndarray]
    home_rates: dict[str, np.ndarray]

    @classmethod
    def none(cls) -> "Parts":
        """Nothing yet."""
        return cls({}, {}, {}, {}, {}, {}, {})

    def at(self, body: str, name: str, R: np.ndarray, p: np.ndarray) -> str:
        """A frame on a body, with its rotation and its origin, as "body.frame"; the body itself if it is its own."""
        straight = np.allclose(R, np.eye(3), atol=1e-14)
        if straight and np.allclose(p, 0, atol=1e-14):
            return body
        name = unused(self.frames.get(body, {}), name)
        self.frames.setdefault(body, {})[name] = Frame(p) if straight else Frame(p, R)
        return f"{body}.{name}"

    def robot(self, options: Mapping[str, Any], **more: Any) -> Robot:
        """The robot; `options` of the user take the place of the parts and of `more` that the file says."""
        frames = dict(self.frames)
        own = {
            "frames": frames.pop(GROUND, {}),
            "gears": self.gears,
            "motors": self.motors,
            "home": self.home,
            "home_rates": self.home_rates,
            **more,
        }
        bodies = {name: Body(inertia, frames.pop(name, {})) for name, inertia in self.bodies.items()}
        if frames:
            unknown = next(iter(frames))
            raise ValueError(f"frames names the body {unknown!r}, which there is not; there are {[*bodies]}.")
        return Robot(bodies, self.joints, **{**own, **options})


def distinct(names: Sequence[str], what: str, first: int) -> list[str]:
    """What parts are called here; names that the file gives come before the made up ones of its unnamed parts."""
    found, taken = [*names], set()
    for k in sorted(range(len(names)), key=lambda k: not names[k]):
        found[k] = unused(taken, usable(names[k], f"{what}{first + k}"))
        taken.add(found[k])
    return found


def usable(name: str, otherwise: str) -> str:
    """A name of a file, as a part may be called here."""
    name = name.replace(".", "_")
    return f"{name}_" if name == GROUND else name or otherwise


def unused(taken: Container[str], name: str) -> str:
    """The name, or with lines below it until nothing else is called so."""
    while name in taken:
        name += "_"
    return name


def named_axis(axis: np.ndarray) -> Any:
    """ "x", "y" or "z" where it is one of them, which is computed with fewer operations."""
    return next((k for k, unit in zip("xyz", np.eye(3), strict=True) if np.array_equal(axis, unit)), axis)
