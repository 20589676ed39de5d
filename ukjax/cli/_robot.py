"""TARGET as a robot's file, MJCF or URDF."""

from pathlib import Path

import jax.numpy as jnp

from .._manifold import Projection
from .._scenario import Scenario
from ..rigid import Robot, from_file


SUFFIXES = (".xml", ".mjcf", ".urdf")
# How long a robot falls if nobody says [s].
SECONDS = 5.0


def is_robot(target: str) -> bool:
    """Whether it is the path of a robot's file."""
    return target.lower().endswith(SUFFIXES)


def scenario(target: str, coordinates: dict[str, object]) -> Scenario:
    """The robot without control, from rest, with these joints where they are said to be."""
    robot = from_file(target)
    q, v = robot.assemble(coordinates, keep=list(coordinates))
    held = bool(robot.own_constraints) or robot.kinematics is not None
    return robot.scenario(
        q,
        v,
        SECONDS,
        name=Path(target).stem,
        projection=Projection() if held else None,
        invariants={"energy [J]": robot.energy} if keeps_energy(robot) else None,
        source=target,
    )


def keeps_energy(robot: Robot) -> bool:
    """Whether nothing in it damps."""
    parts = [getattr(robot.joints[name], kind, None) for name in robot.joint_names for kind in ("effort", "drag")]
    return not any(bool(jnp.any(part.damping != 0)) for part in parts if part is not None)
