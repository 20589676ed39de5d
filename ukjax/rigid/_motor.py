"""Motors on joints, and joints geared to each other.

q: coordinates; c: coordinate of a joint that has a single coordinate.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from .._types import Coordinates, RowValues
from . import _linkage, _turns
from ._abstract_robot import AbstractRobot
from ._effort import Gear, Motor


class Geared(eqx.Module):
    """The residual of a gear of a robot, a function of (q, t)."""

    robot: AbstractRobot
    gear: str = eqx.field(static=True)

    def __call__(self, q: Coordinates, t: Array) -> RowValues:
        gear: Gear = self.robot.gears[self.gear]
        c = jnp.zeros((), q.dtype) if gear.second is None else _turns.coordinate(self.robot, q, gear.second)
        wanted = jnp.zeros_like(c)
        for a in gear.coefficients[::-1]:
            wanted = wanted * c + a
        return (_turns.coordinate(self.robot, q, gear.first) - wanted)[None]


class Motors(eqx.Module):
    """The actuation matrix G (n, p) of motors on joints of a robot, a function of (q, t)."""

    robot: AbstractRobot
    motors: tuple[Motor, ...]

    def __call__(self, q: Coordinates, t: Array) -> Array:
        rest = jnp.zeros(self.robot.layout.n, q.dtype)
        columns = [m.gear * _turns.rows(self.robot, m.joint, q, rest, t)[0] for m in self.motors]
        return jnp.stack(columns, axis=1)


def motor_of(robot: AbstractRobot, name: str, what: str = "names") -> Motor:
    """A motor by name, or a unit motor by the name of its joint; raises ValueError or TypeError for other names."""
    if not isinstance(name, str):
        raise TypeError(f'{what} must be of motors or joints, as in actuation("hip", "knee"), but one is {name!r}.')
    if name not in robot.motors and name not in robot.joints:
        has = f"motors, {robot.motor_names}, nor of the joints, {robot.joint_names}"
        raise ValueError(f"{what} must be of motors or joints, but {name!r} is none of the {has}.")
    motor = robot.motors.get(name, Motor(name))
    _linkage.driven(robot, motor.joint)
    return motor


def actuation(robot: AbstractRobot, names: tuple[str, ...]) -> Any:
    """The actuation matrix G (n, p) of `motor_of` each name; a function of (q, t) if a joint is a constraint."""
    if not names:
        raise ValueError(f"names must hold motors or joints: the robot has no motors, and joints {robot.joint_names}.")
    motors = tuple(motor_of(robot, name) for name in names)
    if any(motor.joint not in robot.layout.tree for motor in motors):
        return Motors(robot, motors)
    G = jnp.zeros((robot.layout.n, len(motors)), robot.gravity.dtype)
    for k, motor in enumerate(motors):
        G = G.at[robot.layout.node(motor.joint).v[0], k].set(motor.gear)
    return G
