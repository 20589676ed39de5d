"""A robot's features in words, for the list of what was read from its file."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ._joint import Fixed, Free, Prismatic, Revolute, Spherical
from ._robot import Robot
from ._unsupported import Part


KINDS = {Revolute: "hinges", Prismatic: "slides", Spherical: "balls", Free: "free joints", Fixed: "fixed joints"}


def followed(robot: Robot) -> list[Part]:
    """The features of a robot, each with the names of the parts that have it; features without parts are left out."""
    names, tree = robot.layout.bodies, robot.tree
    kinds = {name: type(robot.joints[name]) for name in robot.joint_names}
    called = lambda kind: KINDS.get(kind, f"joints of kind {kind.__name__}")
    joints = [
        (called(kind), [name for name in tree.tree if kinds[name] is kind]) for kind in dict.fromkeys(kinds.values())
    ]
    has = lambda quantity: _with(robot, lambda part: np.any(np.asarray(getattr(part, quantity, 0.0))))
    found = [
        ("bodies", [name for name in names if robot.bodies[name].inertia is not None]),
        ("bodies without mass", [name for name in names if robot.bodies[name].inertia is None]),
        *joints,
        ("loops, closed exactly", [f"{name} ({kinds[name].__name__})" for name in tree.loops]),
        ("gears, met exactly", [*robot.gears]),
        ("springs of joints", has("stiffness")),
        ("dampers of joints", has("damping")),
        ("armature of joints", has("armature")),
        ("motors", [*robot.motor_names]),
        ("gravity [m/s^2]", [f"{x:g}" for x in np.asarray(robot.gravity)]),
    ]
    return [(what, found) for what, found in found if found]


def _with(robot: Robot, has: Callable[[Any], Any]) -> list[str]:
    """Names of the joints whose effort or drag satisfies `has`."""
    parts = {
        name: getattr(robot.joints[name], "effort", None) or getattr(robot.joints[name], "drag", None)
        for name in robot.joint_names
    }
    return [name for name, part in parts.items() if part is not None and has(part)]
