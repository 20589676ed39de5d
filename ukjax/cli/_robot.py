"""Scenarios of a TARGET that is a robot's file, MJCF or URDF."""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp

from .._manifold import Projection
from .._scenario import Scenario
from ..rigid import Robot, from_file
from ..rigid._from_file import reading_of
from ..rigid._parts import Reading


SUFFIXES = (".xml", ".mjcf", ".urdf")
# The default duration of a robot's motion [s].
SECONDS = 5.0


def is_robot(target: str) -> bool:
    """Whether TARGET is the path of a robot's file."""
    return target.lower().endswith(SUFFIXES)


def robot_scenario(target: str, settings: dict[str, object]) -> Scenario:
    """The scenario of a robot without control, from the drawn state, with the joints that `settings` name set."""
    return of_robot(target, *_read(target, settings, from_file))


def robot_reading(target: str, settings: dict[str, object]) -> tuple[Reading, Scenario]:
    """The `Reading` of a robot's file with the features left out, and its scenario, without a warning."""
    found: list[Reading] = []

    def read(target: str, **options: str) -> Robot:
        found.append(reading_of(target, **options))
        return found[-1].robot

    made = of_robot(target, *_read(target, settings, read))
    return found[-1], made


def _read(target: str, settings: dict[str, object], read: Callable[..., Robot]) -> tuple[Robot, dict[str, object]]:
    """The robot, and settings of its joints; the setting "keyframe" selects the state to start from."""
    settings = dict(settings)
    keyframe = settings.pop("keyframe", None)
    return (read(target) if keyframe is None else read(target, keyframe=str(keyframe))), settings


def of_robot(target: str, robot: Robot, coordinates: dict[str, object]) -> Scenario:
    """The scenario of a robot that was read, with joints at the given coordinates."""
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
    """Whether no joint of the robot has damping."""
    parts = [getattr(robot.joints[name], kind, None) for name in robot.joint_names for kind in ("effort", "drag")]
    return not any(bool(jnp.any(part.damping != 0)) for part in parts if part is not None)
